"""What callers feed: arrays of every kind are read as they are, and what no operator could read is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mezzo.ops import DType, Tensor
from mezzo.ops.errors import InputError
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

from .peers import peer

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def doubled() -> Session:
    g = GraphBuilder()
    return Session(g.graph([g.MatMul(g.input("x", f32("n", 4)), g.const(2 * np.eye(4, dtype=np.float32)))]))


READ: dict[str, Callable[[], Any]] = {
    "big-endian": lambda: X.astype(">f4"),
    "in Fortran's order": lambda: np.asfortranarray(X),
    "backwards": lambda: X[::-1].copy()[::-1],
    "unaligned": lambda: np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 4),
    "a list": X.tolist,
    "a buffer": lambda: memoryview(X),  # type: ignore[arg-type]
    "masked nowhere": lambda: np.ma.masked_array(X, mask=False),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "masked": (lambda: np.ma.masked_array(X, mask=X > 3), "masked"),
    "float64": (lambda: X.astype(np.float64), "is float64, expected float32"),
    "one row": (lambda: X[0], "expected rank 2"),
    "too few columns": (lambda: X[:, :3], "has 3 in axis 1, expected 4"),
    "nothing": (lambda: None, "input 'x'"),
}


@pytest.mark.parametrize("name", READ)
def test_arrays_are_read(name: str) -> None:
    session = doubled()
    for _ in range(2):
        np.testing.assert_array_equal(session(READ[name]()), 2 * X)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused(name: str) -> None:
    feed, why = REFUSED[name]
    with pytest.raises(InputError, match=why):
        doubled().run({"x": feed()})


def test_tensors_that_numpy_does_not_take() -> None:
    torch = peer("torch")
    x = torch.from_numpy(X.copy())
    np.testing.assert_array_equal(doubled()(x), 2 * X)
    for odd in (x.bfloat16(), x.clone().requires_grad_()):
        with pytest.raises(InputError, match="input 'x' is no array"):
            doubled().run({"x": odd})


def three() -> Session:
    g = GraphBuilder()
    x, w = g.input("x", f32(64, 64)), g.const(np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64))
    return Session(g.graph([g.Exp(x), g.MatMul(x, w), g.Softmax(x, axis=-1)]))


@pytest.mark.parametrize("odd", [1, np.nan])
@pytest.mark.parametrize("at", range(3))
def test_a_result_may_lie_where_a_feed_lay(at: int, odd: float) -> None:
    """Other steps read the feed after the result was written, and a NaN makes the run again."""
    session, x = three(), np.linspace(-2, 2, 4096, dtype=np.float32).reshape(64, 64)
    x[3, 5] = odd
    names = [p.name for p in session.outputs]
    wanted = session.run({"x": x})
    for _ in range(2):
        memory = np.zeros(4096 + 128, np.float32)
        fed, buffer = memory[:4096].reshape(64, 64), memory[64:-64].reshape(64, 64)  # a part of it
        fed[...] = x
        found = session.run({"x": fed}, outputs={names[at]: buffer})
        assert found[names[at]] is buffer
        for name in names:
            np.testing.assert_array_equal(found[name], wanted[name])


def test_results_have_memory_of_their_own() -> None:
    session, memory = three(), np.zeros((128, 64), np.float32)
    first, second, _ = (p.name for p in session.outputs)
    with pytest.raises(InputError, match="share memory"):
        session.run({"x": np.ones((64, 64), np.float32)}, outputs={first: memory[:64], second: memory[63:127]})


def test_texts_may_be_bytes() -> None:
    g = GraphBuilder()
    session = Session(g.graph([g.Identity(g.input("x", Tensor(DType.STRING, ("n",))))]))
    assert session(np.array([b"a", "ü".encode()])).tolist() == ["a", "ü"]
    with pytest.raises(InputError, match=r"input 'x' is no array: .*can't decode byte 0xff"):
        session(np.array([b"\xff"]))
