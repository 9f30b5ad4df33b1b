"""Operators that passes make of several: each has a body of the standard operators that it stands for."""

from __future__ import annotations

from typing import Any

from .activations import relu
from .conv import conv
from .errors import ShapeError
from .op import Builder, Context, Sample, Value, op
from .pool import max_pool
from .types import Array, Tensor, Type, f32


@op(
    "ConvReluPool",
    domain="mezzo",
    since=1,
    samples=[
        Sample(
            [f32(1, 3, 8, 8), f32(4, 3, 3, 3), f32(4)],
            {"pads": (1, 1, 1, 1), "pool_shape": (2, 2), "pool_strides": (2, 2)},
        ),
        Sample([f32(2, 2, 9, 7), f32(3, 2, 3, 2)], {"strides": (2, 1), "pool_shape": (3, 2), "pool_strides": (1, 2)}),
    ],
)
def conv_relu_pool(
    k: Context,
    X: Array,
    W: Array,
    B: Array | None = None,
    *,
    pads: tuple[int, ...] = (0, 0, 0, 0),
    strides: tuple[int, ...] = (1, 1),
    pool_shape: tuple[int, ...],
    pool_strides: tuple[int, ...] = (1, 1),
) -> Array:
    """MaxPool(Relu(Conv(X, W, B))) of images, so that the large value between them need not exist as a whole."""
    y = conv.reference(k, X, W, B, pads=pads, strides=strides)
    y = relu.reference(k, y)
    return max_pool.run(k, [y], {"kernel_shape": pool_shape, "strides": pool_strides})[0]


@conv_relu_pool.infer
def _(
    X: Tensor, W: Tensor, B: Tensor | None = None, *, pool_shape: Any, pool_strides: Any = (1, 1), **attrs: Any
) -> Type:
    (y,) = conv.infer_types([X, W, B], attrs)
    if not isinstance(y, Tensor) or (y.dims is not None and len(y.dims) != 4):
        raise ShapeError(f"a convolution of images has rank 4, this is {y}")
    return max_pool.infer_types([y], {"kernel_shape": pool_shape, "strides": pool_strides})[0]


@conv_relu_pool.body
def _(
    g: Builder, xs: Any, types: Any, *, pool_shape: Any, pool_strides: Any = (1, 1), **attrs: Any
) -> tuple[Value, ...]:
    y = g.Relu(g.Conv(*(x for x in xs if x is not None), **attrs))
    return (g.MaxPool(y, kernel_shape=pool_shape, strides=pool_strides),)
