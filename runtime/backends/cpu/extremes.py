"""Extremes and their positions, written into their slots. oneDNN's reductions begin with the largest finite number and
skip NaN, so that infinities and NaN would be lost."""

from __future__ import annotations

import numpy as np

from ....ops import Tensor
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, tensors
from ...ir.graph import Node

UFUNCS = {"ReduceMax": np.maximum, "ReduceMin": np.minimum, "GlobalMaxPool": np.maximum}
PLACES = {"ArgMax": np.argmax, "ArgMin": np.argmin}


class Extremes:
    """`np.maximum.reduce(x, axis, out=)` along known axes."""

    name = "numpy.extremes"

    def serves(self, node: Node) -> bool:
        return not node.domain and node.op in UFUNCS

    def select(self, ask: KernelRequest) -> Choice | Declined:
        found = tensors([t for t in ask.inputs if t is not None])
        if found is None or not found[0].static or not found[0].elements:
            return Declined("sizes are not known, or there are no elements")
        x = found[0]
        if x.dtype.numpy.isbuiltin != 1:
            return Declined(f"{x.dtype} is not one of NumPy's own types")
        axes = axes_of(ask, x)
        return Declined("the axes are not known") if axes is None else Choice(self.name, {"axes": axes})

    def prepare(self, work: KernelArgs) -> Call:
        x, out, axes = work.inputs[0], work.outputs[0], tuple(work.choice.params["axes"])
        assert x is not None and out is not None
        if not axes:
            return lambda: np.copyto(out, x.reshape(out.shape))
        reduce = UFUNCS[work.node.op].reduce
        kept = out.reshape([1 if d in axes else n for d, n in enumerate(x.shape)])
        return lambda: reduce(x, axis=axes, out=kept, keepdims=True)


class ExtremePlaces:
    """ArgMax and ArgMin: `np.argmax(x, axis, out=)`, the first of equals."""

    name = "numpy.places"

    def serves(self, node: Node) -> bool:
        return not node.domain and node.op in PLACES

    def select(self, ask: KernelRequest) -> Choice | Declined:
        found = tensors([*ask.inputs, *ask.outputs])
        if found is None or not all(t.static and t.elements for t in found):
            return Declined("sizes are not known, or there are no elements")
        if found[0].dtype.numpy.isbuiltin != 1:
            return Declined(f"{found[0].dtype} is not one of NumPy's own types")
        if ask.node.attrs.get("select_last_index"):
            return Declined("the last of equals is asked for")
        return Choice(self.name)

    def prepare(self, work: KernelArgs) -> Call:
        x, out = work.inputs[0], work.outputs[0]
        assert x is not None and out is not None
        axis = work.node.attrs.get("axis", 0) % x.ndim
        place = PLACES[work.node.op]
        kept = out.reshape([n for d, n in enumerate(x.shape) if d != axis])
        return lambda: place(x, axis, out=kept)


def axes_of(ask: KernelRequest, x: Tensor) -> tuple[int, ...] | None:
    """The axes to go, in order; None where they are not known before the run."""
    if ask.node.op == "GlobalMaxPool":
        return tuple(range(2, x.rank))
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
