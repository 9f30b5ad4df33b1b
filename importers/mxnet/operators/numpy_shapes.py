"""Operators in NumPy's style that move elements, fill, and compute with matrices, of gluon models since 1.6."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops import DType
from ....ops.errors import ModelError, ShapeError, UnsupportedModel
from ..converter import Converter, Value, element_type
from ..rules import rule
from ..sizes import UnknownSize
from .algebra import inverse, lapack
from .shapes import diagonal, split_v2


@rule("_np_reshape")
def reshape(c: Converter, a: str, *, newshape: tuple[int, ...], order: str = "C") -> Any:
    """-1 is what is left; 0 is a size of 0, which is none of a model's."""
    if order != "C":
        raise UnsupportedModel(f"a reshape in the order {order!r} is not carried")
    return c.reshape(a, newshape)


KEEP, DROP, REST, MERGE, SPLIT = -2, -3, -4, -5, -6  # codes of npx.reshape


@rule("_npx_reshape", "_npi_reshape")
def npx_reshape(c: Converter, a: str, *, newshape: tuple[int, ...], reverse: bool = False, order: str = "C") -> Any:
    """Codes: -1 is inferred, -2 keeps a size, -3 drops one of 1, -4 keeps all that are left, -5 merges two, -6 splits
    one into the two that follow."""
    if order != "C":
        raise UnsupportedModel(f"a reshape in the order {order!r} is not carried")
    axes, codes, parts = list(range(c.rank(a))), list(newshape), []
    if reverse:
        axes.reverse()
        codes = _from_the_right(codes)
    while codes:
        code = codes.pop(0)
        taken = {KEEP: 1, DROP: 1, REST: len(axes), MERGE: 2, SPLIT: 1}.get(code, 1 if code >= 0 or code == -1 else 0)
        if code < -1 and taken > len(axes):
            raise ShapeError(f"newshape={tuple(newshape)} takes more axes than its operand has")
        used, axes = axes[:taken], axes[taken:]
        if code in (KEEP, REST):
            parts += [c.dim(a, i) for i in used]
        elif code == MERGE:
            parts.append(c.Mul(c.dim(a, used[0]), c.dim(a, used[1])))
        elif code == SPLIT:
            if len(codes) < 2:
                raise ModelError(f"newshape={tuple(newshape)} ends within a split")
            first, second = codes.pop(0), codes.pop(0)
            whole = c.dim(a, used[0])
            parts.append(c.Div(whole, c.ints(second)) if first == -1 else first)
            parts.append(c.Div(whole, c.ints(first)) if second == -1 else second)
        elif code >= -1:
            parts.append(code)
        elif code != DROP:
            raise UnsupportedModel(f"newshape={tuple(newshape)} has the code {code}, which is not known")
    return c.Reshape(a, c.shape_with(parts[::-1] if reverse else parts))


def _from_the_right(codes: Sequence[int]) -> list[int]:
    items: list[list[int]] = []
    remaining = list(codes)
    while remaining:
        width = 3 if remaining[0] == SPLIT else 1
        items.append(remaining[:width])
        remaining = remaining[width:]
    return [v for item in reversed(items) for v in (item if len(item) == 1 else [SPLIT, item[2], item[1]])]


@rule("_np_transpose")
def transpose(c: Converter, a: str, *, axes: Any = None) -> Any:
    order = [c.axis(a, i) for i in axes] if axes else list(range(c.rank(a)))[::-1]
    return c.Transpose(a, perm=tuple(order))


@rule("_np_moveaxis")
def moveaxis(c: Converter, a: str, *, source: tuple[int, ...], destination: tuple[int, ...]) -> Any:
    moved, places = [c.axis(a, i) for i in source], [c.axis(a, i) for i in destination]
    order = [i for i in range(c.rank(a)) if i not in moved]
    for place, axis in sorted(zip(places, moved, strict=True)):
        order.insert(place, axis)
    return c.Transpose(a, perm=tuple(order))


@rule("_np_roll")
def roll(c: Converter, data: str, *, shift: Any, axis: Any = None) -> Any:
    """Elements that leave an axis at its end come back at its beginning."""
    if axis is None:
        flat = _rolled(c, c.reshape(data, [-1]), 0, shift[0] if isinstance(shift, tuple) else shift)
        return c.Reshape(flat, c.shape_of(data))
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    for a, by in zip(axes, shifts, strict=True):
        data = _rolled(c, data, c.axis(data, a), by)
    return c.Identity(data)


def _rolled(c: Converter, x: str, axis: int, by: int) -> Value:
    size = c.dims(x)[axis]
    by = by % size if isinstance(size, int) and size else by
    if by == 0:
        return x
    return c.op("Concat", c.slice(x, axis, -by, None), c.slice(x, axis, 0, -by), axis=axis)


@rule("_npi_flip")
def flip(c: Converter, data: str, *, axis: Any = None) -> Any:
    for a in c.axes(data, axis):
        data = c.slice(data, a, -1, None, -1)
    return c.Identity(data)


@rule("_npi_rot90")
def rot90(c: Converter, data: str, *, k: int = 1, axes: Any = None) -> Any:
    first, second = (c.axis(data, a) for a in axes or (0, 1))
    order = list(range(c.rank(data)))
    order[first], order[second] = second, first
    turns = k % 4
    if turns in (1, 2):
        data = c.slice(data, second, -1, None, -1)
    if turns == 2:
        return c.slice(data, first, -1, None, -1)
    if turns:
        data = c.transpose(data, order)
    return c.slice(data, second, -1, None, -1) if turns == 3 else c.Identity(data)


def _at_least(c: Converter, *arys: str, rank: int) -> Any:
    """As many axes as asked for: before the others, of three the last one behind them."""
    results = []
    for x in arys:
        have = c.rank(x)
        if have >= rank:
            results.append(c.Identity(x))
        elif rank == 3 and have == 2:
            results.append(c.unsqueeze(x, 2))
        elif rank == 3 and have == 1:
            results.append(c.unsqueeze(x, 0, 2))
        else:
            results.append(c.unsqueeze(x, *range(rank - have)))
    return tuple(results)


for _rank in (1, 2, 3):
    rule(f"_np_atleast_{_rank}d", rank=_rank)(_at_least)


@rule("_npi_concatenate")
def concatenate(c: Converter, *data: str, axis: Any = 0, dim: int = 1) -> Any:
    if axis is None:
        return c.op("Concat", *(c.reshape(x, [-1]) for x in data), axis=0)
    return c.op("Concat", *data, axis=c.axis(data[0], axis))


@rule("_npi_column_stack")
def column_stack(c: Converter, *data: str) -> Any:
    columns = [c.unsqueeze(x, *range(c.rank(x), 2)) if c.rank(x) < 2 else x for x in data]
    return c.op("Concat", *columns, axis=1)


@rule("_npi_hstack")
def hstack(c: Converter, *data: str, dim: int = 1) -> Any:
    wide = _at_least(c, *data, rank=1)
    return c.op("Concat", *wide, axis=0 if c.rank(wide[0]) == 1 else 1)


@rule("_npi_vstack")
def vstack(c: Converter, *data: str) -> Any:
    return c.op("Concat", *_at_least(c, *data, rank=2), axis=0)


@rule("_npi_dstack")
def dstack(c: Converter, *data: str, dim: int = 1) -> Any:
    return c.op("Concat", *_at_least(c, *data, rank=3), axis=2)


@rule("_npi_hsplit")
def hsplit(
    c: Converter, data: str, *, indices: Any = (), axis: int = 1, squeeze_axis: bool = False, sections: int = 0
) -> Any:
    return split_v2(c, data, indices=indices, axis=0 if c.rank(data) == 1 else 1, sections=sections)


@rule("_npi_dsplit")
def dsplit(
    c: Converter, data: str, *, indices: Any = (), axis: int = 1, squeeze_axis: bool = False, sections: int = 0
) -> Any:
    return split_v2(c, data, indices=indices, axis=2, sections=sections)


@rule("_np_diagflat")
def diagflat(c: Converter, data: str, *, k: int = 0) -> Any:
    count = math.prod(c.sizes(data, "to make them a diagonal"))
    places = np.arange(count)
    index = np.stack([places + max(-k, 0), places + max(k, 0)], 1)
    side = count + abs(k)
    return c.ScatterND(c.full(c.ints(side, side), 0, c.dtype(data)), c.const(index), c.reshape(data, [-1]))


@rule("_np_diagonal")
def np_diagonal(c: Converter, data: str, *, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return diagonal(c, data, c.axis(data, axis1), c.axis(data, axis2), offset)


@rule("_np_trace")
def trace(c: Converter, data: str, *, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return c.ReduceSum(np_diagonal(c, data, offset=offset, axis1=axis1, axis2=axis2), c.ints(-1), keepdims=0)


@rule("_npi_diag_indices_from")
def diag_indices_from(c: Converter, data: str) -> Any:
    steps = c.Range(c.const(0), c.squeeze(c.dim(data, 0), 0), c.const(1))
    return c.op("Concat", *[c.unsqueeze(steps, 0)] * c.rank(data), axis=0)


@rule("_npi_tril")
def tril(c: Converter, data: str, *, k: int = 0) -> Any:
    return c.Trilu(data, c.const(k), upper=0)


@rule("_npi_diff")
def diff(c: Converter, a: str, *, n: int = 1, axis: int = -1) -> Any:
    axis = c.axis(a, axis)
    for _ in range(n):
        a = c.Sub(c.slice(a, axis, 1, None), c.slice(a, axis, 0, -1))
    return c.Identity(a)


@rule("_npi_ediff1d")
def ediff1d(
    c: Converter,
    input1: str,
    *edges: str,
    to_begin_arr_given: bool = False,
    to_end_arr_given: bool = False,
    to_begin_scalar: Any = None,
    to_end_scalar: Any = None,
) -> Any:
    flat, more = c.reshape(input1, [-1]), list(edges)
    steps = c.Sub(c.slice(flat, 0, 1, None), c.slice(flat, 0, 0, -1))
    parts = [steps]
    if to_begin_arr_given or to_begin_scalar is not None:
        first = c.reshape(more.pop(0), [-1]) if to_begin_arr_given else c.reshape(c.number(to_begin_scalar, flat), [1])
        parts.insert(0, first)
    if to_end_arr_given or to_end_scalar is not None:
        parts.append(
            c.reshape(more.pop(0), [-1]) if to_end_arr_given else c.reshape(c.number(to_end_scalar, flat), [1])
        )
    return c.op("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]


PADDINGS = {"edge": "edge", "reflect": "reflect"}


@rule("_npi_pad")
def pad(
    c: Converter,
    data: str,
    *,
    pad_width: Any,
    mode: str = "constant",
    constant_value: float = 0.0,
    constant_values: Any = None,
    reflect_type: str = "even",
) -> Any:
    pads = [tuple(p) if isinstance(p, tuple) else (p, p) for p in pad_width]
    if mode == "constant":
        value = constant_value if constant_values is None else constant_values
        return c.Pad(data, c.ints(*(p[0] for p in pads), *(p[1] for p in pads)), c.number(value, data))
    if mode in PADDINGS and reflect_type == "even":
        return c.Pad(data, c.ints(*(p[0] for p in pads), *(p[1] for p in pads)), mode=PADDINGS[mode])
    if mode not in ("symmetric", "maximum", "minimum") or reflect_type != "even":
        raise UnsupportedModel(f"padding of the mode {mode!r} is not known")
    for axis, (before, after) in enumerate(pads):
        if before or after:
            data = _padded(c, data, axis, before, after, mode)
    return c.Identity(data)


def _padded(c: Converter, x: str, axis: int, before: int, after: int, mode: str) -> Value:
    """One axis longer at both ends: mirrored with its edges, or with its extreme element."""
    if mode == "symmetric":
        size = c.size(x, axis, "to be mirrored")
        places = np.arange(-before, size + after) % (2 * size)
        return c.Gather(x, c.const(np.minimum(places, 2 * size - 1 - places)), axis=axis)
    edge = c.op(f"Reduce{mode[:3].capitalize()}", x, c.ints(axis), keepdims=1)
    return c.op("Concat", *[edge] * before, x, *[edge] * after, axis=axis)


def _places(size: int, int_ind: Any, start: Any, stop: Any, step: Any, obj: Any) -> np.ndarray[Any, Any]:
    """Positions that an index, a slice or a constant array of indices names."""
    if int_ind is not None:
        return np.array([int_ind])
    if obj is not None:
        return np.asarray(obj).reshape(-1).astype(np.int64)
    return np.arange(size)[slice(start, stop, step)]


def _along(c: Converter, arr: str, axis: Any) -> tuple[Value, int]:
    return (c.reshape(arr, [-1]), 0) if axis is None else (arr, c.axis(arr, axis))


@rule("_npi_delete")
def delete(
    c: Converter,
    arr: str,
    obj: str | None = None,
    *,
    axis: Any = None,
    int_ind: Any = None,
    start: Any = None,
    stop: Any = None,
    step: Any = None,
) -> Any:
    """An axis without some positions."""
    arr, axis = _along(c, arr, axis)
    if obj is not None and c.known(obj) is None:
        marks = c.full(c.dim(arr, axis), 1, DType.INT32)
        kept = c.ScatterElements(marks, c.reshape(c.whole(obj), [-1]), c.like(c.reshape(obj, [-1]), 0, DType.INT32))
        return c.Compress(arr, c.cast(kept, DType.BOOL), axis=axis)
    size = c.size(arr, axis, "to delete parts of it")
    gone = _places(size, int_ind, start, stop, step, None if obj is None else c.known(obj))
    return c.Gather(arr, c.const(np.delete(np.arange(size), gone)), axis=axis)


def _insert(
    c: Converter,
    arr: str,
    values: str | None = None,
    obj: str | None = None,
    *,
    axis: Any = None,
    int_ind: Any = None,
    start: Any = None,
    stop: Any = None,
    step: Any = None,
    val: Any = None,
) -> Any:
    """Values before positions of an axis: joined behind it, then brought into order."""
    arr, axis = _along(c, arr, axis)
    rank = c.rank(arr)
    if values is None:
        values = c.number(val, arr)
    values = c.cast(values, c.dtype(arr))
    if int_ind is not None and c.rank(values) == rank - 1 and rank > 1:
        values = c.unsqueeze(values, axis)
    elif c.rank(values) < rank:
        values = c.unsqueeze(values, *range(rank - c.rank(values)))
    known = None if obj is None else c.known(obj)
    if obj is not None and known is None:
        return _inserted_at(c, arr, values, obj, axis)
    size = c.size(arr, axis, "to insert into it")
    places = _places(size, int_ind, start, stop, step, known)
    places = np.where(places < 0, places + size, places)
    many = c.dims(values)[axis] if len(places) == 1 else len(places)
    if not isinstance(many, int):
        raise UnknownSize("how much is inserted has to be known", hint="give shapes={name: (sizes)}")
    wide = [c.dim(arr, i) if i != axis else c.ints(many) for i in range(rank)]
    joined = c.op("Concat", arr, c.Expand(values, c.shape_with(wide)), axis=axis)
    marks = np.insert(np.arange(size), np.repeat(places, many) if len(places) == 1 else places, size + np.arange(many))
    return c.Gather(joined, c.const(marks), axis=axis)


def _inserted_at(c: Converter, arr: str, values: str, obj: str, axis: int) -> Value:
    """Positions that data tell: a stable order of what was there, at 2 i + 1, and of what comes, at 2 i."""
    places = c.reshape(c.whole(obj), [-1])
    size = c.squeeze(c.dim(arr, axis), 0)
    places = c.Where(c.Less(places, c.const(0)), c.Add(places, size), places)
    wide = [c.dim(arr, i) if i != axis else c.Size(places) for i in range(c.rank(arr))]
    wide = [c.reshape(v, [1]) if i == axis else v for i, v in enumerate(wide)]
    joined = c.op("Concat", arr, c.Expand(values, c.shape_with(wide)), axis=axis)
    there = c.Add(c.Mul(c.Range(c.const(0), size, c.const(1)), c.const(2)), c.const(1))
    keys = c.op("Concat", there, c.Mul(places, c.const(2)), axis=0)
    order = c.op("TopK", keys, c.dim(keys, 0) if c.known(keys) else c.reshape(c.Size(keys), [1]), outputs=2, axis=0,
                 largest=0)[1]  # fmt: skip
    return c.Gather(joined, order, axis=axis)


rule("_npi_insert_scalar", "_npi_insert_slice", "_npi_insert_tensor")(_insert)


@rule("_npi_unique")
def unique(
    c: Converter,
    data: str,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
) -> Any:
    more: dict[str, Any] = {} if axis is None else {"axis": c.axis(data, axis)}
    values, first, inverse_, counts = c.op("Unique", data, outputs=4, sorted=1, **more)
    wanted = (first, return_index), (inverse_, return_inverse), (counts, return_counts)
    return (values, *(v for v, asked in wanted if asked))


@rule("_npx_nonzero", "_npi_nonzero")
def nonzero(c: Converter, x: str) -> Any:
    """[n, rank]: positions of what is not 0."""
    return c.transpose(c.NonZero(x), (1, 0))


@rule("_npi_share_memory")
def share_memory(c: Converter, a: str, b: str) -> Any:
    """No two values of a graph share memory that a user could see."""
    return c.const(np.array([False]))


# Fills


@rule("_npi_full_like")
def full_like(c: Converter, a: str, *, fill_value: float, dtype: Any = None) -> Any:
    return c.like(a, fill_value, None if dtype is None else element_type(dtype))


@rule("_npi_identity")
def identity(c: Converter, *, shape: tuple[int, ...] = (), dtype: Any = "float32") -> Any:
    return c.Identity(c.const(np.eye(*shape, dtype=element_type(dtype).numpy)))


@rule("_npi_indices")
def indices(c: Converter, *, dimensions: tuple[int, ...], dtype: Any = "int32") -> Any:
    return c.Identity(c.const(np.indices(dimensions).astype(element_type(dtype).numpy)))


def _window(c: Converter, *, of: Any, M: Any = None, dtype: Any = "float32") -> Any:
    return c.Identity(c.const(of(int(M or 0)).astype(element_type(dtype).numpy)))


for _name in ("blackman", "hamming", "hanning"):
    rule(f"_npi_{_name}", of=getattr(np, _name))(_window)


@rule("_npi_logspace")
def logspace(
    c: Converter,
    *,
    start: float,
    stop: float,
    num: int,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: Any = "float32",
) -> Any:
    values = np.logspace(start, stop, num, endpoint=endpoint, base=base)
    return c.Identity(c.const(values.astype(element_type(dtype).numpy)))


# Algebra


@rule("_npi_matmul")
def matmul(c: Converter, a: str, b: str) -> Any:
    return c.MatMul(a, b)


@rule("_np_dot")
def dot(c: Converter, a: str, b: str) -> Any:
    """The sum over the last axis of `a` and the last but one of `b`, for all pairs of the other axes."""
    if 0 in (c.rank(a), c.rank(b)):
        return c.Mul(a, b)
    if c.rank(b) <= 2:
        return c.MatMul(a, b)
    return tensordot(c, a, b, a_axes_summed=(-1,), b_axes_summed=(c.rank(b) - 2,))


@rule("_npi_tensordot")
def tensordot(c: Converter, a: str, b: str, *, a_axes_summed: tuple[int, ...], b_axes_summed: tuple[int, ...]) -> Any:
    """The sum over pairs of axes: a product of two matrices."""
    left, right = [c.axis(a, i) for i in a_axes_summed], [c.axis(b, i) for i in b_axes_summed]
    kept_left = [i for i in range(c.rank(a)) if i not in left]
    kept_right = [i for i in range(c.rank(b)) if i not in right]
    sizes = [c.dim(a, i) for i in kept_left], [c.dim(b, i) for i in kept_right]
    first = _matrix(c, c.transpose(a, [*kept_left, *left]), len(kept_left))
    second = _matrix(c, c.transpose(b, [*right, *kept_right]), len(right))
    product = c.MatMul(first, second)
    both = [*sizes[0], *sizes[1]]
    return c.Reshape(product, c.shape_with(both)) if both else c.squeeze(product, 0, 1)


def _matrix(c: Converter, x: str, rows: int) -> Value:
    """The first axes as rows, the others as columns; none of either count as one."""
    if rows == c.rank(x):
        return c.unsqueeze(c.reshape(x, [-1]), 1)
    if rows == 0:
        return c.unsqueeze(c.reshape(x, [-1]), 0)
    return c.Flatten(x, axis=rows)


@rule("_npi_tensordot_int_axes")
def tensordot_of(c: Converter, a: str, b: str, *, axes: int) -> Any:
    left = tuple(range(c.rank(a) - axes, c.rank(a)))
    return tensordot(c, a, b, a_axes_summed=left, b_axes_summed=tuple(range(axes)))


@rule("_npi_einsum")
def einsum(c: Converter, *data: str, subscripts: str = "", optimize: int = 0) -> Any:
    return c.Einsum(*data, equation=subscripts)


@rule("_npi_cholesky")
def cholesky(c: Converter, A: str) -> Any:
    return lapack(c, "Cholesky", A)


@rule("_npi_eigh")
def eigh(c: Converter, A: str, *, UPLO: str = "L") -> Any:
    """Eigenvalues, and eigenvectors as columns."""
    return lapack(c, "Eigh", _symmetric(c, A, UPLO), outputs=2)


@rule("_npi_eigvalsh")
def eigvalsh(c: Converter, A: str, *, UPLO: str = "L") -> Any:
    return eigh(c, A, UPLO=UPLO)[0]


@rule("_npi_det")
def det(c: Converter, A: str) -> Any:
    return c.Det(A)


@rule("_npi_slogdet")
def slogdet(c: Converter, A: str) -> Any:
    return lapack(c, "SlogDet", A, outputs=2)


def _symmetric(c: Converter, A: str, part: str) -> Value:
    """The matrix that one of its triangles tells."""
    upper = int(part == "U")
    rank = c.rank(A)
    half = c.Trilu(A, upper=upper)
    strict = c.Trilu(A, c.const(1 if upper else -1), upper=upper)
    return c.Add(half, c.transpose(strict, [*range(rank - 2), rank - 1, rank - 2]))


@rule("_npi_svd")
def svd(c: Converter, A: str) -> Any:
    """U, the singular values, and the right singular vectors as rows."""
    values, left, right = c.op("SVD", A, domain="mezzo", outputs=3)
    return left, values, right


@rule("_npi_solve")
def solve(c: Converter, A: str, B: str) -> Any:
    if c.rank(B) < c.rank(A):
        return c.squeeze(lapack(c, "Solve", A, c.unsqueeze(B, c.rank(B))), c.rank(B))
    return lapack(c, "Solve", A, B)


@rule("_npi_pinv_scalar_rcond")
def pinv(c: Converter, A: str, *, rcond: float = 1e-15, hermitian: bool = False) -> Any:
    return lapack(c, "PInv", A, c.number(rcond, A))


@rule("_npi_tensorinv")
def tensorinv(c: Converter, a: str, *, ind: int = 2) -> Any:
    """The inverse of the matrix that the first `ind` axes and the others are."""
    sizes = c.sizes(a, "to invert it")
    side = math.prod(sizes[:ind])
    return c.reshape(inverse(c, c.reshape(a, [side, side])), [*sizes[ind:], *sizes[:ind]])


@rule("_npi_tensorsolve")
def tensorsolve(c: Converter, a: str, b: str, *, a_axes: Any = ()) -> Any:
    if a_axes:
        last = [c.axis(a, i) for i in a_axes]
        a = c.transpose(a, [*(i for i in range(c.rank(a)) if i not in last), *last])
    dims = c.sizes(a, "to solve for it")[c.rank(b) :]
    side = math.prod(dims)
    solved = lapack(c, "Solve", c.reshape(a, [side, side]), c.reshape(b, [side, 1]))
    return c.reshape(solved, dims)
