"""Recurrent networks: RNN, GRU and LSTM, from one loop over time.

https://onnx.ai/onnx/operators/onnx__LSTM.html. An operator states only its cell: what one step makes of the gates'
inputs and the states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ShapeError
from .op import Context, Sample, op
from .rules import has_rank, narrow, product, same, widen
from .types import Array, Dim, Tensor, f32

Floats = Sequence[float] | None
Texts = Sequence[str] | None
Activation = Callable[[Array], Array]

# name -> (defaults of alpha and beta, None where it takes none; the function)
ACTIVATIONS: dict[str, tuple[float | None, float | None, Callable[[Any, Array, Any, Any], Array]]] = {
    "relu": (None, None, lambda xp, x, a, b: xp.maximum(x, 0)),
    "tanh": (None, None, lambda xp, x, a, b: xp.tanh(x)),
    "sigmoid": (None, None, lambda xp, x, a, b: 0.5 * xp.tanh(0.5 * x) + 0.5),  # never overflows
    "affine": (1.0, 0.0, lambda xp, x, a, b: a * x + b),
    "leakyrelu": (0.01, None, lambda xp, x, a, b: xp.where(x >= 0, x, a * x)),
    "thresholdedrelu": (1.0, None, lambda xp, x, a, b: xp.where(x >= a, x, 0)),
    "scaledtanh": (1.0, 1.0, lambda xp, x, a, b: a * xp.tanh(b * x)),
    "hardsigmoid": (0.2, 0.5, lambda xp, x, a, b: xp.clip(a * x + b, 0, 1)),
    "elu": (1.0, None, lambda xp, x, a, b: xp.where(x >= 0, x, a * xp.expm1(xp.minimum(x, 0)))),
    "softsign": (None, None, lambda xp, x, a, b: x / (1 + abs(x))),
    "softplus": (None, None, lambda xp, x, a, b: xp.logaddexp(x, 0)),
}


def _activations(
    xp: Any, names: Sequence[str], alphas: Floats, betas: Floats, clips: Sequence[float | None]
) -> list[Activation]:
    """The functions by name, each with its own alpha, beta and clip; the lists of alphas and betas hold them in the
    order of the functions that take one."""
    alpha, beta = iter(alphas or ()), iter(betas or ())
    found: list[Activation] = []
    for name, clip in zip(names, clips, strict=True):
        if name.lower() not in ACTIVATIONS:
            raise ShapeError(f"activation {name!r} is none of {', '.join(ACTIVATIONS)}")
        a, b, function = ACTIVATIONS[name.lower()]
        a, b = a if a is None else next(alpha, a), b if b is None else next(beta, b)

        def apply(x: Array, a: Any = a, b: Any = b, clip: float | None = clip, function: Any = function) -> Array:
            return function(xp, x if clip is None else xp.clip(x, -clip, clip), a, b)

        found.append(apply)
    return found


@dataclass(frozen=True, slots=True)
class Direction:
    """What one step of a cell may use in one direction: recurrent weights (transposed), the recurrent bias, the
    peephole weights and the activation functions."""

    xp: Any
    R: Array
    Rb: Array | None
    P: Array | None
    act: list[Activation]


# gates' inputs at one step (input weights and bias applied), states -> new states, the first of which is the output
Step = Callable[[Direction, Array, list[Array]], list[Array]]


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of recurrent cell: how many gates, its default activations, one step. `clip` bounds what goes into the
    activations of the gates, which come first: `clipped` of them."""

    gates: int
    names: tuple[str, ...]
    clipped: int
    step: Step


def recur(
    k: Context,
    cell: Cell,
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    sequence_lens: Array | None,
    states: Sequence[Array | None],
    P: Array | None,
    activations: Texts,
    activation_alpha: Floats,
    activation_beta: Floats,
    clip: float | None,
    direction: str,
    layout: int,
) -> tuple[Array, ...]:
    """Run a cell over time in one or both directions: Y, then the last value of each state."""
    xp, dtype = k.xp, X.dtype
    x, w, r = widen(X), widen(W), widen(R)
    x = x.swapaxes(0, 1) if layout else x
    (steps, batch, _), (count, _, hidden) = x.shape, R.shape
    alive = None
    if sequence_lens is not None:
        lengths = xp.asarray(sequence_lens).astype(np.int64)
        alive = xp.arange(steps)[:, None] < lengths
    per, width = len(cell.names), cell.gates * hidden
    chosen = activations or list(cell.names) * count
    clips = [clip if i % per < cell.clipped else None for i in range(len(chosen))]
    functions = _activations(xp, chosen, activation_alpha, activation_beta, clips)
    ys, lasts = [], []
    for d in range(count):
        reverse = direction == "reverse" or d == 1
        order = xp.arange(steps)[:, None] + xp.zeros((1, batch), np.int64)
        if reverse:  # each sequence backwards in its own length
            order = order[::-1] if alive is None else xp.where(alive, lengths - 1 - order, order)
        inputs = xp.take_along_axis(x, order[:, :, None], 0) @ w[d].T
        wide = None if B is None else widen(B)[d]
        if wide is not None:
            inputs = inputs + wide[:width]
        own = [
            xp.zeros((batch, hidden), x.dtype) if s is None else widen(s)[(slice(None), d) if layout else d]
            for s in states
        ]
        weights = Direction(
            xp,
            r[d].T,
            None if wide is None else wide[width:],
            None if P is None else widen(P)[d],
            functions[d * per : (d + 1) * per],
        )
        y = xp.zeros((steps, batch, hidden), x.dtype)
        for t in range(steps):
            new = cell.step(weights, inputs[t], own)
            if alive is None:
                own, y[t] = new, new[0]
            else:
                live = alive[t][:, None]
                own, y[t] = [xp.where(live, n, o) for n, o in zip(new, own, strict=True)], xp.where(live, new[0], 0)
        ys.append(xp.take_along_axis(y, order[:, :, None], 0) if reverse else y)
        lasts.append(own)
    result = [xp.stack(ys, 2 if layout else 1)]  # over time, batch, hidden: [steps, directions, batch, hidden]
    if layout:
        result = [result[0].swapaxes(0, 1)]
    result += [xp.stack([last[i] for last in lasts], 1 if layout else 0) for i in range(len(states))]
    return tuple(xp.array(narrow(v, dtype), order="C") for v in result)


def _recur_types(
    gates: int,
    states: int,
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None,
    hidden_size: int | None,
    direction: str,
    layout: int,
) -> tuple[Tensor, ...]:
    directions = {"forward": 1, "reverse": 1, "bidirectional": 2}.get(direction)
    if directions is None:
        raise ShapeError(f"direction {direction!r} is none of forward, reverse, bidirectional")
    for t in (X, W, R):
        has_rank(t, 3)
    lead = list((X.dims or (None,) * 3)[:2])
    steps, batch = lead[::-1] if layout else lead
    hidden: Dim = hidden_size
    if R.dims is not None:
        hidden = same(hidden, R.dims[2], f"hidden_size {hidden_size} and the recurrent weights {R}")
        same(R.dims[1], product((gates, hidden)), f"the gates of the recurrent weights {R}")
        same(R.dims[0], directions, f"the directions of the recurrent weights {R}")
    if W.dims is not None:
        same(W.dims[1], product((gates, hidden)), f"the gates of the weights {W}")
        same(W.dims[0], directions, f"the directions of the weights {W}")
        if X.dims is not None:
            same(X.dims[2], W.dims[2], f"the input {X} does not fit the weights {W}")
    if B is not None and B.dims is not None:
        has_rank(B, 2)
        same(B.dims[1], product((2 * gates, hidden)), f"the bias {B} does not fit {gates} gates")
    y = (batch, steps, directions, hidden) if layout else (steps, directions, batch, hidden)
    last = (batch, directions, hidden) if layout else (directions, batch, hidden)
    return X.of(y), *(X.of(last) for _ in range(states))


def _bias(d: Direction, part: slice) -> Any:
    return 0 if d.Rb is None else d.Rb[part]


def _rnn_step(d: Direction, x: Array, states: list[Array]) -> list[Array]:
    (h,) = states
    return [d.act[0](x + h @ d.R + _bias(d, slice(None)))]


RNN = Cell(1, ("Tanh",), 1, _rnn_step)


def _gru_cell(linear_before_reset: int) -> Cell:
    def step(d: Direction, x: Array, states: list[Array]) -> list[Array]:
        (h,) = states
        n = h.shape[1]
        early, late = slice(0, 2 * n), slice(2 * n, 3 * n)  # the gates z and r, then the candidate
        both = d.act[0](x[:, early] + h @ d.R[:, early] + _bias(d, early))
        z, r = both[:, :n], both[:, n:]
        if linear_before_reset:
            candidate = x[:, late] + r * (h @ d.R[:, late] + _bias(d, late))
        else:
            candidate = x[:, late] + (r * h) @ d.R[:, late] + _bias(d, late)
        return [(1 - z) * d.act[1](candidate) + z * h]

    return Cell(3, ("Sigmoid", "Tanh"), 2, step)


def lstm_cell(input_forget: int) -> Cell:
    def step(d: Direction, x: Array, states: list[Array]) -> list[Array]:
        h, c = states
        i, o, f, g = d.xp.split(x + h @ d.R + _bias(d, slice(None)), 4, axis=1)
        pi, po, pf = (0, 0, 0) if d.P is None else d.xp.split(d.P, 3)
        i = d.act[0](i + pi * c)
        f = 1 - i if input_forget else d.act[0](f + pf * c)
        c = f * c + i * d.act[1](g)
        o = d.act[0](o + po * c)
        return [o * d.act[2](c), c]

    return Cell(4, ("Sigmoid", "Tanh", "Tanh"), 2, step)


def _samples(gates: int, states: int, peepholes: bool = False) -> list[Sample]:
    """Samples of an operator with so many gates and states: 4 steps, batch 2, 3 inputs, 5 hidden."""

    def weights(directions: int) -> list[Any]:
        return [f32(directions, gates * 5, 3), f32(directions, gates * 5, 5)]

    def bias(directions: int) -> Any:
        return f32(directions, 2 * gates * 5)

    outputs, both = 1 + states, {"direction": "bidirectional", "hidden_size": 5}
    lengths = np.array([4, 2], np.int32)
    start = [f32(2, 2, 5)] * states
    found = [
        Sample([f32(4, 2, 3), *weights(1)], {"hidden_size": 5}, outputs),
        Sample([f32(4, 2, 3), *weights(1), bias(1)], {"hidden_size": 5, "direction": "reverse"}, outputs),
        Sample([f32(4, 2, 3), *weights(2), bias(2), lengths, *start], both, outputs),
        Sample([f32(4, 2, 3), *weights(2), bias(2), None, *start], {**both, "clip": 0.5}, outputs),
    ]
    if peepholes:
        found.append(Sample([f32(4, 2, 3), *weights(2), None, None, *start, f32(2, 15)], both, outputs))
    return found


@op("RNN", since=22, outputs=("Y?", "Y_h?"), samples=[
    *_samples(1, 1),
    Sample([f32(2, 4, 3), f32(1, 5, 3), f32(1, 5, 5)], {"layout": 1}, 2),
    Sample([f32(4, 2, 3), f32(2, 5, 3), f32(2, 5, 5)], {"direction": "bidirectional", "hidden_size": 5,
           "activations": ["LeakyRelu", "HardSigmoid"], "activation_alpha": [0.2, 0.3], "activation_beta": [0.4]}, 2),
])  # fmt: skip
def rnn(
    k: Context,
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activation_alpha: Floats = None,
    activation_beta: Floats = None,
    activations: Texts = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Array, ...]:
    given = list(activations or ("Tanh", "Tanh"))[: W.shape[0]]  # the default names one function too many
    return recur(k, RNN, X, W, R, B, sequence_lens, [initial_h], None, given,
                  activation_alpha, activation_beta, clip, direction, layout)  # fmt: skip


@rnn.infer
def _(X: Tensor, W: Tensor, R: Tensor, B: Tensor | None = None, *rest: Tensor | None, **attrs: Any) -> Any:
    return _recur_types(1, 1, X, W, R, B, *_frame(attrs))


def _frame(attrs: dict[str, Any]) -> tuple[int | None, str, int]:
    return attrs.get("hidden_size"), attrs.get("direction", "forward"), attrs.get("layout", 0)


@op("GRU", since=22, outputs=("Y?", "Y_h?"), samples=[
    *_samples(3, 1),
    Sample([f32(4, 2, 3), f32(1, 15, 3), f32(1, 15, 5), f32(1, 30)], {"hidden_size": 5, "linear_before_reset": 1}, 2),
    Sample([f32(2, 4, 3), f32(1, 15, 3), f32(1, 15, 5)], {"layout": 1}, 2),
    Sample([f32(0, 2, 3), f32(1, 15, 3), f32(1, 15, 5)], {"hidden_size": 5}, 2),
])  # fmt: skip
def gru(
    k: Context,
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activation_alpha: Floats = None,
    activation_beta: Floats = None,
    activations: Texts = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Array, ...]:
    cell = _gru_cell(linear_before_reset)
    return recur(k, cell, X, W, R, B, sequence_lens, [initial_h], None, activations,
                  activation_alpha, activation_beta, clip, direction, layout)  # fmt: skip


@gru.infer
def _(X: Tensor, W: Tensor, R: Tensor, B: Tensor | None = None, *rest: Tensor | None, **attrs: Any) -> Any:
    return _recur_types(3, 1, X, W, R, B, *_frame(attrs))


@op("LSTM", since=22, outputs=("Y?", "Y_h?", "Y_c?"), samples=[
    *_samples(4, 2, peepholes=True),
    Sample([f32(2, 4, 3), f32(1, 20, 3), f32(1, 20, 5)], {"layout": 1}, 3),
    Sample([f32(4, 2, 3), f32(1, 20, 3), f32(1, 20, 5)], {"hidden_size": 5, "input_forget": 1}, 3),
    Sample([f32(4, 2, 3), f32(1, 20, 3), f32(1, 20, 5)], {"hidden_size": 5,
           "activations": ["HardSigmoid", "Softsign", "ScaledTanh"], "activation_alpha": [0.3, 1.5],
           "activation_beta": [0.4, 0.7]}, 3),
    Sample([f32(4, 0, 3), f32(1, 20, 3), f32(1, 20, 5)], {"hidden_size": 5}, 3),
])  # fmt: skip
def lstm(
    k: Context,
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    P: Array | None = None,
    *,
    activation_alpha: Floats = None,
    activation_beta: Floats = None,
    activations: Texts = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Array, ...]:
    return recur(k, lstm_cell(input_forget), X, W, R, B, sequence_lens, [initial_h, initial_c], P,
                  activations, activation_alpha, activation_beta, clip, direction, layout)  # fmt: skip


@lstm.infer
def _(X: Tensor, W: Tensor, R: Tensor, B: Tensor | None = None, *rest: Tensor | None, **attrs: Any) -> Any:
    return _recur_types(4, 2, X, W, R, B, *_frame(attrs))
