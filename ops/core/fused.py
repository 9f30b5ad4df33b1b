"""Operators that passes make by fusing several: each has a body of the standard operators that it replaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import ShapeError
from ..nn.conv import conv
from ..nn.pool import max_pool
from ..op import Builder, Context, Op, Sample, Value, op
from ..types import Array, Tensor, Type, f32
from .composed import composed


@composed(
    "ConvReluPool",
    domain="mezzo",
    inputs=("X", "W", "B?"),
    attributes={"pads": (0, 0, 0, 0), "strides": (1, 1)},
    samples=[
        Sample(
            [f32(1, 3, 8, 8), f32(4, 3, 3, 3), f32(4)],
            {"pads": (1, 1, 1, 1), "pool_shape": (2, 2), "pool_strides": (2, 2)},
        ),
        Sample([f32(2, 2, 9, 7), f32(3, 2, 3, 2)], {"strides": (2, 1), "pool_shape": (3, 2), "pool_strides": (1, 2)}),
    ],
)
def conv_relu_pool(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    pool_shape: tuple[int, ...],
    pool_strides: tuple[int, ...] = (1, 1),
    **attrs: Any,
) -> Value:
    """MaxPool(Relu(Conv(X, W, B))) of images, so that the large value between them need not exist as a whole."""
    y = g.Relu(g.Conv(*(x for x in xs if x is not None), **attrs))
    return g.MaxPool(y, kernel_shape=pool_shape, strides=pool_strides)


@conv_relu_pool.infer
def _(
    X: Tensor, W: Tensor, B: Tensor | None = None, *, pool_shape: Any, pool_strides: Any = (1, 1), **attrs: Any
) -> Type:
    (y,) = conv.infer_types([X, W, B], attrs)
    if not isinstance(y, Tensor) or (y.dims is not None and len(y.dims) != 4):
        raise ShapeError(f"a convolution of images has rank 4, this is {y}")
    return max_pool.infer_types([y], {"kernel_shape": pool_shape, "strides": pool_strides})[0]


@op(
    "Reorder",
    domain="mezzo",
    complex_numbers="taken",
    since=1,
    samples=[Sample([f32(2, 3, 4, 5)], {"layout": ""}), Sample([f32(3)])],
)
def reorder(k: Context, X: Array, *, layout: str = "") -> Array:
    """The same elements in another memory layout (see layouts.py); as a value it is the identity."""
    return k.xp.array(X)


@reorder.infer
def _(X: Tensor, *, layout: str = "") -> Type:
    return X.laid(layout) if layout else X.of(X.dims)


@reorder.body
def _(g: Builder, xs: Any, types: Any, *, layout: str = "") -> tuple[Value, ...]:
    return (g.Identity(xs[0]),)


PREVIOUS, ABSENT = -1, -2  # operands of a link that are no inputs of its node
Link = tuple[str, str, tuple[int, ...], tuple[tuple[str, Any], ...]]  # domain, operator, operands, attributes


@composed(
    "Fused", domain="mezzo",
    inputs=("inputs*",),
    complex_numbers="taken",
    samples=[
        Sample(
            [f32(1, 2, 5, 5), f32(4, 2, 3, 3), f32(4, 1, 1)],
            {"chain": (("", "Conv", (0, 1), (("strides", (2, 2)),)), ("", "Add", (-1, 2), ()), ("", "Abs", (-1,), ()))},
        ),
        Sample(
            [f32(3, 4), f32(4, 5), f32(3, 5)],
            {"chain": (("", "MatMul", (0, 1), ()), ("", "Sub", (2, -1), ()))},
        ),
        Sample([f32(2, 3)], {"chain": (("", "Abs", (0,), ()), ("", "Sqrt", (-1,), ()))}),
    ],
)  # fmt: skip
def fused(g: Builder, xs: Any, types: Any, *, chain: tuple[Link, ...], overwrites: int = -1) -> Value:
    """A chain of operators of one output each, every one reading the result of the one before.

    `overwrites` names an input that nobody reads afterwards: a kernel may add to its bytes in place.

    A link is (domain, operator, operands, attributes); operand i is input i of the node, -1 the previous result, -2 an
    absent one.
    """
    result: Any = None
    for record, operands, attrs in links(chain):
        given = [_operand(i, xs, result) for i in operands]
        while given and given[-1] is None:
            given.pop()
        result = getattr(g, record.name)(*given, domain=record.domain, **attrs)
    return result


def links(chain: tuple[Link, ...]) -> Iterator[tuple[Op, tuple[int, ...], dict[str, Any]]]:
    """The links of a chain with their records; ShapeError for a chain that names none."""
    from .. import OPS

    for domain, name, operands, attrs in chain:
        record = OPS.get((domain, name))
        if record is None:
            raise ShapeError(f"operator {domain or 'ai.onnx'}::{name} in a chain is not carried")
        yield record, tuple(operands), dict(attrs)


def _operand(i: int, inputs: Any, previous: Any) -> Any:
    if i == ABSENT:
        return None
    return previous if i == PREVIOUS else inputs[i]


@fused.infer
def _(*inputs: Tensor, chain: tuple[Link, ...]) -> Type:
    result: Any = None
    for record, operands, attrs in links(chain):
        (result,) = record.infer_types([_operand(i, inputs, result) for i in operands], attrs)
    if result is None:
        raise ShapeError("a chain has at least one link")
    last: Type = result
    return last
