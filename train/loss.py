"""Losses: what is added to a model to tell how wrong it is. Each takes the model's output and what was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..ops import DType, Tensor
from ..ops.errors import InputError
from ..ops.op import Builder, Value

Build = Callable[[Builder, Value, Value], Value]
Target = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Loss:
    """`build(g, output, target)` adds the loss, a scalar; `target` tells the type of what was asked for."""

    build: Build
    target: Target


def _classes(output: Tensor) -> Tensor:
    dims = None if output.dims is None else (*output.dims[:1], *output.dims[2:])
    return Tensor(DType.INT64, dims)


def _same(output: Tensor) -> Tensor:
    return output.forget()


def _mean(g: Builder, x: Value) -> Value:
    return g.ReduceMean(x, keepdims=0)


def _cross_entropy(g: Builder, y: Value, target: Value) -> Value:
    """https://onnx.ai/onnx/operators/onnx__SoftmaxCrossEntropyLoss.html"""
    return g.SoftmaxCrossEntropyLoss(y, target)


def _squared(g: Builder, y: Value, target: Value) -> Value:
    off = g.Sub(y, target)
    return _mean(g, g.Mul(off, off))


def _absolute(g: Builder, y: Value, target: Value) -> Value:
    return _mean(g, g.Abs(g.Sub(y, target)))


def _huber(g: Builder, y: Value, target: Value) -> Value:
    """Huber 1964, with the turn at 1: squares near zero, lines further out."""
    off = g.Abs(g.Sub(y, target))
    near = g.Min(off, g.scalar(1, y))
    return _mean(g, g.Mul(near, g.Sub(off, g.Mul(near, g.scalar(0.5, y)))))


def _binary(g: Builder, y: Value, target: Value) -> Value:
    """Cross-entropy of the sigmoid of y, in the form that does not overflow."""
    return _mean(g, g.Sub(g.Softplus(y), g.Mul(y, target)))


LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(_cross_entropy, _classes),
    "mse": Loss(_squared, _same),
    "l1": Loss(_absolute, _same),
    "huber": Loss(_huber, _same),
    "binary_cross_entropy": Loss(_binary, _same),
}


def loss_named(loss: str | Loss) -> Loss:
    """The loss of this name; InputError lists the names.

    >>> loss_named("mse").target(Tensor(DType.FLOAT, ("n", 3)))
    Tensor(dtype=DType.FLOAT, dims=('n', 3), layout='')
    """
    if isinstance(loss, Loss):
        return loss
    found = LOSSES.get(loss)
    if found is None:
        raise InputError(f"there is no loss {loss!r}", where="loss", hint=f"one of {', '.join(LOSSES)}, or a Loss")
    return found
