"""Operators that ONNX once had and that no single node replaces today. They live in the domain `mezzo`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.rules import ints, narrow, widen
from ..op import OPS, Body, Builder, Context, Sample, Subgraph, Value, op
from ..tensor.control import scan
from ..types import Array, Tensor, Type, f32


def _rows(x: Array, axis: int) -> Array:
    """The matrix that opsets before 13 made of a tensor: dims before `axis` by the others."""
    at = axis + x.ndim if axis < 0 else axis
    return x.reshape(int(np.prod(x.shape[:at], dtype=np.int64)), int(np.prod(x.shape[at:], dtype=np.int64)))


def _shifted(k: Context, x: Array, axis: int) -> tuple[Array, Array]:
    rows = _rows(x, axis)
    if not rows.size:
        return rows, rows
    moved = rows - rows.max(1, keepdims=True)
    return moved, k.xp.exp(moved)


OLD_SOFTMAX_SAMPLES = [
    Sample([f32(2, 3)]),
    Sample([f32(2, 3, 4)], {"axis": 1}),
    Sample([f32(2, 3, 4)], {"axis": -1}),
    Sample([f32(2, 3, 1, 1)], {"axis": 0}),
    Sample([f32(4)]),
]


@op("SoftmaxFlattened", domain="mezzo", kind="softmax", since=1, samples=OLD_SOFTMAX_SAMPLES)
def softmax_flattened(k: Context, x: Any, *, axis: int = 1) -> Any:
    """Softmax as ONNX had it before opset 13: over all dims from `axis` on together."""
    _, e = _shifted(k, x, axis)
    return (e / e.sum(1, keepdims=True)).reshape(x.shape)


@softmax_flattened.body
def _(g: Builder, xs: Sequence[Value], types: Sequence[Type | None], *, axis: int = 1) -> Value:
    return g.Reshape(g.Softmax(g.Flatten(xs[0], axis=axis), axis=1), g.shape_of(xs[0]))


@op("LogSoftmaxFlattened", domain="mezzo", kind="softmax", since=1, samples=OLD_SOFTMAX_SAMPLES)
def log_softmax_flattened(k: Context, x: Any, *, axis: int = 1) -> Any:
    """LogSoftmax as ONNX had it before opset 13: over all dims from `axis` on together."""
    moved, e = _shifted(k, x, axis)
    return (moved - k.xp.log(e.sum(1, keepdims=True))).reshape(x.shape)


@log_softmax_flattened.body
def _(g: Builder, xs: Sequence[Value], types: Sequence[Type | None], *, axis: int = 1) -> Value:
    return g.Reshape(g.LogSoftmax(g.Flatten(xs[0], axis=axis), axis=1), g.shape_of(xs[0]))


@op("HardmaxFlattened", domain="mezzo", since=1, samples=OLD_SOFTMAX_SAMPLES)
def hardmax_flattened(k: Context, x: Any, *, axis: int = 1) -> Any:
    """Hardmax as ONNX had it before opset 13: over all dims from `axis` on together."""
    rows = _rows(x, axis)
    return OPS["", "Hardmax"].run(k, [rows], {"axis": 1})[0].reshape(x.shape) if rows.size else x.copy()


@hardmax_flattened.body
def _(g: Builder, xs: Sequence[Value], types: Sequence[Type | None], *, axis: int = 1) -> Value:
    return g.Reshape(g.Hardmax(g.Flatten(xs[0], axis=axis), axis=1), g.shape_of(xs[0]))


@op(
    "PReluPerChannel",
    domain="mezzo",
    since=1,
    samples=[Sample([f32(2, 3, 4), f32(3)]), Sample([f32(2, 3, 2, 2), f32(1)]), Sample([f32(2, 3), f32(3)])],
)
def p_relu_per_channel(k: Context, X: Array, slope: Array) -> Array:
    """PRelu as ONNX had it before opset 7: a slope with one entry, or with one per channel."""
    shaped = slope.reshape(-1, *(1,) * (X.ndim - 2)) if slope.ndim == 1 and slope.size > 1 else slope
    return OPS["", "PRelu"].run(k, [X, shaped], {})[0]


@p_relu_per_channel.body
def _(g: Builder, xs: Sequence[Value], types: Sequence[Type | None]) -> Value | None:
    x, slope = types
    if not isinstance(x, Tensor) or not isinstance(slope, Tensor) or x.dims is None or slope.dims is None:
        return None
    per_channel = len(slope.dims) == 1 and slope.dims != (1,)
    shape = np.array([-1, *(1,) * (len(x.dims) - 2)])
    return g.PRelu(xs[0], g.Reshape(xs[1], g.const(shape)) if per_channel else xs[1])


@op(
    "BatchNormalizationPerElement",
    domain="mezzo",
    since=1,
    samples=[Sample([f32(2, 3, 4), f32(3, 4), f32(3, 4), f32(3, 4), np.full((3, 4), 0.5, np.float32)])],
)
def batch_normalization_per_element(
    k: Context, X: Array, scale: Array, B: Array, mean: Array, var: Array, *, epsilon: float = 1e-5, spatial: int = 0
) -> Array:
    """BatchNormalization as ONNX had it before opset 9 with spatial=0: statistics for each element of a sample."""
    factor = widen(scale) / k.xp.sqrt(widen(var) + np.float32(epsilon))
    return narrow((widen(X) - widen(mean)) * factor + widen(B), X.dtype)


@batch_normalization_per_element.body
def _(
    g: Builder, xs: Sequence[Value], types: Sequence[Type | None], *, epsilon: float = 1e-5, spatial: int = 0
) -> Value:
    x, scale, bias, mean, var = xs
    assert isinstance(types[0], Tensor)
    factor = g.Div(scale, g.Sqrt(g.Add(var, g.const(epsilon, types[0].dtype))))
    return g.Add(g.Mul(g.Sub(x, mean), factor), bias)


@op(
    "GroupNormalizationPerGroup",
    domain="mezzo",
    since=1,
    samples=[Sample([f32(2, 4, 3), f32(2), f32(2)], {"num_groups": 2}),
             Sample([f32(1, 6, 2, 2), f32(3), f32(3)], {"num_groups": 3, "epsilon": 0.1})],
)  # fmt: skip
def group_normalization_per_group(
    k: Context, X: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5, num_groups: int
) -> Array:
    """GroupNormalization as ONNX had it before opset 21: scale and bias have one entry per group."""
    each = X.shape[1] // num_groups
    inputs = [X, k.xp.repeat(scale, each), k.xp.repeat(bias, each)]
    return OPS["", "GroupNormalization"].run(k, inputs, {"epsilon": epsilon, "num_groups": num_groups})[0]


@group_normalization_per_group.body
def _(
    g: Builder, xs: Sequence[Value], types: Sequence[Type | None], *, epsilon: float = 1e-5, num_groups: int
) -> Value:
    channels = g.Slice(g.shape_of(xs[0]), g.const([1]), g.const([2]))
    shape = g.Concat(g.const([num_groups]), g.Div(channels, g.const([num_groups])), axis=0)
    spread = [g.Reshape(g.Expand(g.Reshape(part, g.const([num_groups, 1])), shape), g.const([-1])) for part in xs[1:]]
    return g.GroupNormalization(xs[0], *spread, epsilon=epsilon, num_groups=num_groups)


def _running(g: Builder, total: Any, x: Any) -> tuple[Any, ...]:
    y = g.Add(total, x)
    return y, y


RUNNING = {"num_scan_inputs": 1, "body": Body([f32(2), f32(2)], _running)}


@op(
    "ScanRows",
    domain="mezzo",
    complex_numbers="unchecked",
    since=1,
    outputs=("final_state_and_scan_outputs*",),
    samples=[
        Sample([None, f32(3, 2), f32(3, 4, 2)], RUNNING, 2),
        Sample([np.array([4, 1, 2]), f32(3, 2), f32(3, 4, 2)], {**RUNNING, "directions": (1,)}, 2),
    ],
)
def scan_rows(
    k: Context,
    sequence_lens: Array | None,
    *initial_state_and_scan_inputs: Array,
    body: Subgraph,
    directions: tuple[int, ...] | None = None,
    num_scan_inputs: int,
) -> tuple[Array, ...]:
    """Scan as ONNX had it in opset 8: once for each row of a batch, each as long as `sequence_lens` says."""
    n = len(initial_state_and_scan_inputs) - num_scan_inputs
    batch, longest = initial_state_and_scan_inputs[-1].shape[:2]
    lengths = [longest] * batch if sequence_lens is None else ints(sequence_lens)
    results: list[list[Array]] = []
    for row, length in enumerate(lengths):
        states = [x[row] for x in initial_state_and_scan_inputs[:n]]
        scans = [x[row, :length] for x in initial_state_and_scan_inputs[n:]]
        scanned = scan.reference(
            k, *states, *scans, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions
        )
        longer = [np.concatenate([y, np.zeros((longest - length, *y.shape[1:]), y.dtype)]) for y in scanned[n:]]
        results.append([*(k.xp.array(s) for s in scanned[:n]), *longer])
    return tuple(k.xp.stack(parts) for parts in zip(*results, strict=True))


@scan_rows.infer
def _(
    sequence_lens: Tensor | None, *initial_state_and_scan_inputs: Tensor, body: Subgraph, num_scan_inputs: int
) -> tuple[Type, ...]:
    rows = [t.of(None if t.dims is None else t.dims[1:]) for t in initial_state_and_scan_inputs]
    batches = {t.dims[0] for t in initial_state_and_scan_inputs if t.dims is not None}
    batch = batches.pop() if len(batches) == 1 else None
    results = scan.inferred(*rows, body=body, num_scan_inputs=num_scan_inputs)
    assert isinstance(results, tuple)
    return tuple(t.of(None if t.dims is None else (batch, *t.dims)) for t in results if isinstance(t, Tensor))


@scan_rows.body
def _(
    g: Builder,
    xs: Sequence[Value],
    types: Sequence[Type | None],
    *,
    body: Subgraph,
    directions: tuple[int, ...] | None = None,
    num_scan_inputs: int,
) -> tuple[Value, ...] | None:
    """A Scan over the rows, and in it the Scan of one. Rows of several lengths have no such form."""
    operands = [t for t in types[1:] if isinstance(t, Tensor) and t.dims is not None]
    if xs[0] is not None or len(operands) < len(xs) - 1:
        return None

    def row(b: Any, *parts: Value) -> tuple[Value, ...]:
        given = {} if directions is None else {"scan_input_directions": directions}
        results = b.op("Scan", *parts, outputs=many, body=body, num_scan_inputs=num_scan_inputs, **given)
        return results if many > 1 else (results,)

    many, rows = len(body.outputs), Body([t.of(t.shape[1:]) for t in operands], row)
    batched = g.op("Scan", *xs[1:], outputs=many, body=rows, num_scan_inputs=len(operands))
    return batched if many > 1 else (batched,)
