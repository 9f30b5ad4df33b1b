"""Adaptive optimizers, with a rate for each element from past gradients."""

from __future__ import annotations

from collections.abc import Sequence

from ...ops.core.expr import Expr, Expressions
from .record import Optimizer, register
from .schedule import Schedule


@register
class Adam(Optimizer):
    """Running means of the gradient and of its square, corrected for their bias towards zero (Kingma and Ba 2014, arXiv
    1412.6980)."""

    rate: Schedule | float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    slots = ("mean", "square")

    def numbers(self, e: Expressions, t: Expr) -> Sequence[Expr]:
        """1 - beta1^t and the root of 1 - beta2^t at update t, counted from 1."""
        return 1.0 - e.pow(self.beta1, t + 1.0), e.sqrt(1.0 - e.pow(self.beta2, t + 1.0))

    def means(self, slope: Expr, mean: Expr, square: Expr) -> tuple[Expr, Expr]:
        """The running means after this gradient."""
        return (
            mean * self.beta1 + slope * (1 - self.beta1),
            square * self.beta2 + slope * slope * (1 - self.beta2),
        )

    def update(
        self, e: Expressions, W: Expr, dW: Expr, rate: Expr, unbias1: Expr, unbias2: Expr, mean: Expr, square: Expr
    ) -> tuple[Expr, ...]:
        m, v = self.means(self.decayed(W, dW), mean, square)
        return W - m * (rate / unbias1) / (e.sqrt(v) / unbias2 + self.epsilon), m, v


@register
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv 1711.05101)."""

    weight_decay: float = 0.01

    def update(
        self, e: Expressions, W: Expr, dW: Expr, rate: Expr, unbias1: Expr, unbias2: Expr, mean: Expr, square: Expr
    ) -> tuple[Expr, ...]:
        m, v = self.means(dW, mean, square)
        kept = W - W * (rate * self.weight_decay) if self.weight_decay else W
        return kept - m * (rate / unbias1) / (e.sqrt(v) / unbias2 + self.epsilon), m, v


@register
class Nadam(Adam):
    """Adam with Nesterov's momentum (Dozat 2016), whose beta1 warms up by `momentum_decay`, as in PyTorch."""

    rate: Schedule | float = 0.002
    momentum_decay: float = 0.004

    def numbers(self, e: Expressions, t: Expr) -> Sequence[Expr]:
        """The weights of the gradient and of its mean, and the root of 1 - beta2^t.

        At update t, counted from 1, the momentum is mu(t) = beta1 (1 - q^t / 2), q = 0.96^momentum_decay. The product
        of all until then is beta1^t exp(P(q^t) - P(1)), P(z) = sum_k w_k z^k, w_k = (2^-k / k) q^k / (1 - q^k): the
        series of log(1 - x) at x = q^i / 2, summed over i first. Its terms halve: behind 52 none counts.
        """
        count, q = t + 1.0, 0.96**self.momentum_decay
        falling = e.pow(q, count)
        mu, after = ((1.0 - falling * (0.5 * p)) * self.beta1 for p in (1.0, q))
        if q == 1:
            product = e.pow(self.beta1 / 2, count)
        else:
            weights = [0.5**k / k * q**k / (1 - q**k) for k in range(1, 53)]
            series = falling * weights[-1]
            for w in weights[-2::-1]:
                series = (series + w) * falling
            product = e.pow(self.beta1, count) * e.exp(series - sum(weights))
        return (1.0 - mu) / (1.0 - product), after / (1.0 - product * after), e.sqrt(1.0 - e.pow(self.beta2, count))

    def update(self, e: Expressions, W: Expr, dW: Expr, rate: Expr, *operands: Expr) -> tuple[Expr, ...]:
        now, ahead, unbias2, mean, square = operands
        slope = self.decayed(W, dW)
        m, v = self.means(slope, mean, square)
        return W - (slope * (rate * now) + m * (rate * ahead)) / (e.sqrt(v) / unbias2 + self.epsilon), m, v


@register
class Adagrad(Optimizer):
    """Gradient descent whose rates fall with the sum of squared gradients (Duchi, Hazan and Singer 2011); `rate_decay`
    divides the rate by 1 + rate_decay * t."""

    rate_decay: float = 0.0
    initial: float = 0.0
    epsilon: float = 1e-10
    slots = ("square",)

    @property
    def first(self) -> float:
        return self.initial

    def numbers(self, e: Expressions, t: Expr) -> Sequence[Expr]:
        return (1.0 / (1.0 + t * self.rate_decay),) if self.rate_decay else ()

    def update(self, e: Expressions, W: Expr, dW: Expr, rate: Expr, *operands: Expr) -> tuple[Expr, ...]:
        slope, square = self.decayed(W, dW), operands[-1]
        s = square + slope * slope
        fallen = rate * operands[0] if self.rate_decay else rate
        return W - fallen * slope / (e.sqrt(s) + self.epsilon), s


@register
class RMSprop(Optimizer):
    """The gradient over the root of a running mean of its square (Tieleman and Hinton 2012); `centered` subtracts the
    square of the mean gradient (Graves 2013, arXiv 1308.0850), and `momentum` accumulates steps in a velocity."""

    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square", *["mean"] * self.centered, *["velocity"] * bool(self.momentum))

    def update(self, e: Expressions, W: Expr, dW: Expr, rate: Expr, square: Expr, *states: Expr) -> tuple[Expr, ...]:
        slope = self.decayed(W, dW)
        s = square * self.alpha + slope * slope * (1 - self.alpha)
        a = tuple(mean * self.alpha + slope * (1 - self.alpha) for mean in states[:1] if self.centered)
        step = slope / (e.sqrt(s - a[0] * a[0] if a else s) + self.epsilon)
        v = tuple(velocity * self.momentum + step for velocity in states[-1:] if self.momentum)
        return W - rate * (v[0] if v else step), s, *a, *v


@register
class Adadelta(Optimizer):
    """Steps scaled by the size of recent steps (Zeiler 2012, arXiv 1212.5701)."""

    rate: Schedule | float = 1.0
    rho: float = 0.9
    epsilon: float = 1e-6
    slots = ("square", "step")

    def update(self, e: Expressions, W: Expr, dW: Expr, rate: Expr, square: Expr, steps: Expr) -> tuple[Expr, ...]:
        slope = self.decayed(W, dW)
        s = square * self.rho + slope * slope * (1 - self.rho)
        step = e.sqrt(steps + self.epsilon) / e.sqrt(s + self.epsilon) * slope
        return W - rate * step, s, steps * self.rho + step * step * (1 - self.rho)


@register
class Ftrl(Optimizer):
    """Follow the regularised leader (McMahan et al. 2013, "Ad click prediction"), as in MXNet: `lamda1` is the weight
    of the L1 norm, which makes zeros, `beta` stabilises the rates; weight decay is the paper's L2 norm."""

    rate: Schedule | float = 0.1
    lamda1: float = 0.01
    beta: float = 1.0
    slots = ("z", "square")

    def update(self, e: Expressions, W: Expr, dW: Expr, rate: Expr, z: Expr, square: Expr) -> tuple[Expr, ...]:
        n = square + dW * dW
        after = z + dW - (e.sqrt(n) - e.sqrt(square)) * W / rate
        moved = (e.sign(after) * self.lamda1 - after) / ((e.sqrt(n) + self.beta) / rate + self.weight_decay)
        moves = e.greater(rate, 0.0)  # a schedule may begin or end at 0, where the rule would be 0 / 0
        moved = e.where(e.greater(e.abs(after), self.lamda1), moved, W * 0.0)
        return e.where(moves, moved, W), e.where(moves, after, z), e.where(moves, n, square)
