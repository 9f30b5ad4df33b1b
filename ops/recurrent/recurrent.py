"""Recurrent networks: RNN, GRU and LSTM, from one loop over time.

https://onnx.ai/onnx/operators/onnx__LSTM.html. An operator states only its cell: what one step makes of the gates'
inputs and the states. All is written as formulas (see formula.py), so that the references and the standard bodies,
which are made of Scan, come from the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..core import weights
from ..core.formula import Arithmetic, Arrays, Nodes, Operand
from ..core.rules import has_rank, product, same
from ..errors import ShapeError
from ..op import Builder, Context, Op, Sample, Twin, Value, op
from ..types import Array, Dim, Tensor, f32

Floats = Sequence[float] | None
Strings = Sequence[str] | None
Activation = Callable[[Operand], Operand]
Slope = Callable[[Any, Operand, Operand], Operand]

# name -> (defaults of alpha and beta, None where it takes none; the function of arrays; that of graph values)
ACTIVATIONS: dict[str, tuple[float | None, float | None, Callable[..., Array], Callable[..., Operand]]] = {
    "relu": (None, None, lambda xp, x, a, b: xp.maximum(x, 0), lambda m, x, a, b: m.op("Relu", x)),
    "tanh": (None, None, lambda xp, x, a, b: xp.tanh(x), lambda m, x, a, b: m.op("Tanh", x)),
    "sigmoid": (  # this way it never overflows, and small results keep their digits
        None, None, lambda xp, x, a, b: xp.exp(xp.minimum(x, 0)) / (1 + xp.exp(-abs(x))),
        lambda m, x, a, b: m.op("Sigmoid", x)),
    "affine": (1.0, 0.0, lambda xp, x, a, b: a * x + b, lambda m, x, a, b: a * x + b),
    "leakyrelu": (
        0.01, None, lambda xp, x, a, b: xp.where(x >= 0, x, a * x), lambda m, x, a, b: m.op("LeakyRelu", x, alpha=a)),
    "thresholdedrelu": (
        1.0, None, lambda xp, x, a, b: xp.where(x >= a, x, 0), lambda m, x, a, b: m.op("ThresholdedRelu", x, alpha=a)),
    "scaledtanh": (1.0, 1.0, lambda xp, x, a, b: a * xp.tanh(b * x), lambda m, x, a, b: a * m.op("Tanh", b * x)),
    "hardsigmoid": (
        0.2, 0.5, lambda xp, x, a, b: xp.clip(a * x + b, 0, 1),
        lambda m, x, a, b: m.op("HardSigmoid", x, alpha=a, beta=b)),
    "elu": (
        1.0, None, lambda xp, x, a, b: xp.where(x >= 0, x, a * xp.expm1(xp.minimum(x, 0))),
        lambda m, x, a, b: m.op("Elu", x, alpha=a)),
    "softsign": (None, None, lambda xp, x, a, b: x / (1 + abs(x)), lambda m, x, a, b: m.op("Softsign", x)),
    "softplus": (None, None, lambda xp, x, a, b: xp.logaddexp(x, 0), lambda m, x, a, b: m.op("Softplus", x)),
}  # fmt: skip


def _activations(
    m: Arithmetic, names: Sequence[str], alphas: Floats, betas: Floats, clips: Sequence[float | None]
) -> list[Activation]:
    """The functions by name, each with its own alpha, beta and clip; the lists of alphas and betas hold them in the
    order of the functions that take one."""
    alpha, beta = iter(alphas or ()), iter(betas or ())
    functions: list[Activation] = []
    for name, clip in zip(names, clips, strict=True):
        if name.lower() not in ACTIVATIONS:
            raise ShapeError(f"activation {name!r} is none of {', '.join(ACTIVATIONS)}")
        a, b, of_arrays, of_nodes = ACTIVATIONS[name.lower()]
        a, b = a if a is None else next(alpha, a), b if b is None else next(beta, b)
        functions.append(_of_arrays(m.xp, of_arrays, a, b, clip) if isinstance(m, Arrays)
                     else _of_nodes(m, of_nodes, a, b, clip))  # fmt: skip
    return functions


def _of_arrays(xp: Any, function: Callable[..., Array], a: Any, b: Any, clip: float | None) -> Activation:
    return lambda x: function(xp, x if clip is None else xp.clip(x, -clip, clip), a, b)


def _of_nodes(m: Nodes, function: Callable[..., Operand], a: Any, b: Any, clip: float | None) -> Activation:
    return lambda x: function(m, x if clip is None else m.op("Clip", x, -clip, clip), a, b)


# name -> the gradient of its input from that of its result y; of the others y does not tell it
SLOPES: dict[str, Slope] = {
    "relu": lambda m, dy, y: m.where(y > 0, dy, 0),
    "tanh": lambda m, dy, y: dy * (1 - y * y),
    "sigmoid": lambda m, dy, y: dy * (y * (1 - y)),
    "softsign": lambda m, dy, y: dy * ((1 - abs(y)) * (1 - abs(y))),
    "softplus": lambda m, dy, y: dy * (1 - m.exp(-y)),
}


class Cell:
    """A recurrent cell in one direction, here that of RNN: h = f(x + R h).

    `gates` counts the rows of weights for each hidden unit, `states` what goes from step to step; `kept` are the
    widths, in hidden units, of what is saved of each step for the gradient. `names` are the default activations, of
    which the first `clipped` are those of gates, whose inputs `clip` bounds. `x` of a step are the gates' inputs,
    weights and biases applied.
    """

    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1
    kept: ClassVar[tuple[int, ...]] = ()
    names: ClassVar[tuple[str, ...]] = ("Tanh",)
    clipped: ClassVar[int] = 1

    def __init__(self, m: Arithmetic, R: Operand, Rb: Operand | None, P: Operand | None, act: list[Activation]) -> None:
        self.m, self.act, self.r, self.R = m, act, R, m.swap(R)

    def bias(self, Rb: Operand) -> Operand:
        """Return the part of the recurrent bias that can be added to the gates' inputs before the loop."""
        return Rb

    def step(self, x: Operand, states: list[Operand]) -> tuple[list[Operand], list[Operand]]:
        """The new states, the first of which is the output, and what is kept."""
        return [self.act[0](x + states[0] @ self.R)], []


class GruCell(Cell):
    """h = (1 - z) n + z h for gates z and r, and a candidate n."""

    gates, kept, names, clipped = 3, (1, 1, 1), ("Sigmoid", "Tanh"), 2

    def __init__(self, m: Arithmetic, R: Operand, Rb: Operand | None, P: Operand | None, act: list[Activation]) -> None:
        super().__init__(m, R, Rb, P, act)
        parts: list[Operand] = m.split(self.R, 3)
        self.early, self.late = m.join(parts[:2]), parts[2]

    def candidate(self, r: Operand, h: Operand) -> Operand:
        """Return the state's contribution to the candidate."""
        return (r * h) @ self.late

    def step(self, x: Operand, states: list[Operand]) -> tuple[list[Operand], list[Operand]]:
        (h,) = states
        *early, late = self.m.split(x, 3)
        z, r = self.m.split(self.act[0](self.m.join(early) + h @ self.early), 2)
        n = self.act[1](late + self.candidate(r, h))
        return [(1 - z) * n + z * h], [z, r, n]


class LinearFirst(GruCell):
    """The GRU whose candidate applies the recurrent weights before the reset gate."""

    def __init__(self, m: Arithmetic, R: Operand, Rb: Operand | None, P: Operand | None, act: list[Activation]) -> None:
        super().__init__(m, R, Rb, P, act)
        self.late_bias = 0 if Rb is None else m.split(Rb, 3)[2]

    def bias(self, Rb: Operand) -> Operand:
        z, r, n = self.m.split(Rb, 3)
        return self.m.join([z, r, n * 0])

    def linear(self, h: Operand) -> Operand:
        return self.m.product(h, self.late) + self.late_bias

    def candidate(self, r: Operand, h: Operand) -> Operand:
        return r * self.linear(h)


class LstmCell(Cell):
    """c = f c + i g and h = o tanh(c) for gates i, o and f, and a candidate g."""

    gates, states, kept, names, clipped = 4, 2, (4, 1), ("Sigmoid", "Tanh", "Tanh"), 2

    def __init__(self, m: Arithmetic, R: Operand, Rb: Operand | None, P: Operand | None, act: list[Activation]) -> None:
        super().__init__(m, R, Rb, P, act)
        self.P = None if P is None else m.split(P, 3)

    def forget(self, f: Operand, i: Operand) -> Operand:
        """The forget gate from its input and the input gate."""
        return self.act[0](f)

    def step(self, x: Operand, states: list[Operand]) -> tuple[list[Operand], list[Operand]]:
        h, c = states
        i, o, f, g = self.m.split(x + h @ self.R, 4)
        if self.P is not None:
            i, f = i + self.P[0] * c, f + self.P[2] * c
        i = self.act[0](i)
        f, g = self.forget(f, i), self.act[1](g)
        c = f * c + i * g
        o = self.act[0](o if self.P is None else o + self.P[1] * c)
        return [o * self.act[2](c), c], [self.m.join([i, o, f, g]), c]


class CoupledCell(LstmCell):
    """The LSTM with coupled gates: it forgets as much as it takes in."""

    def forget(self, f: Operand, i: Operand) -> Operand:
        return 1 - i


def backwards(direction: str) -> tuple[bool, ...]:
    """Return, for each direction, whether it goes from the last step to the first."""
    ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(direction)
    if ways is None:
        raise ShapeError(f"direction {direction!r} is none of forward, reverse, bidirectional")
    return ways


class Frame:
    """Settings of a recurrent operator, from its attributes and its kind of cell."""

    def __init__(
        self,
        kind: type[Cell],
        *,
        activation_alpha: Floats = None,
        activation_beta: Floats = None,
        activations: Strings = None,
        clip: float | None = None,
        direction: str = "forward",
        hidden_size: int | None = None,
        layout: int = 0,
        **_: Any,
    ) -> None:
        self.kind, self.clip, self.layout = kind, clip, layout
        self.backwards = backwards(direction)
        per, count = len(kind.names), len(self.backwards)
        # RNN's default names one function too many
        self.names = list(activations or kind.names * count)[: per * count]
        self.numbers = activation_alpha, activation_beta

    @property
    def tells(self) -> bool:
        """True if the derivatives of all activations follow from their results; else the standard form is
        differentiated."""
        return self.clip is None and all(name.lower() in SLOPES for name in self.names)

    def slopes(self, d: int) -> list[Slope]:
        """The derivatives of the activations of a direction."""
        per = len(self.kind.names)
        return [SLOPES[name.lower()] for name in self.names[d * per : (d + 1) * per]]

    def functions(self, m: Arithmetic) -> list[list[Activation]]:
        """The activation functions of each direction."""
        per = len(self.kind.names)
        clips = [self.clip if i % per < self.kind.clipped else None for i in range(len(self.names))]
        functions = _activations(m, self.names, *self.numbers, clips)
        return [functions[i : i + per] for i in range(0, len(functions), per)]

    def cells(self, m: Arithmetic, R: Operand, B: Operand | None, P: Operand | None) -> list[tuple[Cell, Operand]]:
        """For each direction its cell and the bias of its gates' inputs (None for none)."""
        cells: list[tuple[Cell, Operand]] = []
        for d, act in enumerate(self.functions(m)):
            wb, rb = (None, None) if B is None else m.split(m.pick(m.widened(B), d), 2)
            cell = self.kind(m, m.pick(m.widened(R), d), rb, None if P is None else m.pick(m.widened(P), d), act)
            cells.append((cell, None if wb is None else wb + cell.bias(rb)))
        return cells

    def starts(self, m: Arithmetic, states: Sequence[Operand | None], d: int, x: Operand, R: Operand) -> list[Operand]:
        """The states before the first step, as [batch, hidden]."""
        return [m.zeros(x, (x, 1), (R, 2)) if s is None else m.pick(m.widened(s), d, self.layout) for s in states]

    def steps_first(self, m: Arithmetic, x: Operand, rank: int) -> Operand:
        """Between the layout of the operator and the one with steps before the batch: either way."""
        return m.lead(x, rank) if self.layout else x


def recur(
    m: Arithmetic,
    frame: Frame,
    X: Operand,
    W: Operand,
    R: Operand,
    B: Operand | None,
    sequence_lens: Operand | None,
    states: Sequence[Operand | None],
    P: Operand | None = None,
    *,
    keep: bool = False,
) -> tuple[Operand, ...]:
    """Run a cell over time in one or both directions: Y, then the last value of each state, then (to `keep`) what is
    kept of each step as [steps, directions, batch, ...]."""
    x, w = frame.steps_first(m, m.widened(X), 3), m.widened(W)
    alive = {} if sequence_lens is None else {"live": m.alive(sequence_lens, x)}
    rows: list[list[Operand]] = []
    lasts: list[list[Operand]] = []
    count = 1 + (len(frame.kind.kept) if keep else 0)
    for d, (cell, bias) in enumerate(frame.cells(m, R, B, P)):

        def step(own: list[Operand], row: Any, cell: Cell = cell) -> tuple[list[Operand], list[Operand]]:
            new, kept = cell.step(row["x"], own)
            shown = [new[0], *kept][:count]
            if alive:
                shown = [m.where(row["live"], v, 0) for v in shown]
                new = [m.where(row["live"], n, o) for n, o in zip(new, own, strict=True)]
            return new, shown

        back = frame.backwards[d]
        inputs = m.product(m.reverse(x, sequence_lens) if back else x, m.swap(m.pick(w, d)))
        inputs = inputs if bias is None else inputs + bias
        last, collected = m.scan(step, frame.starts(m, states, d, x, R), {"x": inputs, **alive}, count)
        rows.append([m.reverse(v, sequence_lens) for v in collected] if back else collected)
        lasts.append(last)
    y, *kept = (m.stack(v, 1 if i else 1 + frame.layout) for i, v in enumerate(zip(*rows, strict=True)))
    ends = (m.stack(v, frame.layout) for v in zip(*lasts, strict=True))
    return tuple(m.like(v, X) for v in (frame.steps_first(m, y, 4), *ends, *kept))


def recur_types(
    kind: type[Cell],
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    lengths: Tensor | None = None,
    *others: Tensor | None,
    hidden_size: int | None = None,
    direction: str = "forward",
    layout: int = 0,
    keep: bool = False,
    **attrs: Any,
) -> tuple[Tensor, ...]:
    """The types of `recur`."""
    gates = kind.gates
    directions = len(backwards(direction))
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
    if lengths is not None and lengths.dims is not None:
        has_rank(lengths, 1)
        same(lengths.dims[0], batch, f"the lengths {lengths} do not fit the batch of {X}")
    for state in others[: kind.states]:
        if state is not None and state.dims is not None:
            has_rank(state, 3)
            for before, after in zip(state.dims, last, strict=True):
                same(before, after, f"the first state {state} does not fit the batch of {X} and hidden size {hidden}")
    kept = [(steps, directions, batch, product((n, hidden))) for n in (kind.kept if keep else ())]
    return X.of(y), *(X.of(last) for _ in range(kind.states)), *map(X.of, kept)


def _samples(gates: int, states: int, peepholes: bool = False) -> list[Sample]:
    """Samples of an operator with so many gates and states: 4 steps, batch 2, 3 inputs, 5 hidden."""

    def weights(directions: int) -> list[Any]:
        return [f32(directions, gates * 5, 3), f32(directions, gates * 5, 5)]

    def bias(directions: int) -> Any:
        return f32(directions, 2 * gates * 5)

    outputs, both = 1 + states, {"direction": "bidirectional", "hidden_size": 5}
    lengths = np.array([4, 2], np.int32)
    start = [f32(2, 2, 5)] * states
    samples = [
        Sample([f32(4, 2, 3), *weights(1)], {"hidden_size": 5}, outputs),
        Sample([f32(4, 2, 3), *weights(1), bias(1)], {"hidden_size": 5, "direction": "reverse"}, outputs),
        Sample([f32(4, 2, 3), *weights(2), bias(2), lengths, *start], both, outputs),
        Sample([f32(4, 2, 3), *weights(2), bias(2), None, *start], {**both, "clip": 0.5}, outputs),
    ]
    if peepholes:
        samples.append(Sample([f32(4, 2, 3), *weights(2), None, None, *start, f32(2, 15)], both, outputs))
    return samples


INPUTS = ("X", "W", "R", "B?", "sequence_lens?", "initial_h?")
RECURRENT: Mapping[str, Any] = {
    "activation_alpha": None,
    "activation_beta": None,
    "activations": None,
    "clip": None,
    "direction": "forward",
    "hidden_size": None,
    "layout": 0,
}


def operands(of: Op, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The inputs of an operator as `recur` takes them."""
    given = [*inputs, *[None] * (len(of.inputs) - len(inputs))]
    states = sum(p.name.startswith("initial_") for p in of.inputs)
    return *given[:5], given[5 : 5 + states], *given[5 + states :]


OPERATORS = "RNN GRU LSTM"


def _operator(
    name: str, kind: type[Cell], frame: Callable[..., Frame], samples: Sequence[Sample], *inputs: str, **attributes: Any
) -> Op:
    """Define an operator from its cell, with further inputs and attributes."""
    outputs = ("Y?", "Y_h?", "Y_c?")[: 1 + kind.states]

    @op(name, weights=weights.recurrent(kind.gates), kind="recurrent", planned_from=0, since=22, samples=samples,
        inputs=(*INPUTS, *inputs), outputs=outputs, attributes={**RECURRENT, **attributes})  # fmt: skip
    def record(k: Context, *xs: Array | None, **attrs: Any) -> tuple[Array, ...]:
        return recur(Arrays(k.xp, k.check), frame(**attrs), *operands(record, xs))

    @record.infer
    def _(*types: Any, **attrs: Any) -> tuple[Tensor, ...]:
        return recur_types(kind, *types, **attrs)

    @record.body
    def _(g: Builder, xs: Any, types: Any, **attrs: Any) -> tuple[Value, ...]:
        m = Nodes(g)
        return m.names(recur(m, frame(**attrs), *operands(record, m.of(xs))))

    @record.twin
    def _(types: Any, wanted: Any, **attrs: Any) -> Twin | None:
        return Twin(f"{name}Train", attrs, len(outputs) + len(kind.kept), "mezzo") if frame(**attrs).tells else None

    return record


def rnn_frame(**attrs: Any) -> Frame:
    return Frame(Cell, **attrs)


def gru_frame(*, linear_before_reset: int = 0, **attrs: Any) -> Frame:
    return Frame(LinearFirst if linear_before_reset else GruCell, **attrs)


def lstm_frame(*, input_forget: int = 0, **attrs: Any) -> Frame:
    return Frame(CoupledCell if input_forget else LstmCell, **attrs)


rnn = _operator("RNN", Cell, rnn_frame, [
    *_samples(1, 1),
    Sample([f32(2, 4, 3), f32(1, 5, 3), f32(1, 5, 5)], {"layout": 1}, 2),
    Sample([f32(4, 2, 3), f32(2, 5, 3), f32(2, 5, 5)], {"direction": "bidirectional", "hidden_size": 5,
           "activations": ["LeakyRelu", "HardSigmoid"], "activation_alpha": [0.2, 0.3], "activation_beta": [0.4]}, 2),
], activations=("Tanh", "Tanh"))  # fmt: skip
gru = _operator("GRU", GruCell, gru_frame, [
    *_samples(3, 1),
    Sample([f32(4, 2, 3), f32(1, 15, 3), f32(1, 15, 5), f32(1, 30)], {"hidden_size": 5, "linear_before_reset": 1}, 2),
    Sample([f32(2, 4, 3), f32(1, 15, 3), f32(1, 15, 5)], {"layout": 1}, 2),
    Sample([f32(0, 2, 3), f32(1, 15, 3), f32(1, 15, 5)], {"hidden_size": 5}, 2),
], linear_before_reset=0)  # fmt: skip
lstm = _operator("LSTM", LstmCell, lstm_frame, [
    *_samples(4, 2, peepholes=True),
    Sample([f32(2, 4, 3), f32(1, 20, 3), f32(1, 20, 5)], {"layout": 1}, 3),
    Sample([f32(4, 2, 3), f32(1, 20, 3), f32(1, 20, 5)], {"hidden_size": 5, "input_forget": 1}, 3),
    Sample([f32(4, 2, 3), f32(1, 20, 3), f32(1, 20, 5)], {"hidden_size": 5,
           "activations": ["HardSigmoid", "Softsign", "ScaledTanh"], "activation_alpha": [0.3, 1.5],
           "activation_beta": [0.4, 0.7]}, 3),
    Sample([f32(4, 0, 3), f32(1, 20, 3), f32(1, 20, 5)], {"hidden_size": 5}, 3),
], "initial_c?", "P?", input_forget=0)  # fmt: skip
