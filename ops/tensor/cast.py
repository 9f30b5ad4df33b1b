"""Cast and CastLike: every element type to every other, strings included.

https://onnx.ai/onnx/operators/onnx__Cast.html
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core.complexes import is_complex, real_part
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, DType, Tensor, f32, i64

FLOAT8 = (DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ)


def _to_text(k: Context, x: Array) -> Array:
    """Return each number as the shortest text that reads back as itself."""
    return np.array([str(v) for v in k.each(x.ravel())], object).reshape(x.shape)


def _from_text(k: Context, x: Array, to: DType) -> Array:
    def whole(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            return int(float(text))

    read: Any = float if to.floating or to is DType.BOOL else whole
    numbers = [read(text) for text in k.each(x.ravel())]
    return np.array(numbers, np.float64 if read is float else None).astype(to.numpy).reshape(x.shape)


def _to_power_of_two(xp: Any, x: Array, saturate: int, round_mode: str) -> Array:
    """Floats as float8_e8m0: eight bits of exponent, nothing else."""
    fraction, exponent = xp.frexp(xp.abs(x.astype(np.float64)))  # x = fraction * 2**exponent, fraction in [0.5, 1)
    if round_mode not in ("up", "down", "nearest"):
        raise ShapeError(f"round_mode {round_mode!r} is none of up, down, nearest")
    raised = {"up": fraction > 0.5, "down": fraction >= 1, "nearest": fraction >= 0.75}[round_mode]
    code = exponent - 1 + raised + 127
    code = xp.where(xp.isinf(x), 255, xp.where(x == 0, -1, code))
    code = xp.clip(code, 0, 254) if saturate else xp.where((code < 0) | (code > 254), 255, code)
    return xp.where(xp.isnan(x), 255, code).astype(np.uint8).view(DType.FLOAT8E8M0.numpy)


def converted(k: Context, x: Array, to: DType, saturate: int, round_mode: str) -> Array:
    """A fresh array with elements in the element type `to`, texts as well."""
    if x.dtype == object:
        return x.copy() if to is DType.STRING else k.xp.asarray(_from_text(k, x, to))
    return _to_text(k, x) if to is DType.STRING else convert(k.xp, x, to, saturate, round_mode)


def convert(xp: Any, x: Array, to: DType, saturate: int = 1, round_mode: str = "up") -> Array:
    """A fresh array with numbers in the element type `to`."""
    of = DType.of(x.dtype)
    with xp.errstate(all="ignore"):
        if to is DType.BOOL:
            return x != 0
        if to is DType.FLOAT8E8M0:
            return x.copy() if of is to else _to_power_of_two(xp, x, saturate, round_mode)
        if to in FLOAT8 and saturate and of.floating and of is not to:
            most = _largest(to)
            wide = x.astype(np.float32) if of.bits < 32 else x
            return xp.clip(wide, -most, most).astype(to.numpy)
        if to.bits < 8 and of.integer:  # the higher bits are dropped
            low = x.astype(np.int64) & ((1 << to.bits) - 1)
            return (xp.where(low >> (to.bits - 1), low - (1 << to.bits), low) if to.signed else low).astype(to.numpy)
        if of.bits < 8 or to.bits < 8 or of is DType.FLOAT8E8M0:  # ml_dtypes converts its own types by a common one
            wide = x.astype(np.float32)
            if of is DType.FLOAT8E8M0 and to.integer:  # as for the other floats of eight bits
                wide = xp.where(xp.isnan(wide), np.float32(0), wide)
            return wide.astype(to.numpy)
        return x.astype(to.numpy)


def _largest(to: DType) -> float:
    import ml_dtypes

    finfo: Any = ml_dtypes.finfo
    return float(finfo(to.numpy).max)


_NUMBERS = np.array([[-1.5, 0, 3.9], [100, -0.2, 7]], np.float32)
_EDGES = np.array([math.nan, math.inf, -math.inf, 500, -1e6, 0, -0.0, 1e-3], np.float32)


@op(
    "Cast",
    complex_numbers="direct",
    since=28,
    outputs=("output",),
    samples=[
        *(Sample([_NUMBERS], {"to": t.onnx}) for t in (DType.INT32, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16)),
        *(Sample([_NUMBERS], {"to": t.onnx}) for t in (DType.FLOAT, DType.BOOL)),
        *(Sample([_EDGES], {"to": t.onnx, "saturate": s}) for t in FLOAT8 for s in (0, 1)),
        Sample([np.array([200, -200, 7], np.int16)], {"to": DType.INT8.onnx}),
        Sample([np.array([True, False])], {"to": DType.FLOAT.onnx}),
        Sample([np.array(["1.5", "-INF", "nan", "1e3"], object)], {"to": DType.FLOAT.onnx}),
        Sample([np.array(["15", "-3"], object)], {"to": DType.INT64.onnx}),
        Sample([np.array([15, -3])], {"to": DType.STRING.onnx}),
        Sample([f32(0, 3)], {"to": DType.INT64.onnx}),
        Sample([f32()], {"to": DType.DOUBLE.onnx}),
    ],
)
def cast(k: Context, input: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    return converted(k, input, DType.from_onnx(to), saturate, round_mode)


@cast.infer
def _(input: Tensor, *, to: int) -> Tensor:
    return input.to(DType.from_onnx(to))


@cast.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value, ...]:
    return (_cast_back(g, dys[0], xs[0]),)


def _cast_back(g: Builder, dy: Value, x: Value) -> Value:
    """The gradient in the element type that the numbers had: as if the narrower type did not round."""
    lost = is_complex(g.type_of(dy)) and not is_complex(g.type_of(x))
    return g.CastLike(real_part(g, dy) if lost else dy, x)


@op("CastLike", complex_numbers="direct", since=25, outputs=("output",), samples=[
    Sample([f32(2, 3), i64(1)]), Sample([i64(2), f32()]), Sample([f32(2), Tensor(DType.DOUBLE, ())]),
])  # fmt: skip
def cast_like(k: Context, input: Array, target_type: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    return converted(k, input, DType.of(target_type.dtype), saturate, round_mode)


@cast_like.infer
def _(input: Tensor, target_type: Tensor) -> Tensor:
    return input.to(target_type.dtype)


@cast_like.body
def _(g: Builder, xs: Any, types: Any, **attrs: Any) -> Value:
    return g.Cast(xs[0], to=types[1].dtype.onnx, **attrs)


@cast_like.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    return _cast_back(g, dys[0], xs[0]), None
