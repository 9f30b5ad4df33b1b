"""`mx.nd.random`: random arrays by MXNet's functions. Uniform, normal and integers are drawn as `mz.random` draws
them; the others on the host, from a generator that its seed and draws decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import nd as ours
from ...nd import random as our_random
from ...nd.array import Array
from ...nd.running import assign
from .ndarray import own

Shape = int | Sequence[int] | None


def _host(ctx: Any) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(our_random.generator(ctx).advance())))


def _sizes(shape: Any) -> tuple[int, ...]:
    return () if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)


def _result(value: Array, dtype: Any, out: Any) -> Any:
    result = own(value if dtype in (None, "None") else ours.astype(value, dtype))
    if out is None:
        return result
    assign(out, result)
    return out


def _drawn(draw: Callable[..., Any], parameters: Sequence[Any], shape: Shape, dtype: Any, ctx: Any, out: Any) -> Any:
    """Numbers of parameters that are numbers: of this shape; that are arrays: so many for each element of theirs."""
    given = [p.asnumpy() if isinstance(p, Array) else p for p in parameters]
    several = next((np.shape(p) for p in given if np.ndim(p)), None)
    if out is not None and shape is None:
        shape = out.shape
    if several is None:
        sizes = _sizes(shape) or (1,)
    else:
        sizes = (*several, *_sizes(shape))
        given = [np.reshape(p, np.shape(p) + (1,) * len(_sizes(shape))) if np.ndim(p) else p for p in given]
    numbers = draw(_host(ctx), *given, sizes)
    return _result(ours.asarray(np.asarray(numbers, np.float32), device=ctx), dtype, out)


def uniform(
    low: Any = 0, high: Any = 1, shape: Shape = None, dtype: Any = None, ctx: Any = None, out: Any = None, **_: Any
) -> Any:
    if isinstance(low, Array) or isinstance(high, Array):
        return _drawn(lambda r, a, b, s: r.uniform(a, b, s), (low, high), shape, dtype, ctx, out)
    sizes = _sizes(out.shape if out is not None and shape is None else shape) or (1,)
    return _result(our_random.uniform(low, high, sizes, ctx=ctx), dtype, out)


def normal(
    loc: Any = 0, scale: Any = 1, shape: Shape = None, dtype: Any = None, ctx: Any = None, out: Any = None, **_: Any
) -> Any:
    if isinstance(loc, Array) or isinstance(scale, Array):
        return _drawn(lambda r, a, b, s: r.normal(a, b, s), (loc, scale), shape, dtype, ctx, out)
    sizes = _sizes(out.shape if out is not None and shape is None else shape) or (1,)
    return _result(our_random.normal(sizes, loc=loc, scale=scale, ctx=ctx), dtype, out)


def randn(*shape: int, loc: Any = 0, scale: Any = 1, dtype: Any = None, ctx: Any = None, out: Any = None) -> Any:
    return normal(loc, scale, shape or (1,), dtype, ctx, out)


def randint(
    low: int, high: int, shape: Shape = None, dtype: Any = "int32", ctx: Any = None, out: Any = None, **_: Any
) -> Any:
    sizes = _sizes(out.shape if out is not None and shape is None else shape) or (1,)
    return _result(our_random.randint(low, high, sizes, dtype=dtype or "int32", ctx=ctx), None, out)


def exponential(
    scale: Any = 1, shape: Shape = None, dtype: Any = None, ctx: Any = None, out: Any = None, **_: Any
) -> Any:
    return _drawn(lambda r, a, s: r.exponential(a, s), (scale,), shape, dtype, ctx, out)


def gamma(
    alpha: Any = 1, beta: Any = 1, shape: Shape = None, dtype: Any = None, ctx: Any = None, out: Any = None, **_: Any
) -> Any:
    return _drawn(lambda r, a, b, s: r.gamma(a, b, s), (alpha, beta), shape, dtype, ctx, out)


def poisson(lam: Any = 1, shape: Shape = None, dtype: Any = None, ctx: Any = None, out: Any = None, **_: Any) -> Any:
    return _drawn(lambda r, a, s: r.poisson(a, s), (lam,), shape, dtype, ctx, out)


def negative_binomial(
    k: Any = 1, p: Any = 1, shape: Shape = None, dtype: Any = None, ctx: Any = None, out: Any = None, **_: Any
) -> Any:
    return _drawn(lambda r, a, b, s: r.negative_binomial(a, b, s), (k, p), shape, dtype, ctx, out)


def generalized_negative_binomial(
    mu: Any = 1, alpha: Any = 1, shape: Shape = None, dtype: Any = None, ctx: Any = None, out: Any = None, **_: Any
) -> Any:
    def draw(r: np.random.Generator, m: Any, a: Any, s: Any) -> Any:
        return r.poisson(r.gamma(1 / np.maximum(a, 1e-12), m * a, s) if np.all(np.asarray(a) > 0) else m, s)

    return _drawn(draw, (mu, alpha), shape, dtype, ctx, out)


def multinomial(
    data: Array, shape: Shape = None, get_prob: bool = False, out: Any = None, dtype: Any = "int32", **_: Any
) -> Any:
    """Classes by the chances in the last axis, so many of each row; with `get_prob` the logarithm of their chances
    too, through which gradients go."""
    chances, sizes = data.asnumpy(), _sizes(shape)
    rows = chances.reshape(-1, chances.shape[-1]).astype(np.float64)
    count = int(np.prod(sizes))
    at = _host(data.device).random((len(rows), count))
    sums = np.cumsum(rows, 1)
    places = (at[:, :, None] * sums[:, None, -1:] >= sums[:, None]).sum(2).clip(0, chances.shape[-1] - 1)
    places = places.reshape(*chances.shape[:-1], *sizes) if sizes or chances.ndim > 1 else places.reshape(1)
    drawn = _result(ours.asarray(places.astype(np.int64), device=data.device), dtype, out)
    if not get_prob:
        return drawn
    index = ours.asarray(places.reshape(len(rows), count).astype(np.int64), device=data.device)
    flat = ours.reshape(data, (len(rows), chances.shape[-1]))
    taken = ours.GatherElements(flat, index, axis=1)
    return [drawn, own(ours.reshape(ours.log(taken), places.shape))]


def bernoulli(prob: Any = 0.5, shape: Shape = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> Any:
    return _drawn(lambda r, a, s: r.random(s) < a, (prob,), shape, dtype, ctx, out)


def shuffle(data: Array, out: Any = None, **_: Any) -> Any:
    """The rows in a random order: another array, as in MXNet."""
    order = our_random.permutation(data.shape[0])
    return _result(ours.take(data, order, axis=0), None, out)


def seed(seed_state: int, ctx: Any = "all") -> None:
    """Begin all random numbers anew."""
    our_random.seed(seed_state, ctx)


__all__ = [
    "bernoulli", "exponential", "gamma", "generalized_negative_binomial", "multinomial", "negative_binomial", "normal",
    "poisson", "randint", "randn", "seed", "shuffle", "uniform",
]  # fmt: skip
