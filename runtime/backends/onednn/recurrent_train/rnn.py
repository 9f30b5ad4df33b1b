"""RNN in training, forward and back through time: one product is a step, with its activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ..api import Refused
from ..postops import EXACT_RELU
from ..primitive import Draft, PostOp
from .backward import Backward, Part
from .forward import Forward
from .layer import SUM, Layer, Space, binary, matrix, product, usual
from .run import ONE, Do, Stepwise


def activation(layer: Layer) -> str:
    """tanh or relu; Refused for others."""
    for name in ("tanh", "relu"):
        try:
            usual(layer, name)
            return name
        except Refused as error:
            refusal = error
    raise refusal


class RnnForward(Forward):
    """The product of a step, added to the inputs, which in float32 are in its result already."""

    gates = 1
    packs: ClassVar = {"W": "inputs", "R": "states"}

    @classmethod
    def drafts(cls, layer: Layer) -> Mapping[str, Draft]:
        n, h, dtype = layer.batch, layer.hidden, layer.dtype
        before = SUM if layer.exact else binary("add", "input", n, h)
        functions = (PostOp("eltwise_tanh"),) if activation(layer) == "tanh" else tuple(PostOp(*a) for a in EXACT_RELU)
        states = product(matrix(n, h, dtype), matrix(h, h, dtype).any(), matrix(n, h, dtype), before, *functions)
        return {"inputs": cls.inputs(layer, 1), "states": states}

    @classmethod
    def needs(cls, layer: Layer) -> dict[str, Space]:
        return super().needs(layer) | ({} if layer.exact else {"input": layer.all_steps()})

    def way(self, d: int) -> Sequence[Do]:
        a, space = self.arrays, self.space
        y = a["Y"][:, d]
        inputs = y if self.layer.exact else space["input"]
        calls = [*self.biases(d), self.lay("R", a["R"][d], turned=True), *self.enter(d, 0, 1, inputs)]
        state = self.state("initial_h", d)
        for t in self.layer.order(d):
            calls.append(self.call("states", state, space["R"], y[t], input=inputs[t]))
            state = y[t]
        return [*calls, *self.ends(d, {"Y_h": "Y"})]


class RnnBackward(Backward):
    """Backward of an RNN; the derivative follows from the output."""

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
        return cls.held(layer, {"Y": 1, "dY": 1}) | {"slope": layer.apart()}

    def way(self, d: int) -> Sequence[Do]:
        a, space, dh = self.arrays, self.space, self.space["dh"]
        tanh = activation(self.layer) == "tanh"
        calls = [*self.begin(d, {"dY_h": "dh"}), self.lay("R", a["R"][d])]
        for span in self.spans(d):
            y, arrivals = self.load("Y", a["Y"][span.steps, d], calls), self.arriving(span, calls)
            calls += self.before("Y", "initial_h", span, space["before Y"][: span.count])
            slope = self.some("slope", span.count)[0]
            if tanh:
                calls += [partial(np.multiply, y, y, slope), partial(np.subtract, ONE, slope, slope)]
            else:
                calls.append(partial(np.greater, y, 0, slope))
            for k in span.turns:
                (dz,), stores = self.store("dz", k)
                calls += [
                    *arrivals[k],
                    partial(np.multiply, dh, slope[k], dz),
                    *stores,
                    self.call("step", space["dz"][k], space["R"], dh),
                ]
            calls += self.gather(span)
        return [*calls, *self.end(d, {"dinitial_h": "dh"})]


TRAIN = Stepwise("onednn.rnn_train", "RNNTrain", RnnForward)
GRAD = Stepwise("onednn.rnn_grad", "RNNGrad", RnnBackward)
