"""Sequences: Python lists of arrays, held by the host (https://onnx.ai/onnx/operators/onnx__SequenceAt.html).

Nobody ever writes to a list or to an array in it, hence lists share their elements, and growing a list in a loop copies
no element. An array is copied when it enters a sequence and when it leaves one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.broadcast import zeros_like
from ..core.rules import axis_of, ints
from ..errors import ShapeError
from ..op import Body, Builder, Context, GraphBody, Held, Sample, Subgraph, Value, op
from ..types import Array, Dim, DType, Sequence, Tensor, Type, f32, i64, join
from .movement import concat, size_of


def element_of(sequence: Type) -> Type:
    """Return the element type of a sequence. Raises ShapeError for any other type."""
    if not isinstance(sequence, Sequence):
        raise ShapeError(f"{sequence} is no sequence")
    return sequence.element


def _tensor_of(sequence: Type) -> Tensor:
    element = element_of(sequence)
    if not isinstance(element, Tensor):
        raise ShapeError(f"{sequence} does not hold tensors")
    return element


def held(type: Type) -> Type:
    """A type as the element of a container: what is known of one value's elements does not belong to it."""
    return type.forget() if isinstance(type, Tensor) else type


def copied(value: Any) -> Any:
    """A host object or array whose arrays are its own."""
    if isinstance(value, list):
        return [copied(v) for v in value]
    if isinstance(value, dict):
        return {key: copied(v) for key, v in value.items()}
    return value.copy() if hasattr(value, "copy") else value


def _place(position: Array | None, count: int, default: int, most: int) -> int:
    """A position from the front, between 0 and `most`; ShapeError outside of it."""
    at = default if position is None else ints(position)[0]
    if not -count <= at <= most:
        raise ShapeError(f"position {at} is outside a sequence of {count}", hint=f"it runs from {-count} to {most}")
    return at + count if at < 0 else at


def _rows(*sizes: int) -> Held:
    """A sequence of matrices of two columns with so many rows."""
    rows = [np.arange(2 * n, dtype=np.float32).reshape(n, 2) + 10 * i for i, n in enumerate(sizes)]
    return Held(rows, Sequence(f32(None if len(set(sizes)) != 1 else sizes[0], 2)))


EMPTY = Held([], Sequence(i64(None)))
NO_ROWS = Held([], Sequence(f32(None, 2)))


def _front(g: Builder, position: Value, sequence: Value) -> Value:
    """A position in a sequence, counted from the front."""
    at = g.Cast(position, to=DType.INT64.onnx)
    return g.Where(g.Less(at, g.const(0)), g.Add(at, g.SequenceLength(sequence)), at)


@op(
    "SequenceAt",
    complex_numbers="taken",
    since=11,
    outputs=("tensor",),
    samples=[Sample([_rows(2, 3), np.int64(1)]), Sample([_rows(2, 2), np.int32(-2)])],
)
def sequence_at(k: Context, input_sequence: list[Array], position: Array) -> Array:
    n = len(input_sequence)
    return input_sequence[_place(position, n, 0, n - 1)].copy()


@sequence_at.infer
def _(input_sequence: Type, position: Tensor) -> Type:
    return element_of(input_sequence)


@sequence_at.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    sequence, position = xs
    at = _front(g, position, sequence)
    return g.SequenceInsert(g.SequenceErase(zeros_like(g, sequence), at), dys[0], at), None


@op(
    "SequenceConstruct",
    complex_numbers="taken",
    since=11,
    outputs=("output_sequence",),
    samples=[Sample([f32(2, 3), f32(2, 1)]), Sample([i64(2)]), Sample([np.array(["a", "b"], object)])],
)
def sequence_construct(k: Context, *inputs: Array) -> list[Array]:
    return [x.copy() for x in inputs]


@sequence_construct.infer
def _(*inputs: Type) -> Sequence:
    element = held(inputs[0])
    for other in inputs[1:]:
        element = join(element, held(other))
    return Sequence(element)


@sequence_construct.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return tuple(g.SequenceAt(dys[0], g.const(i)) for i in range(len(xs)))


@op(
    "SequenceEmpty",
    since=11,
    outputs=("output",),
    samples=[Sample([]), Sample([], {"dtype": DType.INT64.onnx})],
)
def sequence_empty(k: Context, *, dtype: int | None = None) -> list[Array]:
    return []


@sequence_empty.infer
def _(*, dtype: int | None = None) -> Sequence:
    return Sequence(Tensor(DType.from_onnx(dtype or DType.FLOAT.onnx), None))


@op(
    "SequenceErase",
    complex_numbers="taken",
    since=11,
    outputs=("output_sequence",),
    samples=[Sample([_rows(2, 3, 1)]), Sample([_rows(2, 3, 1), np.int64(0)]), Sample([_rows(1), np.int32(-1)])],
)
def sequence_erase(k: Context, input_sequence: list[Array], position: Array | None = None) -> list[Array]:
    n = len(input_sequence)
    at = _place(position, n, -1, n - 1)
    return input_sequence[:at] + input_sequence[at + 1 :]


@sequence_erase.infer
def _(input_sequence: Type, position: Tensor | None = None) -> Type:
    return Sequence(element_of(input_sequence))


@sequence_erase.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    sequence, position = xs
    gone = g.SequenceAt(sequence, g.const(-1) if position is None else position)
    at = None if position is None else _front(g, position, sequence)
    return g.SequenceInsert(dys[0], zeros_like(g, gone), at), None


@op(
    "SequenceInsert",
    complex_numbers="taken",
    since=11,
    outputs=("output_sequence",),
    samples=[
        Sample([_rows(2, 3), f32(1, 2)]),
        Sample([_rows(2, 2), f32(2, 2), np.int64(-2)]),
        Sample([NO_ROWS, f32(3, 2)]),
        Sample([EMPTY, i64(3), np.int64(0)]),
    ],
)
def sequence_insert(
    k: Context, input_sequence: list[Array], tensor: Array, position: Array | None = None
) -> list[Array]:
    n = len(input_sequence)
    at = _place(position, n, n, n)
    return [*input_sequence[:at], tensor.copy(), *input_sequence[at:]]


@sequence_insert.infer
def _(input_sequence: Type, tensor: Tensor, position: Tensor | None = None) -> Sequence:
    return Sequence(join(element_of(input_sequence), held(tensor)))


@sequence_insert.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    sequence, _, position = xs
    at = g.const(-1) if position is None else _front(g, position, sequence)
    return g.SequenceErase(dys[0], at), g.SequenceAt(dys[0], at), None


@op(
    "SequenceLength",
    complex_numbers="unchecked",
    since=11,
    outputs=("length",),
    samples=[Sample([_rows(2, 3)]), Sample([EMPTY])],
)
def sequence_length(k: Context, input_sequence: list[Array]) -> Array:
    return k.xp.asarray(len(input_sequence), dtype=np.int64)


@sequence_length.infer
def _(input_sequence: Type) -> Tensor:
    element_of(input_sequence)
    return i64()


def _moved(g: Builder, x: Any, by: Any) -> tuple[Any, ...]:
    return g.Add(x, by), g.Shape(x)


@op(
    "SequenceMap",
    complex_numbers="unchecked",
    since=17,
    outputs=("out_sequence*",),
    samples=[
        Sample([_rows(2, 3), f32(2)], {"body": Body([f32(None, 2), f32(2)], _moved)}, outputs=2),
        Sample([_rows(2, 1), _rows(2, 1)], {"body": Body([f32(None, 2), f32(None, 2)], _moved)}, outputs=2),
    ],
)
def sequence_map(
    k: Context, input_sequence: list[Array], *additional_inputs: Array | list[Array], body: Subgraph
) -> tuple[list[Array], ...]:
    for other in additional_inputs:
        if isinstance(other, list) and len(other) != len(input_sequence):
            raise ShapeError(f"sequences of {len(input_sequence)} and {len(other)} values are mapped together")
    sequences: list[list[Array]] = [[] for _ in body.outputs]
    for i, x in enumerate(input_sequence):
        results = k.run(body, x, *(v[i] if isinstance(v, list) else v for v in additional_inputs))
        for out, value in zip(sequences, results, strict=True):
            out.append(copied(value))
    return tuple(sequences)


@sequence_map.infer
def _(input_sequence: Type, *additional_inputs: Type, body: Subgraph) -> tuple[Sequence, ...]:
    each = (t.element if isinstance(t, Sequence) else held(t) for t in additional_inputs)
    return tuple(Sequence(held(t)) for t in body.infer(element_of(input_sequence), *each))


@sequence_map.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, body: GraphBody) -> tuple[Value | None, ...]:
    """A map over the same sequences, of which each element runs again and gives its gradients. What all elements share
    (inputs that are no sequences, captured values) gets the sum of them."""
    n, captured = len(xs), list(g.captured)
    wanted = [i for i in range(n) if g.wants[i]]
    arriving = [j for j, dy in enumerate(dys) if dy is not None]

    def build(b: Builder, *inside: Value) -> list[Value]:
        seeds = dict(zip(arriving, inside[n:], strict=True))
        gradients = b.grad_of(body, inside[:n], [seeds.get(j) for j in range(len(body.outputs))])
        values = [*inside[:n], *captured]
        return [
            zeros_like(b, values[i]) if gradients[i] is None else gradients[i]
            for i in (*wanted, *range(n, len(values)))
        ]

    given = [*xs, *(dys[j] for j in arriving)]
    inside = [t.element if isinstance(t, Sequence) else held(t) for t in map(g.type_of, given)]
    count = len(wanted) + len(captured)
    results = g.SequenceMap(*given, body=Body(inside, build), outputs=count)
    values = [*(xs[i] for i in wanted), *captured]
    shared = [i >= len(wanted) or not isinstance(g.type_of(v), Sequence) for i, v in enumerate(values)]
    parts = zip((results,) if count == 1 else results, values, shared, strict=True)
    sums = [_sum(g, dx, v) if share else dx for dx, v, share in parts]
    dxs = dict(zip(wanted, sums, strict=False))
    return *(dxs.get(i) for i in range(n)), *sums[len(wanted) :]


def _sum(g: Builder, parts: Value, like: Value) -> Value:
    """The sum of the gradients of one value that a sequence holds."""

    def step(b: Builder, i: Value, go: Value, total: Value) -> tuple[Value, ...]:
        return go, b.total([total, b.SequenceAt(parts, i)])

    inside = [i64(), Tensor(DType.BOOL, ()), held(g.type_of(like))]
    return g.Loop(g.SequenceLength(parts), None, zeros_like(g, like), body=Body(inside, step))


@op(
    "ConcatFromSequence",
    complex_numbers="taken",
    since=11,
    outputs=("concat_result",),
    samples=[
        Sample([_rows(2, 3)], {"axis": 0}),
        Sample([_rows(2, 2)], {"axis": -1}),
        Sample([_rows(2, 2, 2)], {"axis": -1, "new_axis": 1}),
    ],
)
def concat_from_sequence(k: Context, input_sequence: list[Array], *, axis: int, new_axis: int = 0) -> Array:
    if not input_sequence:
        raise ShapeError("an empty sequence cannot be joined")
    if new_axis:
        return k.xp.stack(input_sequence, axis)
    joined: Array = concat.reference(k, *input_sequence, axis=axis)
    return joined


@concat_from_sequence.infer
def _(input_sequence: Type, *, axis: int, new_axis: int = 0) -> Tensor:
    element = _tensor_of(input_sequence)
    if element.dims is None:
        return element
    dims: list[Dim] = list(element.dims)
    if new_axis:
        dims.insert(axis_of(axis, len(dims) + 1), None)
    else:
        dims[axis_of(axis, len(dims))] = None
    return element.of(dims)


@concat_from_sequence.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int, new_axis: int = 0) -> tuple[Value, ...]:
    if new_axis:
        return (g.SplitToSequence(dys[0], axis=axis, keepdims=0),)
    measure = Body([element_of(g.type_of(xs[0]))], lambda b, x: (size_of(b, x, axis),))
    sizes = g.ConcatFromSequence(g.SequenceMap(xs[0], body=measure), axis=0)
    return (g.SplitToSequence(dys[0], sizes, axis=axis),)


@op(
    "SplitToSequence",
    complex_numbers="taken",
    since=24,
    outputs=("output_sequence",),
    samples=[
        Sample([f32(3, 2)]),
        Sample([f32(3, 2)], {"keepdims": 0, "axis": -1}),
        Sample([f32(5, 2), np.int64(2)]),
        Sample([f32(2, 4), np.int32(2)], {"axis": 1, "keepdims": 0}),
        Sample([f32(5, 2), np.array([1, 0, 4], np.int64)]),
        Sample([f32(0, 2)]),
        Sample([f32(2, 0), np.int64(2)], {"axis": 1}),
        Sample([np.array(["a", "b", "c"], object), np.array([1, 2], np.int32)]),
    ],
)
def split_to_sequence(
    k: Context, input: Array, split: Array | None = None, *, axis: int = 0, keepdims: int = 1
) -> list[Array]:
    at = axis_of(axis, input.ndim)
    size = input.shape[at]
    if split is None and not keepdims:
        return [k.xp.array(x, dtype=input.dtype) for x in k.each(k.xp.moveaxis(input, at, 0))]
    if split is None or split.ndim == 0:
        step = 1 if split is None else ints(split)[0]
        if step < 1:
            raise ShapeError(f"an axis of {size} cannot be split into parts of {step}")
        ends = [*range(step, size, step), size] if size else []
    else:
        ends = np.cumsum(ints(split), dtype=np.int64).tolist()
        if min(ints(split), default=0) < 0 or (ends[-1] if ends else 0) != size:
            raise ShapeError(f"the parts {ints(split)} do not make up {size}")
    starts = [0, *ends][: len(ends)]
    return [input[(slice(None),) * at + (slice(a, b),)].copy() for a, b in k.each(zip(starts, ends, strict=True))]


@split_to_sequence.infer
def _(input: Tensor, split: Tensor | None = None, *, axis: int = 0, keepdims: int = 1) -> Sequence:
    if input.dims is None:
        return Sequence(held(input))
    at = axis_of(axis, input.rank)
    dims: list[Dim] = list(input.dims)
    if split is None and not keepdims:
        del dims[at]
    else:
        dims[at] = 1 if split is None else _part(input.dims[at], split)
    return Sequence(input.of(dims))


@split_to_sequence.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = 0, keepdims: int = 1) -> tuple[Value | None, ...]:
    (parts,), (input, split) = dys, xs
    at = g.const([axis])
    if split is None and not keepdims:
        widen = Body([element_of(g.type_of(parts))], lambda b, x: (b.Unsqueeze(x, b.const([axis])),))
        parts = g.SequenceMap(parts, body=widen)
    nothing = g.Slice(input, g.const([0]), g.const([0]), at)  # there may be no parts, and those cannot be joined
    return g.ConcatFromSequence(g.SequenceInsert(parts, nothing), axis=axis), None


def _part(size: Dim, split: Tensor) -> Dim:
    """The size of every part, if all parts have one."""
    parts = split.ints()
    if parts is None or split.dims is None:
        return None
    if split.dims == ():
        whole = isinstance(size, int) and parts[0] > 0 and size % parts[0] == 0
        return parts[0] if whole else None
    return parts[0] if len(set(parts)) == 1 else None
