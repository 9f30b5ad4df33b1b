"""Dropout: elements that are zero at random in training (Srivastava et al. 2014).

https://onnx.ai/onnx/operators/onnx__Dropout.html
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.rules import narrow, widen
from ..core.shapes import cast_like, wide
from ..math.random import draw
from ..op import Builder, Context, Sample, Twin, Value, op
from ..types import Array, DType, Tensor, f32


@op(
    "Dropout",
    since=22,
    outputs=("output", "mask?"),
    deterministic=False,  # a pass turns it into Identity where training_mode is known to be false
    samples=[
        Sample([f32(2, 3)]),
        Sample([f32(2, 3), np.float32(0.3), np.array(False)], {}, 2),
        Sample([f32(4, 5), np.float32(0.5), np.array(True)], {"seed": 7}, 2),
        Sample([f32(2), np.float32(0), np.array(True)], {}, 2),
        Sample([f32(0), None, np.array(True)], {}, 2),
    ],
)
def dropout(
    k: Context, data: Array, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int | None = None
) -> tuple[Array, Array]:
    rate = 0.5 if ratio is None else float(ratio)
    if training_mode is None or not bool(training_mode) or rate == 0:
        return data.copy(), k.xp.ones(data.shape, bool)
    kept = draw(k, seed, data.shape) >= rate
    return narrow(k.xp.where(kept, widen(data) / (1 - rate), 0), data.dtype), kept


@dropout.infer
def _(data: Tensor, ratio: Tensor | None = None, training_mode: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return data.forget(), Tensor(DType.BOOL, data.dims)


@dropout.twin
def _(types: Any, wanted: Any, **attrs: Any) -> Twin:
    return Twin("Dropout", attrs, 2)


@dropout.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, seed: int | None = None) -> tuple[Value | None, ...]:
    (dy, _), (_, mask), (_, ratio, training) = dys, ys, xs
    if training is None:
        return dy, None, None
    part = wide(g, dy)
    one, zero = g.scalar(1, part), g.scalar(0, part)
    left = g.scalar(0.5, part) if ratio is None else g.Sub(one, cast_like(g, ratio, part))
    kept = g.Where(mask, g.Div(part, g.Where(training, left, one)), zero)
    return cast_like(g, kept, dy), None, None
