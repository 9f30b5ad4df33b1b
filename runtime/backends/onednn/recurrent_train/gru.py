"""GRU in training, forward and back through time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ..primitive import Draft, PostOp
from .backward import Backward, Part
from .forward import Forward
from .layer import F32, SUM, Layer, Space, binary, matrix, product, usual
from .run import ONE, Do, Stepwise, alone, copied

ACTIVATIONS = ("sigmoid", "tanh")


class GruForward(Forward):
    """The gates z and r, then the candidate n, from the product of its weights with the state, or with the state after
    the reset gate."""

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

    def way(self, d: int) -> Sequence[Do]:
        layer, a, space, h = self.layer, self.arrays, self.space, self.layer.hidden
        linear, temporary = bool(layer.attrs["linear_before_reset"]), space["temporary"]
        calls, last = self.biases(d, 1 if linear else 0), self.ends(d, {"Y_h": "Y"})
        zs, rs, ns = (self.kept(name, d, last) for name in self.widths)
        for k, out in enumerate((zs, rs, space["input"] if linear else ns)):
            calls.append(self.lay(f"R{k}", a["R"][d][k * h : (k + 1) * h], turned=True))
            calls += self.enter(d, k, k + 1, out)
        bias = space["bias"][5 * h :]
        state, before = self.state("initial_h", d), self.wide("initial_h", d, calls)
        for t in layer.order(d):
            z, r, n, (y, shows) = zs[t], rs[t], ns[t], self.shown(t, d)
            calls += [self.call("gate", state, space[f"R{k}"], x) for k, x in enumerate((z, r))]
            if linear:
                more = {"reset": r, "input": space["input"][t], "bias": bias}
                calls.append(self.call("candidate", state, space["R2"], n, **more))
            else:
                left = temporary if layer.exact else space["left"]
                calls.append(partial(np.multiply, r, before, temporary))
                calls += [] if layer.exact else [self.move(temporary, left)]
                calls.append(self.call("candidate", left, space["R2"], n))
            calls += [
                partial(np.subtract, before, n, temporary),
                partial(np.multiply, temporary, z, temporary),
                partial(np.add, temporary, n, y),
                *shows,
            ]
            state, before = a["Y"][t, d], y
        return [*calls, *last]


class GruBackward(Backward):
    """The gradients of the inputs of z and r are adjacent in "early", those of the candidate's inputs in "late". If the
    candidate's recurrent product comes before the reset gate, it is computed "again", and its gradients are "linear";
    else the product was of the state "left" by the reset gate."""

    gates = 3
    packs: ClassVar = {"R early": "early", "R late": "late"}

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
        sizes = {count: (count * n, h) for count in layer.counts}
        turned = matrix(h, h, dtype, turned=True)
        again = {f"again {c}": product(matrix(*s, dtype), turned, matrix(*s), bias=True) for c, s in sizes.items()}
        return {"early": early, "late": late, **again, **cls.after(layer)}

    @classmethod
    def needs(cls, layer: Layer) -> dict[str, Space]:
        spaces = cls.held(layer, dict.fromkeys(("updates", "resets", "candidates", "before", "dY"), 1))
        spaces |= {f"slope {gate}": layer.apart() for gate in "zrn"}
        if layer.attrs["linear_before_reset"]:
            return spaces | {"again": layer.span(), "bias": (F32, (layer.hidden,))}
        return spaces | {"left": layer.span(1, layer.dtype), "wide left": layer.apart()}

    def way(self, d: int) -> Sequence[Do]:
        layer, a, space, h = self.layer, self.arrays, self.space, self.layer.hidden
        R, dh, temporary = a["R"][d], space["dh"], space["temporary"]
        linear = bool(layer.attrs["linear_before_reset"])
        calls = self.begin(d, {"dY_h": "dh"})
        calls += [self.lay("R early", R[: 2 * h]), self.lay("R late", R[2 * h :])]
        if linear:
            B = self.array("B", d)
            calls.append(copied(space["bias"], 0 if B is None else B[5 * h :]))
        for span in self.spans(d):
            states = space["before Y"][: span.count]
            calls += self.before("Y", "initial_h", span, states)
            z, r, n = (self.load(name, a[name][span.steps, d], calls) for name in ("updates", "resets", "candidates"))
            before, arrivals = self.load("before", states, calls), self.arriving(span, calls)
            of_z, of_r, of_n = (self.some(f"slope {gate}", span.count)[0] for gate in "zrn")
            if linear:
                reset = space["again"][: span.count]
                calls.append(self.call(f"again {span.count}", states, R[2 * h :], reset, bias=space["bias"]))
            else:
                reset, left = before, space["left"][: span.count]
                wide = left if layer.exact else self.some("wide left", span.count)[0]
                calls += [partial(np.multiply, r, before, wide), *([] if layer.exact else [self.move(wide, left)])]
            derivatives = [
                partial(np.subtract, before, n, of_z),
                self.slope("logistic", of_z, z, of_z),
                self.slope("logistic", reset, r, of_r),
                partial(np.subtract, ONE, z, of_n),
                self.slope("tanh", of_n, n, of_n),
            ]
            calls.append(partial(alone, derivatives))
            for k in span.turns:
                (dz, dr), early = self.store("early", k)
                (dn,), late = self.store("late", k)
                calls += [*arrivals[k], partial(np.multiply, dh, of_n[k], dn), *late]
                calls += [partial(np.multiply, dh, of_z[k], dz), partial(np.multiply, dh, z[k], dh)]
                if linear:
                    (other,), more = self.store("linear", k)
                    calls += [
                        partial(np.multiply, dn, of_r[k], dr),
                        partial(np.multiply, dn, r[k], other),
                        *more,
                        self.call("late", space["linear"][k], space["R late"], dh),
                    ]
                else:
                    calls += [
                        self.call("late", space["late"][k], space["R late"], temporary),
                        partial(np.multiply, temporary, of_r[k], dr),
                        partial(np.multiply, temporary, r[k], temporary),
                        partial(np.add, dh, temporary, dh),
                    ]
                calls += [*early, self.call("early", space["early"][k], space["R early"], dh)]
            calls += self.gather(span)
        return [*calls, *self.end(d, {"dinitial_h": "dh"})]


TRAIN = Stepwise("onednn.gru_train", "GRUTrain", GruForward)
GRAD = Stepwise("onednn.gru_grad", "GRUGrad", GruBackward)
