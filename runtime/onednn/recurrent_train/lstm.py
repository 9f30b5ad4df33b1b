"""LSTM while training, forward and back through time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ...kernels.kernel import Work
from ..primitive import Draft, PostOp
from .backward import Backward, Part
from .forward import Forward
from .layer import SUM, Layer, Space, binary, matrix, product, usual
from .run import ONE, Do, Plan, Way, done, gate_after_gate

ACTIVATIONS = ("sigmoid", "tanh", "tanh")


class LstmForward(Forward):
    """One product makes all four gates: the candidate g is a sigmoid too, as tanh(x) = 2 sigmoid(2 x) - 1."""

    gates = 4
    widths: ClassVar = {"gates": 4, "cells": 1}
    packs: ClassVar = {"W": "inputs", "R": "states"}

    @classmethod
    def drafts(cls, layer: Layer) -> Mapping[str, Draft]:
        usual(layer, *ACTIVATIONS)
        n, h, dtype = layer.batch, layer.hidden, layer.dtype
        scale, shift = binary("mul", "scale", 1, 4 * h), binary("add", "shift", 1, 4 * h)
        post = SUM, scale, PostOp("eltwise_logistic"), scale, shift
        states = product(matrix(n, h, dtype), matrix(h, 4 * h, dtype).any(), matrix(n, 4 * h), *post)
        return {"inputs": cls.inputs(layer, 4), "states": states}

    def __init__(self, plan: Plan, work: Work) -> None:
        rows = ([1, 1, 1, 2], [0, 0, 0, -1])
        self._columns = [np.repeat(np.array(x, np.float32), plan.layer.hidden) for x in rows]
        super().__init__(plan, work)

    def way(self, d: int) -> Way:
        layer, arrays, temporary = self.layer, self.arrays, self.space["temporary"]
        first, last = self.biases(d), list[Do]()
        gates, cells = (self.kept(name, d, last) for name in self.widths)
        first += [self.lay("R", arrays["R"][d], turned=True), *self.enter(d, 0, 4, gates)]
        scale, shift = self._columns
        h, c = self.state("initial_h", d), self.wide("initial_c", d, first)
        rows: list[Any] = []
        for t in layer.order(d):
            z = gates[t]
            step = self.call("states", h, self.space["R"], z, scale=scale, shift=shift)
            parts = [z[:, k * layer.hidden : (k + 1) * layer.hidden] for k in range(4)]
            y, shows = self.shown(t, d)
            rows.append((step, *parts, c, cells[t], temporary, y, shows))
            h, c = arrays["Y"][t, d], cells[t]
        return Way(first, rows, [*last, *self.ends(d, {"Y_h": "Y", "Y_c": "cells"})])

    def steps(self, rows: Sequence[Any]) -> int:
        add, multiply, tanh = np.add, np.multiply, np.tanh
        for step, i, o, f, g, before, cell, temporary, y, shows in rows:
            if status := step():
                return int(status)
            multiply(i, g, temporary)
            multiply(f, before, cell)
            add(cell, temporary, cell)
            tanh(cell, temporary)
            multiply(o, temporary, y)
            if shows is not None and (status := shows()):
                return int(status)
        return 0


class LstmBackward(Backward):
    """Here g(1 - g) is the slope of each gate g, and (1 + g)(1 - g) that of the candidate."""

    gates = 4
    packs: ClassVar = {"R": "step"}

    @classmethod
    def parts(cls, layer: Layer) -> Sequence[Part]:
        return (Part(0, 4, "dz", "dz", "before Y"),)

    @classmethod
    def drafts(cls, layer: Layer) -> Mapping[str, Draft]:
        usual(layer, *ACTIVATIONS)
        n, h, dtype = layer.batch, layer.hidden, layer.dtype
        step = product(matrix(n, 4 * h, dtype), matrix(4 * h, h, dtype).any(), matrix(n, h))
        return {"step": step, **cls.after(layer)}

    @classmethod
    def needs(cls, layer: Layer) -> dict[str, Space]:
        spaces = cls.held(layer, ("Y", "cells"), "cells", "before cells")
        return spaces | {"dc": layer.step(), "shown": layer.step(), "gates": layer.gates(4), "shares": layer.gates(4)}

    def way(self, d: int) -> Way:
        layer, a, space = self.layer, self.arrays, self.space
        first = self.begin(d, {"Y": "initial_h", "cells": "initial_c"}, {"dY_h": "dh", "dY_c": "dc"})
        first.append(self.lay("R", a["R"][d]))
        rows: list[Any] = []
        for t in reversed(layer.order(d)):
            loads = [self.move(gate_after_gate(a["gates"][t, d], 4), space["gates"])]
            stores: list[Do] = []
            cell = self.load("cells", a["cells"][t, d], loads)
            before = self.load("before cells", space["before cells"][t], loads)
            dy, dz = self.dy(t, d, loads), self.store("dz", t, stores)
            stores.append(self.call("step", space["dz"][t], space["R"], space["dh"]))
            rows.append((loads, cell, before, dy, dz, stores))
        return Way(first, rows, self.end(d, {"dinitial_h": "dh", "dinitial_c": "dc"}))

    def steps(self, rows: Sequence[Any]) -> int:
        add, multiply, subtract, tanh = np.add, np.multiply, np.subtract, np.tanh
        dh, dc, temporary, shown, sums, gates, shares = (
            self.space[n] for n in ("dh", "dc", "temporary", "shown", "sum dz", "gates", "shares")
        )
        (i, o, f, g), (di, do, df, dg) = gates, shares
        for loads, cell, before, dy, dz, stores in rows:
            if status := done(loads):
                return status
            if dy is not None:
                add(dh, dy, dh)
            tanh(cell, shown)
            multiply(dh, o, temporary)
            multiply(temporary, shown, do)
            add(dc, temporary, dc)
            multiply(do, shown, temporary)
            subtract(dc, temporary, dc)
            multiply(dc, i, temporary)
            multiply(temporary, g, di)
            add(temporary, di, dg)
            multiply(dc, f, dc)
            multiply(dc, before, df)
            subtract(ONE, gates, gates)
            multiply(shares, gates, dz)
            add(sums, dz, sums)
            if status := done(stores):
                return status
        return 0
