"""Recurrent networks in training: the results of each step are kept, and gradients go back through time.

Per step only the small recurrent product runs; the products for weights, biases and inputs run once over all steps.
Formulas as in recurrent.py: the references and the standard bodies come from the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.formula import Arithmetic, Arrays, Nodes, Operand
from ..core.rules import product
from ..op import Builder, Context, Op, Sample, Value, op
from ..types import Array, Tensor, type_of
from .recurrent import (
    Cell,
    CoupledCell,
    Frame,
    GruCell,
    LinearFirst,
    LstmCell,
    Slope,
    gru,
    gru_frame,
    lstm,
    lstm_frame,
    operands,
    recur,
    recur_types,
    rnn,
    rnn_frame,
)

Kept = list[Operand]  # of all steps, in the order in which they ran: [steps, batch, ...]
Row = Mapping[str, Operand]  # of one step


class Back:
    """The derivative of a cell in one direction, here that of RNN. It has the kept results of each step and the states
    before it; `more` are gradients of the kept results, which only second derivatives have."""

    def __init__(self, m: Arithmetic, cell: Any, slopes: list[Slope], kept: Kept, before: Kept, more: Kept) -> None:
        self.m, self.cell, self.slopes, self.kept, self.before = m, cell, slopes, kept, before
        self.rows = {f"more{i}": x for i, x in enumerate(more) if x is not None} | self.needed()

    def needed(self) -> dict[str, Operand]:
        """Return the values that `step` reads."""
        return {"y": self.kept[0]}

    def step(self, dstates: list[Operand], row: Row) -> tuple[Operand, list[Operand]]:
        """The gradient of the gates' inputs, and those of the states before."""
        dz = self.slopes[0](self.m, dstates[0], row["y"])
        return dz, [dz @ self.cell.r]

    def weights(self, dz: Operand) -> tuple[Operand, Operand]:
        """The gradients of the recurrent weights and of their bias, from `dz` of all steps."""
        return self.m.outer(dz, self.before[0]), self.m.total(dz)

    def peepholes(self, dz: Operand) -> Operand:
        raise NotImplementedError


class GruBack(Back):
    def needed(self) -> dict[str, Operand]:
        self.r_early, self.r_late = self.m.swap(self.cell.early), self.m.swap(self.cell.late)
        return {**dict(zip("zrn", self.kept, strict=True)), "h": self.before[0]}

    def candidate(self, dn: Operand, r: Operand, row: Row) -> tuple[Operand, Operand]:
        """The gradients of the reset gate and of the state, from that of the candidate's input."""
        drh = dn @ self.r_late
        return drh * row["h"], drh * r

    def late(self, dn: Operand, r: Operand) -> tuple[Operand, Operand]:
        """The gradient of what the candidate's weights make, and what they are multiplied with."""
        return dn, r * self.before[0]

    def step(self, dstates: list[Operand], row: Row) -> tuple[Operand, list[Operand]]:
        m, dh = self.m, dstates[0]
        z, r, n = (row[name] for name in "zrn")
        mz, mr, mn = (row.get(f"more{i}", 0) for i in range(3))
        dn = self.slopes[1](m, dh * (1 - z) + mn, n)
        dr, dlate = self.candidate(dn, r, row)
        early = m.join([self.slopes[0](m, dh * (row["h"] - n) + mz, z), self.slopes[0](m, dr + mr, r)])
        return m.join([early, dn]), [dh * z + dlate + early @ self.r_early]

    def weights(self, dz: Operand) -> tuple[Operand, Operand]:
        m = self.m
        zz, zr, dn = m.split(dz, 3)
        late, met = self.late(dn, self.kept[1])
        rows = [m.outer(m.join([zz, zr]), self.before[0]), m.outer(late, met)]
        return m.join(rows, 0), m.total(m.join([zz, zr, late]))


class LinearFirstBack(GruBack):
    def needed(self) -> dict[str, Operand]:
        return {**super().needed(), "linear": self.cell.linear(self.before[0])}

    def candidate(self, dn: Operand, r: Operand, row: Row) -> tuple[Operand, Operand]:
        return dn * row["linear"], (dn * r) @ self.r_late

    def late(self, dn: Operand, r: Operand) -> tuple[Operand, Operand]:
        return dn * r, self.before[0]


class LstmBack(Back):
    def needed(self) -> dict[str, Operand]:
        gates, cells = self.kept
        return {"gates": gates, "shown": self.cell.act[2](cells), "c": self.before[1]}

    def step(self, dstates: list[Operand], row: Row) -> tuple[Operand, list[Operand]]:
        m, (dh, dc) = self.m, dstates
        i, o, f, g = m.split(row["gates"], 4)
        mi, mo, mf, mg = m.split(row["more0"], 4) if "more0" in row else (0, 0, 0, 0)
        gate, candidate, output = self.slopes
        zo = gate(m, dh * row["shown"] + mo, o)
        dc = dc + output(m, dh * o, row["shown"])
        if "more1" in row:
            dc = dc + row["more1"]
        if self.cell.P is not None:
            dc = dc + zo * self.cell.P[1]
        zi, zf = self.inputs(dc * g + mi, dc * row["c"] + mf, i, f)
        dz = m.join([zi, zo, zf, candidate(m, dc * i + mg, g)])
        dc = dc * f
        if self.cell.P is not None:
            dc = dc + zi * self.cell.P[0] + zf * self.cell.P[2]
        return dz, [dz @ self.cell.r, dc]

    def inputs(self, di: Operand, df: Operand, i: Operand, f: Operand) -> tuple[Operand, Operand]:
        """The gradients of the inputs of the gates i and f."""
        return self.slopes[0](self.m, di, i), self.slopes[0](self.m, df, f)

    def peepholes(self, dz: Operand) -> Operand:
        zi, zo, zf, _ = self.m.split(dz, 4)
        return self.m.total(self.m.join([zi * self.before[1], zo * self.kept[1], zf * self.before[1]]))


class CoupledBack(LstmBack):
    def inputs(self, di: Operand, df: Operand, i: Operand, f: Operand) -> tuple[Operand, Operand]:
        return self.slopes[0](self.m, di - df, i), df * 0


BACK: dict[type[Cell], type[Back]] = {
    Cell: Back, GruCell: GruBack, LinearFirst: LinearFirstBack, LstmCell: LstmBack, CoupledCell: CoupledBack,
}  # fmt: skip


def back_through_time(
    m: Arithmetic,
    frame: Frame,
    given: Sequence[Any],
    Y: Operand,
    kept: Sequence[Operand],
    dY: Operand | None,
    dlasts: Sequence[Operand | None],
    more: Sequence[Operand | None] = (),
) -> tuple[Operand, ...]:
    """The gradients of X, W, R, B, each initial state, and P where the cell may have it.

    `given` are the operands of `recur`; `Y` and `kept` its results, `dY`, `dlasts` (of the last states) and `more`
    (of what was kept) their gradients.
    """
    X, W, R, B, lengths, states, *peepholes = given
    P = peepholes[0] if peepholes else None
    x, w = frame.steps_first(m, m.widened(X), 3), m.widened(W)
    alive = {} if lengths is None else {"live": m.alive(lengths, x)}
    gradients: list[list[Operand]] = []
    for d, (cell, _) in enumerate(frame.cells(m, R, B, P)):
        reverse = frame.backwards[d]

        def run(v: Operand, axis: int = 1, d: int = d, reverse: bool = reverse) -> Operand:
            """A result of all steps in this direction, in the order in which they ran; None stays."""
            if v is None:
                return None
            one = m.pick(m.widened(v), d, axis)
            return m.reverse(one, lengths) if reverse else one

        def ordered(v: Operand, run: Any = run) -> Operand:
            return run(None if v is None else frame.steps_first(m, v, 4), 1 + frame.layout)

        y, dy, xs = ordered(Y), ordered(dY), m.reverse(x, lengths) if reverse else x
        first = frame.starts(m, states, d, x, R)
        own = [run(v) for v in kept]
        before = [m.shift(a, b) for a, b in zip(first, [y, *own[1 : frame.kind.states]], strict=True)]
        back = BACK[frame.kind](m, cell, frame.slopes(d), own or [y], before, [run(v) for v in more])

        def step(dstates: list[Operand], row: Row, back: Back = back) -> tuple[list[Operand], list[Operand]]:
            dh = dstates[0] + row["dy"] if "dy" in row else dstates[0]
            dz, earlier = back.step([dh, *dstates[1:]], row)
            if alive:  # a step after the end of a sequence leaves its states as they were, and shows 0
                dz = m.where(row["live"], dz, 0)
                earlier = [m.where(row["live"], a, b) for a, b in zip(earlier, dstates, strict=True)]
            return earlier, [dz]

        ends = [
            a * 0 if v is None else m.pick(m.widened(v), d, frame.layout) for v, a in zip(dlasts, first, strict=True)
        ]
        rows = {**back.rows, **alive, **({} if dy is None else {"dy": dy})}
        dfirst, (dz,) = m.scan(step, ends, rows, 1, backwards=True)
        dx = m.product(dz, m.pick(w, d))
        dr, drb = back.weights(dz)
        db = m.join([m.total(dz), drb])
        dp = [back.peepholes(dz)] if peepholes else []
        gradients.append([m.reverse(dx, lengths) if reverse else dx, m.outer(dz, xs), dr, db, *dfirst, *dp])
    dxs, *others = zip(*gradients, strict=True)
    dX = frame.steps_first(m, dxs[0] if len(dxs) == 1 else dxs[0] + dxs[1], 3)
    axes = [0, 0, 0, *(frame.layout,) * len(states), 0]
    return tuple(m.like(v, X) for v in (dX, *(m.stack(v, a) for v, a in zip(others, axes, strict=False))))


OPERATORS = "mezzo::RNNTrain mezzo::RNNGrad mezzo::GRUTrain mezzo::GRUGrad mezzo::LSTMTrain mezzo::LSTMGrad"


def training(like: Op, frame: Callable[..., Frame], kind: type[Cell], kept: tuple[str, ...]) -> None:
    """Define NAMETrain, which is the operator with further results that are kept, and NAMEGrad, the gradients of its
    inputs: (the inputs, Y, what was kept, the gradients of the results and of what was kept)."""
    n, results = len(like.inputs), [p.name for p in like.outputs]
    outputs = [f"d{p.name}" for p in like.inputs if p.name != "sequence_lens"]
    names, arriving = tuple(map(str, like.inputs)), [f"d{name}?" for name in (*results, *kept)]

    samples = [replace(s, outputs=len(results) + len(kept)) for s in like.samples if frame(**s.attrs).tells]

    def sample(number: int, s: Sample) -> Sample:
        """All that a gradient may read, without the gradient of one result, and mostly of what was kept."""
        types: Any = [x if x is None or isinstance(x, Tensor) else type_of(x) for x in s.inputs]
        y, *others = recur_types(kind, *types, keep=True, **s.attrs)
        dys = [None if i == number % (len(results) + 1) else t for i, t in enumerate((y, *others[: kind.states]))]
        more = others[kind.states :]
        padded = [*s.inputs, *[None] * (n - len(s.inputs))]
        return Sample([*padded, y, *more, *dys, *(more if number % 3 == 1 else [])], s.attrs, len(outputs))

    @op(f"{like.name}Train", domain="mezzo", inputs=names, outputs=(*results, *kept), samples=samples,
        attributes=like.attrs)  # fmt: skip
    def train(k: Context, *inputs: Array | None, **attrs: Any) -> tuple[Array, ...]:
        return recur(Arrays(k.xp, k.check), frame(**attrs), *operands(like, inputs), keep=True)

    @train.infer
    def _(*types: Any, **attrs: Any) -> tuple[Tensor, ...]:
        return recur_types(kind, *types, keep=True, **attrs)

    @train.body
    def _(g: Builder, xs: Any, types: Any, **attrs: Any) -> tuple[Value, ...]:
        m = Nodes(g)
        return m.names(recur(m, frame(**attrs), *operands(like, m.of(xs)), keep=True))

    @train.grad
    def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
        dxs = list(getattr(g, f"{like.name}Grad")(
            *xs, ys[0], *ys[len(results) :], *dys, domain="mezzo", outputs=len(outputs), **attrs))  # fmt: skip
        return *dxs[:4], None, *dxs[4:]  # lengths have none

    @op(f"{like.name}Grad", domain="mezzo", inputs=(*names, results[0], *kept, *arriving), outputs=tuple(outputs),
        attributes=like.attrs, samples=[sample(i, s) for i, s in enumerate(samples)])  # fmt: skip
    def back(k: Context, *inputs: Array | None, **attrs: Any) -> tuple[Array, ...]:
        return gradients(Arrays(k.xp, k.check), inputs, attrs)

    def gradients(m: Arithmetic, inputs: Sequence[Operand | None], attrs: Any) -> tuple[Operand, ...]:
        given, y, own, dys = inputs[:n], inputs[n], inputs[n + 1 : n + 1 + len(kept)], inputs[n + 1 + len(kept) :]
        dY, *dlasts = (*dys, *(None,) * len(results))[: len(results)]
        return back_through_time(m, frame(**attrs), operands(like, given), y, own, dY, dlasts, dys[len(results) :])

    @back.infer
    def _(X: Tensor, W: Tensor, R: Tensor, *rest: Tensor | None, **attrs: Any) -> tuple[Tensor, ...]:
        _, *lasts = recur_types(kind, X, W, R, **attrs)
        directions, rows = (None, None) if W.dims is None else W.dims[:2]
        peepholes = X.of((directions, product((3, None if R.dims is None else R.dims[2]))))
        types = X.forget(), X.of(W.dims), X.of(R.dims), X.of((directions, product((2, rows)))), *lasts, peepholes
        return types[: len(outputs)]

    @back.body
    def _(g: Builder, xs: Any, types: Any, **attrs: Any) -> tuple[Value, ...]:
        m = Nodes(g)
        return m.names(gradients(m, m.of(xs), attrs))


training(rnn, rnn_frame, Cell, ())
training(gru, gru_frame, GruCell, ("updates", "resets", "candidates"))
training(lstm, lstm_frame, LstmCell, ("gates", "cells"))
