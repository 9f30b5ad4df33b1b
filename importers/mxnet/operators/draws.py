"""Random numbers, by the program's own generator (Philox), and densities of distributions.

Numbers are not those that MXNet draws; their distributions are. Gamma, Poisson and binomial ones, which take rejection,
are not carried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ....ops import DType
from ....ops.errors import UnsupportedModel
from ..converter import Converter, Value, element_type
from ..rules import rule
from .algebra import gammaln

Inverse = Callable[..., Value]  # (converter, numbers in [0, 1), parameters): numbers of a distribution
LEAST = 2.0**-24  # what uniform numbers are multiples of


def _open(c: Converter, u: str) -> Value:
    """Numbers above 0."""
    return c.Add(u, c.number(LEAST / 2, u))


def _log_open(c: Converter, u: str) -> Value:
    return c.Log(_open(c, u))


def _exponential(c: Converter, u: str, scale: str) -> Value:
    return c.Neg(c.Mul(scale, _log_open(c, u)))


def _gumbel(c: Converter, u: str, loc: str, scale: str) -> Value:
    return c.Sub(loc, c.Mul(scale, c.Log(c.Neg(_log_open(c, u)))))


def _logistic(c: Converter, u: str, loc: str, scale: str) -> Value:
    odds = c.Sub(_log_open(c, u), c.Log(_open(c, c.Sub(c.number(1 - LEAST, u), u))))
    return c.Add(loc, c.Mul(scale, odds))


def _rayleigh(c: Converter, u: str, scale: str) -> Value:
    return c.Mul(scale, c.Sqrt(c.Mul(c.number(-2, u), _log_open(c, u))))


def _pareto(c: Converter, u: str, a: str) -> Value:
    return c.Sub(c.Exp(c.Div(c.Neg(_log_open(c, u)), a)), c.number(1, u))


def _weibull(c: Converter, u: str, a: str) -> Value:
    return c.Pow(c.Neg(_log_open(c, u)), c.Reciprocal(a))


def _powered(c: Converter, u: str, a: str) -> Value:
    return c.Pow(_open(c, u), c.Reciprocal(a))


def _uniform(c: Converter, u: str, low: str, high: str) -> Value:
    return c.Add(low, c.Mul(u, c.Sub(high, low)))


def _normal(c: Converter, n: str, loc: str, scale: str) -> Value:
    return c.Add(loc, c.Mul(n, scale))


def _sizes(shape: Any) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape or ())


def noise(c: Converter, shape: str, *, normal: bool = False) -> Value:
    """float32 numbers in [0, 1), or of the standard normal distribution."""
    like = c.full(shape, 0, DType.FLOAT)
    name = "RandomNormalLike" if normal else "RandomUniformLike"
    return c.op(name, like, dtype=DType.FLOAT.onnx)


def _type(dtype: Any) -> DType:
    return DType.FLOAT if dtype in (None, "None", -1) else element_type(dtype)


def _drawn(
    c: Converter, shape: str, write: Inverse, parameters: list[str], dtype: Any = None, *, normal: bool = False
) -> Any:
    return c.cast(write(c, noise(c, shape, normal=normal), *parameters), _type(dtype))


def _number(c: Converter, value: float) -> Value:
    return c.const(value, DType.FLOAT)


def _of_shape(
    c: Converter, *, first: float, second: float, shape: Any = None, dtype: Any = None, write: Inverse, normal: bool
) -> Any:
    return _drawn(c, c.ints(*_sizes(shape)), write, [_number(c, first), _number(c, second)], dtype, normal=normal)


@rule("_random_uniform", "uniform", "random_uniform")
def random_uniform(c: Converter, *, low: float = 0.0, high: float = 1.0, shape: Any = None, dtype: Any = None) -> Any:
    return _of_shape(c, first=low, second=high, shape=shape, dtype=dtype, write=_uniform, normal=False)


@rule("_random_normal", "normal", "random_normal")
def random_normal(c: Converter, *, loc: float = 0.0, scale: float = 1.0, shape: Any = None, dtype: Any = None) -> Any:
    return _of_shape(c, first=loc, second=scale, shape=shape, dtype=dtype, write=_normal, normal=True)


@rule("_random_exponential", "random_exponential")
def random_exponential(c: Converter, *, lam: float = 1.0, shape: Any = None, dtype: Any = None) -> Any:
    return _drawn(c, c.ints(*_sizes(shape)), _exponential, [_number(c, 1 / lam)], dtype)


@rule("_random_randint", "random_randint", "_npi_random_randint")
def random_randint(c: Converter, *, low: int, high: int, shape: Any = None, dtype: Any = None) -> Any:
    if high - low > 1 << 24:
        raise UnsupportedModel(f"integers from a range of {high - low}, of which floats have 16777216")
    floor = c.Floor(c.Mul(noise(c, c.ints(*_sizes(shape))), _number(c, high - low)))
    kind = DType.INT32 if dtype in (None, "None") else element_type(dtype)
    return c.Add(c.cast(floor, kind), c.const(np.array(low, kind.numpy)))


@rule("_random_uniform_like")
def uniform_like(c: Converter, data: str, *, low: float = 0.0, high: float = 1.0) -> Any:
    drawn = _uniform(c, noise(c, c.shape_of(data)), _number(c, low), _number(c, high))
    return c.cast(drawn, c.dtype(data))


@rule("_random_normal_like")
def normal_like(c: Converter, data: str, *, loc: float = 0.0, scale: float = 1.0) -> Any:
    drawn = _normal(c, noise(c, c.shape_of(data), normal=True), _number(c, loc), _number(c, scale))
    return c.cast(drawn, c.dtype(data))


@rule("_random_exponential_like")
def exponential_like(c: Converter, data: str, *, lam: float = 1.0) -> Any:
    return c.cast(_exponential(c, noise(c, c.shape_of(data)), _number(c, 1 / lam)), c.dtype(data))


def _by_row(c: Converter, parameters: list[str], shape: Any, dtype: Any, write: Inverse, normal: bool) -> Any:
    """For each element of the parameters numbers of a shape, behind its axes."""
    sizes = _sizes(shape)
    rank = c.rank(parameters[0])
    whole = c.shape_with([*(c.dim(parameters[0], i) for i in range(rank)), *sizes])
    wide = [c.unsqueeze(c.cast(p, DType.FLOAT), *range(rank, rank + len(sizes))) for p in parameters]
    return _drawn(c, whole, write, wide, dtype, normal=normal)


@rule("_sample_uniform", "sample_uniform")
def sample_uniform(c: Converter, low: str, high: str, *, shape: Any = (), dtype: Any = None) -> Any:
    return _by_row(c, [low, high], shape, dtype, _uniform, normal=False)


@rule("_sample_normal", "sample_normal")
def sample_normal(c: Converter, mu: str, sigma: str, *, shape: Any = (), dtype: Any = None) -> Any:
    return _by_row(c, [mu, sigma], shape, dtype, _normal, normal=True)


@rule("_sample_exponential", "sample_exponential")
def sample_exponential(c: Converter, lam: str, *, shape: Any = (), dtype: Any = None) -> Any:
    return _by_row(c, [c.Reciprocal(c.cast(lam, DType.FLOAT))], shape, dtype, _exponential, normal=False)


@rule("_sample_multinomial", "sample_multinomial")
def sample_multinomial(
    c: Converter, data: str, *, shape: Any = (), get_prob: bool = False, dtype: Any = "int32"
) -> Any:
    """Classes by their probabilities, the last axis: as many as `shape` says for each row, and their logarithms."""
    sizes = _sizes(shape)
    count = math.prod(sizes)
    rank = c.rank(data)
    classes = c.dim(data, rank - 1)
    rows = c.Reshape(data, c.shape_with([-1, classes]))
    drawn = c.Multinomial(c.Log(rows), sample_size=count, dtype=DType.INT32.onnx)
    whole = c.shape_with([*(c.dim(data, i) for i in range(rank - 1)), *sizes])
    result = c.Reshape(c.cast(drawn, element_type(dtype)), whole)
    if not get_prob:
        return result
    picked = c.GatherElements(rows, c.whole(drawn), axis=1)
    return result, c.Reshape(c.Log(picked), whole)


@rule("_shuffle", "shuffle", "_npi_shuffle")
def shuffle(c: Converter, data: str) -> Any:
    """The rows in the order of numbers that are drawn for them."""
    size = c.dim(data, 0)
    keys = noise(c, size)
    order = c.op("TopK", keys, size, outputs=2, axis=0, largest=0)[1]
    return c.Gather(data, order, axis=0)


# In NumPy's style: a parameter is an attribute, or an operand where that is None


def _of_operands(
    c: Converter, values: tuple[str, ...], attributes: list[Any], size: Any, dtype: Any, write: Inverse, *,
    normal: bool = False, more: bool = False,
) -> Any:  # fmt: skip
    """`more` puts `size` before the axes of the parameters, in place of being all of them."""
    given = list(values)
    parameters = [c.cast(given.pop(0), DType.FLOAT) if a is None else _number(c, a) for a in attributes]
    shape = c.ints(*_sizes(size)) if size is not None else None
    if shape is None or more:
        sums = parameters[0]
        for other in parameters[1:]:
            sums = c.Add(sums, other)
        wide = c.shape_of(sums)
        shape = wide if shape is None else c.op("Concat", shape, wide, axis=0)
    return _drawn(c, shape, write, parameters, dtype, normal=normal)


def _loc_scale(
    c: Converter, *values: str, loc: Any, scale: Any, size: Any = None, dtype: Any = "float32", write: Inverse,
    normal: bool = False, more: bool = False,
) -> Any:  # fmt: skip
    return _of_operands(c, values, [loc, scale], size, dtype, write, normal=normal, more=more)


rule("_npi_normal", write=_normal, normal=True)(_loc_scale)
rule("_npi_normal_n", write=_normal, normal=True, more=True)(_loc_scale)
rule("_npi_gumbel", write=_gumbel)(_loc_scale)
rule("_npi_logistic", write=_logistic)(_loc_scale)


def _low_high(
    c: Converter, *values: str, low: Any, high: Any, size: Any = None, dtype: Any = "float32", more: bool = False
) -> Any:
    return _of_operands(c, values, [low, high], size, dtype, _uniform, more=more)


rule("_npi_uniform", more=False)(_low_high)
rule("_npi_uniform_n", more=True)(_low_high)


def _scaled(c: Converter, *values: str, scale: float = 1.0, size: Any = None, write: Inverse) -> Any:
    return _of_operands(c, values, [scale], size, None, write)


rule("_npi_exponential", write=_exponential)(_scaled)
rule("_npi_rayleigh", write=_rayleigh)(_scaled)


def _of_a(c: Converter, *values: str, a: Any = None, size: Any = None, write: Inverse) -> Any:
    return _of_operands(c, values, [a], size, None, write)


rule("_npi_pareto", write=_pareto)(_of_a)
rule("_npi_weibull", write=_weibull)(_of_a)
rule("_npi_powerd", write=_powered)(_of_a)


def _below(c: Converter, u: str, p: str) -> Value:
    return c.cast(c.Less(u, p), DType.FLOAT)


def _below_logit(c: Converter, u: str, logit: str) -> Value:
    return _below(c, u, c.Sigmoid(logit))


@rule("_npi_bernoulli")
def bernoulli(
    c: Converter, *values: str, prob: Any, logit: Any, is_logit: bool, size: Any = None, dtype: Any = "float32"
) -> Any:
    return _of_operands(c, values, [logit if is_logit else prob], size, dtype, _below_logit if is_logit else _below)


# Densities: parameters of some axes, samples with more axes behind them


def _density(c: Converter, sample: str, *parameters: str, is_log: bool = False, log: Callable[..., Value]) -> Any:
    more = c.rank(sample) - c.rank(parameters[0])
    rank = c.rank(parameters[0])
    wide = [c.unsqueeze(p, *range(rank, rank + more)) if more else p for p in parameters]
    value = log(c, sample, *wide)
    return value if is_log else c.Exp(value)


def _log_uniform(c: Converter, x: str, low: str, high: str) -> Value:
    return c.Neg(c.Expand(c.Log(c.Sub(high, low)), c.shape_of(x)))


def _log_normal(c: Converter, x: str, mu: str, sigma: str) -> Value:
    off = c.Div(c.Sub(x, mu), sigma)
    half = c.Mul(c.Mul(off, off), c.number(-0.5, x))
    return c.Sub(half, c.Add(c.Log(sigma), c.number(0.5 * math.log(2 * math.pi), x)))


def _log_exponential(c: Converter, x: str, lam: str) -> Value:
    return c.Sub(c.Log(lam), c.Mul(lam, x))


def _log_gamma(c: Converter, x: str, alpha: str, beta: str) -> Value:
    powers = c.Add(c.Mul(alpha, c.Log(beta)), c.Mul(c.Sub(alpha, c.number(1, x)), c.Log(x)))
    return c.Sub(c.Sub(powers, c.Mul(beta, x)), gammaln(c, alpha))


def _log_poisson(c: Converter, x: str, lam: str) -> Value:
    return c.Sub(c.Sub(c.Mul(x, c.Log(lam)), gammaln(c, c.Add(x, c.number(1, x)))), lam)


def _log_negative_binomial(c: Converter, x: str, k: str, p: str) -> Value:
    ways = c.Sub(c.Sub(gammaln(c, c.Add(x, k)), gammaln(c, c.Add(x, c.number(1, x)))), gammaln(c, k))
    return c.Add(ways, c.Add(c.Mul(k, c.Log(p)), c.Mul(x, c.Log(c.Sub(c.number(1, p), p)))))


def _log_general_binomial(c: Converter, x: str, mu: str, alpha: str) -> Value:
    p = c.Reciprocal(c.Add(c.Mul(mu, alpha), c.number(1, mu)))
    return _log_negative_binomial(c, x, c.Reciprocal(alpha), p)


for _name, _log in (
    ("uniform", _log_uniform),
    ("normal", _log_normal),
    ("exponential", _log_exponential),
    ("gamma", _log_gamma),
    ("poisson", _log_poisson),
    ("negative_binomial", _log_negative_binomial),
    ("generalized_negative_binomial", _log_general_binomial),
):
    rule(f"_random_pdf_{_name}", f"random_pdf_{_name}", log=_log)(_density)


@rule("_random_pdf_dirichlet", "random_pdf_dirichlet")
def pdf_dirichlet(c: Converter, sample: str, alpha: str, *, is_log: bool = False) -> Any:
    """Of points on a simplex, the last axis."""
    more = c.rank(sample) - c.rank(alpha)
    head = c.rank(alpha) - 1
    wide = c.unsqueeze(alpha, *range(head, head + more)) if more else alpha
    last = c.ints(-1)
    powers = c.ReduceSum(c.Mul(c.Sub(wide, c.number(1, wide)), c.Log(sample)), last, keepdims=0)
    whole = gammaln(c, c.ReduceSum(wide, last, keepdims=0))
    value = c.Add(powers, c.Sub(whole, c.ReduceSum(gammaln(c, wide), last, keepdims=0)))
    return value if is_log else c.Exp(value)
