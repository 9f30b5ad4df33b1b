"""Quantised operators of the domain com.microsoft that ONNX Runtime's quantisers write.

Each dequantises, computes in float32 and quantises again: reference and body are standard operators, and an operator
states what it computes in between.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.composed import composed
from ..core.rules import axis_of
from ..core.samples import scattered
from ..core.shapes import wide
from ..errors import ShapeError
from ..nn.windows import POOL
from ..op import NO_ATTRIBUTES, OPS, REQUIRED, Builder, Op, Sample, Value, broadcast_dims
from ..types import DType, Tensor
from .fused import Types, dtype_of, rank_of

OPERATORS = """com.microsoft::QLinearAdd com.microsoft::QLinearMul com.microsoft::QLinearSigmoid
com.microsoft::QLinearLeakyRelu com.microsoft::QLinearSoftmax com.microsoft::QLinearAveragePool
com.microsoft::QLinearGlobalAveragePool com.microsoft::QLinearWhere"""


def numbers(*shape: int, dtype: type = np.uint8, seed: int = 0) -> np.ndarray[Any, Any]:
    """Whole numbers over the range of a type, the same each time."""
    info = np.iinfo(dtype)
    return scattered(info.min, info.max + 1, *shape, seed=seed).astype(dtype)


def check_parts(*parts: Tensor | None) -> None:
    """Raise ShapeError for a scale or zero point with more than one entry."""
    for part in parts:
        if part is not None and part.elements not in (1, None):
            raise ShapeError(f"the scale or zero point {part} should have one entry")


def said(g: Builder, zero: Value | None, dtype: DType) -> Value:
    """A zero point that is said, since QuantizeLinear takes the type of its result from it."""
    return g.const(0, dtype) if zero is None else zero


def scalar(g: Builder, part: Value, kind: Any) -> Value:
    """A scale, in float32, or zero point without dims, which all opsets of DequantizeLinear take."""
    part = wide(g, part)
    return part if rank_of(kind) == 0 else g.Reshape(part, g.const(np.zeros(0, np.int64)))


HALF, SMALL, WIDE = np.float32(0.5), np.float32(0.02), np.float32(1.5)
ODD = np.float32(0.0217)  # no multiple of the scale of X, so that no average lies halfway between two steps
SHARE = np.float32(1 / 256)
MIDDLE, BELOW = np.uint8(128), np.int8(-3)


def on_steps(
    name: str,
    inputs: str,
    form: Callable[..., Value | None],
    result: Callable[..., Tensor],
    samples: Sequence[Sample],
    *,
    output: str = "Y",
    attributes: Mapping[str, Any] = NO_ATTRIBUTES,
) -> Op:
    """Define an operator of com.microsoft on quantised operands.

    `inputs` are operands that are taken as they are, operands with their scale and zero point behind them, and scale
    and zero point of the result. `form` computes in float32: `(g, *operands, **attrs)`, None where it cannot be said;
    `result` has the dims of what it computes, from the types of the operands and the attributes.
    """
    names = tuple(inputs.split())
    plain, last = (len(names) - 2) % 3, len(names) - 2
    whole = {*range(plain), *range(plain, last, 3)}  # all others are scales and zero points

    @composed(name, domain="com.microsoft", inputs=names, outputs=(output,), samples=samples, attributes=attributes)
    def defined(g: Builder, xs: Sequence[Value | None], types: Types, **attrs: Any) -> Value | None:
        parts = [x if x is None or i in whole else scalar(g, x, types[i]) for i, x in enumerate(xs)]
        operands = [g.DequantizeLinear(*parts[i : i + 3]) for i in range(plain, last, 3)]
        y = form(g, *parts[:plain], *operands, **attrs)
        return None if y is None else g.QuantizeLinear(y, parts[-2], said(g, parts[-1], dtype_of(types[plain:])))

    @defined.infer
    def _(*types: Tensor | None, **attrs: Any) -> Tensor:
        check_parts(*(t for i, t in enumerate(types) if i not in whole))
        operands = [t for t in types[plain:last:3] if t is not None]
        if any(t.dtype is not operands[0].dtype for t in operands):
            raise ShapeError(f"{' and '.join(map(str, operands))} differ in type")
        return result(*types[:plain], *operands, **attrs).to(operands[0].dtype)

    return defined


ONE = "X X_scale X_zero_point? Y_scale Y_zero_point?"


def _same(X: Tensor, **attrs: Any) -> Tensor:
    return X.forget()


def _broadcast(*operands: Tensor) -> Tensor:
    return operands[-1].of(broadcast_dims(*(t.dims for t in operands)))


# Sums, products, choices


TWO = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?"


def _pair_samples(scale: np.float32) -> list[Sample]:
    small: list[Any] = [
        numbers(2, 3, dtype=np.int8),
        HALF,
        BELOW,
        numbers(3, dtype=np.int8),
        SMALL,
        BELOW,
        scale,
        BELOW,
    ]
    return [
        Sample([numbers(2, 3, 4), HALF, MIDDLE, numbers(2, 3, 4, seed=1), SMALL, MIDDLE, scale, MIDDLE]),
        Sample(small),
        Sample([numbers(2, 5), SMALL, np.uint8(0), numbers(2, 1), SMALL, MIDDLE, SMALL, np.uint8(3)]),
        Sample([numbers(4), SMALL, MIDDLE, numbers(1), WIDE, np.uint8(0), WIDE, np.uint8(0)]),
    ]


qlinear_add = on_steps("QLinearAdd", TWO, lambda g, a, b: g.Add(a, b), _broadcast, _pair_samples(WIDE), output="C")
qlinear_mul = on_steps(
    "QLinearMul", TWO, lambda g, a, b: g.Mul(a, b), _broadcast, _pair_samples(np.float32(0.7)), output="C"
)
qlinear_where = on_steps(
    "QLinearWhere",
    "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point",
    lambda g, condition, x, y: g.Where(condition, x, y),
    _broadcast,
    [
        Sample([np.array([[True], [False]]), numbers(2, 5), SMALL, MIDDLE, numbers(2, 5, seed=1), HALF, MIDDLE, WIDE,
                MIDDLE]),
        Sample([np.arange(4) % 2 > 0, numbers(3, 4, dtype=np.int8), SMALL, BELOW, numbers(1, dtype=np.int8), SMALL,
                BELOW, SMALL, np.int8(5)]),
        Sample([np.array(True), numbers(6), SMALL, MIDDLE, numbers(6, seed=2), SMALL, MIDDLE, HALF, np.uint8(0)]),
    ],
    output="Z",
)  # fmt: skip


# Functions of one operand


qlinear_sigmoid = on_steps(
    "QLinearSigmoid",
    ONE,
    lambda g, x: g.Sigmoid(x),
    _same,
    [
        Sample([numbers(2, 3, 4), SMALL, MIDDLE, SHARE, np.uint8(0)]),
        Sample([numbers(20, dtype=np.int8), HALF, BELOW, SHARE, np.int8(-128)]),
        Sample([numbers(3, 3), SMALL, None, np.float32(0.01), None]),
    ],
)
qlinear_leaky_relu = on_steps(
    "QLinearLeakyRelu",
    ONE,
    lambda g, x, **alpha: g.LeakyRelu(x, **alpha),
    _same,
    [
        Sample([numbers(2, 3, 4), SMALL, MIDDLE, SMALL, np.uint8(60)], {"alpha": 0.25}),
        Sample([numbers(20, dtype=np.int8), HALF, BELOW, WIDE, np.int8(-90)]),
        Sample([numbers(3, 3), SMALL, None, HALF, None], {"alpha": 0.5}),
    ],
    attributes={"alpha": 0.01},
)


def _softmax(g: Builder, x: Value, *, axis: int = -1, opset: int) -> Value | None:
    """Before opset 13 the axes from `axis` on are one, as in Softmax."""
    if opset >= 13:
        return g.Softmax(x, axis=axis)
    rank = rank_of(g.type_of(x))
    return None if rank is None else g.Reshape(g.Softmax(g.Flatten(x, axis=axis % rank), axis=-1), g.Shape(x))


def _along(X: Tensor, *, axis: int = -1, **_: Any) -> Tensor:
    if X.dims is not None:
        axis_of(axis, len(X.dims))
    return X.forget()


qlinear_softmax = on_steps(
    "QLinearSoftmax",
    "X X_scale x_zero_point? y_scale y_zero_point",
    _softmax,
    _along,
    [
        Sample([numbers(2, 3, 5), SMALL, MIDDLE, SHARE, np.uint8(0)], {"axis": -1, "opset": 13}),
        Sample([numbers(4, 6, dtype=np.int8), SMALL, BELOW, SHARE, np.int8(-128)], {"axis": 1, "opset": 13}),
        Sample([numbers(2, 3, 4), SMALL, MIDDLE, SHARE, np.uint8(0)], {"axis": 1, "opset": 12}),
        Sample([numbers(4, 0), SMALL, MIDDLE, SHARE, np.uint8(0)], {"axis": 1, "opset": 13}),
    ],
    attributes={"axis": -1, "opset": REQUIRED},
)


# Pools, whose images may have their channels last


def channels_first(g: Builder, x: Value, channels_last: int, inner: Callable[[Value], Value]) -> Value | None:
    """`inner` of an image with its channels in the second place, which are put back; None where its rank is needed and
    not known."""
    if not channels_last:
        return inner(x)
    rank = rank_of(g.type_of(x))
    if rank is None:
        return None
    back = (0, *range(2, rank), 1)
    return g.Transpose(inner(g.Transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))), perm=back)


def channels_first_type(X: Tensor, channels_last: int, rule: Callable[[Tensor], Any]) -> Tensor:
    """The type of the same; `rule` finds it for channels in the second place."""
    known = channels_last and X.dims is not None
    results = rule(X.of((X.dims[0], X.dims[-1], *X.dims[1:-1])) if known and X.dims else X)
    y = results[0] if isinstance(results, tuple) else results
    assert isinstance(y, Tensor)
    return y.of((y.dims[0], *y.dims[2:], y.dims[1])) if known and y.dims is not None else y


def _pool(name: str, inputs: str, samples: Sequence[Sample], attributes: Mapping[str, Any]) -> Op:
    standard = OPS["", name]

    def form(g: Builder, x: Value, *, channels_last: int = 0, **attrs: Any) -> Value | None:
        return channels_first(g, x, channels_last, lambda y: getattr(g, name)(y, **attrs))

    def result(X: Tensor, *, channels_last: int = 0, **attrs: Any) -> Tensor:
        return channels_first_type(X, channels_last, lambda x: standard.inferred(x, **attrs))

    known = {"channels_last": 0, **attributes}
    return on_steps(f"QLinear{name}", inputs, form, result, samples, attributes=known)


qlinear_average_pool = _pool(
    "AveragePool",
    "X x_scale x_zero_point? y_scale y_zero_point?",
    [
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
    {name: default for name, default in POOL.items() if name != "dilations"}
    | {"count_include_pad": 0, "kernel_shape": REQUIRED},
)  # fmt: skip
qlinear_global_average_pool = _pool(
    "GlobalAveragePool",
    "X x_scale x_zero_point y_scale y_zero_point",
    [
        Sample([numbers(1, 2, 5, 5), SMALL, MIDDLE, ODD, MIDDLE]),
        Sample([numbers(2, 3, 4, 2, dtype=np.int8), SMALL, BELOW, ODD, np.int8(5)]),
        Sample([numbers(1, 3, 3, 4), SMALL, MIDDLE, np.float32(0.03), np.uint8(7)], {"channels_last": 1}),
    ],
    NO_ATTRIBUTES,
)


# Concat


@composed(
    "QLinearConcat", domain="com.microsoft",
    inputs=("Y_scale", "Y_zero_point", "inputs*"),
    samples=[
        Sample([SMALL, MIDDLE, numbers(2, 3), SMALL, MIDDLE, numbers(2, 2), HALF, np.uint8(7)], {"axis": 1}),
        Sample([HALF, BELOW, numbers(1, 3, dtype=np.int8), SMALL, BELOW, numbers(2, 3, dtype=np.int8), HALF, BELOW],
               {"axis": 0}),
        Sample([WIDE, MIDDLE, *(numbers(2, 2, 2), HALF, MIDDLE) * 3], {"axis": -1}),
    ],
)  # fmt: skip
def qlinear_concat(g: Builder, xs: Sequence[Value], types: Types, *, axis: int) -> Value:
    parts = [x if i > 1 and i % 3 == 2 else scalar(g, x, t) for i, (x, t) in enumerate(zip(xs, types, strict=True))]
    whole = g.Concat(*(g.DequantizeLinear(*parts[i : i + 3]) for i in range(2, len(parts), 3)), axis=axis)
    return g.QuantizeLinear(whole, *parts[:2])


@qlinear_concat.infer
def _(Y_scale: Tensor, Y_zero_point: Tensor, *inputs: Tensor, axis: int) -> Any:
    if not inputs or len(inputs) % 3:
        raise ShapeError(f"{len(inputs)} operands are not tensors with a scale and a zero point each")
    check_parts(Y_scale, Y_zero_point, *(t for i, t in enumerate(inputs) if i % 3))
    joined = OPS["", "Concat"].inferred(*inputs[::3], axis=axis)
    assert isinstance(joined, Tensor)
    return joined.to(Y_zero_point.dtype)


# A product


ROWS, COLUMNS = numbers(3, 4), numbers(4, 5, dtype=np.int8)
PER_COLUMN: list[Any] = [np.linspace(0.01, 0.05, 5, dtype=np.float32), np.array([0, 1, -2, 3, -4], np.int8)]


@composed(
    "QGemm", domain="com.microsoft",
    inputs=("A", "a_scale", "a_zero_point", "B", "b_scale", "b_zero_point", "C?", "y_scale?", "y_zero_point?"),
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
    g: Builder, xs: Sequence[Value | None], types: Types, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> Value:
    """The product of integers is exact; C, in steps of the product, is added to it before it is scaled."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = xs
    a, b = (g.Transpose(x, perm=(1, 0)) if turned else x for x, turned in ((a, transA), (b, transB)))
    sums = g.MatMulInteger(a, b, scalar(g, a_zero, types[2]), b_zero)
    if c is not None:
        sums = g.Add(sums, c)
    factor = g.Mul(g.Mul(g.const(alpha, DType.FLOAT), scalar(g, a_scale, types[1])), wide(g, b_scale))
    real_sums = g.Cast(sums, to=DType.FLOAT.onnx)
    if y_scale is None:
        return g.Mul(real_sums, factor)
    steps = g.Mul(real_sums, g.Div(factor, scalar(g, y_scale, types[7])))
    return g.QuantizeLinear(steps, g.const(1.0, DType.FLOAT), scalar(g, y_zero, types[8]))


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
    check_parts(a_scale, a_zero_point, y_scale, y_zero_point)
    if (y_scale is None) is not (y_zero_point is None):
        raise ShapeError("y_scale and y_zero_point come together or not at all", hint="correct the node")
    product = OPS["", "Gemm"].inferred(A, B, C, transA=transA, transB=transB)
    assert isinstance(product, Tensor)
    for part in (b_scale, b_zero_point):
        if part.elements not in (None, 1, product.shape[1] if isinstance(product.shape[1], int) else part.elements):
            raise ShapeError(f"the scale or zero point {part} has not one entry for each column of {product}")
    return product.to(DType.FLOAT if y_zero_point is None else y_zero_point.dtype)
