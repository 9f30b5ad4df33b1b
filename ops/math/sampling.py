"""Operators that draw random numbers: RandomNormal, RandomUniform, their -Like forms, Bernoulli, Multinomial.

https://onnx.ai/onnx/operators/onnx__RandomNormal.html. Numbers are a function of the run's key (see
ops/math/random.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.rules import has_rank, widen
from ..op import Context, Sample, op
from ..types import Array, DType, Tensor, f32, i64
from .derivatives import flat
from .random import draw, normal


def _typed(values: Array, number: int | None, like: Array | None = None) -> Array:
    to = like.dtype if like is not None and not number else DType.from_onnx(number or DType.FLOAT.onnx).numpy
    return values.astype(to, copy=False)


def _dtype(number: int | None, like: Tensor) -> DType:
    return DType.from_onnx(number) if number else like.dtype


@op(
    "RandomNormal",
    since=22,
    outputs=("output",),
    deterministic=False,
    samples=[
        Sample([], {"shape": (2, 3)}),
        Sample([], {"shape": (5,), "mean": 2.0, "scale": 0.5, "seed": 7.0, "dtype": DType.DOUBLE.onnx}),
        Sample([], {"shape": (0, 2)}),
    ],
)
def random_normal(
    k: Context,
    *,
    shape: Sequence[int],
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Array:
    return _typed(normal(k, seed, shape) * scale + mean, dtype)


@random_normal.infer
def _(*, shape: Sequence[int], dtype: int = 1) -> Tensor:
    return Tensor(DType.from_onnx(dtype), tuple(shape))


@op(
    "RandomNormalLike",
    complex_numbers="unchecked",
    since=22,
    outputs=("output",),
    deterministic=False,
    samples=[
        Sample([f32(2, 3)], {"mean": -1.0}),
        Sample([i64(4)], {"dtype": DType.FLOAT16.onnx, "seed": 1.5}),
        Sample([f32()], {"scale": 3.0}),
    ],
)
def random_normal_like(
    k: Context,
    input: Array,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Array:
    return _typed(normal(k, seed, input.shape) * scale + mean, dtype, input)


@random_normal_like.infer
def _(input: Tensor, *, dtype: int | None = None) -> Tensor:
    return input.to(_dtype(dtype, input))


@op(
    "RandomUniform",
    since=22,
    outputs=("output",),
    deterministic=False,
    samples=[
        Sample([], {"shape": (2, 3)}),
        Sample([], {"shape": (5,), "low": -2.0, "high": 2.0, "seed": 7.0, "dtype": DType.BFLOAT16.onnx}),
        Sample([], {"shape": ()}),
    ],
)
def random_uniform(
    k: Context,
    *,
    shape: Sequence[int],
    dtype: int = 1,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Array:
    return _typed(draw(k, seed, shape) * (high - low) + low, dtype)


@random_uniform.infer
def _(*, shape: Sequence[int], dtype: int = 1) -> Tensor:
    return Tensor(DType.from_onnx(dtype), tuple(shape))


@op(
    "RandomUniformLike",
    complex_numbers="unchecked",
    since=22,
    outputs=("output",),
    deterministic=False,
    samples=[
        Sample([f32(2, 3)], {"low": -1.0}),
        Sample([i64(4)], {"dtype": DType.DOUBLE.onnx, "seed": 3.0}),
    ],
)
def random_uniform_like(
    k: Context,
    input: Array,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Array:
    return _typed(draw(k, seed, input.shape) * (high - low) + low, dtype, input)


@random_uniform_like.infer
def _(input: Tensor, *, dtype: int | None = None) -> Tensor:
    return input.to(_dtype(dtype, input))


@op(
    "Bernoulli",
    since=22,
    outputs=("output",),
    deterministic=False,
    samples=[
        Sample([np.array([0, 1, 1], np.float32)]),  # certain, whoever draws
        Sample([np.array([[0.2, 0.5], [0.9, 1]], np.float32)], {"seed": 5.0}),
        Sample([np.array([0.5, 0.25], np.float32)], {"dtype": DType.BOOL.onnx}),
    ],
)
def bernoulli(k: Context, input: Array, *, dtype: int | None = None, seed: float | None = None) -> Array:
    if k.numpy_random and seed is not None:
        return _typed(k.xp.asarray(np.random.RandomState(int(seed)).binomial(1, input)), dtype, input)
    return _typed(draw(k, seed, input.shape) < widen(input), dtype, input)


@bernoulli.infer
def _(input: Tensor, *, dtype: int | None = None) -> Tensor:
    return input.to(_dtype(dtype, input))


@op(
    "Multinomial",
    since=22,
    outputs=("output",),
    deterministic=False,
    samples=[
        Sample([f32(2, 3)], {"sample_size": 5}),
        Sample([np.array([[-1e9, 0], [0, -1e9]], np.float32)], {"dtype": DType.INT64.onnx}),
    ],
)
def multinomial(k: Context, input: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Array:
    logits = input.astype(np.float64)
    ends = k.xp.exp(logits - logits.max(1, keepdims=True)).cumsum(1)  # of each outcome's share of the row
    at = draw(k, seed, (input.shape[0], sample_size)) * ends[:, -1:]
    found = (at[:, :, None] >= ends[:, None, :-1]).sum(2)
    return _typed(found, dtype)


@multinomial.infer
def _(input: Tensor, *, dtype: int = 6, sample_size: int = 1) -> Tensor:
    has_rank(input, 2)
    rows = input.dims[0] if input.dims is not None else None
    return Tensor(DType.from_onnx(dtype), (rows, sample_size))


flat(random_normal_like, random_uniform_like, bernoulli)
