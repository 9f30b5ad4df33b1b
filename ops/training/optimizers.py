"""One step of an optimizer, over any number of tensors at once.

https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Adam.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..op import Context, Op, Sample, op
from ..types import Array, Tensor, f32

DOMAIN = "ai.onnx.preview.training"
SQUARES = np.array([0.5, 2.0], np.float32)
Update = Callable[..., tuple[Array, ...]]


def _groups(inputs: tuple[Any, ...], kinds: int) -> list[tuple[Any, ...]]:
    """Return each tensor with its gradient and its states."""
    count, rest = divmod(len(inputs), kinds)
    if rest or not count:
        raise ShapeError(f"{len(inputs)} tensors are not {kinds} for each one that is optimized")
    return [inputs[i::count] for i in range(count)]


def optimized(update: Update, inputs: tuple[Array, ...], kinds: int) -> tuple[Array, ...]:
    """New values of all tensors, then of all their first states, and so on. `update` takes a tensor, its gradient and
    its states, and returns the new tensor and states."""
    updated = [update(*group) for group in _groups(inputs, kinds)]
    kept = (*inputs[: len(updated)], *inputs[2 * len(updated) :])
    news = (new for kind in zip(*updated, strict=True) for new in kind)
    return tuple(np.asarray(new).astype(x.dtype, copy=False) for new, x in zip(news, kept, strict=True))


def states(optimizer: Op, kinds: int) -> None:
    """Give an optimizer its inference rule."""

    def infer(R: Tensor, T: Tensor, *inputs: Tensor, **attrs: Any) -> tuple[Tensor, ...]:
        groups = _groups(inputs, kinds)
        return tuple(g[i].forget() for i in (0, *range(2, kinds)) for g in groups)

    optimizer.infer(infer)


def _samples(kinds: int, attrs: list[dict[str, Any]]) -> list[Sample]:
    """One tensor at the first step, and two at the fourth; the last state is a running square."""
    one: list[Any] = [np.float32(0.1), np.array(0), *[f32(2)] * (kinds - 1), SQUARES]
    pair = [f32(2), f32(2, 1)]
    two: list[Any] = [np.float32(0.1), np.array(3), *pair * (kinds - 1), SQUARES, SQUARES.reshape(2, 1)]
    return [Sample(x, a, (kinds - 1) * n) for x, n in ((one, 1), (two, 2)) for a in attrs]


_DECAYING = {"decay_factor": 0.1, "epsilon": 0.01, "norm_coefficient": 0.2}


@op("Adagrad", domain="ai.onnx.preview.training", since=1, outputs=("outputs*",), samples=_samples(3, [{}, _DECAYING]))
def adagrad(
    k: Context,
    R: Array,
    T: Array,
    *inputs: Array,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Array, ...]:
    rate = R / (1 + T * decay_factor)

    def update(x: Array, g: Array, squares: Array) -> tuple[Array, ...]:
        slope = norm_coefficient * x + g
        summed = squares + slope * slope
        return x - rate * slope / (k.xp.sqrt(summed) + epsilon), summed

    return optimized(update, inputs, 3)


states(adagrad, 3)


_REGULAR = {"alpha": 0.8, "beta": 0.7, "norm_coefficient": 0.2, "norm_coefficient_post": 0.1}


@op("Adam", domain="ai.onnx.preview.training", since=1, outputs=("outputs*",), samples=_samples(4, [{}, _REGULAR]))
def adam(
    k: Context,
    R: Array,
    T: Array,
    *inputs: Array,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Array, ...]:
    step = int(T)
    rate = R * (np.sqrt(1 - beta**step) / (1 - alpha**step)) if step > 0 else R

    def update(x: Array, g: Array, mean: Array, square: Array) -> tuple[Array, ...]:
        slope = norm_coefficient * x + g
        average = alpha * mean + (1 - alpha) * slope
        squares = beta * square + (1 - beta) * slope * slope
        moved = x - rate * average / (k.xp.sqrt(squares) + epsilon)
        return (1 - norm_coefficient_post) * moved, average, squares

    return optimized(update, inputs, 4)


states(adam, 4)

_MODES = [{"alpha": 0.9, "beta": 0.8, "norm_coefficient": 0.1, "mode": m} for m in ("standard", "nesterov")]


@op("Momentum", domain="ai.onnx.preview.training", since=1, outputs=("outputs*",), samples=_samples(3, _MODES))
def momentum(
    k: Context, R: Array, T: Array, *inputs: Array, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Array, ...]:
    if mode not in ("standard", "nesterov"):
        raise ShapeError(f"mode {mode!r} is none of standard, nesterov")
    share = beta if int(T) > 0 else 1

    def update(x: Array, g: Array, speed: Array) -> tuple[Array, ...]:
        slope = norm_coefficient * x + g
        moved = alpha * speed + share * slope
        return x - R * (slope + alpha * moved if mode == "nesterov" else moved), moved

    return optimized(update, inputs, 3)


states(momentum, 3)
