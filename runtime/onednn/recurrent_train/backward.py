"""Back through time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ..primitive import Draft
from .layer import F32, SUM, Layer, Space, matrix, product
from .run import Do, Run, copied, gate_after_gate


@dataclass(frozen=True, slots=True)
class Part:
    """Gates `begin` to `end`: the names of the gradients of what their weights make of the inputs and of the state, and
    of what the recurrent weights are multiplied with."""

    begin: int
    end: int
    inputs: str
    states: str
    met: str

    @property
    def width(self) -> int:
        return self.end - self.begin


class Backward(Run):
    """Back through time; the parts say what becomes of the gradients of the gates."""

    gates: ClassVar[int]

    @classmethod
    @abstractmethod
    def parts(cls, layer: Layer) -> Sequence[Part]: ...

    @classmethod
    def after(cls, layer: Layer) -> dict[str, Draft]:
        """The products over all steps that give the gradients of the inputs and of both weights."""
        made: dict[str, Draft] = {}
        rows, h, dtype = layer.rows, layer.hidden, layer.dtype
        for width in {p.width for p in cls.parts(layer)}:
            dz, turned = matrix(rows, width * h, dtype), matrix(width * h, rows, dtype, turned=True)
            if "dX" in layer.wanted:
                weights, dx = matrix(width * h, layer.inputs, dtype), matrix(rows, layer.inputs, dtype)
                made[f"inputs {width}"] = product(dz, weights, dx)
                made[f"inputs added {width}"] = product(dz, weights, dx, SUM)
            for name, columns in (("dW", layer.inputs), ("dR", h)):
                if name in layer.wanted:
                    met, dw = matrix(rows, columns, dtype), matrix(width * h, columns, dtype)
                    made[f"{name} {width}"] = product(turned, met, dw)
        return made

    @classmethod
    def held(cls, layer: Layer, states: Sequence[str], *loads: str) -> dict[str, Space]:
        """The gradients of all steps and their sums, the states before each step (`states`: their names), and in
        float32 what a step makes, and reads (`loads`) where the tensors are in another type."""
        spaces: dict[str, Space] = {f"before {name}": layer.all_steps(1, layer.dtype) for name in states}
        for part in cls.parts(layer):
            for name in (part.inputs, part.states):
                spaces[name] = layer.all_steps(part.width, layer.dtype)
                spaces |= {f"sum {name}": layer.gates(part.width), f"wide {name}": layer.gates(part.width)}
        spaces |= {name: layer.step() for name in ("dh", "temporary")}
        spaces["total"] = (F32, (cls.gates, layer.hidden))
        if not layer.exact:
            spaces |= {f"wide {name}": layer.step() for name in (*loads, "dY")}
        return spaces

    def begin(self, d: int, states: Mapping[str, str], gradients: Mapping[str, str]) -> list[Do]:
        """The states before each step, the gradients of the last states, and sums of nothing yet. `states` are the
        names of the first states by those of what is kept of all; `gradients` where the gradient of a last state is."""
        first: list[Do] = []
        order = self.layer.order(d)
        for name, initial in states.items():
            values, before = self.arrays[name][:, d], self.space[f"before {name}"]
            here, there = (before[1:], values[:-1]) if order.step > 0 else (before[:-1], values[1:])
            first += [copied(here, there), copied(before[order[0]], self.state(initial, d))]
        for name, place in gradients.items():
            given = self.given(name, d)
            first.append(copied(self.space[place], 0 if given is None else given))
        first += [partial(self.space[n].fill, 0) for n in self.space if n.startswith("sum ")]
        return first

    def load(self, name: str, x: Any, loads: list[Do]) -> Any:
        """An array of one step in float32."""
        if x is None or self.layer.exact:
            return x
        loads.append(self.move(x, self.space[f"wide {name}"]))
        return self.space[f"wide {name}"]

    def store(self, name: str, t: int, stores: list[Do]) -> Any:
        """Where a step writes in float32, gate after gate, what products read of it gates beside each other."""
        wide, target = self.space[f"wide {name}"], self.space[name][t]
        if self.layer.exact and len(wide) == 1:
            return target[None]
        stores.append(self.move(wide, gate_after_gate(target, len(wide))))
        return wide

    def dy(self, t: int, d: int, loads: list[Do]) -> Any:
        """The gradient that arrives at the output of a step."""
        dY = self.arrays["dY"]
        return self.load("dY", None if dY is None else dY[t, d], loads)

    def end(self, d: int, gradients: Mapping[str, str]) -> list[Do]:
        """The gradients of inputs, weights, biases and first states; `gradients` says where the latter are."""
        a, space, h = self.arrays, self.space, self.layer.hidden
        last: list[Do] = []
        for part in self.parts(self.layer):
            rows = slice(part.begin * h, part.end * h)
            if a["dX"] is not None:
                name = f"inputs added {part.width}" if d or part.begin else f"inputs {part.width}"
                last.append(self.call(name, space[part.inputs], a["W"][d][rows], a["dX"]))
            if a["dW"] is not None:
                call = self.call(f"dW {part.width}", space[part.inputs], a["X"], a["dW"][d][rows])
                self.of_input.append((call, "b", None))
                last.append(call)
            if a["dR"] is not None:
                last.append(self.call(f"dR {part.width}", space[part.states], space[part.met], a["dR"][d][rows]))
            if a["dB"] is not None:
                halves = a["dB"][d].reshape(2, self.gates, h)
                for half, of in zip(halves, (part.inputs, part.states), strict=True):
                    total = space["total"][: part.width]
                    last += [partial(_sum, space[f"sum {of}"], total), copied(half[part.begin : part.end], total)]
        for name, place in gradients.items():
            if a[name] is not None:
                last.append(copied(a[name][d], space[place]))
        return last


def _sum(values: Any, total: Any) -> None:
    np.add.reduce(values, 1, None, total)
