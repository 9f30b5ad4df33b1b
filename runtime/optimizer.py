"""Optimizers: what each adds to a training step, or to a server of the KVStore. They are data; the arithmetic is
operators (ops/update.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ..ops import DType
from ..ops.dataclasses import asdict, dataclass, fields
from ..ops.errors import InputError
from ..ops.op import Builder, Value
from . import schedule
from .schedule import Schedule


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters whose names match one of `patterns` (shell wildcards): their rate is multiplied by `scale`, and they
    have a weight decay of their own, if one is given."""

    patterns: tuple[str, ...]
    scale: float = 1.0
    weight_decay: float | None = None

    def holds(self, name: str) -> bool:
        return any(fnmatchcase(name, p) for p in self.patterns)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """What all optimizers have: a rate (a number or a schedule), weight decay, and groups of parameters; the first
    group that a parameter's name matches counts."""

    rate: Schedule | float = 0.01
    weight_decay: float = 0.0
    groups: tuple[Group, ...] = ()

    @property
    def op(self) -> str:
        """The operator of one tensor's step."""
        return type(self).__name__

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the states that each parameter has; they begin as zeros."""
        return ()

    @property
    def first(self) -> float:
        """The first value of the states."""
        return 0.0

    def attrs(self) -> dict[str, Any]:
        """Attributes of the operator."""
        own = {f.name for f in fields(self)} - {"rate", "weight_decay", "groups"}
        return {n: int(v) if isinstance(v := getattr(self, n), bool) else v for n in own}

    def scalars(self, g: Builder, t: Value) -> Sequence[Value]:
        """What the operator takes behind the rate, for update `t` (float64, counted from 0)."""
        return ()

    def rate_at(self, g: Builder, t: Value) -> Value:
        """The rate of update `t`, a float64 of rank 0."""
        return schedule.of(self.rate).rate(g, t)

    def group(self, name: str) -> Group:
        """The group of a parameter."""
        return next((group for group in self.groups if group.holds(name)), Group(("*",)))

    def decay(self, name: str) -> float:
        """The weight decay of a parameter."""
        own = self.group(name).weight_decay
        return self.weight_decay if own is None else own

    def to_dict(self) -> dict[str, Any]:
        """The optimizer as plain data; see `from_dict`."""
        rate: Any = {"kind": type(r).__name__, **_plain(r)} if not isinstance(r := self.rate, int | float) else r
        return {**asdict(self), "kind": type(self).__name__, "rate": rate}


def _plain(rate: Any) -> dict[str, Any]:
    found = {f.name: getattr(rate, f.name) for f in fields(rate)} if type(rate) in schedule.KINDS.values() else {}
    return {n: {"kind": type(v).__name__, **_plain(v)} if type(v) in schedule.KINDS.values() else v
            for n, v in found.items()}  # fmt: skip


def from_dict(data: Mapping[str, Any]) -> Optimizer:
    """The optimizer that `to_dict` described; InputError for anything else.

    >>> from_dict(Adam(rate=schedule.Cosine(0.1, 10)).to_dict()) == Adam(rate=schedule.Cosine(0.1, 10))
    True
    """
    try:
        given = dict(data)
        kind = KINDS[given.pop("kind")]
        given["rate"] = _schedule(given["rate"])
        given["groups"] = tuple(Group(**{**one, "patterns": tuple(one["patterns"])}) for one in given["groups"])
        return kind(**given)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"this describes no optimizer: {error}", where="optimizer.from_dict") from error


def _schedule(data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    given = {n: tuple(v) if isinstance(v, list) else _schedule(v) for n, v in data.items() if n != "kind"}
    return schedule.KINDS[data["kind"]](**given)


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent; with `momentum` the velocity of PyTorch, `nesterov` looks ahead.

    >>> SGD(rate=0.1, momentum=0.9).slots
    ('velocity',)
    """

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not self.momentum and (self.dampening or self.nesterov):
            raise InputError("dampening and nesterov belong to a momentum", where="SGD", hint="give momentum=0.9")

    @property
    def op(self) -> str:
        return f"{'Dampened' * bool(self.dampening)}Momentum" if self.momentum else "SGD"

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def attrs(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "nesterov": int(self.nesterov)} if self.momentum else {}

    def scalars(self, g: Builder, t: Value) -> Sequence[Value]:
        if not self.dampening:
            return ()
        one, later = g.const(1.0, DType.DOUBLE), g.const(1 - self.dampening, DType.DOUBLE)
        return (g.Where(g.Equal(t, g.const(0.0, DType.DOUBLE)), one, later),)


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam: running means of the gradient and of its square, without their bias towards zero."""

    rate: Schedule | float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    @property
    def op(self) -> str:
        return "Adam"

    @property
    def slots(self) -> tuple[str, ...]:
        return ("mean", "square")

    def scalars(self, g: Builder, t: Value) -> Sequence[Value]:
        one = g.const(1.0, DType.DOUBLE)
        count = g.Add(t, one)
        left = [g.Sub(one, g.Pow(g.const(b, DType.DOUBLE), count)) for b in (self.beta1, self.beta2)]
        return left[0], g.Sqrt(left[1])


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam whose weight decay is apart from the gradient."""

    weight_decay: float = 0.01

    def attrs(self) -> dict[str, Any]:
        return {**super().attrs(), "decoupled": 1}


@dataclass(frozen=True, kw_only=True)
class LAMB(Adam):
    """Adam's direction, scaled to the length of each tensor: for large batches."""

    epsilon: float = 1e-6

    @property
    def op(self) -> str:
        return "LAMB"


@dataclass(frozen=True, kw_only=True)
class LARS(Optimizer):
    """Momentum with a rate for each tensor, from its norm and that of its gradient: for large batches."""

    momentum: float = 0.9
    trust: float = 0.001
    epsilon: float = 1e-8

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",)


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """Rates fall with the sum of squared gradients; `rate_decay` divides the rate by 1 + rate_decay * t."""

    rate_decay: float = 0.0
    initial: float = 0.0
    epsilon: float = 1e-10

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square",)

    @property
    def first(self) -> float:
        return self.initial

    def attrs(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon}

    def rate_at(self, g: Builder, t: Value) -> Value:
        rate = super().rate_at(g, t)
        one, decay = g.const(1.0, DType.DOUBLE), g.const(self.rate_decay, DType.DOUBLE)
        return g.Div(rate, g.Add(one, g.Mul(t, decay))) if self.rate_decay else rate


@dataclass(frozen=True, kw_only=True)
class RMSprop(Optimizer):
    """The gradient over the root of a running mean of its square; `centered` subtracts the mean gradient's."""

    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    @property
    def op(self) -> str:
        return f"{'Centered' * self.centered}RMSprop{'Momentum' * bool(self.momentum)}"

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square", *["mean"] * self.centered, *["velocity"] * bool(self.momentum))

    def attrs(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "epsilon": self.epsilon, **({"momentum": self.momentum} if self.momentum else {})}


@dataclass(frozen=True, kw_only=True)
class Adadelta(Optimizer):
    """Steps as long as recent steps were."""

    rate: Schedule | float = 1.0
    rho: float = 0.9
    epsilon: float = 1e-6

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square", "step")


@dataclass(frozen=True, kw_only=True)
class Lion(Optimizer):
    """The sign of a running mean; weight decay is apart from the gradient."""

    rate: Schedule | float = 0.0001
    beta1: float = 0.9
    beta2: float = 0.99

    @property
    def slots(self) -> tuple[str, ...]:
        return ("mean",)


KINDS: dict[str, type[Optimizer]] = {
    k.__name__: k for k in (SGD, Adam, AdamW, LAMB, LARS, Adagrad, RMSprop, Adadelta, Lion)
}
