"""The gradient of Resize: each axis is mapped back by the transpose of its resampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.rules import axes_of, ints, narrow, widen
from ..op import Builder, Context, Sample, Value, op
from ..tensor.indexing_grads import shaped, unmoved, untaken
from ..types import Array, DType, Tensor
from .resize import RESIZE, along, resamplings, resize


def _samples() -> list[Sample]:
    """Those of Resize, with the shape of its result and that of its input."""
    samples = []
    for sample in resize.samples:
        given: list[Any] = [*sample.inputs, *[None] * (4 - len(sample.inputs))]
        X, roi, scales, sizes = given
        if isinstance(X, Tensor) and X.dtype.floating:
            known = [None if v is None else Tensor(DType.of(v.dtype), v.shape, v) for v in (roi, scales, sizes)]
            dY: list[Any] = [*resize.infer_types([X, *known], sample.attrs)]
            attrs = {a: v for a, v in sample.attrs.items() if a != "extrapolation_value"}
            samples.append(replace(sample, inputs=[*dY, np.array(X.sizes), roi, scales, sizes], attrs=attrs))
    return samples


@op("ResizeGrad", domain="mezzo", attributes=RESIZE, samples=_samples())
def resize_grad(
    k: Context,
    dY: Array,
    shape: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    **attrs: Any,
) -> Array:
    """The gradient to the input of a Resize, which had this shape."""
    xp, dx = k.xp, widen(dY)
    axes_back = [*resamplings(ints(shape), roi, scales, sizes, **attrs)]
    for x, _, outside in axes_back:
        if outside is not None:  # these elements showed a constant
            dx = xp.where(xp.asarray(outside).reshape([-1, *[1] * (dx.ndim - 1 - x.axis)]), dx.dtype.type(0), dx)
    for x, how, _ in axes_back:
        if how is not None:
            dx = untaken(xp, dx, xp.asarray(how), x.size, x.axis) if how.ndim == 1 else along(xp, dx, how, x.axis)
    return xp.array(narrow(dx, dY.dtype), order="C")


@resize_grad.infer
def _(dY: Tensor, shape: Tensor, *how: Tensor | None) -> Tensor:
    return shaped(dY, shape)


@resize_grad.body
def _(g: Builder, xs: Any, types: Any, *, axes: Sequence[int] | None = None, **attrs: Any) -> Value | None:
    """Resize makes the matrix of an axis of the unit matrix. Where axes share one factor that none states, there is no
    matrix of one of them alone."""
    (dY, shape, roi, *asked), (known, dims, *_) = xs, types
    if attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        if attrs.get("mode", "nearest") != "nearest":
            return None
        narrow_ints = DType.INT32.onnx  # runtimes resize no wider ones
        return unmoved(g, dY, shape, lambda v: g.Resize(g.Cast(v, to=narrow_ints), roi, *asked, axes=axes, **attrs))
    if known.dims is None:
        return None
    rank = len(known.dims)
    at = axes_of(range(rank) if axes is None else axes, rank)
    which = 0 if types[3] is not None and types[3].elements != 0 else 1
    cropped = attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    reckoned = DType.FLOAT if known.dtype.narrow else known.dtype
    dx = g.Cast(dY, to=reckoned.onnx)
    for i, a in enumerate(at):
        if not cropped and _stays(types[3 + which], i, None if which == 0 else dims.ints(), a):
            continue
        size = g.Gather(shape, g.const([a]))
        unit = g.EyeLike(g.Expand(g.const(0, reckoned), g.Concat(size, size, axis=0)))
        part = g.Gather(roi, g.const([i, i + len(at)])) if cropped and roi is not None else None
        factor = [g.Gather(v, g.const([i])) if j == which else None for j, v in enumerate(asked)]
        matrix = g.Resize(unit, part, *factor, axes=[0], **attrs)
        order = [*(b for b in range(rank) if b != a), a]
        moved = g.MatMul(g.Transpose(dx, perm=order), matrix)
        dx = g.Transpose(moved, perm=np.argsort(order).tolist())
    return g.Cast(dx, to=known.dtype.onnx)


def _stays(asked: Tensor, i: int, dims: list[int] | None, axis: int) -> bool:
    """True if an axis is known to keep its size: a scale of 1, or its own size."""
    if asked.value is None:
        return False
    value = float(np.asarray(asked.value).ravel()[i])
    return value == 1 if not asked.dtype.integer else dims is not None and value == dims[axis]


@resize_grad.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    return g.Resize(dys[0], *xs[2:], **attrs), None, None, None, None
