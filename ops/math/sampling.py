"""Operators that draw random numbers: RandomNormal, RandomUniform, their -Like forms, Bernoulli, Multinomial.

https://onnx.ai/onnx/operators/onnx__RandomNormal.html. Numbers are a function of the run's key (see
ops/math/random.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..core.rules import has_rank, widen
from ..op import Context, Op, Sample, op
from ..types import Array, DType, Tensor, f32, i64
from .derivatives import flat
from .random import draw, normal


def _typed(values: Array, number: int | None, like: Array | None = None) -> Array:
    to = like.dtype if like is not None and not number else DType.from_onnx(number or DType.FLOAT.onnx).numpy
    return values.astype(to, copy=False)


def _dtype(number: int | None, like: Tensor) -> DType:
    return DType.from_onnx(number) if number else like.dtype


OPERATORS = "RandomNormal RandomNormalLike RandomUniform RandomUniformLike"


def _random(
    name: str,
    numbers: Callable[..., Array],
    attributes: Mapping[str, float],
    samples: Sequence[Sample],
    like: Sequence[Sample],
) -> Op:
    """Define an operator that draws as many numbers as its attribute `shape` says, and its -Like form, which draws as
    many as its operand has; returns that. `numbers` are drawn by `(k, seed, shape, **attributes)`."""
    settings = {**attributes, "seed": None}

    @op(name, since=22, outputs=("output",), deterministic=False, samples=samples, attributes=settings)
    def plain(k: Context, *, shape: Sequence[int], dtype: int = 1, seed: float | None = None, **attrs: float) -> Array:
        return _typed(numbers(k, seed, shape, **attrs), dtype)

    @plain.infer
    def _(*, shape: Sequence[int], dtype: int = 1) -> Tensor:
        return Tensor(DType.from_onnx(dtype), tuple(shape))

    @op(f"{name}Like", complex_numbers="unchecked", since=22, outputs=("output",), deterministic=False, samples=like,
        attributes=settings)  # fmt: skip
    def alike(
        k: Context, input: Array, *, dtype: int | None = None, seed: float | None = None, **attrs: float
    ) -> Array:
        return _typed(numbers(k, seed, input.shape, **attrs), dtype, input)

    @alike.infer
    def _(input: Tensor, *, dtype: int | None = None) -> Tensor:
        return input.to(_dtype(dtype, input))

    return alike


def _normal(k: Context, seed: float | None, shape: Sequence[int], *, mean: float = 0.0, scale: float = 1.0) -> Array:
    return normal(k, seed, shape) * scale + mean


def _uniform(k: Context, seed: float | None, shape: Sequence[int], *, high: float = 1.0, low: float = 0.0) -> Array:
    return draw(k, seed, shape) * (high - low) + low


random_normal_like = _random(
    "RandomNormal",
    _normal,
    {"mean": 0.0, "scale": 1.0},
    [
        Sample([], {"shape": (2, 3)}),
        Sample([], {"shape": (5,), "mean": 2.0, "scale": 0.5, "seed": 7.0, "dtype": DType.DOUBLE.onnx}),
        Sample([], {"shape": (0, 2)}),
    ],
    [
        Sample([f32(2, 3)], {"mean": -1.0}),
        Sample([i64(4)], {"dtype": DType.FLOAT16.onnx, "seed": 1.5}),
        Sample([f32()], {"scale": 3.0}),
    ],
)
random_uniform_like = _random(
    "RandomUniform",
    _uniform,
    {"high": 1.0, "low": 0.0},
    [
        Sample([], {"shape": (2, 3)}),
        Sample([], {"shape": (5,), "low": -2.0, "high": 2.0, "seed": 7.0, "dtype": DType.BFLOAT16.onnx}),
        Sample([], {"shape": ()}),
    ],
    [
        Sample([f32(2, 3)], {"low": -1.0}),
        Sample([i64(4)], {"dtype": DType.DOUBLE.onnx, "seed": 3.0}),
    ],
)


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
    classes = (at[:, :, None] >= ends[:, None, :-1]).sum(2)
    return _typed(classes, dtype)


@multinomial.infer
def _(input: Tensor, *, dtype: int = 6, sample_size: int = 1) -> Tensor:
    has_rank(input, 2)
    rows = input.dims[0] if input.dims is not None else None
    return Tensor(DType.from_onnx(dtype), (rows, sample_size))


flat(random_normal_like, random_uniform_like, bernoulli)
