"""Backpropagation through time, one span of steps after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from .....ops.dataclasses import dataclass
from ..api import DIFF_DST, DIFF_SRC, DST
from ..primitive import Bound, Draft, Operand, bind, describe
from .layer import F32, SUM, Layer, Space, matrix, product
from .run import Do, Run, copied, gate_after_gate


@dataclass(frozen=True, slots=True)
class Part:
    """Gates `begin` to `end`: the names of the gradients with respect to their products with inputs and with the state,
    and of the other factor of the recurrent weights."""

    begin: int
    end: int
    inputs: str
    states: str
    met: str

    @property
    def width(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Steps that are computed together: `steps` are their indices in the kept results, and `turns` their indices here,
    in backward order."""

    d: int
    steps: slice
    turns: range
    first: bool

    @property
    def count(self) -> int:
        return len(self.turns)


class Backward(Run):
    """Backpropagation through time; the parts define the use of the gates' gradients.

    What does not depend on the gradients, as the slopes of the gates, is made for a span of steps at once, and so are
    the products that give the gradients of weights and inputs, while what they read is still in the caches.
    """

    gates: ClassVar[int]

    @classmethod
    @abstractmethod
    def parts(cls, layer: Layer) -> Sequence[Part]: ...

    @classmethod
    def after(cls, layer: Layer) -> dict[str, Draft]:
        """The products over a span that give the gradients of the inputs and of both weights."""
        products: dict[str, Draft] = {}
        h, dtype = layer.hidden, layer.dtype
        for width, count in {(p.width, count) for p in cls.parts(layer) for count in layer.counts}:
            rows = count * layer.batch
            dz, turned = matrix(rows, width * h, dtype), matrix(width * h, rows, dtype, turned=True)
            if "dX" in layer.wanted:
                weights, dx = matrix(width * h, layer.inputs, dtype), matrix(rows, layer.inputs, dtype)
                products[f"dX {width} {count}"] = product(dz, weights, dx)
                products[f"dX {width} {count} added"] = product(dz, weights, dx, SUM)
            for name, columns in (("dW", layer.inputs), ("dR", h)):
                if name in layer.wanted:
                    met, dw = matrix(rows, columns, dtype), matrix(width * h, columns)
                    products[f"{name} {width} {count}"] = product(turned, met, dw)
                    products[f"{name} {width} {count} added"] = product(turned, met, dw, SUM)
        return products

    @classmethod
    def held(cls, layer: Layer, loads: Mapping[str, int]) -> dict[str, Space]:
        """The gradients of a span and their sums, the states before its steps, and in float32 what a step makes, and
        what a span reads (`loads`: numbers for each hidden unit) where that lies otherwise."""
        spaces: dict[str, Space] = {"before Y": layer.span(1, layer.dtype), "total": (F32, (cls.gates * layer.hidden,))}
        for part in cls.parts(layer):
            for name in (part.inputs, part.states):
                spaces[name] = layer.span(part.width, layer.dtype)
                spaces |= {f"{kind} {name}": layer.step(part.width) for kind in ("sum", "wide")}
        spaces |= {name: layer.step() for name in ("dh", "temporary")}
        spaces |= {f"wide {name}": layer.apart(width) for name, width in loads.items()}
        if not layer.exact:
            sizes = {"dW": layer.inputs, "dR": layer.hidden}
            spaces |= {n: (F32, (cls.gates * layer.hidden, size)) for n, size in sizes.items() if n in layer.wanted}
        return spaces

    def begin(self, d: int, gradients: Mapping[str, str]) -> list[Do]:
        """The gradients of the last states, and sums of nothing yet; `gradients` says where the former are."""
        first: list[Do] = []
        for name, place in gradients.items():
            gradient = self.array(name, d)
            first.append(copied(self.space[place], 0 if gradient is None else gradient))
        return [*first, *(partial(self.space[n].fill, 0) for n in self.space if n.startswith("sum "))]

    def spans(self, d: int) -> Iterator[TimeSpan]:
        """The spans of a direction, its last steps first."""
        steps, few = self.layer.steps, self.layer.few
        turn = -1 if self.layer.order(d).step > 0 else 1
        begins = range(0, steps, few)[::turn]
        for begin in begins:
            end = min(begin + few, steps)
            yield TimeSpan(d, slice(begin, end), range(end - begin)[::turn], begin == begins[0])

    def load(self, name: str, x: Any, calls: list[Do]) -> Any:
        """The numbers of a span, row-major in float32."""
        if self.layer.exact and x.flags.c_contiguous:
            return x
        wide = self.some(f"wide {name}", x.shape[-3])
        wide = wide if x.ndim > 3 else wide[0]
        calls.append(self.move(x, wide))
        return wide

    def some(self, name: str, count: int) -> Any:
        """Workspace for so many steps of a span, gate after gate."""
        return self.space[name][:, :count]

    def before(self, name: str, initial: str, span: TimeSpan, out: Any) -> list[Do]:
        """Copies the state before each step of a span."""
        values, order = self.arrays[name][:, span.d], self.layer.order(span.d)
        begin, end = span.steps.start - order.step, span.steps.stop - order.step
        inside = slice(max(begin, 0), min(end, self.layer.steps))
        calls = [copied(out[inside.start - begin : inside.stop - begin], values[inside])]
        if begin < 0 or end > self.layer.steps:
            calls.append(copied(out[0 if begin < 0 else -1], self.state(initial, span.d)))
        return calls

    def slope(self, kind: str, times: Any, shown: Any, out: Any) -> Bound:
        """The slope of an activation where it has shown these results, times other numbers of as many steps."""
        flat = matrix(1, shown.size)
        operands = [Operand(a, (n, 0), flat) for a, n in ((DIFF_DST, "times"), (DST, "shown"), (DIFF_SRC, "out"))]
        draft = Draft("eltwise_backward", tuple(operands), (f"eltwise_{kind}_use_dst", 0.0, 0.0))
        arrays = {("times", 0): times, ("shown", 0): shown, ("out", 0): out}
        return bind(describe(draft, 1), arrays, None)

    def arriving(self, span: TimeSpan, calls: list[Do]) -> list[list[Do]]:
        """Return, for each step of a span, the calls that add the gradient of the output to dh."""
        dY, dh = self.arrays["dY"], self.space["dh"]
        if dY is None:
            return [[] for _ in range(span.count)]
        return [[partial(np.add, dh, dy, dh)] for dy in self.load("dY", dY[span.steps, span.d], calls)]

    def store(self, name: str, k: int) -> tuple[Any, list[Do]]:
        """Return the memory for the float32 gradients of the gates of step `k` of a span, gate after gate, and the
        calls that follow: they are accumulated, and copied to the operands of products."""
        wide, target, total = self.space[f"wide {name}"], self.space[name][k], self.space[f"sum {name}"]
        moved = partial(np.copyto, target, wide) if self.layer.exact else self.move(wide, target)
        return gate_after_gate(wide, wide.shape[1] // self.layer.hidden), [partial(np.add, total, wide, total), moved]

    def gather(self, span: TimeSpan) -> list[Do]:
        """The products of a span: they give its inputs' gradients, and add to those of the weights."""
        a, space, d, h = self.arrays, self.space, span.d, self.layer.hidden
        calls: list[Do] = []
        for part in self.parts(self.layer):
            rows, kind = slice(part.begin * h, part.end * h), f"{part.width} {span.count}"
            dz, dstates, met = (space[n][: span.count] for n in (part.inputs, part.states, part.met))
            if a["dX"] is not None:
                name = f"dX {kind} added" if d or part.begin else f"dX {kind}"
                calls.append(self.call(name, dz, a["W"][d][rows], a["dX"][span.steps]))
            added = "" if span.first else " added"
            if a["dW"] is not None:
                call = self.call(f"dW {kind}{added}", dz, a["X"][span.steps], self.weights("dW", d)[rows])
                self.of_input.append((call, "b", span.steps))
                calls.append(call)
            if a["dR"] is not None:
                calls.append(self.call(f"dR {kind}{added}", dstates, met, self.weights("dR", d)[rows]))
        return calls

    def weights(self, name: str, d: int) -> Any:
        """Return the memory where the gradients of weights are accumulated."""
        return self.arrays[name][d] if self.layer.exact else self.space[name]

    def end(self, d: int, gradients: Mapping[str, str]) -> list[Do]:
        """The gradients of weights, biases and first states; `gradients` says where the latter are."""
        a, space, h = self.arrays, self.space, self.layer.hidden
        last: list[Do] = []
        if not self.layer.exact:
            last += [self.move(space[name], a[name][d]) for name in ("dW", "dR") if a[name] is not None]
        for part in self.parts(self.layer) if a["dB"] is not None else ():
            rows = slice(part.begin * h, part.end * h)
            halves, total = a["dB"][d].reshape(2, -1), space["total"][rows]
            for half, of in zip(halves, (part.inputs, part.states), strict=True):
                last += [partial(np.add.reduce, space[f"sum {of}"], 0, None, total), copied(half[rows], total)]
        return last + [copied(a[name][d], space[place]) for name, place in gradients.items() if a[name] is not None]
