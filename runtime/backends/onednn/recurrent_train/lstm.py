"""LSTM in training, forward and back through time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ..memory import Memory
from ..primitive import Draft, PostOp
from .backward import Backward, Part
from .forward import Forward
from .layer import F32, SUM, Layer, Space, matrix, product, usual
from .run import Do, Stepwise, alone, gate_after_gate

ACTIVATIONS = ("sigmoid", "tanh", "tanh")


class LstmForward(Forward):
    """A product for the gates i, o and f, and one for the candidate g, whose tanh is exact near zero as well. Both are
    parts of one result in float32; in other types each lies by itself before it is moved there."""

    gates = 4
    widths: ClassVar = {"gates": 4, "cells": 1}
    packs: ClassVar = {"W": "inputs", "W candidate": "input", "R gates": "gates", "R candidate": "candidate"}

    @classmethod
    def drafts(cls, layer: Layer) -> Mapping[str, Draft]:
        usual(layer, *ACTIVATIONS)
        n, h = layer.batch, layer.hidden

        def part(columns: int, activation: str) -> Draft:
            out = Memory((n, columns), F32, strides=(4 * h if layer.exact else columns, 1))
            weights = matrix(h, columns, layer.dtype).any()
            return product(matrix(n, h, layer.dtype), weights, out, SUM, PostOp(activation))

        inputs = {"inputs": 4} if layer.exact else {"inputs": 3, "input": 1}
        parts = {"gates": part(3 * h, "eltwise_logistic"), "candidate": part(h, "eltwise_tanh")}
        return {name: cls.inputs(layer, width) for name, width in inputs.items()} | parts

    @classmethod
    def needs(cls, layer: Layer) -> dict[str, Space]:
        spaces = super().needs(layer)
        if spaces.pop("wide gates", None):
            spaces |= {"wide gates": layer.all_steps(3), "wide candidate": layer.all_steps()}
        return spaces

    def way(self, d: int) -> Sequence[Do]:
        layer, arrays, space, iof = self.layer, self.arrays, self.space, 3 * self.layer.hidden
        calls, last, temporary = self.biases(d), list[Do](), space["temporary"]
        whole, cells = arrays["gates"][:, d], self.kept("cells", d, last)
        gates, candidates = whole[..., :iof], whole[..., iof:]
        if layer.exact:
            calls += self.enter(d, 0, 4, whole)
        else:
            wide, alike = space["wide gates"], space["wide candidate"]
            calls += [*self.enter(d, 0, 3, wide), *self.enter(d, 3, 4, alike, "W candidate")]
            last += [self.move(wide, gates), self.move(alike, candidates)]
            gates, candidates = wide, alike
        for packed, rows in (("R gates", slice(iof)), ("R candidate", slice(iof, None))):
            calls.append(self.lay(packed, arrays["R"][d][rows], turned=True))
        h, c = self.state("initial_h", d), self.wide("initial_c", d, calls)
        for t in layer.order(d):
            z, g, cell, (y, shows) = gates[t], candidates[t], cells[t], self.shown(t, d)
            i, o, f = gate_after_gate(z, 3)
            calls += [
                self.call("gates", h, space["R gates"], z),
                self.call("candidate", h, space["R candidate"], g),
                partial(np.multiply, i, g, temporary),
                partial(np.multiply, f, c, cell),
                partial(np.add, cell, temporary, cell),
                partial(np.tanh, cell, temporary),
                partial(np.multiply, o, temporary, y),
                *shows,
            ]
            h, c = arrays["Y"][t, d], cell
        return [*calls, *last, *self.ends(d, {"Y_h": "Y", "Y_c": "cells"})]


class LstmBackward(Backward):
    """Derivatives of a span: "slopes" are those of the cell with respect to the weighted sums of i, f and g, and of the
    output with respect to that of o; "reached" is that of the output with respect to the cell."""

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
        spaces = cls.held(layer, {"gates": 4, "cells": 1, "dY": 1})
        spaces |= {"dc": layer.step(), "before cells": layer.span()}
        return spaces | {"slopes": layer.apart(4), "reached": layer.apart()}

    def way(self, d: int) -> Sequence[Do]:
        a, space = self.arrays, self.space
        dh, dc, temporary, dz = (space[name] for name in ("dh", "dc", "temporary", "dz"))
        calls = [*self.begin(d, {"dY_h": "dh", "dY_c": "dc"}), self.lay("R", a["R"][d])]
        for span in self.spans(d):
            i, o, f, g = self.load("gates", gate_after_gate(a["gates"][span.steps, d], 4), calls)
            cells, arrivals = self.load("cells", a["cells"][span.steps, d], calls), self.arriving(span, calls)
            states, before = (space[f"before {name}"][: span.count] for name in ("Y", "cells"))
            slopes, (reached,) = (self.some(name, span.count) for name in ("slopes", "reached"))
            of_i, of_o, of_f, of_g = slopes
            calls += [
                *self.before("Y", "initial_h", span, states),
                *self.before("cells", "initial_c", span, before),
            ]
            derivatives = [
                self.slope("logistic", g, i, of_i),
                self.slope("logistic", before, f, of_f),
                self.slope("tanh", i, g, of_g),
                partial(np.tanh, cells, of_o),
                self.slope("tanh", o, of_o, reached),
                self.slope("logistic", of_o, o, of_o),
            ]
            calls.append(partial(alone, derivatives))
            for k in span.turns:
                gradients, stores = self.store("dz", k)
                calls += [
                    *arrivals[k],
                    partial(np.multiply, dh, reached[k], temporary),
                    partial(np.add, dc, temporary, dc),
                    partial(np.multiply, dc, of_i[k], gradients[0]),
                    partial(np.multiply, dh, of_o[k], gradients[1]),
                    partial(np.multiply, dc, slopes[2:, k], gradients[2:]),
                    partial(np.multiply, dc, f[k], dc),
                    *stores,
                    self.call("step", dz[k], space["R"], dh),
                ]
            calls += self.gather(span)
        return [*calls, *self.end(d, {"dinitial_h": "dh", "dinitial_c": "dc"})]


TRAIN = Stepwise("onednn.lstm_train", "LSTMTrain", LstmForward)
GRAD = Stepwise("onednn.lstm_grad", "LSTMGrad", LstmBackward)
