"""Quantised operators of the domain com.microsoft that ONNX Runtime's quantisers write.

Each dequantises, computes in float32 and quantises again; its body says so in standard operators.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.rules import mean_of
from ..core.samples import scattered
from ..errors import ShapeError
from ..nn.pool import average_pool
from ..nn.windows import POOL
from ..op import OPS, Builder, Context, Op, Sample, Value, broadcast_dims, op
from ..quantization.quantize import to_steps
from ..quantization.quantized import apart, requantized
from ..types import Array, DType, Tensor
from .fused import Types, dtype_of, rank_of


def numbers(*shape: int, dtype: type = np.uint8, seed: int = 0) -> np.ndarray[Any, Any]:
    """Whole numbers over the range of a type, the same each time."""
    info = np.iinfo(dtype)
    return scattered(info.min, info.max + 1, *shape, seed=seed).astype(dtype)


def scalar(part: Array, what: str) -> Array:
    """A scale or zero point for the whole tensor; ShapeError if it has more entries."""
    if part.size != 1:
        raise ShapeError(f"{what} has {part.size} entries, where one is wanted")
    return part.reshape(())


def real(x: Array, scale: Array, zero: Array | None) -> Array:
    """float32 numbers from steps."""
    steps = x.astype(np.float32)
    if zero is not None:
        steps = steps - scalar(zero, "a zero point").astype(np.float32)
    return steps * scalar(scale, "a scale").astype(np.float32)


def steps(xp: Any, x: Array, scale: Array, zero: Array | None, dtype: Any) -> Array:
    """Steps from float32 numbers."""
    offset = 0 if zero is None else scalar(zero, "a zero point").astype(np.int64)
    made: Array = xp.asarray(to_steps(xp, x / scalar(scale, "a scale"), offset, DType.of(dtype)))
    return made


def _check_parts(*parts: Tensor | None) -> None:
    for part in parts:
        if part is not None and part.elements not in (1, None):
            raise ShapeError(f"the scale or zero point {part} should have one entry")


def _zero(g: Builder, zero: Value | None, dtype: DType) -> Value:
    """A zero point that is said, since QuantizeLinear takes the type of its result from it."""
    return g.const(0, dtype) if zero is None else zero


def _scalar(g: Builder, part: Value, kind: Any) -> Value:
    """A scale or zero point without dims, which all opsets of DequantizeLinear take."""
    return part if rank_of(kind) == 0 else g.Reshape(part, g.const(np.zeros(0, np.int64)))


HALF, SMALL, WIDE = np.float32(0.5), np.float32(0.02), np.float32(1.5)
ODD = np.float32(0.0217)  # no multiple of the scale of X, so that no average lies halfway between two steps
MIDDLE, BELOW = np.uint8(128), np.int8(-3)


# Sums and products


OPERATORS = "com.microsoft::QLinearAdd com.microsoft::QLinearMul"


def _binary(name: str, combine: Callable[[Array, Array], Array], standard: str, C_scale: Any) -> Op:
    @op(
        name,
        domain="com.microsoft",
        since=1,
        outputs=("C",),
        samples=[
            Sample([numbers(2, 3, 4), HALF, MIDDLE, numbers(2, 3, 4, seed=1), SMALL, MIDDLE, C_scale, MIDDLE]),
            Sample(
                [numbers(2, 3, dtype=np.int8), HALF, BELOW, numbers(3, dtype=np.int8), SMALL, BELOW, C_scale, BELOW]
            ),
            Sample([numbers(2, 5), SMALL, np.uint8(0), numbers(2, 1), SMALL, MIDDLE, SMALL, np.uint8(3)]),
            Sample([numbers(4), SMALL, MIDDLE, numbers(1), WIDE, np.uint8(0), WIDE, np.uint8(0)]),
        ],
    )
    def binary(
        k: Context,
        A: Array,
        A_scale: Array,
        A_zero_point: Array | None,
        B: Array,
        B_scale: Array,
        B_zero_point: Array | None,
        C_scale: Array,
        C_zero_point: Array | None = None,
    ) -> Array:
        found = combine(real(A, A_scale, A_zero_point), real(B, B_scale, B_zero_point))
        return steps(k.xp, found, C_scale, C_zero_point, A.dtype)

    @binary.infer
    def _(
        A: Tensor,
        A_scale: Tensor,
        A_zero_point: Tensor | None,
        B: Tensor,
        B_scale: Tensor,
        B_zero_point: Tensor | None,
        C_scale: Tensor,
        C_zero_point: Tensor | None = None,
    ) -> Tensor:
        _check_parts(A_scale, A_zero_point, B_scale, B_zero_point, C_scale, C_zero_point)
        if A.dtype is not B.dtype:
            raise ShapeError(f"{A} and {B} differ in type")
        return A.of(broadcast_dims(A.dims, B.dims))

    @binary.body
    def _(g: Builder, xs: Sequence[Value | None], types: Types) -> Value:
        parts = [None if x is None else _scalar(g, x, t) if i not in (0, 3) else x
                 for i, (x, t) in enumerate(zip(xs, types, strict=True))]  # fmt: skip
        a, b = (g.DequantizeLinear(*parts[i : i + 3]) for i in (0, 3))
        return g.QuantizeLinear(getattr(g, standard)(a, b), parts[6], _zero(g, parts[7], dtype_of(types)))

    return binary


qlinear_add = _binary("QLinearAdd", np.add, "Add", WIDE)
qlinear_mul = _binary("QLinearMul", np.multiply, "Mul", np.float32(0.7))


# One operand


def _wrapped(g: Builder, xs: Sequence[Value | None], types: Types, inner: Callable[[Value], Value]) -> Value:
    """Dequantise, compute, quantise: the body of an operator with the operands X, scale, zero, scale, zero."""
    x, *rest = xs
    x_scale, x_zero, y_scale, y_zero = (
        None if part is None else _scalar(g, part, kind) for part, kind in zip(rest, types[1:], strict=True)
    )
    found = inner(g.DequantizeLinear(x, x_scale, x_zero))
    return g.QuantizeLinear(found, y_scale, _zero(g, y_zero, dtype_of(types)))


@op(
    "QLinearSigmoid",
    domain="com.microsoft",
    since=1,
    samples=[
        Sample([numbers(2, 3, 4), SMALL, MIDDLE, np.float32(1 / 256), np.uint8(0)]),
        Sample([numbers(20, dtype=np.int8), HALF, BELOW, np.float32(1 / 256), np.int8(-128)]),
        Sample([numbers(3, 3), SMALL, None, np.float32(0.01), None]),
    ],
)
def qlinear_sigmoid(
    k: Context,
    X: Array,
    X_scale: Array,
    X_zero_point: Array | None,
    Y_scale: Array,
    Y_zero_point: Array | None = None,
) -> Array:
    found = 1 / (1 + k.xp.exp(-real(X, X_scale, X_zero_point)))
    return steps(k.xp, found, Y_scale, Y_zero_point, X.dtype)


@qlinear_sigmoid.infer
def _(
    X: Tensor,
    X_scale: Tensor,
    X_zero_point: Tensor | None,
    Y_scale: Tensor,
    Y_zero_point: Tensor | None = None,
) -> Tensor:
    _check_parts(X_scale, X_zero_point, Y_scale, Y_zero_point)
    return X.forget()


@qlinear_sigmoid.body
def _(g: Builder, xs: Sequence[Value | None], types: Types) -> Value:
    return _wrapped(g, xs, types, g.Sigmoid)


def _first(x: Array) -> Array:
    """Channels moved from the last axis to where the standard has them."""
    return np.moveaxis(x, -1, 1)


def _dims_first(X: Tensor) -> Tensor:
    return X if X.dims is None else X.of((X.dims[0], X.dims[-1], *X.dims[1:-1]))


def _dims_last(X: Tensor, found: Any) -> Tensor:
    """The type that a window's rule finds for channels first, with channels last."""
    y = found[0] if isinstance(found, tuple) else found
    assert isinstance(y, Tensor)
    return y.of(None) if X.dims is None or y.dims is None else y.of((y.dims[0], *y.dims[2:], y.dims[1]))


def _around(g: Builder, x: Value, rank: int | None, channels_last: int, inner: Callable[[Value], Value]) -> Value:
    """`inner` with channels in the second place."""
    if not channels_last:
        return inner(x)
    assert rank is not None
    last = (0, *range(2, rank), 1)
    return g.Transpose(inner(g.Transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))), perm=last)


@op(
    "QLinearAveragePool", domain="com.microsoft",
    attributes={name: default for name, default in POOL.items() if name != "dilations"},
    since=1,
    samples=[
        Sample([numbers(1, 2, 5, 5), SMALL, MIDDLE, ODD, MIDDLE], {"kernel_shape": [3, 3]}),
        Sample(
            [numbers(1, 2, 5, 5, dtype=np.int8), SMALL, BELOW, np.float32(0.03), np.int8(4)],
            {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "strides": [2, 1]},
        ),
        Sample(
            [numbers(1, 2, 6, 6), SMALL, MIDDLE, ODD, np.uint8(120)],
            {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1, "strides": [2, 2]},
        ),
        Sample([numbers(1, 2, 6, 5), SMALL, MIDDLE, ODD, MIDDLE],
               {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
        Sample([numbers(1, 5, 6, 3), SMALL, MIDDLE, ODD, MIDDLE], {"kernel_shape": [2, 2], "channels_last": 1}),
    ],
)  # fmt: skip
def qlinear_average_pool(
    k: Context,
    X: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Sequence[int],
    **window: Any,
) -> Array:
    x = real(X, x_scale, x_zero_point)
    image = _first(x) if channels_last else x
    y = average_pool.reference(k, image, count_include_pad=count_include_pad, kernel_shape=kernel_shape, **window)
    y = k.xp.ascontiguousarray(k.xp.moveaxis(y, 1, -1)) if channels_last else y
    return steps(k.xp, y, y_scale, y_zero_point, X.dtype)


@qlinear_average_pool.infer
def _(
    X: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    channels_last: int = 0,
    **attrs: Any,
) -> Any:
    _check_parts(x_scale, x_zero_point, y_scale, y_zero_point)
    if not channels_last:
        return average_pool.inferred(X, **attrs)
    return _dims_last(X, average_pool.inferred(_dims_first(X), **attrs))


@qlinear_average_pool.body
def _(g: Builder, xs: Sequence[Value | None], types: Types, *, channels_last: int = 0, **attrs: Any) -> Value | None:
    rank = rank_of(types[0])
    if channels_last and rank is None:
        return None
    return _wrapped(g, xs, types, lambda x: _around(g, x, rank, channels_last, lambda y: g.AveragePool(y, **attrs)))


@op(
    "QLinearGlobalAveragePool",
    domain="com.microsoft",
    since=1,
    samples=[
        Sample([numbers(1, 2, 5, 5), SMALL, MIDDLE, ODD, MIDDLE]),
        Sample([numbers(2, 3, 4, 2, dtype=np.int8), SMALL, BELOW, ODD, np.int8(5)]),
        Sample([numbers(1, 3, 3, 4), SMALL, MIDDLE, np.float32(0.03), np.uint8(7)], {"channels_last": 1}),
    ],
)
def qlinear_global_average_pool(
    k: Context,
    X: Array,
    x_scale: Array,
    x_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    *,
    channels_last: int = 0,
) -> Array:
    axes = tuple(range(1, X.ndim - 1)) if channels_last else tuple(range(2, X.ndim))
    found = mean_of(real(X, x_scale, x_zero_point), axes, keepdims=True)
    return steps(k.xp, found, y_scale, y_zero_point, X.dtype)


@qlinear_global_average_pool.infer
def _(
    X: Tensor, x_scale: Tensor, x_zero_point: Tensor, y_scale: Tensor, y_zero_point: Tensor, *, channels_last: int = 0
) -> Tensor:
    _check_parts(x_scale, x_zero_point, y_scale, y_zero_point)
    if X.dims is None:
        return X.of(None)
    kept = {0, len(X.dims) - 1} if channels_last else {0, 1}
    return X.of(d if i in kept else 1 for i, d in enumerate(X.dims))


@qlinear_global_average_pool.body
def _(g: Builder, xs: Sequence[Value | None], types: Types, *, channels_last: int = 0) -> Value | None:
    rank = rank_of(types[0])
    if channels_last and rank is None:
        return None
    return _wrapped(g, xs, types, lambda x: _around(g, x, rank, channels_last, g.GlobalAveragePool))


# Concat


@op(
    "QLinearConcat", domain="com.microsoft",
    since=1,
    samples=[
        Sample([SMALL, MIDDLE, numbers(2, 3), SMALL, MIDDLE, numbers(2, 2), HALF, np.uint8(7)], {"axis": 1}),
        Sample([HALF, BELOW, numbers(1, 3, dtype=np.int8), SMALL, BELOW, numbers(2, 3, dtype=np.int8), HALF, BELOW],
               {"axis": 0}),
        Sample([WIDE, MIDDLE, *(numbers(2, 2, 2), HALF, MIDDLE) * 3], {"axis": -1}),
    ],
)  # fmt: skip
def qlinear_concat(k: Context, Y_scale: Array, Y_zero_point: Array, *inputs: Array, axis: int) -> Array:
    parts = [real(*inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return steps(k.xp, k.xp.concatenate(parts, axis), Y_scale, Y_zero_point, Y_zero_point.dtype)


@qlinear_concat.infer
def _(Y_scale: Tensor, Y_zero_point: Tensor, *inputs: Tensor, axis: int) -> Any:
    if not inputs or len(inputs) % 3:
        raise ShapeError(f"{len(inputs)} operands are not tensors with a scale and a zero point each")
    _check_parts(Y_scale, Y_zero_point, *(t for i, t in enumerate(inputs) if i % 3))
    found = OPS["", "Concat"].inferred(*inputs[::3], axis=axis)
    assert isinstance(found, Tensor)
    return found.to(Y_zero_point.dtype)


@qlinear_concat.body
def _(g: Builder, xs: Sequence[Value], types: Types, *, axis: int) -> Value:
    parts = [x if i > 1 and i % 3 == 2 else _scalar(g, x, t) for i, (x, t) in enumerate(zip(xs, types, strict=True))]
    whole = g.Concat(*(g.DequantizeLinear(*parts[i : i + 3]) for i in range(2, len(parts), 3)), axis=axis)
    return g.QuantizeLinear(whole, *parts[:2])


# A product


ROWS, COLUMNS = numbers(3, 4), numbers(4, 5, dtype=np.int8)
PER_COLUMN: list[Any] = [np.linspace(0.01, 0.05, 5, dtype=np.float32), np.array([0, 1, -2, 3, -4], np.int8)]


@op(
    "QGemm", domain="com.microsoft",
    since=1,
    samples=[
        Sample([ROWS, SMALL, MIDDLE, COLUMNS, HALF, BELOW, None, WIDE, np.uint8(7)]),
        Sample([ROWS, SMALL, MIDDLE, COLUMNS, HALF, BELOW]),
        Sample([ROWS.T.copy(), SMALL, MIDDLE, COLUMNS.T.copy(), *PER_COLUMN, np.arange(5, dtype=np.int32) * 99],
               {"transA": 1, "transB": 1, "alpha": 0.5}),
        Sample([ROWS, SMALL, MIDDLE, COLUMNS, *PER_COLUMN, np.full((3, 1), -700, np.int32), SMALL, np.uint8(100)],
               {"alpha": 1.5}),
        Sample([COLUMNS.T.copy(), SMALL, BELOW, COLUMNS, SMALL, BELOW, np.int32(500).reshape(1), HALF, BELOW]),
        Sample([ROWS, SMALL, MIDDLE, numbers(5, 4), SMALL, MIDDLE, None, HALF, MIDDLE], {"transB": 1}),
    ],
)  # fmt: skip
def qgemm(
    k: Context,
    A: Array,
    a_scale: Array,
    a_zero_point: Array,
    B: Array,
    b_scale: Array,
    b_zero_point: Array,
    C: Array | None = None,
    y_scale: Array | None = None,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """The product of whole numbers is exact; C, in steps of the product, is added to it before it is scaled."""
    b = B.T if transB else B
    sums = apart(A.T if transA else A, scalar(a_zero_point, "a zero point")) @ apart(b, b_zero_point)
    if C is not None:
        sums = sums + C
    factor = np.float32(alpha) * scalar(a_scale, "a scale") * b_scale
    if y_scale is None or y_zero_point is None:
        return k.xp.asarray(sums.astype(np.float32) * factor)
    return requantized(k.xp, sums, factor / scalar(y_scale, "a scale"), scalar(y_zero_point, "a zero point"))


@qgemm.infer
def _(
    A: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    B: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    C: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero_point: Tensor | None = None,
    *,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    _check_parts(a_scale, a_zero_point, y_scale, y_zero_point)
    if (y_scale is None) is not (y_zero_point is None):
        raise ShapeError("y_scale and y_zero_point come together or not at all", hint="correct the node")
    found = OPS["", "Gemm"].inferred(A, B, C, transA=transA, transB=transB)
    assert isinstance(found, Tensor)
    for part in (b_scale, b_zero_point):
        if part.elements not in (None, 1, found.shape[1] if isinstance(found.shape[1], int) else part.elements):
            raise ShapeError(f"the scale or zero point {part} has not one entry for each column of {found}")
    return found.to(DType.FLOAT if y_zero_point is None else y_zero_point.dtype)


@qgemm.body
def _(
    g: Builder, xs: Sequence[Value | None], types: Types, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> Value:
    whole: list[Any] = [*xs, *[None] * (9 - len(xs))]
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = whole
    a, b = (g.Transpose(x, perm=(1, 0)) if turned else x for x, turned in ((a, transA), (b, transB)))
    sums = g.MatMulInteger(a, b, _scalar(g, a_zero, types[2]), b_zero)
    if c is not None:
        sums = g.Add(sums, c)
    factor = g.Mul(g.Mul(g.const(alpha, DType.FLOAT), _scalar(g, a_scale, types[1])), b_scale)
    real_sums = g.Cast(sums, to=DType.FLOAT.onnx)
    if y_scale is None:
        return g.Mul(real_sums, factor)
    steps = g.Mul(real_sums, g.Div(factor, _scalar(g, y_scale, types[7])))
    return g.QuantizeLinear(steps, g.const(1.0, DType.FLOAT), _scalar(g, y_zero, types[8]))
