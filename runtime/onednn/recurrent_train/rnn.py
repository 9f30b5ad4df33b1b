"""RNN while training, forward and back through time: one product is a step, with its activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..api import Refused
from ..primitive import Draft, PostOp
from .backward import Backward, Part
from .forward import Forward
from .layer import SUM, Layer, Space, binary, matrix, product, usual
from .run import ONE, Do, Way, done


def activation(layer: Layer) -> str:
    """tanh or relu; Refused for others."""
    for name in ("tanh", "relu"):
        try:
            usual(layer, name)
            return name
        except Refused as error:
            found = error
    raise found


class RnnForward(Forward):
    """The inputs are added to the product, which in float32 finds them in its result."""

    gates = 1
    packs: ClassVar = {"W": "inputs", "R": "states"}

    @classmethod
    def drafts(cls, layer: Layer) -> Mapping[str, Draft]:
        n, h, dtype = layer.batch, layer.hidden, layer.dtype
        post = SUM if layer.exact else binary("add", "input", n, h), PostOp(f"eltwise_{activation(layer)}")
        states = product(matrix(n, h, dtype), matrix(h, h, dtype).any(), matrix(n, h, dtype), *post)
        return {"inputs": cls.inputs(layer, 1), "states": states}

    @classmethod
    def needs(cls, layer: Layer) -> dict[str, Space]:
        return super().needs(layer) | ({} if layer.exact else {"input": layer.all_steps()})

    def way(self, d: int) -> Way:
        a, space = self.arrays, self.space
        y = a["Y"][:, d]
        inputs = y if self.layer.exact else space["input"]
        first = [*self.biases(d), self.lay("R", a["R"][d], turned=True), *self.enter(d, 0, 1, inputs)]
        rows: list[Any] = []
        state = self.state("initial_h", d)
        for t in self.layer.order(d):
            rows.append(self.call("states", state, space["R"], y[t], input=inputs[t]))
            state = y[t]
        return Way(first, rows, self.ends(d, {"Y_h": "Y"}))

    def steps(self, rows: Sequence[Any]) -> int:
        for step in rows:
            if status := step():
                return int(status)
        return 0


class RnnBackward(Backward):
    """The output tells the slope."""

    gates = 1
    packs: ClassVar = {"R": "step"}

    @classmethod
    def parts(cls, layer: Layer) -> Sequence[Part]:
        return (Part(0, 1, "dz", "dz", "before Y"),)

    @classmethod
    def drafts(cls, layer: Layer) -> Mapping[str, Draft]:
        activation(layer)
        n, h, dtype = layer.batch, layer.hidden, layer.dtype
        return {"step": product(matrix(n, h, dtype), matrix(h, h, dtype).any(), matrix(n, h)), **cls.after(layer)}

    @classmethod
    def needs(cls, layer: Layer) -> dict[str, Space]:
        return cls.held(layer, ("Y",), "Y")

    def way(self, d: int) -> Way:
        layer, a, space = self.layer, self.arrays, self.space
        first = [*self.begin(d, {"Y": "initial_h"}, {"dY_h": "dh"}), self.lay("R", a["R"][d])]
        rows: list[Any] = []
        for t in reversed(layer.order(d)):
            loads: list[Do] = []
            stores: list[Do] = []
            y = self.load("Y", a["Y"][t, d], loads)
            dy = self.dy(t, d, loads)
            (dz,) = self.store("dz", t, stores)
            stores.append(self.call("step", space["dz"][t], space["R"], space["dh"]))
            rows.append((loads, y, dy, dz, stores))
        return Way(first, rows, self.end(d, {"dinitial_h": "dh"}))

    def steps(self, rows: Sequence[Any]) -> int:
        dh, slope, (sums,) = (self.space[name] for name in ("dh", "temporary", "sum dz"))
        tanh = activation(self.layer) == "tanh"
        for loads, y, dy, dz, stores in rows:
            if status := done(loads):
                return status
            if dy is not None:
                np.add(dh, dy, dh)
            if tanh:
                np.multiply(y, y, slope)
                np.subtract(ONE, slope, slope)
            else:
                np.greater(y, 0, slope)
            np.multiply(dh, slope, dz)
            np.add(sums, dz, sums)
            if status := done(stores):
                return status
        return 0
