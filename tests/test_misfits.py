"""Inputs whose sizes do not fit together, fed to programs planned for any size: nothing is answered that the reference
refuses, or that it answers otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from mezzo.ops import OPS, Op, Tensor
from mezzo.ops.errors import MezzoError
from mezzo.ops.types import f32, i64
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.interpreter import evaluate

from .graphs import sample_graph

TRIES = int(os.environ.get("MISFITS", "2"))  # of each sample; 40 take three minutes
UNREAD = ("Expand",)  # whose sizes are not read where the result can only have those of the operand
CASES = [
    pytest.param(op, id=f"{op.domain or 'onnx'}.{op.name}")
    for _, op in sorted(OPS.items())
    if op.deterministic
    and op.domain != "mezzo"
    and op.name not in UNREAD  # the operands of our gradients are made by graphs
]


def opened(graph: Graph, feeds: dict[str, Any]) -> Graph:
    """The graph with inputs of any size."""
    types = {n: graph.types[n] for n in graph.inputs}
    for name, x in feeds.items():
        known = types[name]
        if isinstance(x, np.ndarray) and isinstance(known, Tensor):
            types[name] = known.of((None,) * x.ndim)
    return graph.but(types=types)


def misfits(feeds: dict[str, Any], rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Feeds with one axis of one array shorter or longer. Lists of integers are left: they are sizes and axes."""
    choices = [
        (name, axis, size)
        for name, x in feeds.items()
        if isinstance(x, np.ndarray) and (x.ndim > 1 or x.dtype.kind != "i")
        for axis, n in enumerate(x.shape)
        for size in sorted({1, n - 1, n + 1, 2 * n} - {n, -1, -2})
        if n
    ]
    for i in rng.permutation(len(choices))[:TRIES]:
        name, axis, size = choices[i]
        x = feeds[name]
        yield feeds | {name: np.ascontiguousarray(np.take(x, np.arange(size) % x.shape[axis], axis=axis))}


def outcome(what: Callable[..., Any], *args: Any) -> Any:
    """The results, or the error."""
    try:
        with np.errstate(all="ignore"):
            return what(*args)
    except MezzoError as error:
        return error


@pytest.mark.parametrize("op", CASES)
def test_misfits_are_refused(op: Op) -> None:
    rng = np.random.default_rng(len(op.name))
    for sample in op.samples:
        graph, feeds = sample_graph(op, sample)
        if len(feeds) < 2:
            continue
        free = opened(graph, feeds)
        session = Session(free)
        for fed in misfits(feeds, rng):
            shapes = {n: x.shape for n, x in fed.items() if isinstance(x, np.ndarray)}
            got, meant = outcome(session.run, fed), outcome(evaluate, free, fed)
            if isinstance(got, MezzoError):
                continue  # a program may refuse more than the reference, which broadcasts
            assert not isinstance(meant, MezzoError), f"{shapes} is answered, and the reference says: {meant}"
            for name, y in meant.items():
                if isinstance(y, np.ndarray) and y.dtype.kind in "biuf":
                    assert got[name].shape == y.shape, shapes
                    finite = np.abs(y[np.isfinite(y)], dtype=np.float64) if y.dtype.kind == "f" else np.abs(y)
                    close = 1e-3 * finite.max(initial=1) if y.dtype.kind == "f" else 0
                    np.testing.assert_allclose(got[name], y, rtol=0, atol=close, err_msg=str(shapes))


@pytest.mark.parametrize("onednn", [True, False])
def test_an_empty_image_is_resized_to_an_empty_one(onednn: bool) -> None:
    """Other sizes are refused in the model's words: 3 rows divided by 0 were an internal error."""
    g = GraphBuilder()
    resized = g.Resize(g.input("x", f32(1, 1, "n", 4)), None, None, g.input("sizes", i64(4)), mode="nearest")
    session = Session(g.graph([resized]), onednn=onednn)
    image = np.ones((1, 1, 0, 4), np.float32)
    assert session(image, np.array([1, 1, 0, 8])).shape == (1, 1, 0, 8)
    with pytest.raises(MezzoError, match="axis 2 has no elements to make others of"):
        session(image, np.array([1, 1, 3, 8]))
