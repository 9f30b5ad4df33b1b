"""Programs in the manner of MXNet's tutorials, unchanged under `mezzo.compat.mxnet`: they print what a real MXNet 1.9.1
printed, within 1 %."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mezzo.compat.mxnet as mx
from mezzo.ops.errors import InputError, ShapeError

from .mxnet import official
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


@pytest.mark.soak
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", official.NAMES)
def test_a_tutorial_of_mxnet_prints_what_it_printed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell by cell; where MXNet's own numbers depend on its generator, as many are printed."""
    folder = os.environ.get("MXNET_TUTORIALS")
    if folder is None:
        pytest.xfail("MXNET_TUTORIALS does not name docs/tutorials of MXNet 1.4.1")
    monkeypatch.chdir(Path(__file__).parent)
    expected = json.loads(official.NUMBERS.read_text("utf8"))[name]
    found = [*official.printed(Path(folder, f"{name}.md"), 1)]
    assert len(found) == len(expected)
    for i, (cell, right) in enumerate(zip(found, expected, strict=True)):
        if right is None:  # it fails in MXNet too
            continue
        assert not isinstance(cell, str), f"cell {i}: {cell}"
        assert len(cell) == (right if isinstance(right, int) else len(right)), f"cell {i} prints {cell}"
        if not isinstance(right, int):
            assert not [(a, b) for a, b in zip(cell, right, strict=True) if not abs(a - b) <= 0.01 * abs(b) + 1e-6], i


def test_every_program_has_its_numbers() -> None:
    assert set(EXPECTED) == set(NAMES)
    assert len(NAMES) >= 10


def test_a_real_one_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mxnet", json)
    with pytest.raises(InputError, match="imported already"):
        mx.install()


def test_layers_share_what_params_gives_them() -> None:
    net = mx.gluon.nn.HybridSequential()
    first = mx.gluon.nn.Dense(4, in_units=4)
    net.add(first, mx.gluon.nn.Dense(4, in_units=4, params=first.params))
    net.initialize()
    assert [*net.collect_params()] == ["0.weight", "0.bias"]
    assert net[1].weight is first.weight


@pytest.mark.parametrize("count", [4, 7])
def test_a_num_hidden_is_that_of_its_weight(count: int) -> None:
    x, w, b = mx.nd.ones((2, 3)), mx.nd.ones((4, 3)), mx.nd.ones((4,))
    if count == 4:
        assert mx.nd.FullyConnected(x, w, b, num_hidden=count).shape == (2, 4)
    else:
        with pytest.raises(ShapeError, match="num_hidden=7, and axis 0"):
            mx.nd.FullyConnected(x, w, b, num_hidden=count)
