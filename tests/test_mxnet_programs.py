"""Programs in the manner of MXNet's tutorials, unchanged under `mezzo.compat.mxnet`: they print what a real MXNet 1.9.1
printed, within 1 %."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

import mezzo.compat.mxnet as mx
from mezzo.ops.errors import InputError

from .mxnet.programs import NAMES, NUMBERS, printed

EXPECTED = json.loads(NUMBERS.read_text("utf8"))


@pytest.fixture
def installed() -> Iterator[None]:
    """`import mxnet` is ours for a while."""
    before = set(sys.modules)
    mx.install()
    yield
    for name in [n for n in sys.modules if n.split(".")[0] == "mxnet"]:
        if name not in before:
            del sys.modules[name]


def differs(line: str, right: str) -> bool:
    words, others = line.split(), right.split()
    if len(words) != len(others):
        return True
    for word, other in zip(words, others, strict=True):
        try:
            value, wanted = float(word), float(other)
        except ValueError:
            if word != other:
                return True
            continue
        if not abs(value - wanted) <= 0.01 * abs(wanted) + 1e-6:
            return True
    return False


def test_lines_are_compared() -> None:
    assert differs("a 1.02", "a 1.0")
    assert differs("b 1.0", "a 1.0")
    assert differs("a 1.0 2", "a 1.0")
    assert differs("a nan", "a 1.0")
    assert not differs("a 1.005 True", "a 1.0 True")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", NAMES)
def test_a_program_prints_what_mxnet_prints(name: str) -> None:
    lines = printed(name)
    assert len(lines) == len(EXPECTED[name])
    assert not [f"{a!r}, MXNet {b!r}" for a, b in zip(lines, EXPECTED[name], strict=True) if differs(a, b)]


def test_every_program_has_its_numbers() -> None:
    assert set(EXPECTED) == set(NAMES)
    assert len(NAMES) >= 10


def test_a_real_one_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mxnet", json)
    with pytest.raises(InputError, match="imported already"):
        mx.install()
