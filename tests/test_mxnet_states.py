"""States of optimizers as MXNet saves them, read as data: nothing in the files is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.importers.mxnet import OptimizerStates, read_states, states, stream
from mezzo.ops.budget import Budget
from mezzo.ops.errors import BudgetError, MezzoError, ModelError

from .mxnet import states as maker
from .mxnet.damage import damage

with np.load(maker.FILE) as _page:
    PAGE = {k: _page[k] for k in _page}
NAMES = sorted(k.removesuffix(".states") for k in PAGE if k.endswith(".states"))


def content(name: str) -> bytes:
    return bytes(PAGE[f"{name}.states"].tobytes())


def flat(prefix: str, state: Any) -> dict[str, Any]:
    if isinstance(state, tuple):
        return {k: v for i, s in enumerate(state) for k, v in flat(f"{prefix}/{i}", s).items()}
    return {} if state is None else {prefix: state}


def all_arrays(read: OptimizerStates, name: str) -> dict[str, Any]:
    return {k: v for index, state in read.states.items() for k, v in flat(f"{name}/{index}", state).items()}


@pytest.mark.parametrize("name", NAMES)
def test_states_are_those_of_mxnet(name: str) -> None:
    read = read_states(content(name))
    found, right = all_arrays(read, name), {k: v for k, v in PAGE.items() if k.startswith(f"{name}/")}
    assert found.keys() == right.keys()
    assert len(read.states) == 2
    for key, value in right.items():
        assert found[key].dtype == value.dtype
        np.testing.assert_array_equal(found[key], value)


def test_settings_are_plain_data(tmp_path: Path) -> None:
    (tmp_path / "t.states").write_bytes(content("adam"))
    read = read_states(tmp_path / "t.states")
    assert (read.optimizer, read.updates, read.settings["beta1"]) == ("Adam", 2, 0.8)
    assert read.settings["lr_scheduler"]["class"] == "FactorScheduler"
    assert read.settings["lr_scheduler"]["factor"] == 0.5
    assert (read_states(content("module")).optimizer, read_states(content("module")).updates) == ("", 0)
    assert read_states(value_of(({}, None)) + b".").states == {}


def value_of(value: Any) -> bytes:
    """The steps that make a value; bytes are steps already."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, tuple | list):
        close = b"t" if isinstance(value, tuple) else b"l"
        return b"(" + b"".join(map(value_of, value)) + close
    if isinstance(value, dict):
        return b"(" + b"".join(value_of(k) + value_of(v) for k, v in value.items()) + b"d"
    return b"N" if value is None else f"I{value}\n".encode() if isinstance(value, int) else f"V{value}\n".encode()


EVIL = b"cbuiltins\nexec\n(Vimport tests.mxnet.states as s; s.ran = True\ntR"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (EVIL, "builtins.exec, which is none of MXNet's"),
        ({0: EVIL}, "builtins.exec"),
        ({0: b"cposix\nsystem\n"}, "posix.system, which is none"),
        ([], "a list, no dict"),
        ({0: "text"}, "a state is a str"),
        ({(0,): None}, "a tuple does not belong"),
        ({None: None}, "no parameter"),
        (({}, 3), "no optimizer"),
        ({0: {1: 2}}, "a state is a dict"),
        ({0: b"cbuiltins\ncomplex\n"}, "complex, which is none"),
        ({0: b"\x8b\xff\xff\xff\x7f"}, "none that states of MXNet have"),
    ],
)
def test_all_else_is_refused(value: Any, says: str) -> None:
    for head in (b"", b"\x80\x02", b"\x80\x04"):
        with pytest.raises(ModelError, match=says):
            read_states(head + value_of(value) + b".")
    assert not hasattr(maker, "ran")


@pytest.mark.parametrize(
    ("bytes_", "says"),
    [
        (b"}(K\x00cmxnet.optimizer\nSGD\n)R" + b"u.", "a state is a mxnet.optimizer.SGD"),
        (b"cmxnet.ndarray.ndarray\nNDArray\n(Nt" + b"b.", "does not belong"),
        (b"}(K\x00cmxnet.ndarray\nNDArray\n(NtR}S'handle'\ncbuiltins\nexec\n", "builtins.exec"),
        (b"}(K\x00cmxnet.ndarray\nNDArray\n(NtRu.", "an array has no bytes"),
        (b"\x80\x09}.", "protocol"),
        (b"}..", "follows its end"),
        (b"h\x05.", "put aside as 5"),
        (b"u.", "a mark is missing"),
        (b"(R.", "a value is missing"),
        (b"I" + b"9" * 5000 + b"\n.", "no number"),
        (b"L" + b"9" * 5000 + b"L\n.", "no number"),
        (b"\x8d" + b"\xff" * 8, "bytes are needed"),
        (b"X\xff\xff\xff\xff", "bytes are needed"),
        (b"T\xff\xff\xff\xff", "bytes are needed"),
        (b"cmxnet.optimizer\nSGD.__init__.__globals__\n.", "none of MXNet's"),
    ],
)
def test_bytes_that_no_mxnet_writes(bytes_: bytes, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        read_states(bytes_)


def test_states_that_grow_by_repetition_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuples of the tuple before, each a hundred times: the file is small, what it says is not."""
    again = b"(" + b"g1\n" * 100 + b"tp1\n"
    whole = b"}I0\n((Ntp1\n" + again * 5 + b"ls."
    monkeypatch.setattr(states, "MOST", 1000)
    with pytest.raises(ModelError, match="too many values"):
        read_states(whole)
    with pytest.raises(BudgetError):
        read_states(content("momentum"), Budget(tensor_elements=4))
    monkeypatch.setattr(stream, "MOST_STEPS", 100)
    with pytest.raises(ModelError, match="more than 100 steps"):
        read_states(b"(" * 101)


def damaged_ones(name: str, count: int, seed: int) -> Any:
    rng, whole = np.random.default_rng(seed), content(name)
    codes = np.frombuffer(b"".join(content(n) for n in NAMES), np.uint8)

    def some(rng: np.random.Generator) -> bytes:
        return bytes(codes[rng.integers(len(codes), size=int(rng.integers(1, 9)))])

    def one(rng: np.random.Generator) -> bytes:
        return bytes([codes[rng.integers(len(codes))]])

    for _ in range(count):
        yield damage(whole, rng, b".", some, one)


def outcome(found: bytes) -> None:
    try:
        read = read_states(found, Budget(tensor_elements=1 << 20))
    except MezzoError:
        return
    arrays = {id(a): a for a in all_arrays(read, "").values() if isinstance(a, np.ndarray)}
    assert sum(a.nbytes for a in arrays.values()) <= 4 * max(len(found), 1 << 12)


@pytest.mark.parametrize("name", ["adam", "protocol0", "protocol2"])
def test_damaged_states_are_an_error_or_states(name: str) -> None:
    for size in range(0, len(content(name)), 29):
        with pytest.raises(MezzoError):
            read_states(content(name)[:size])
    for damaged in damaged_ones(name, 60, 1):
        outcome(damaged)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_many_mutations_of_states(name: str) -> None:
    for damaged in damaged_ones(name, int(os.environ.get("MXNET_MUTATIONS", "100000")) // len(NAMES), 7):
        outcome(damaged)
