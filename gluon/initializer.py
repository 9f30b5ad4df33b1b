"""What parameters begin with. Each initialiser draws from the generator of the parameter's device, and says so in the
log `mezzo.gluon`.

>>> Xavier(factor="in", magnitude=2)
Xavier(kind='uniform', factor='in', magnitude=2)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ops.errors import InputError
from ..runtime import arrays as nd
from ..runtime.arrays.array import Array
from ..runtime.arrays.place import Place
from ..runtime.arrays.random import generator

LOG = logging.getLogger("mezzo.gluon")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Initializer:
    """Makes the first value of a parameter: `init(name, shape, dtype, ctx)`."""

    def draw(self, shape: Shape, ctx: Place) -> Array:
        """Float32 numbers of this shape."""
        raise NotImplementedError

    def __call__(self, name: str, shape: Shape, dtype: Any, ctx: Place) -> Array:
        LOG.info("%s %s %s: %s", name, np.dtype(dtype), shape, self)
        return self.draw(shape, ctx).astype(dtype)


@dataclass(frozen=True)
class Constant(Initializer):
    """One number everywhere."""

    value: float = 0.0

    def draw(self, shape: Shape, ctx: Place) -> Array:
        return nd.full(shape, self.value, dtype="float32", device=ctx)


@dataclass(frozen=True)
class Zero(Constant):
    """Zeros."""


@dataclass(frozen=True)
class One(Constant):
    """Ones."""

    value: float = 1.0


@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniform in [-scale, scale)."""

    scale: float = 0.07

    def draw(self, shape: Shape, ctx: Place) -> Array:
        return generator(ctx).uniform(-self.scale, self.scale, shape)


@dataclass(frozen=True)
class Normal(Initializer):
    """A normal distribution around 0."""

    sigma: float = 0.01

    def draw(self, shape: Shape, ctx: Place) -> Array:
        return generator(ctx).normal(shape, scale=self.sigma)


@dataclass(frozen=True)
class Xavier(Initializer):
    """Numbers whose spread keeps that of what flows through (Glorot and Bengio 2010): the root of magnitude over
    `factor`, the number of inputs, of outputs, or their mean."""

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


@dataclass(frozen=True)
class MSRAPrelu(Xavier):
    """He et al. 2015, for rectifiers with this slope."""

    kind: str = "gaussian"
    factor: str = "avg"
    magnitude: float = 2.0 / (1 + 0.25**2)


@dataclass(frozen=True)
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


NAMED: dict[str, Callable[[], Initializer]] = {
    "zeros": Zero, "ones": One, "uniform": Uniform, "normal": Normal, "xavier": Xavier, "msra": MSRAPrelu,
    "orthogonal": Orthogonal,
}  # fmt: skip


def create(init: Initializer | str | None, usual: Initializer | str = "uniform") -> Initializer:
    """The initialiser of this name, the one that is given, or the usual one. Raises InputError for other names."""
    wanted = usual if init is None else init
    if isinstance(wanted, Initializer):
        return wanted
    if wanted not in NAMED:
        raise InputError(f"there is no initialiser {wanted!r}", where="initializer", hint=f"one of {', '.join(NAMED)}")
    return NAMED[wanted]()
