"""Optimizers that measure whole tensors: their rules are graphs of operators."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...ops.core.expr import Expr, Expressions
from ...ops.op import Builder, Value
from .adaptive import Adam
from .record import Optimizer, register
from .schedule import Schedule


def _if_both(g: Builder, a: Value, b: Value, value: Value) -> Value:
    """The value where both norms are above zero, else 1."""
    zero = g.scalar(0, a)
    return g.Where(g.And(g.Greater(a, zero), g.Greater(b, zero)), value, g.scalar(1, a))


@register
class LAMB(Adam):
    """Adam's direction, scaled to the norm of the tensor: for large batches (You et al. 2019, arXiv 1904.00962)."""

    epsilon: float = 1e-6

    def whole(
        self, g: Builder, W: Value, dW: Value, rate: Value, unbias1: Value, unbias2: Value, mean: Value, square: Value
    ) -> tuple[Value, ...]:
        m = g.Add(g.Mul(mean, g.scalar(self.beta1, W)), g.Mul(dW, g.scalar(1 - self.beta1, W)))
        v = g.Add(g.Mul(square, g.scalar(self.beta2, W)), g.Mul(g.Mul(dW, dW), g.scalar(1 - self.beta2, W)))
        way = g.Div(g.Div(m, unbias1), g.Add(g.Div(g.Sqrt(v), unbias2), g.scalar(self.epsilon, W)))
        way = g.Add(way, g.Mul(W, g.scalar(self.weight_decay, W))) if self.weight_decay else way
        long, short = g.ReduceL2(W, keepdims=0), g.ReduceL2(way, keepdims=0)
        trust = _if_both(g, long, short, g.Div(long, short))
        return g.Sub(W, g.Mul(way, g.Mul(rate, trust))), m, v


@register
class LARS(Optimizer):
    """Momentum with a rate for each tensor, from its norm and that of its gradient: for large batches (You, Gitman and
    Ginsburg 2017, arXiv 1708.03888)."""

    momentum: float = 0.9
    trust: float = 0.001
    epsilon: float = 1e-8
    slots = ("velocity",)

    def whole(self, g: Builder, W: Value, dW: Value, rate: Value, velocity: Value) -> tuple[Value, ...]:
        long, steep = g.ReduceL2(W, keepdims=0), g.ReduceL2(dW, keepdims=0)
        bound = g.Add(g.Add(steep, g.Mul(long, g.scalar(self.weight_decay, W))), g.scalar(self.epsilon, W))
        own = _if_both(g, long, steep, g.Div(g.Mul(long, g.scalar(self.trust, W)), bound))
        slope = g.Add(dW, g.Mul(W, g.scalar(self.weight_decay, W))) if self.weight_decay else dW
        v = g.Add(g.Mul(velocity, g.scalar(self.momentum, W)), g.Mul(slope, g.Mul(rate, own)))
        return g.Sub(W, v), v


@register
class LBFGS(Optimizer):
    """L-BFGS: Newton's direction from the last `history` steps and changes of the gradient (Liu and Nocedal 1989),
    without a line search, as PyTorch's LBFGS with `max_iter=1`, for each tensor by itself. It needs gradients of the
    same examples at every update, and keeps 2 * history + 2 tensors for each."""

    rate: Schedule | float = 1.0
    history: int = 10

    @property
    def slots(self) -> tuple[str, ...]:
        return ("slope", "way", *(f"{kind}{i}" for kind in ("step", "turn") for i in range(self.history)))

    def numbers(self, e: Expressions, t: Expr) -> Sequence[Expr]:
        """1 at the first update, else 0."""
        return (e.where(e.equal(t, 0.0), e.number(1.0, t), 0.0),)

    def whole(
        self, g: Builder, W: Value, dW: Value, rate: Value, first: Value, before: Value, moved: Value, *pairs: Value
    ) -> tuple[Value, ...]:
        def dot(a: Value, b: Value) -> Value:
            return g.ReduceSum(g.Mul(a, b), keepdims=0)

        zero, one = g.scalar(0, W), g.scalar(1, W)
        slope = g.Add(dW, g.Mul(W, g.scalar(self.weight_decay, W))) if self.weight_decay else dW
        steps, turns = list(pairs[: self.history]), list(pairs[self.history :])
        turn = g.Sub(slope, before)
        # a pair counts where the curvature along it is above zero; one that is all zeros is not there yet
        good = g.Greater(dot(turn, moved), g.scalar(1e-10, W))

        def shifted(held: list[Value], new: Value) -> list[Value]:
            return [*(g.Where(good, b, a) for a, b in pairwise(held)), g.Where(good, new, held[-1])]

        steps, turns = shifted(steps, moved), shifted(turns, turn)
        inner = [dot(y, s) for s, y in zip(steps, turns, strict=True)]
        there = [g.Greater(ys, zero) for ys in inner]
        inverse = [g.Where(t, g.Div(one, g.Where(t, ys, one)), zero) for t, ys in zip(there, inner, strict=True)]
        q, shares = g.Neg(slope), dict[int, Value]()
        for i in reversed(range(self.history)):
            shares[i] = g.Mul(dot(steps[i], q), inverse[i])
            q = g.Sub(q, g.Mul(turns[i], shares[i]))
        length = dot(turns[-1], turns[-1])
        way = g.Mul(q, g.Where(there[-1], g.Div(inner[-1], g.Where(there[-1], length, one)), one))
        for i in range(self.history):
            way = g.Add(way, g.Mul(steps[i], g.Sub(shares[i], g.Mul(dot(turns[i], way), inverse[i]))))
        size = g.ReduceSum(g.Abs(slope), keepdims=0)
        short = g.Min(one, g.Div(one, g.Where(g.Greater(size, zero), size, one)))
        step = g.Mul(way, g.Mul(rate, g.Where(g.Greater(first, zero), short, one)))
        return g.Add(W, step), slope, step, *steps, *turns
