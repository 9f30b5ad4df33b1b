"""Update rules of MXNet that are none of ours, or differ from ours in what they mean. They are not registered: no name
leads to them, and a store is told the rule."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...ops.dataclasses import dataclass
from ...runtime import optimizer


@dataclass(frozen=True, kw_only=True)
class MXNetSGD(optimizer.Optimizer):
    """Descent with a momentum of steps that were made, each with the rate of its time; `nesterov` looks ahead."""

    momentum: float = 0.9
    nesterov: bool = False
    slots = ("velocity",)

    @property
    def mxnet(self) -> str:
        """The class of MXNet whose states these are."""
        return "NAG" if self.nesterov else "SGD"

    def update(self, e: Any, W: Any, dW: Any, rate: Any, velocity: Any) -> Any:
        kept, step = velocity * self.momentum, rate * (dW + W * self.weight_decay)
        if not self.nesterov:
            return W + kept - step, kept - step
        ahead = W + (kept - step) * self.momentum - step
        return ahead, kept - rate * (dW + ahead * self.weight_decay)  # MXNet has written the weight by then


@dataclass(frozen=True, kw_only=True)
class MXNetRMSProp(optimizer.Optimizer):
    """RMSProp with epsilon under the root; `centered` has a momentum of steps that were made."""

    alpha: float = 0.9
    epsilon: float = 1e-8
    momentum: float = 0.9
    centered: bool = False
    mxnet = "RMSProp"

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square", "mean", "velocity") if self.centered else ("square",)

    def update(self, e: Any, W: Any, dW: Any, rate: Any, square: Any, *more: Any) -> Any:
        slope = dW + W * self.weight_decay
        s = square * self.alpha + slope * slope * (1 - self.alpha)
        if not self.centered:
            return W - rate * slope / e.sqrt(s + self.epsilon), s
        mean, velocity = more
        m = mean * self.alpha + slope * (1 - self.alpha)
        after = velocity * self.momentum - rate * slope / e.sqrt(s - m * m + self.epsilon)
        return W + after, s, m, after


@dataclass(frozen=True, kw_only=True)
class MXNetAdaGrad(optimizer.Optimizer):
    """AdaGrad with epsilon under the root, and weight decay beside the step."""

    epsilon: float = 1e-7
    mxnet = "AdaGrad"
    slots = ("square",)

    def update(self, e: Any, W: Any, dW: Any, rate: Any, square: Any) -> Any:
        s = square + dW * dW
        return W - rate * (dW / e.sqrt(s + self.epsilon) + W * self.weight_decay), s


@dataclass(frozen=True, kw_only=True)
class MXNetAdamax(optimizer.Optimizer):
    """Adam by the largest of gradients (Kingma and Ba 2014, section 7.1)."""

    beta1: float = 0.9
    beta2: float = 0.999
    slots = ("mean", "largest")

    def numbers(self, e: Any, t: Any) -> Any:
        return (1.0 - e.pow(self.beta1, t + 1.0),)

    def update(self, e: Any, W: Any, dW: Any, rate: Any, unbias: Any, mean: Any, largest: Any) -> Any:
        slope = dW + W * self.weight_decay
        m, u = mean * self.beta1 + slope * (1 - self.beta1), e.max(largest * self.beta2, e.abs(slope))
        return W - rate / unbias * m / (u + 1e-8), m, u


@dataclass(frozen=True, kw_only=True)
class MXNetFTML(optimizer.Optimizer):
    """Follow the moving leader (Zheng and Kwok 2017)."""

    beta1: float = 0.6
    beta2: float = 0.999
    epsilon: float = 1e-8
    slots = ("distance", "square", "leader")

    def numbers(self, e: Any, t: Any) -> Any:
        return 1.0 - e.pow(self.beta1, t + 1.0), 1.0 - e.pow(self.beta2, t + 1.0)

    def update(self, e: Any, W: Any, dW: Any, rate: Any, unbias1: Any, unbias2: Any, d: Any, v: Any, z: Any) -> Any:
        slope = dW + W * self.weight_decay
        square = v * self.beta2 + slope * slope * (1 - self.beta2)
        distance = unbias1 / rate * (e.sqrt(square / unbias2) + self.epsilon)
        leader = z * self.beta1 + slope * (1 - self.beta1) - (distance - d * self.beta1) * W
        return -leader / distance, distance, square, leader


OWN: dict[str, Callable[..., optimizer.Optimizer]] = {
    "adagrad": MXNetAdaGrad,
    "adamax": MXNetAdamax,
    "ftml": MXNetFTML,
    "rmsprop": MXNetRMSProp,
}
WITH_MOMENTUM: dict[str, Callable[..., optimizer.Optimizer]] = {
    "sgd": MXNetSGD,
    "nag": functools.partial(MXNetSGD, nesterov=True),
}
__all__ = ["OWN", "WITH_MOMENTUM"]
