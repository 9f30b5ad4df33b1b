"""Kernels that look for the best of many, against the references: the same places, in the same order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.ops import Context, DType, Tensor
from mezzo.ops.errors import ShapeError
from mezzo.ops.types import Array
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

RNG = np.random.default_rng(0)


def compared(op: str, xs: list[Array | None], kernel: str, outputs: int = 1, domain: str = "", **attrs: Any) -> None:
    g = GraphBuilder()
    fed = {f"x{i}": x for i, x in enumerate(xs) if x is not None}
    names = [None if x is None else g.input(f"x{i}", Tensor(DType.of(x.dtype), x.shape)) for i, x in enumerate(xs)]
    made = g.op(op, *names, outputs=outputs, domain=domain, **attrs)
    graph = g.graph(list(made) if isinstance(made, tuple | list) else [made])
    session = Session(graph)
    with np.errstate(all="ignore"):
        found = list(session.run(fed).values())
        (node,) = graph.nodes
        want = node.record.reference(Context(np), *xs, **attrs)
    assert [s.choice.kernel for s in session.program.steps] == [kernel]
    for a, b in zip(found, want if isinstance(want, tuple) else (want,), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    "x",
    [
        RNG.standard_normal((3, 1500)).astype(np.float32),
        RNG.integers(-20, 20, (2, 3000)),  # of equals the first
        RNG.integers(0, 4, (2, 2100)).astype(np.uint8),
        RNG.integers(-9, 9, (2, 2100)).astype(np.float16),
        np.where(RNG.random((2, 2100)) < 0.3, np.nan, RNG.standard_normal((2, 2100))),
        np.where(RNG.random((2, 2100)) < 0.001, np.nan, np.inf).astype(np.float32),
        np.array([1, 2, 1], np.float32),
        np.zeros((0, 5000), np.float32),
    ],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)
def test_the_best_of_rows(x: Array, largest: int) -> None:
    for count in (0, 1, 3, 40, x.shape[-1]):
        if count <= x.shape[-1]:
            compared("TopK", [x, np.array([count])], "numpy.top_k", 2, largest=largest)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_best_along_any_axis(axis: int) -> None:
    compared("TopK", [RNG.integers(-30, 30, (40, 20, 60)), np.array([4])], "numpy.top_k", 2, axis=axis)


def boxes(images: int, count: int, spread: float) -> Array:
    corner, size = RNG.random((images, count, 2)) * spread, RNG.random((images, count, 2)) - 0.2
    return np.concatenate([corner, corner + size], -1).astype(np.float32)


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize(("count", "spread"), [(1, 1.0), (63, 2.0), (300, 3.0), (900, 60.0)])
def test_boxes_that_overlap_no_better_one(count: int, spread: float, centred: int) -> None:
    """More of them than a word has bits, or a chunk has boxes; equal scores; some that are not finite."""
    sides, scores = boxes(2, count, spread), (RNG.integers(0, 50, (2, 2, count)) / 50).astype(np.float32)
    sides[:, ::97, 1], sides[:, 5::101, 2], scores[:, 0, 3::89] = np.nan, np.inf, np.nan
    for most in (0, 1, 70, 10_000):
        for ratio, least in ((None, None), (0.5, 0.3), (0.0, None), (1.0, 0.9)):
            limits = [None if v is None else np.array([v], np.float32) for v in (ratio, least)]
            compared(
                "NonMaxSuppression", [sides, scores, np.array([most]), *limits], "numpy.boxes", center_point_box=centred
            )


def test_no_boxes_and_no_limits() -> None:
    compared("NonMaxSuppression", [np.zeros((1, 0, 4), np.float32), np.zeros((1, 2, 0), np.float32)], "numpy.boxes")
    compared("NonMaxSuppression", [boxes(1, 9, 1.0), RNG.random((1, 1, 9)).astype(np.float32)], "numpy.boxes")


@pytest.mark.parametrize(("count", "spread"), [(0, 1.0), (1, 1.0), (40, 3.0), (64, 2.0), (65, 2.0), (700, 8.0)])
@pytest.mark.parametrize("classes", [None, 1, 4])
def test_boxes_that_stay(count: int, spread: float, classes: int | None) -> None:
    """Some are gone before, some have no area, some lie in the same place."""
    corners = boxes(2, count, spread)
    corners[:, ::7, 2:] = corners[:, ::7, :2]
    corners[:, 1::5] = corners[:, ::5][:, : corners[:, 1::5].shape[1]]
    alive = RNG.random((2, count)) < 0.8
    labels = None if classes is None else RNG.integers(0, classes, (2, count)).astype(np.float32)
    for overlap, inclusive in ((0.45, 0), (0.45, 1), (0.0, 0), (1.0, 1)):
        given = [corners, alive] if labels is None else [corners, alive, labels]
        compared("KeepBoxes", given, "numpy.keep_boxes", overlap=overlap, inclusive=inclusive, domain="mezzo")


@pytest.mark.parametrize(("anchors", "classes"), [(1, 2), (30, 3), (600, 5)])
@pytest.mark.parametrize("most", [-1, 1, 40, 10_000])
def test_what_a_detector_sees(anchors: int, classes: int, most: int) -> None:
    scores = (RNG.integers(0, 20, (2, classes, anchors)) / 40).astype(np.float32)  # many are equal
    shifts, given = RNG.standard_normal((2, 4 * anchors)).astype(np.float32), boxes(1, anchors, 2.0)
    for more in ({}, {"together": 1, "clip": 0}, {"overlap": 0.0}, {"threshold": 0.9}):
        settings: dict[str, Any] = {"overlap": 0.3, "most": most, **more}
        compared("DetectBoxes", [scores, shifts, given], "numpy.detect_boxes", domain="mezzo", **settings)


def test_a_detector_of_the_background_alone_is_refused() -> None:
    g, kinds = GraphBuilder(), [Tensor(DType.FLOAT, dims) for dims in ((1, 1, 3), (1, 12), (1, 3, 4))]
    given = [g.input(f"x{i}", kind) for i, kind in enumerate(kinds)]
    with pytest.raises(ShapeError, match="no class beside the background"):
        Session(g.graph([g.op("DetectBoxes", *given, domain="mezzo")]))


@pytest.mark.parametrize("shape", [(300, 3), (2, 256, 8), (256, 2)])
def test_softmax_of_many_short_rows(shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32) * 30
    x[..., :1] = np.where(RNG.random((*shape[:-1], 1)) < 0.1, -np.inf, x[..., :1])
    g = GraphBuilder()
    session = Session(g.graph([g.Softmax(g.input("x", Tensor(DType.FLOAT, shape)), axis=-1)]))
    (found,) = session.run({"x": x}).values()
    (node,) = session.graph.nodes
    assert [s.choice.kernel for s in session.program.steps] == ["numpy.short_softmax"]
    np.testing.assert_allclose(found, node.record.reference(Context(np), x, axis=-1), rtol=1e-6)
