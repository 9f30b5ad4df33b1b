"""Optimizers that measure whole tensors: their rules are graphs of operators."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...ops.core.expr import Expr, Expressions
from ...ops.core.formula import Nodes, Operand
from ...ops.op import Builder, Value
from .adaptive import Adam
from .record import Optimizer, register
from .schedule import Schedule


def _norm(m: Nodes, x: Operand) -> Operand:
    return m.op("ReduceL2", x, keepdims=0)


def _dot(m: Nodes, a: Operand, b: Operand) -> Operand:
    return m.op("ReduceSum", a * b, keepdims=0)


def _if_both(m: Nodes, a: Operand, b: Operand, value: Operand) -> Operand:
    """The value where both norms are above zero, else 1."""
    return m.where(m.op("And", a > 0, b > 0), value, 1)


@register
class LAMB(Adam):
    """Adam's direction, scaled to the norm of the tensor: for large batches (You et al. 2019, arXiv 1904.00962)."""

    epsilon: float = 1e-6

    def whole(self, g: Builder, *operands: Value) -> tuple[Value, ...]:
        m = Nodes(g)
        W, dW, rate, unbias1, unbias2, *held = m.of(operands)
        mean, square = self.means(dW, *held)
        way = self.decayed(W, mean / unbias1 / (m.op("Sqrt", square) / unbias2 + self.epsilon))
        long, short = _norm(m, W), _norm(m, way)
        trust = _if_both(m, long, short, long / short)
        return m.names([W - way * (rate * trust), mean, square])


@register
class LARS(Optimizer):
    """Momentum with a rate for each tensor, from its norm and that of its gradient: for large batches (You, Gitman and
    Ginsburg 2017, arXiv 1708.03888)."""

    momentum: float = 0.9
    trust: float = 0.001
    epsilon: float = 1e-8
    slots = ("velocity",)

    def whole(self, g: Builder, *operands: Value) -> tuple[Value, ...]:
        m = Nodes(g)
        W, dW, rate, velocity = m.of(operands)
        long, steep = _norm(m, W), _norm(m, dW)
        own = _if_both(m, long, steep, long * self.trust / (steep + long * self.weight_decay + self.epsilon))
        v = velocity * self.momentum + self.decayed(W, dW) * (rate * own)
        return m.names([W - v, v])


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

    def whole(self, g: Builder, *operands: Value) -> tuple[Value, ...]:
        m = Nodes(g)
        W, dW, rate, first, before, moved, *pairs = m.of(operands)
        zero, one = m.of([g.scalar(0, W.name), g.scalar(1, W.name)])
        slope: Operand = self.decayed(W, dW)
        steps, turns = pairs[: self.history], pairs[self.history :]
        turn = slope - before
        # a pair counts where the curvature along it is above zero; one that is all zeros is not there yet
        good = _dot(m, turn, moved) > 1e-10

        def shifted(held: list[Operand], new: Operand) -> list[Operand]:
            return [*(m.where(good, b, a) for a, b in pairwise(held)), m.where(good, new, held[-1])]

        steps, turns = shifted(steps, moved), shifted(turns, turn)
        inner = [_dot(m, y, s) for s, y in zip(steps, turns, strict=True)]
        valid = [ys > zero for ys in inner]
        inverse = [m.where(t, one / m.where(t, ys, one), zero) for t, ys in zip(valid, inner, strict=True)]
        q, shares = -slope, dict[int, Operand]()
        for i in reversed(range(self.history)):
            shares[i] = _dot(m, steps[i], q) * inverse[i]
            q = q - turns[i] * shares[i]
        length = _dot(m, turns[-1], turns[-1])
        way = q * m.where(valid[-1], inner[-1] / m.where(valid[-1], length, one), one)
        for i in range(self.history):
            way = way + steps[i] * (shares[i] - _dot(m, turns[i], way) * inverse[i])
        size = m.op("ReduceSum", abs(slope), keepdims=0)
        short = m.op("Min", one, one / m.where(size > zero, size, one))
        step = way * (rate * m.where(first > zero, short, one))
        return m.names([W + step, slope, step, *steps, *turns])
