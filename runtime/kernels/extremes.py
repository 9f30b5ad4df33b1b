"""ReduceMax and ReduceMin into their slots. oneDNN's reductions begin with the largest finite number and skip NaN, so
that infinities and NaN would be lost."""

from __future__ import annotations

import numpy as np

from ...ops import Tensor
from ..graph import Node
from .kernel import Ask, Call, Choice, Declined, Work, tensors

UFUNCS = {"ReduceMax": np.maximum, "ReduceMin": np.minimum}


class Extremes:
    """`np.maximum.reduce(x, axis, out=)` along known axes."""

    name = "numpy.extremes"

    def serves(self, node: Node) -> bool:
        return not node.domain and node.op in UFUNCS

    def select(self, ask: Ask) -> Choice | Declined:
        found = tensors([t for t in ask.inputs if t is not None])
        if found is None or not found[0].static or not found[0].elements:
            return Declined("sizes are not known, or there are no elements")
        x = found[0]
        if x.dtype.numpy.isbuiltin != 1:
            return Declined(f"{x.dtype} is not one of NumPy's own types")
        axes = _axes(ask, x)
        return Declined("the axes are not known") if axes is None else Choice(self.name, {"axes": axes})

    def prepare(self, work: Work) -> Call:
        x, out, axes = work.inputs[0], work.outputs[0], tuple(work.choice.params["axes"])
        assert x is not None and out is not None
        if not axes:
            return lambda: np.copyto(out, x.reshape(out.shape))
        reduce = UFUNCS[work.node.op].reduce
        kept = out.reshape([1 if d in axes else n for d, n in enumerate(x.shape)])
        return lambda: reduce(x, axis=axes, out=kept, keepdims=True)


def _axes(ask: Ask, x: Tensor) -> tuple[int, ...] | None:
    """The axes to go, in order; None where they are not known before the run."""
    given = ask.inputs[1] if len(ask.inputs) > 1 else None
    if given is None:
        chosen: list[int] | None = []
    else:
        chosen = given.ints() if isinstance(given, Tensor) and ask.constant(1) else None
    if chosen is None:
        return None
    if not chosen and not ask.node.attrs.get("noop_with_empty_axes", 0):
        chosen = list(range(x.rank))
    return tuple(sorted({a % x.rank for a in chosen}))
