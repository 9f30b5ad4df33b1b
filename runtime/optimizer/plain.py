"""Optimizers without a rate for each element: gradient descent and its variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ...ops.core.expr import Expr, Expressions
from ...ops.errors import InputError
from .record import Optimizer, register
from .schedule import Schedule


@register
class SGD(Optimizer):
    """Stochastic gradient descent (Robbins and Monro 1951); `momentum` adds a velocity as in PyTorch, which the rate
    multiplies (Polyak 1964); `nesterov` looks ahead (Sutskever et al. 2013). With `dampening` only a share of the
    gradient goes into the velocity, except in the first step.

    >>> SGD(rate=0.1, momentum=0.9).slots
    ('velocity',)
    """

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.momentum and (self.dampening or self.nesterov):
            raise InputError("dampening and nesterov belong to a momentum", where="SGD", hint="give momentum=0.9")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def numbers(self, e: Expressions, t: Expr) -> Sequence[Expr]:
        return (e.where(e.equal(t, 0.0), e.number(1.0, t), 1 - self.dampening),) if self.dampening else ()

    def update(self, e: Expressions, W: Expr, dW: Expr, rate: Expr, *operands: Expr) -> tuple[Expr, ...]:
        slope = self.decayed(W, dW)
        if not self.momentum:
            return (W - rate * slope,)
        share, velocity = operands if self.dampening else (None, *operands)
        assert velocity is not None
        v = velocity * self.momentum + (slope if share is None else slope * share)
        return W - rate * (slope + v * self.momentum if self.nesterov else v), v


@register
class NAG(SGD):
    """Nesterov's accelerated gradient: SGD with Nesterov momentum, under MXNet's name."""

    momentum: float = 0.9
    nesterov: bool = True


@register
class Signum(Optimizer):
    """The sign of a running mean of gradients (Bernstein et al. 2018, arXiv 1802.04434), as in MXNet: `wd_lh` is a
    decoupled weight decay, `momentum=0` takes the gradient's own sign."""

    momentum: float = 0.9
    wd_lh: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("mean",) if self.momentum else ()

    def update(self, e: Expressions, W: Expr, dW: Expr, rate: Expr, *mean: Expr) -> tuple[Expr, ...]:
        slope = self.decayed(W, dW)
        m = tuple(held * self.momentum + slope * (1 - self.momentum) for held in mean)
        kept = W - W * (rate * self.wd_lh) if self.wd_lh else W
        return kept - rate * e.sign(m[0] if m else slope), *m


@register
class Lion(Optimizer):
    """The sign of a running mean (Chen et al. 2023, arXiv 2302.06675), with decoupled weight decay."""

    rate: Schedule | float = 0.0001
    beta1: float = 0.9
    beta2: float = 0.99
    slots = ("mean",)

    def update(self, e: Expressions, W: Expr, dW: Expr, rate: Expr, mean: Expr) -> tuple[Expr, ...]:
        step = e.sign(mean * self.beta1 + dW * (1 - self.beta1))
        kept = W - W * (rate * self.weight_decay) if self.weight_decay else W
        return kept - rate * step, mean * self.beta2 + dW * (1 - self.beta2)


@register
class SGLD(Optimizer):
    """Stochastic gradient Langevin dynamics (Welling and Teh 2011): half a step against the gradient, and normal noise
    whose variance is the rate, so that the parameters sample their posterior distribution."""

    draws: ClassVar[int] = 1

    def update(self, e: Expressions, W: Expr, dW: Expr, rate: Expr, noise: Expr) -> tuple[Expr, ...]:
        return (W - rate * (self.decayed(W, dW) * 0.5) + e.sqrt(rate) * noise,)


@register
class DCASGD(Optimizer):
    """SGD with delay compensation for late gradients, to first order (Zheng et al. 2016, arXiv 1609.08326): `lamda`
    weighs the distance that the tensor has moved since. For asynchronous stores."""

    momentum: float = 0.0
    lamda: float = 0.04
    slots = ("moved",)  # by the update before: the tensor now less the tensor then, and the velocity

    def update(self, e: Expressions, W: Expr, dW: Expr, rate: Expr, moved: Expr) -> tuple[Expr, ...]:
        step = rate * (self.decayed(W, dW) + dW * dW * moved * self.lamda)
        v = moved * self.momentum - step if self.momentum else step * -1.0
        return W + v, v
