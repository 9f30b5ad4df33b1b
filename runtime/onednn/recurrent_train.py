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
        """That of the inputs, for all steps; that of the states, for one, whose weights are laid out before."""
        n, h = s.batch, s.hidden
        inputs = product(matrix(n, s.inputs), matrix(s.inputs, 4 * h, s.inputs, turned=True), matrix(n, 4 * h))
        if len(s.backwards) == 1:
            inputs = product(
                matrix(s.steps * n, s.inputs),
                matrix(s.inputs, 4 * h, s.inputs, turned=True),
                matrix(s.steps * n, 4 * h),
            )
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
        self._kernel, self._work = kernel, work
        found = sizes_of(work.ask)
        assert isinstance(found, Sizes)
        self._sizes = found
        self._inputs, self._outputs = list(work.inputs), list(work.outputs)
        s = found
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


class _Backward:
    """The calls of one LSTMGrad."""

    def __init__(self, kernel: LstmGrad, work: Work) -> None:
        found = sizes_of(work.ask)
        assert isinstance(found, Sizes)
        self._sizes = s = found
        self._found = kernel.products(s, work.ask.target.threads)
        need = kernel.sizes(s, self._found)
        self._space = {name: work.scratch(DType.UINT8, (n,)) for name, n in need.items() if n}
        names = [p.name for p in work.node.record.inputs]
        self._in: dict[str, Any] = dict(
            zip(names, [*work.inputs, *[None] * (len(names) - len(work.inputs))], strict=True)
        )
        self._names = names
        self._out: dict[str, Any] = dict(zip([p.name for p in work.node.record.outputs], work.outputs, strict=False))
        self._build()

    def rebind(self, place: tuple[str, int], array: Array) -> None:
        """Let an operand or a result be another array."""
        side, i = place
        if side == "in":
            self._in[self._names[i]] = array
        else:
            self._out[list(self._out)[i]] = array
        self._build()

    def _view(self, name: str, *shape: int) -> Array:
        return self._space[name].view(np.float32).reshape(shape)

    def _build(self) -> None:
        s, a, found = self._sizes, self._in, self._found
        t, n, h = s.steps, s.batch, s.hidden
        scratch = self._space.get("scratch")
        packed, dz, before = self._space["packed"], self._view("dz", t, n, 4, h), self._view("before", t, n, h)
        dh = self._view("dh", n, h)
        self._calls: list[dict[str, Any]] = []
        for d in range(len(s.backwards)):
            R, W = a["R"][d], a["W"][d]
            lay = reordering((matrix(4 * h, h).handle.value, R), (found["step"].memory(WEIGHTS), packed))
            steps = {at: call_of(found["step"], dz[at], packed, dh, scratch) for at in range(t)}
            ends: list[Any] = []
            flat = dz.reshape(t * n, 4 * h)
            if (dx := self._out.get("dX")) is not None:
                ends.append(call_of(found["added" if d else "inputs"], flat, W, dx, scratch))
            if (dw := self._out.get("dW")) is not None:
                ends.append(call_of(found["weights"], flat, a["X"], dw[d], scratch))
            if (dr := self._out.get("dR")) is not None:
                ends.append(call_of(found["states"], flat, before, dr[d], scratch))
            self._calls.append({"lay": lay, "steps": steps, "ends": ends})

    def __call__(self) -> int:
        for d, calls in enumerate(self._calls):
            if status := self._direction(d, calls["lay"], calls["steps"], calls["ends"]):
                return status
        return 0

    def _direction(self, d: int, lay: Callable[[], int], steps: Mapping[int, Any], ends: Sequence[Any]) -> int:
        s, a = self._sizes, self._in
        t, n, h = s.steps, s.batch, s.hidden
        gates = a["gates"][:, d].reshape(t, n, 4, h)
        cells, y = a["cells"][:, d], a["Y"][:, d]
        order = s.order(d)
        dz, before, temporary = (
            self._view("dz", t, n, 4, h),
            self._view("before", t, n, h),
            self._view("temporary", n, h),
        )
        slopes, dh, dc = self._view("slopes", 5, t, n, h), self._view("dh", n, h), self._view("dc", n, h)
        self._slopes(gates, cells, slopes, before, order, None if a["initial_c"] is None else a["initial_c"][d])
        _shifted(y, before, order, None if a["initial_h"] is None else a["initial_h"][d])
        for state, given in ((dh, a["dY_h"]), (dc, a["dY_c"])):
            state[...] = 0 if given is None else given[d]
        if status := lay():
            return status
        dY = a["dY"]
        for at in reversed(order):
            z = dz[at]
            if dY is not None:
                np.add(dh, dY[at, d], out=dh)
            np.multiply(dh, slopes[0, at], out=z[:, 1])
            np.multiply(dh, slopes[1, at], out=temporary)
            np.add(dc, temporary, out=dc)
            np.multiply(dc, slopes[2, at], out=z[:, 0])
            np.multiply(dc, slopes[3, at], out=z[:, 2])
            np.multiply(dc, slopes[4, at], out=z[:, 3])
            np.multiply(dc, gates[at, :, 2], out=dc)
            if status := steps[at]():
                return int(status)
        for call in ends:
            if status := call():
                return int(status)
        if (db := self._out.get("dB")) is not None:
            total = dz.reshape(t * n, 4 * h).sum(0, out=db[d, : 4 * h])
            db[d, 4 * h :] = total
        for name, state in (("dinitial_h", dh), ("dinitial_c", dc)):
            if self._out.get(name) is not None:
                np.copyto(self._out[name][d], state)
        return 0

    def _slopes(self, gates: Any, cells: Any, slopes: Any, temporary: Any, order: range, first: Any) -> None:
        """For all steps: what the gradients of state and cell are multiplied with for the gates o, cell, i, f and g."""
        i, o, f, g = (gates[:, :, k] for k in range(4))
        so, sc, si, sf, sg = slopes
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
