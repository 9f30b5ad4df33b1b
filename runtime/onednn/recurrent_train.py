"""LSTM while training, forward with what is kept and back through time, for the usual form of the operator.

Per step only the recurrent product runs, over weights that are laid out once per run; what a step adds is a few calls
of NumPy on [batch, hidden]. The products for inputs and weights run once over all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ops import DType, Tensor
from ...ops.types import Array
from ..graph import Node
from ..kernels.kernel import Ask, Call, Choice, Declined, Work
from ..lives import aligned
from . import api
from .api import DST, SRC, WEIGHTS
from .kernel import unavailable
from .memory import Memory, nbytes
from .primitive import Attributes, Bound, Descriptor, Draft, Operand, PostOp, bind, describe, reordering

F32 = DType.FLOAT
USUAL = {
    "activation_alpha": None, "activation_beta": None, "activations": None, "clip": None, "input_forget": 0,
    "layout": 0,
}  # fmt: skip
HELD = ("in", 2)  # what a product is added to: its result


@dataclass(frozen=True, slots=True)
class Sizes:
    """Steps, batch, inputs, hidden units, directions; and which directions run backwards."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    backwards: tuple[bool, ...]

    def order(self, d: int) -> range:
        """The steps of a direction in the order in which they run."""
        return range(self.steps)[:: -1 if self.backwards[d] else 1]


def sizes_of(ask: Ask) -> Sizes | str:
    """The sizes of an LSTM of the usual form in float32; else why it is none."""
    attrs = {**ask.node.record.attrs, **ask.node.attrs}
    odd = [a for a, usual in USUAL.items() if attrs.get(a) not in (usual, 0 if a == "clip" else usual)]
    if odd:
        return f"{', '.join(odd)} is set"
    names = [p.name for p in ask.node.record.inputs]
    given = {n: t for n, t in zip(names, ask.inputs, strict=False) if t is not None}
    if {"sequence_lens", "P", "dgates", "dcells"} & set(given):
        return "lengths, peepholes or gradients of what is kept"
    if not all(isinstance(t, Tensor) and t.static and t.elements and t.dtype is F32 for t in given.values()):
        return "an operand is not in float32, or of unknown sizes"
    X, R = given["X"], given["R"]
    assert isinstance(X, Tensor) and isinstance(R, Tensor)
    ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    steps, batch, inputs = X.sizes
    return Sizes(steps, batch, inputs, R.sizes[2], ways[attrs["direction"]])


def matrix(rows: int, columns: int, step: int = 0, *, turned: bool = False) -> Memory:
    """A matrix whose rows, or columns if it is turned, lie `step` elements apart."""
    if turned:
        return Memory((rows, columns), F32, strides=(1, step or rows))
    return Memory((rows, columns), F32, strides=(step or columns, 1))


def product(a: Memory, b: Memory, c: Memory, *, adds: bool = False) -> Draft:
    """c = a b, or c += a b."""
    operands = (Operand(SRC, ("in", 0), a), Operand(WEIGHTS, ("in", 1), b), Operand(DST, ("out", 0), c))
    return Draft("matmul", operands, (), Attributes((PostOp("sum", place=HELD),) if adds else ()))


def call_of(found: Descriptor, a: Array, b: Array, c: Array, scratch: Array | None) -> Bound:
    """The call of a product over these arrays."""
    return bind(found, {("in", 0): a, ("in", 1): b, HELD: c, ("out", 0): c}, scratch)


class LstmTrain:
    """`mezzo.LSTMTrain`."""

    name = "onednn.lstm_train"

    def serves(self, node: Node) -> bool:
        return (node.domain, node.op) == ("mezzo", "LSTMTrain")

    def products(self, s: Sizes, threads: int) -> tuple[Descriptor, Descriptor]:
        """That of the inputs, for all steps or one; that of the states, for one, whose weights are laid out before."""
        n, h = s.batch, s.hidden
        rows = s.steps * n if len(s.backwards) == 1 else n  # of two directions the gates of a step lie apart
        inputs = product(matrix(rows, s.inputs), matrix(s.inputs, 4 * h, s.inputs, turned=True), matrix(rows, 4 * h))
        states = product(matrix(n, h), matrix(h, 4 * h).any(), matrix(n, 4 * h), adds=True)
        return describe(inputs, threads), describe(states, threads)

    def select(self, ask: Ask) -> Choice | Declined:
        s = sizes_of(ask)
        why = s if isinstance(s, str) else unavailable(ask)
        if isinstance(s, str) or why:
            return Declined(str(why))
        if not (len(ask.node.outputs) == 5 and all(ask.node.outputs[i] for i in (0, 3, 4))):
            return Declined("what is kept is not wanted")
        try:
            inputs, states = self.products(s, ask.target.threads)
        except api.Refused as error:
            return Declined(str(error))
        packed = nbytes(states.memory(WEIGHTS))
        work = aligned(packed) + aligned(inputs.scratch) + aligned(states.scratch) + aligned(4 * s.batch * s.hidden * 4)
        return Choice(self.name, workspace=work, implementation=states.implementation)

    def prepare(self, work: Work) -> Call:
        return _Forward(self, work)


def _sigmoid(x: Any) -> None:
    np.negative(x, out=x)
    np.exp(x, out=x)
    np.add(x, 1, out=x)
    np.reciprocal(x, out=x)


class _Forward:
    """The calls of one LSTMTrain; `rebind` makes them anew where more than the input moves."""

    def __init__(self, kernel: LstmTrain, work: Work) -> None:
        s = sizes_of(work.ask)
        assert isinstance(s, Sizes)
        self._sizes = s
        self._inputs, self._outputs = list(work.inputs), list(work.outputs)
        self._found = kernel.products(s, work.ask.target.threads)
        _, states = self._found
        take = work.scratch
        self._packed = take(DType.UINT8, (nbytes(states.memory(WEIGHTS)),))
        self._scratch = [take(DType.UINT8, (d.scratch,)) if d.scratch else None for d in self._found]
        self._temporary = take(F32, (s.batch, s.hidden))
        self._build()

    def rebind(self, place: tuple[str, int], array: Array) -> None:
        """Let an operand or a result be another array."""
        side, i = place
        (self._inputs if side == "in" else self._outputs)[i] = array
        if place == ("in", 0):
            for t, call in self._first:
                call.rebind(("in", 0), array if t is None else array[t])
        else:
            self._build()

    def _build(self) -> None:
        s = self._sizes
        X, W, R, B, _, h0, c0 = ([*self._inputs, *[None] * 7])[:7]
        Y, _, _, gates, cells = self._outputs
        assert X is not None and W is not None and R is not None and Y is not None
        assert gates is not None and cells is not None
        inputs, states = self._found
        zeros = np.zeros((s.batch, s.hidden), np.float32)
        self._first: list[tuple[int | None, Any]] = []
        self._ways: list[tuple[Any, Any, Any, list[Any]]] = []
        for d in range(len(s.backwards)):
            if len(s.backwards) == 1:
                self._first.append((None, call_of(inputs, X, W[d], gates, self._scratch[0])))
            else:
                firsts = [(t, call_of(inputs, X[t], W[d], gates[t, d], self._scratch[0])) for t in range(s.steps)]
                self._first += firsts
            source = matrix(s.hidden, 4 * s.hidden, s.hidden, turned=True)
            lay = reordering((source.handle.value, R[d]), (states.memory(WEIGHTS), self._packed))
            bias = None if B is None else (B[d, : 4 * s.hidden], B[d, 4 * s.hidden :])
            h, c = zeros if h0 is None else h0[d], zeros if c0 is None else c0[d]
            rows = []
            for t in s.order(d):
                move = call_of(states, h, self._packed, gates[t, d], self._scratch[1])
                z = gates[t, d]
                parts = [z[:, k * s.hidden : (k + 1) * s.hidden] for k in range(4)]
                rows.append((move, z[:, : 3 * s.hidden], parts, c, cells[t, d], Y[t, d]))
                h, c = Y[t, d], cells[t, d]
            self._ways.append((lay, bias, gates[:, d], rows))

    def __call__(self) -> int:
        for _, call in self._first:
            if status := call():
                return int(status)
        temporary = self._temporary
        for lay, bias, gates, rows in self._ways:
            if status := lay():
                return int(status)
            if bias is not None:
                np.add(gates, bias[0] + bias[1], out=gates)
            for move, three, (i, o, f, g), before, cell, y in rows:
                if status := move():
                    return int(status)
                _sigmoid(three)
                np.tanh(g, out=g)
                np.multiply(f, before, out=cell)
                np.multiply(i, g, out=temporary)
                np.add(cell, temporary, out=cell)
                np.tanh(cell, out=temporary)
                np.multiply(o, temporary, out=y)
        s = self._sizes
        for out, kept in ((self._outputs[1], self._outputs[0]), (self._outputs[2], self._outputs[4])):
            if out is not None and kept is not None:
                for d in range(len(s.backwards)):
                    np.copyto(out[d], kept[s.order(d)[-1], d])
        return 0


class LstmGrad:
    """`mezzo.LSTMGrad`."""

    name = "onednn.lstm_grad"

    def serves(self, node: Node) -> bool:
        return (node.domain, node.op) == ("mezzo", "LSTMGrad")

    def products(self, s: Sizes, threads: int) -> Mapping[str, Descriptor]:
        """Back by one step; then over all steps the gradients of inputs, weights and recurrent weights."""
        n, h, rows = s.batch, s.hidden, s.steps * s.batch
        made = {
            "step": product(matrix(n, 4 * h), matrix(4 * h, h).any(), matrix(n, h)),
            "inputs": product(matrix(rows, 4 * h), matrix(4 * h, s.inputs), matrix(rows, s.inputs)),
            "added": product(matrix(rows, 4 * h), matrix(4 * h, s.inputs), matrix(rows, s.inputs), adds=True),
            "weights": product(
                matrix(4 * h, rows, 4 * h, turned=True), matrix(rows, s.inputs), matrix(4 * h, s.inputs)
            ),
            "states": product(matrix(4 * h, rows, 4 * h, turned=True), matrix(rows, h), matrix(4 * h, h)),
        }
        return {name: describe(draft, threads) for name, draft in made.items()}

    def select(self, ask: Ask) -> Choice | Declined:
        s = sizes_of(ask)
        why = s if isinstance(s, str) else unavailable(ask)
        if isinstance(s, str) or why:
            return Declined(str(why))
        if len(ask.node.outputs) > 6 and ask.node.outputs[6]:
            return Declined("the gradient of peepholes")
        try:
            found = self.products(s, ask.target.threads)
        except api.Refused as error:
            return Declined(str(error))
        work = sum(aligned(n) for n in self.sizes(s, found).values())
        return Choice(self.name, workspace=work, implementation=found["step"].implementation)

    def sizes(self, s: Sizes, found: Mapping[str, Descriptor]) -> dict[str, int]:
        """Bytes of the workspace, by what they are for."""
        one = s.batch * s.hidden * 4
        return {
            "packed": nbytes(found["step"].memory(WEIGHTS)),
            "scratch": max(d.scratch for d in found.values()),
            "dz": 4 * one * s.steps,
            "slopes": 5 * one * s.steps,
            "before": one * s.steps,
            "dh": one, "dc": one, "temporary": one,
        }  # fmt: skip

    def prepare(self, work: Work) -> Call:
        return _Backward(self, work)


@dataclass(frozen=True, slots=True)
class _Way:
    """One direction, prepared: what lies where, and the calls. `rows` holds for each step, the last one first, the
    gradient of Y (None: none), the slopes, the gradients of the gates i, o, f and g, the gate f, and the product."""

    kept: tuple[Any, Any, Any]  # gates, cells and Y of all steps
    first: tuple[Any, Any]  # states before the first step, None for zeros
    last: tuple[Any, Any]  # gradients of the states behind the last one, None for none
    order: range
    lay: Callable[[], int]
    rows: Sequence[tuple[Any, ...]]
    ends: Sequence[Bound]


class _Backward:
    """The calls of one LSTMGrad; `rebind` makes them anew where more than the input moves."""

    def __init__(self, kernel: LstmGrad, work: Work) -> None:
        s = sizes_of(work.ask)
        assert isinstance(s, Sizes)
        self._sizes = s
        self._found = kernel.products(s, work.ask.target.threads)
        need = kernel.sizes(s, self._found)
        self._space = {name: work.scratch(DType.UINT8, (n,)) for name, n in need.items() if n}
        record = work.node.record
        self._names = {"in": [p.name for p in record.inputs], "out": [p.name for p in record.outputs]}
        self._arrays: dict[str, Any] = dict.fromkeys((*self._names["in"], *self._names["out"]))
        self._arrays |= zip(self._names["in"], work.inputs, strict=False)
        self._arrays |= zip(self._names["out"], work.outputs, strict=False)
        t, n, h = s.steps, s.batch, s.hidden
        self._dz, self._slopes = self._view("dz", t, n, 4, h), self._view("slopes", 5, t, n, h)
        self._before = self._view("before", t, n, h)
        self._dh, self._dc, self._temporary = (self._view(name, n, h) for name in ("dh", "dc", "temporary"))
        self._build()

    def rebind(self, place: tuple[str, int], array: Array) -> None:
        """Let an operand or a result be another array."""
        side, i = place
        self._arrays[self._names[side][i]] = array
        if place == ("in", 0):
            for call in self._of_input:
                call.rebind(("in", 1), array)
        else:
            self._build()

    def _view(self, name: str, *shape: int) -> Array:
        return self._space[name].view(np.float32).reshape(shape)

    def _build(self) -> None:
        self._of_input: list[Bound] = []
        self._ways = [self._way(d) for d in range(len(self._sizes.backwards))]

    def _way(self, d: int) -> _Way:
        s, a, found = self._sizes, self._arrays, self._found
        rows, h, dz, scratch = s.steps * s.batch, s.hidden, self._dz, self._space.get("scratch")
        packed, flat = self._space["packed"], dz.reshape(rows, 4 * h)
        plain = matrix(4 * h, h)
        lay = reordering((plain.handle.value, a["R"][d]), (found["step"].memory(WEIGHTS), packed))
        ends: list[Bound] = []
        if a["dX"] is not None:
            ends.append(call_of(found["added" if d else "inputs"], flat, a["W"][d], a["dX"], scratch))
        if a["dW"] is not None:
            ends.append(call_of(found["weights"], flat, a["X"], a["dW"][d], scratch))
            self._of_input.append(ends[-1])
        if a["dR"] is not None:
            ends.append(call_of(found["states"], flat, self._before, a["dR"][d], scratch))
        gates = a["gates"][:, d].reshape(s.steps, s.batch, 4, h)
        steps = [
            (
                None if a["dY"] is None else a["dY"][at, d],
                *self._slopes[:, at],
                *(dz[at, :, k] for k in range(4)),
                gates[at, :, 2],
                call_of(found["step"], dz[at], packed, self._dh, scratch),
            )
            for at in reversed(s.order(d))
        ]

        def own(name: str) -> Any:
            return None if a[name] is None else a[name][d]

        kept = gates, a["cells"][:, d], a["Y"][:, d]
        first, last = (own("initial_h"), own("initial_c")), (own("dY_h"), own("dY_c"))
        return _Way(kept, first, last, s.order(d), lay, steps, ends)

    def __call__(self) -> int:
        for d, way in enumerate(self._ways):
            if status := self._direction(d, way):
                return status
        return 0

    def _direction(self, d: int, way: _Way) -> int:
        dh, dc, temporary = self._dh, self._dc, self._temporary
        gates, cells, y = way.kept
        self._prepare(gates, cells, way.order, way.first[1])
        _shifted(y, self._before, way.order, way.first[0])
        for state, given in zip((dh, dc), way.last, strict=True):
            state[...] = 0 if given is None else given
        if status := way.lay():
            return status
        for dy, so, sc, si, sf, sg, zi, zo, zf, zg, f, step in way.rows:
            if dy is not None:
                np.add(dh, dy, out=dh)
            np.multiply(dh, so, out=zo)
            np.multiply(dh, sc, out=temporary)
            np.add(dc, temporary, out=dc)
            np.multiply(dc, si, out=zi)
            np.multiply(dc, sf, out=zf)
            np.multiply(dc, sg, out=zg)
            np.multiply(dc, f, out=dc)
            if status := step():
                return int(status)
        for call in way.ends:
            if status := call():
                return int(status)
        if (db := self._arrays["dB"]) is not None:
            half = 4 * self._sizes.hidden
            db[d, half:] = self._dz.reshape(-1, half).sum(0, out=db[d, :half])
        for name, state in (("dinitial_h", dh), ("dinitial_c", dc)):
            if self._arrays[name] is not None:
                np.copyto(self._arrays[name][d], state)
        return 0

    def _prepare(self, gates: Any, cells: Any, order: range, first: Any) -> None:
        """For all steps: what the gradients of state and cell are multiplied with for the gates o, cell, i, f and g."""
        i, o, f, g = (gates[:, :, k] for k in range(4))
        temporary, (so, sc, si, sf, sg) = self._before, self._slopes
        np.tanh(cells, out=temporary)  # what the output gate shows
        np.multiply(temporary, temporary, out=sc)
        np.subtract(1, sc, out=sc)
        np.multiply(sc, o, out=sc)
        for slope, gate, by in ((so, o, temporary), (si, i, g), (sf, f, None)):
            np.subtract(1, gate, out=slope)
            np.multiply(slope, gate, out=slope)
            if by is not None:
                np.multiply(slope, by, out=slope)
        _shifted(cells, temporary, order, first)
        np.multiply(sf, temporary, out=sf)
        np.multiply(g, g, out=sg)
        np.subtract(1, sg, out=sg)
        np.multiply(sg, i, out=sg)


def _shifted(values: Any, out: Any, order: range, first: Any) -> None:
    """The values of the step before each; `first` (or zeros) before the first one."""
    if order.step > 0:
        out[1:] = values[:-1]
    else:
        out[:-1] = values[1:]
    out[order[0]] = 0 if first is None else first
