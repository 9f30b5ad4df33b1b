"""The forward pass of RNN, GRU and LSTM in training: keeps what the backward pass reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ..api import Refused
from ..primitive import Draft
from .layer import F32, Layer, Space, matrix, product
from .run import Do, RecurrentPlan, Run, copied


class Forward(Run):
    """Forward with kept results. `gates` counts the rows of weights for each hidden unit; `widths` are those of the
    kept results, by name."""

    gates: ClassVar[int]
    widths: ClassVar[Mapping[str, int]] = {}

    @classmethod
    def plan(cls, layer: Layer, drafts: Mapping[str, Draft]) -> RecurrentPlan:
        """Return the plan of a run. Kept results are written while the steps run, so that all of them must be
        requested."""
        if not {"Y", *cls.widths} <= layer.wanted:
            raise Refused("a kept result is not requested")
        return super().plan(layer, drafts)

    @staticmethod
    def inputs(layer: Layer, width: int) -> Draft:
        """The product with the inputs, for gates of so many numbers for each hidden unit."""
        rows, columns = layer.batch if layer.parted else layer.rows, width * layer.hidden
        weights = matrix(layer.inputs, columns, layer.dtype).any()
        return product(matrix(rows, layer.inputs, layer.dtype), weights, matrix(rows, columns), bias=True)

    @classmethod
    def needs(cls, layer: Layer) -> dict[str, Space]:
        """Biases, and in float32 what is kept, the state and what it begins with, where the tensors are in another
        type."""
        spaces: dict[str, Space] = {"bias": (F32, (2 * cls.gates * layer.hidden,)), "temporary": layer.step()}
        if not layer.exact:
            spaces |= {f"wide {name}": layer.all_steps(width) for name, width in cls.widths.items()}
            spaces |= {f"wide {name}": layer.step() for name in ("Y", "initial_h", "initial_c")}
        return spaces

    def biases(self, d: int, apart: int = 0) -> list[Do]:
        """Adds the two biases in float32, into the first half of their place; those of the last `apart` gates stay."""
        both, biases = self.space["bias"], self.array("B", d)
        if biases is None:
            return [partial(both.fill, 0)]
        half, end = both.size // 2, both.size // 2 - apart * self.layer.hidden
        return [copied(both, biases), partial(np.add, both[:end], both[half : half + end], both[:end])]

    def kept(self, name: str, d: int, last: list[Do]) -> Any:
        """Return the float32 memory of the kept results of the steps: [steps, batch, ...]."""
        target = self.arrays[name][:, d]
        if self.layer.exact:
            return target
        wide = self.space[f"wide {name}"]
        last.append(self.move(wide, target))
        return wide

    def wide(self, name: str, d: int, first: list[Do]) -> Any:
        """The state before the first step, in float32."""
        if self.layer.exact:
            return self.state(name, d)
        first.append(copied(self.space[f"wide {name}"], self.state(name, d)))
        return self.space[f"wide {name}"]

    def shown(self, t: int, d: int) -> tuple[Any, list[Do]]:
        """Return the float32 memory for a step's output, and the calls that follow."""
        target = self.arrays["Y"][t, d]
        return (target, []) if self.layer.exact else (self.space["wide Y"], [self.move(self.space["wide Y"], target)])

    def enter(self, d: int, begin: int, end: int, out: Any, packed: str = "W") -> list[Do]:
        """The products of the inputs for gates `begin` to `end`, into [steps, batch, ...]."""
        h, X = self.layer.hidden, self.arrays["X"]
        rows = slice(begin * h, end * h)
        bias, weights = self.space["bias"][rows], self.space[packed]
        at: Iterable[int | slice] = range(self.layer.steps) if self.layer.parted else (slice(None),)
        calls = [(t, self.call(self.packs[packed], X[t], weights, out[t], bias=bias)) for t in at]
        self.of_input += [(call, "a", t) for t, call in calls]
        return [self.lay(packed, self.arrays["W"][d][rows], turned=True), *(call for _, call in calls)]

    def ends(self, d: int, sources: Mapping[str, str]) -> list[Do]:
        """Copies the last states from what is kept of all steps."""
        at = self.layer.order(d)[-1]
        wanted = [(self.array(name, d), self.arrays[source]) for name, source in sources.items()]
        return [copied(out, kept[at, d]) for out, kept in wanted if out is not None]
