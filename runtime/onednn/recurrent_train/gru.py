"""GRU while training, forward and back through time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..primitive import Draft, PostOp
from .backward import Backward, Part
from .forward import Forward
from .layer import F32, SUM, Layer, Space, binary, matrix, product, usual
from .run import ONE, Do, Way, copied, done

ACTIVATIONS = ("sigmoid", "tanh")


class GruForward(Forward):
    """The gates z and r, then the candidate n, from the product of its weights with the state, or with what the reset
    gate leaves of it."""

    gates = 3
    widths: ClassVar = {"updates": 1, "resets": 1, "candidates": 1}
    packs: ClassVar = {"W": "inputs", "R0": "gate", "R1": "gate", "R2": "candidate"}

    @classmethod
    def drafts(cls, layer: Layer) -> Mapping[str, Draft]:
        usual(layer, *ACTIVATIONS)
        n, h, dtype = layer.batch, layer.hidden, layer.dtype
        operands = matrix(n, h, dtype), matrix(h, h, dtype).any(), matrix(n, h)
        tanh = PostOp("eltwise_tanh")
        if layer.attrs["linear_before_reset"]:
            post = binary("mul", "reset", n, h), binary("add", "input", n, h), tanh
            candidate = product(*operands, *post, bias=True)
        else:
            candidate = product(*operands, SUM, tanh)
        gate = product(*operands, SUM, PostOp("eltwise_logistic"))
        return {"inputs": cls.inputs(layer, 1), "gate": gate, "candidate": candidate}

    @classmethod
    def needs(cls, layer: Layer) -> dict[str, Space]:
        spaces = super().needs(layer)
        if layer.attrs["linear_before_reset"]:
            return spaces | {"input": layer.all_steps()}
        return spaces if layer.exact else spaces | {"left": layer.step(1, layer.dtype)}

    def way(self, d: int) -> Way:
        layer, a, space, h = self.layer, self.arrays, self.space, self.layer.hidden
        linear = bool(layer.attrs["linear_before_reset"])
        first, last = self.biases(d, 1 if linear else 0), self.ends(d, {"Y_h": "Y"})
        z, r, n = (self.kept(name, d, last) for name in self.widths)
        for k, out in enumerate((z, r, space["input"] if linear else n)):
            first.append(self.lay(f"R{k}", a["R"][d][k * h : (k + 1) * h], turned=True))
            first += self.enter(d, k, k + 1, out)
        bias = space["bias"][5 * h :]
        state, before = self.state("initial_h", d), self.wide("initial_h", d, first)
        rows: list[Any] = []
        for t in layer.order(d):
            gates = [self.call("gate", state, space[f"R{k}"], x[t]) for k, x in enumerate((z, r))]
            middle: list[Do] = []
            if linear:
                more = {"reset": r[t], "input": space["input"][t], "bias": bias}
                middle.append(self.call("candidate", state, space["R2"], n[t], **more))
                reset = None
            else:
                left, reset = space["temporary"], r[t]
                if not layer.exact:
                    middle.append(self.move(left, space["left"]))
                    left = space["left"]
                middle.append(self.call("candidate", left, space["R2"], n[t]))
            y, shows = self.shown(t, d)
            rows.append((gates, before, reset, middle, z[t], n[t], space["temporary"], y, shows))
            state, before = a["Y"][t, d], y
        return Way(first, rows, last)

    def steps(self, rows: Sequence[Any]) -> int:
        add, multiply, subtract = np.add, np.multiply, np.subtract
        for (update, reset), before, r, middle, z, n, temporary, y, shows in rows:
            if status := update() or reset():
                return int(status)
            if r is not None:
                multiply(r, before, temporary)
            if status := done(middle):
                return status
            subtract(before, n, temporary)
            multiply(temporary, z, temporary)
            add(temporary, n, y)
            if shows is not None and (status := shows()):
                return int(status)
        return 0


class GruBackward(Backward):
    """The gradients of the inputs of z and r lie beside each other in "early", those of the candidate's inputs in
    "late". Where the candidate's recurrent product comes before the reset gate, it is made "again", and its gradients
    are "linear"; else it was made of what the reset gate "left" of the state."""

    gates = 3
    packs: ClassVar = {"R early": "early", "R late": "late", "R": "again"}

    @classmethod
    def parts(cls, layer: Layer) -> Sequence[Part]:
        late = ("linear", "before Y") if layer.attrs["linear_before_reset"] else ("late", "left")
        return Part(0, 2, "early", "early", "before Y"), Part(2, 3, "late", *late)

    @classmethod
    def drafts(cls, layer: Layer) -> Mapping[str, Draft]:
        usual(layer, *ACTIVATIONS)
        n, h, dtype = layer.batch, layer.hidden, layer.dtype
        weights = matrix(h, h, dtype).any()
        early = product(matrix(n, 2 * h, dtype), matrix(2 * h, h, dtype).any(), matrix(n, h), SUM)
        if not layer.attrs["linear_before_reset"]:
            return {"early": early, "late": product(matrix(n, h, dtype), weights, matrix(n, h)), **cls.after(layer)}
        late = product(matrix(n, h, dtype), weights, matrix(n, h), SUM)
        again = product(matrix(layer.rows, h, dtype), weights, matrix(layer.rows, h), bias=True)
        return {"early": early, "late": late, "again": again, **cls.after(layer)}

    @classmethod
    def needs(cls, layer: Layer) -> dict[str, Space]:
        spaces = cls.held(layer, ("Y",), "updates", "resets", "candidates", "before Y")
        spaces |= {name: layer.step() for name in ("rest", "slope")}
        if layer.attrs["linear_before_reset"]:
            return spaces | {"again": layer.all_steps(), "bias": (F32, (layer.hidden,))}
        return spaces | {"left": layer.all_steps(1, layer.dtype), "wide left": layer.gates(1)}

    def way(self, d: int) -> Way:
        layer, a, space, h = self.layer, self.arrays, self.space, self.layer.hidden
        linear = bool(layer.attrs["linear_before_reset"])
        R, dh = a["R"][d], space["dh"]
        first = self.begin(d, {"Y": "initial_h"}, {"dY_h": "dh"})
        first += [self.lay("R early", R[: 2 * h]), self.lay("R late", R[2 * h :])]
        if linear:
            B = self.given("B", d)
            first += [self.lay("R", R[2 * h :], turned=True), copied(space["bias"], 0 if B is None else B[5 * h :])]
            first.append(self.call("again", space["before Y"], space["R"], space["again"], bias=space["bias"]))
        rows: list[Any] = []
        for t in reversed(layer.order(d)):
            loads: list[Do] = []
            middle: list[Do] = []
            stores: list[Do] = []
            z, r, n = (self.load(name, a[name][t, d], loads) for name in ("updates", "resets", "candidates"))
            before = self.load("before Y", space["before Y"][t], loads)
            dy = self.dy(t, d, loads)
            early, (late,) = self.store("early", t, stores), self.store("late", t, middle)
            stores.append(self.call("early", space["early"][t], space["R early"], dh))
            if linear:
                more = space["again"][t], *self.store("linear", t, stores)
                stores.append(self.call("late", space["linear"][t], space["R late"], dh))
            else:
                middle.append(self.call("late", space["late"][t], space["R late"], space["temporary"]))
                more = None, *self.store("left", t, stores)
            rows.append((loads, (z, r, n, before, dy), early, late, middle, *more, stores))
        return Way(first, rows, self.end(d, {"dinitial_h": "dh"}))

    def steps(self, rows: Sequence[Any]) -> int:
        add, multiply, subtract, space = np.add, np.multiply, np.subtract, self.space
        dh, temporary, rest, slope = (space[name] for name in ("dh", "temporary", "rest", "slope"))
        sums, (late_sums,) = space["sum early"], space["sum late"]
        (linear_sums,) = space.get("sum linear", (None,))
        for loads, (z, r, n, before, dy), early, dn, middle, again, other, stores in rows:
            dz, dr = early
            if status := done(loads):
                return status
            if dy is not None:
                add(dh, dy, dh)
            subtract(ONE, z, rest)
            multiply(n, n, slope)
            subtract(ONE, slope, slope)
            multiply(slope, rest, slope)
            multiply(dh, slope, dn)
            if status := done(middle):
                return status
            subtract(before, n, slope)
            multiply(slope, z, slope)
            multiply(slope, rest, slope)
            multiply(dh, slope, dz)
            multiply(dh, z, dh)
            subtract(ONE, r, slope)
            multiply(slope, r, slope)
            if again is None:  # what arrives at the product of reset gate and state is the temporary
                multiply(slope, before, slope)
                multiply(slope, temporary, dr)
                multiply(temporary, r, temporary)
                add(dh, temporary, dh)
                multiply(r, before, other)
            else:
                multiply(slope, again, slope)
                multiply(slope, dn, dr)
                multiply(dn, r, other)
                add(linear_sums, other, linear_sums)
            add(sums, early, sums)
            add(late_sums, dn, late_sums)
            if status := done(stores):
                return status
        return 0
