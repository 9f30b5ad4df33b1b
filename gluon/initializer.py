"""Initializers of parameters. Each draws from the generator of the parameter's device, and logs this in `mezzo.gluon`.

>>> Xavier(factor="in", magnitude=2)
Xavier(kind='uniform', factor='in', magnitude=2)
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from .. import nd
from ..nd.array import Array
from ..nd.place import Place
from ..nd.random import generator
from ..nd.running import apply
from ..ops.errors import InputError

LOG = logging.getLogger("mezzo.gluon")
Shape = tuple[int, ...]


KINDS: dict[str, type[Initializer]] = {}  # by name, in lower case
ALIASES = {"zeros": "zero", "ones": "one", "msra": "msraprelu", "gaussian": "normal", "truncnorm": "truncatednormal"}
Kind = TypeVar("Kind", bound="Initializer")


@dataclass(frozen=True)
class Initializer:
    """Make the first value of a parameter: `init(name, shape, dtype, ctx)`. For one of your own, write a subclass with
    `draw`, decorated with `register`."""

    def draw(self, shape: Shape, ctx: Place) -> Any:
        """Numbers of this shape, an array or what NumPy makes one of; they are cast to the parameter's element type."""
        raise NotImplementedError

    def __call__(self, name: str, shape: Shape, dtype: Any, ctx: Place) -> Array:
        LOG.info("%s %s %s: %s", name, np.dtype(dtype), shape, self)
        drawn = self.draw(shape, ctx)
        numbers = drawn if isinstance(drawn, Array) else nd.asarray(np.asarray(drawn), device=ctx)
        if numbers.shape != shape:
            raise InputError(f"{self} made numbers of shape {numbers.shape} for {name!r} {shape}", where="initializer")
        return numbers.astype(dtype)


@dataclass_transform(frozen_default=True)
def register(cls: type[Kind]) -> type[Kind]:
    """Make a subclass of Initializer a data class, and enter it under its name in lower case. One of yours may be
    registered again. Raises InputError for the names of Mezzo.

    >>> @register
    ... class Ramp(Initializer):
    ...     step: float = 1.0
    ...     def draw(self, shape, ctx):
    ...         return np.arange(math.prod(shape)).reshape(shape) * self.step
    >>> create("ramp")("weight", (3,), "float32", None).asnumpy()
    array([0., 1., 2.], dtype=float32)
    >>> del KINDS["ramp"]
    """
    name = cls.__name__.lower()
    if Initializer not in cls.__mro__:
        raise InputError(f"{cls.__name__} is no Initializer", where="initializer.register")
    if name in ALIASES or name in OURS:
        raise InputError(f"{cls.__name__} is a name of Mezzo", where="initializer.register", hint="rename yours")
    KINDS[name] = cls if "__dataclass_fields__" in vars(cls) else dataclass(frozen=True)(cls)
    return KINDS[name]  # type: ignore[return-value]


OURS: set[str] = set()


@register
class Constant(Initializer):
    """One number everywhere."""

    value: float = 0.0

    def draw(self, shape: Shape, ctx: Place) -> Array:
        return nd.full(shape, self.value, dtype="float32", device=ctx)


@register
class Zero(Constant):
    """Zeros."""


@register
class One(Constant):
    """Ones."""

    value: float = 1.0


@register
class Uniform(Initializer):
    """Uniform in [-scale, scale)."""

    scale: float = 0.07

    def draw(self, shape: Shape, ctx: Place) -> Array:
        return generator(ctx).uniform(-self.scale, self.scale, shape)


@register
class Normal(Initializer):
    """A normal distribution around 0."""

    sigma: float = 0.01

    def draw(self, shape: Shape, ctx: Place) -> Array:
        return generator(ctx).normal(shape, scale=self.sigma)


@register
class Xavier(Initializer):
    """Random numbers whose spread preserves the variance of activations (Glorot and Bengio 2010): the root of magnitude
    over `factor`, which is the number of inputs, of outputs, or their mean."""

    kind: str = "uniform"
    factor: str = "avg"
    magnitude: float = 3

    def draw(self, shape: Shape, ctx: Place) -> Array:
        if len(shape) < 2:
            raise InputError(f"Xavier of shape {shape}", where="initializer", hint="it needs inputs and outputs")
        rest = math.prod(shape[2:])
        counts = {"in": shape[1] * rest, "out": shape[0] * rest, "avg": (shape[0] + shape[1]) * rest / 2}
        if self.factor not in counts or self.kind not in ("uniform", "gaussian"):
            raise InputError(f"{self}", where="initializer", hint="kind uniform or gaussian; factor in, out or avg")
        scale = math.sqrt(self.magnitude / counts[self.factor])
        return (Uniform(scale) if self.kind == "uniform" else Normal(scale)).draw(shape, ctx)


@register
class MSRAPrelu(Xavier):
    """He et al. 2015, for rectifiers with this slope."""

    kind: str = "gaussian"
    factor: str = "avg"
    magnitude: float = 2.0 / (1 + 0.25**2)


@register
class Orthogonal(Initializer):
    """Rows (or columns) at right angles (Saxe et al. 2013)."""

    scale: float = 1.414

    def draw(self, shape: Shape, ctx: Place) -> Array:
        rows, columns = shape[0], math.prod(shape[1:])
        drawn = generator(ctx).normal((max(rows, columns), min(rows, columns)), dtype="float64").asnumpy()
        q, r = np.linalg.qr(drawn)
        q *= np.sign(np.diag(r))
        whole = (q if rows >= columns else q.T).reshape(shape) * self.scale
        return nd.asarray(whole.astype(np.float32), device=ctx)


@register
class TruncatedNormal(Initializer):
    """A normal distribution around `mean`, truncated at two `stdev` from it: drawn by the inverse distribution, never
    clipped."""

    stdev: float = 0.01
    mean: float = 0.0

    def draw(self, shape: Shape, ctx: Place) -> Array:
        """Found by the inverse of the distribution: uniform numbers between its values at the two ends."""
        low = math.erf(-2 / math.sqrt(2))  # of 2 * (the distribution) - 1
        parts = generator(ctx).uniform(low, -low, shape, dtype="float64")
        return (_inverse_erf(parts) * math.sqrt(2)) * self.stdev + self.mean


def _inverse_erf(y: Array) -> Array:
    """Giles 2012, "Approximating the erfinv function": a polynomial for the middle, of what two deviations reach, and
    two steps of Newton's method, which leave nothing to correct."""
    w = -nd.log((1 - y) * (1 + y)) - 2.5
    p = nd.full(y.shape, 2.81022636e-08, dtype="float64", device=y.device)
    for c in (3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
              0.246640727, 1.50140941):  # fmt: skip
        p = p * w + c
    x = p * y
    for _ in range(2):
        x = x - (apply("Erf", x) - y) / (2 / math.sqrt(math.pi) * nd.exp(-x * x))
    return x


@register
class Bilinear(Initializer):
    """Weights of a transposed convolution that enlarges images by linear interpolation: [channels, 1, height, width],
    or the same for each pair of channels."""

    def draw(self, shape: Shape, ctx: Place) -> Array:
        if len(shape) < 3:
            raise InputError(f"Bilinear of shape {shape}", where="initializer", hint="it is for convolutions")
        tents = []
        for size in shape[2:]:
            half = (size + 1) // 2
            centre = half - 1 if size % 2 else half - 0.5
            tents.append(1 - np.abs(np.arange(size) - centre) / half)
        whole = np.ones(())
        for tent in tents:
            whole = np.multiply.outer(whole, tent)
        return nd.asarray(np.broadcast_to(whole, shape).astype(np.float32), device=ctx)


@register
class LSTMBias(Initializer):
    """Zeros, and `forget_bias` for the forget gates (Jozefowicz et al. 2015): for a cell, whose four gates are in
    Gluon's order, or for a layer [directions, twice four gates], whose gates are in ONNX's order, the input's biases
    before the state's."""

    forget_bias: float = 1.0

    def draw(self, shape: Shape, ctx: Place) -> Array:
        parts, at = (4, 1) if len(shape) == 1 else (8, 2)
        if not shape or shape[-1] % parts:
            raise InputError(f"LSTMBias of shape {shape}", where="initializer", hint="four gates, or twice four")
        bias, hidden = np.zeros(shape, np.float32), shape[-1] // parts
        bias[..., at * hidden : (at + 1) * hidden] = self.forget_bias
        return nd.asarray(bias, device=ctx)


OURS.update(KINDS)


def create(init: Initializer | str | None, usual: Initializer | str = "uniform") -> Initializer:
    """The initialiser of this name, the one that is given, or the usual one. Raises InputError for other names."""
    wanted = usual if init is None else init
    if isinstance(wanted, Initializer):
        return wanted
    name = str(wanted).lower()
    kind = KINDS.get(ALIASES.get(name, name))
    if kind is None:
        known = ", ".join([*KINDS, *ALIASES])
        raise InputError(f"there is no initialiser {wanted!r}", where="initializer", hint=f"one of {known}")
    return kind()
