"""Learning rates over time, as part of the program: a schedule adds nodes from the number of the update to a rate.

Everything is float64 until the rate meets a tensor. `at` tells the rate of an update without a program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ...ops import DType
from ...ops.dataclasses import dataclass
from ...ops.errors import InputError
from ...ops.op import Builder, Value
from ..ir.interpreter import Eager


class Schedule(Protocol):
    """`rate(g, t)` adds nodes for the rate of update `t`, a float64 of rank 0 that counts from 0."""

    def rate(self, g: Builder, t: Value) -> Value: ...


def at(schedule: Schedule | float, update: int) -> float:
    """The rate of an update.

    >>> [round(at(Cosine(0.1, 4), t), 4) for t in range(5)]
    [0.1, 0.0854, 0.05, 0.0146, 0.0]
    """
    return float(of(schedule).rate(Eager(), np.float64(update)))


def now(rate: Schedule | float, update: int, held: float) -> float:
    """The rate of an update, `held` being what an optimizer holds: the rate itself, or the factor of its schedule."""
    return held if isinstance(rate, int | float) else at(rate, update) * held


def held(rate: Schedule | float, value: float, update: int) -> float:
    """Return the number that an optimizer holds so that its rate is `value` from this update on: the rate itself, or
    the factor of its schedule. Raises InputError for what is no rate, and where the schedule says 0."""
    if not (np.ndim(value) == 0 and np.isfinite(value) and value >= 0):
        raise InputError(f"a rate of {value!r}", where="rate", hint="a number from 0 on")
    if isinstance(rate, int | float):
        return float(value)
    planned = at(rate, update)
    if not planned:
        raise InputError(
            "the rate of the schedule is 0 here, which no factor changes", where="rate", hint="set it later"
        )
    return float(value) / planned


def of(rate: Schedule | float) -> Schedule:
    """The schedule, or that of a constant rate."""
    return Constant(float(rate)) if isinstance(rate, int | float) else rate


def _number(g: Builder, value: float) -> Value:
    return g.const(value, DType.DOUBLE)


def _positive(what: str, *values: float) -> None:
    if any(not v > 0 for v in values):
        raise InputError(f"{what} of a schedule must be above 0", where="schedule")


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant rate."""

    value: float

    def rate(self, g: Builder, t: Value) -> Value:
        return _number(g, self.value)


@dataclass(frozen=True, slots=True)
class Step:
    """`value`, multiplied by `factor` after every `every` updates (PyTorch's StepLR)."""

    value: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _positive("the period", self.every)

    def rate(self, g: Builder, t: Value) -> Value:
        falls = g.Floor(g.Div(t, _number(g, self.every)))
        return g.Mul(_number(g, self.value), g.Pow(_number(g, self.factor), falls))


@dataclass(frozen=True, slots=True)
class MultiStep:
    """`value`, multiplied by `factor` after each of the updates in `milestones` (MultiStepLR)."""

    value: float
    milestones: Sequence[int]
    factor: float = 0.1

    def rate(self, g: Builder, t: Value) -> Value:
        passed = g.GreaterOrEqual(t, g.const(list(self.milestones), DType.DOUBLE))
        falls = g.ReduceSum(g.Cast(passed, to=DType.DOUBLE.onnx), g.const([0]), keepdims=0)
        return g.Mul(_number(g, self.value), g.Pow(_number(g, self.factor), falls))


@dataclass(frozen=True, slots=True)
class Exponential:
    """`value`, multiplied by `factor` after every update (ExponentialLR)."""

    value: float
    factor: float

    def rate(self, g: Builder, t: Value) -> Value:
        return g.Mul(_number(g, self.value), g.Pow(_number(g, self.factor), t))


@dataclass(frozen=True, slots=True)
class Cosine:
    """From `value` down to `end` over `total` updates along half a cosine (Loshchilov and Hutter 2016, arXiv
    1608.03983), then constant."""

    value: float
    total: int
    end: float = 0.0

    def __post_init__(self) -> None:
        _positive("the length", self.total)

    def rate(self, g: Builder, t: Value) -> Value:
        return _cosine(g, _part(g, t, 0, self.total), self.value, self.end)


@dataclass(frozen=True, slots=True)
class Polynomial:
    """From `value` down to `end` over `total` updates, as (1 - t / total) ** power (PolynomialLR)."""

    value: float
    total: int
    power: float = 1.0
    end: float = 0.0

    def __post_init__(self) -> None:
        _positive("the length", self.total)

    def rate(self, g: Builder, t: Value) -> Value:
        left = g.Pow(g.Sub(_number(g, 1), _part(g, t, 0, self.total)), _number(g, self.power))
        return g.Add(_number(g, self.end), g.Mul(_number(g, self.value - self.end), left))


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Linear rise over the first `updates` updates, from `first` times the rate of `then` to the whole of it.

    `then` begins when the rise ends, unless `inside` is set: then it runs from the start and is scaled (LinearLR
    times another schedule).
    """

    then: Schedule | float
    updates: int
    first: float = 0.0
    inside: bool = False

    def __post_init__(self) -> None:
        _positive("the length", self.updates)

    def rate(self, g: Builder, t: Value) -> Value:
        zero = _number(g, 0)
        later = t if self.inside else g.Max(g.Sub(t, _number(g, self.updates)), zero)
        part = _part(g, t, 0, self.updates)
        scale = g.Add(_number(g, self.first), g.Mul(_number(g, 1 - self.first), part))
        return g.Mul(scale, of(self.then).rate(g, later))


@dataclass(frozen=True, slots=True)
class OneCycle:
    """The one-cycle policy (Smith and Topin 2017, arXiv 1708.07120), as PyTorch's OneCycleLR with two phases: along a
    cosine from `highest / first` up to `highest`, and down to `highest / first / last`."""

    highest: float
    total: int
    rising: float = 0.3
    first: float = 25.0
    last: float = 1e4

    def __post_init__(self) -> None:
        _positive("the length and the parts", self.total - 1, self.rising, self.first, self.last)

    def rate(self, g: Builder, t: Value) -> Value:
        top = self.rising * self.total - 1
        low = self.highest / self.first
        up = _cosine(g, _part(g, t, 0, top), low, self.highest)
        down = _cosine(g, _part(g, t, top, self.total - 1), self.highest, low / self.last)
        return g.Where(g.LessOrEqual(t, _number(g, top)), up, down)


def _part(g: Builder, t: Value, begin: float, end: float) -> Value:
    """Return the progress from `begin` to `end` at `t`, from 0 to 1."""
    part = g.Div(g.Sub(t, _number(g, begin)), _number(g, end - begin))
    return g.Max(g.Min(part, _number(g, 1)), _number(g, 0))


def _cosine(g: Builder, part: Value, first: float, last: float) -> Value:
    """Return the point at `part` on half a cosine from `first` to `last`."""
    bent = g.Add(g.Cos(g.Mul(part, _number(g, math.pi))), _number(g, 1))
    return g.Add(_number(g, last), g.Mul(_number(g, (first - last) / 2), bent))


@dataclass(frozen=True, slots=True)
class Ahead:
    """Another schedule, which is so many updates further: its updates are counted from 1."""

    inner: Schedule
    by: int = 1

    def rate(self, g: Builder, t: Value) -> Value:
        return self.inner.rate(g, g.Add(t, _number(g, self.by)))


@dataclass(frozen=True, slots=True)
class Then:
    """One schedule in the first `updates` updates, then another, which counts from the start too."""

    before: Schedule | float
    after: Schedule | float
    updates: int

    def rate(self, g: Builder, t: Value) -> Value:
        early = g.Less(t, _number(g, self.updates))
        return g.Where(early, of(self.before).rate(g, t), of(self.after).rate(g, t))


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Another schedule, but never below `least`."""

    inner: Schedule
    least: float

    def rate(self, g: Builder, t: Value) -> Value:
        return g.Max(self.inner.rate(g, t), _number(g, self.least))


KINDS: dict[str, type[Any]] = {
    k.__name__: k
    for k in (Ahead, Constant, Step, MultiStep, Exponential, Cosine, Polynomial, WarmUp, OneCycle, Then, AtLeast)
}
