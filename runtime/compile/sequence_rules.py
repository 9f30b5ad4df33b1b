"""Rules of padding (see padding_rules.py) for operators along a sequence: recurrent layers, sorts, running sums, and
transforms of signals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...ops import Tensor
from ...ops.dataclasses import dataclass
from ...ops.types import Array
from ..ir.graph import Node
from ..memory.shared_constants import derived
from .padding import OWN, Axis, PaddedGraph, PaddedValue
from .padding_rules import dtypes, operands, refused, replaced, rule_for, typed
from .sizes import Size, as_terms, minus
from .template import Traced

USUAL = ["Sigmoid", "Tanh", "Tanh"]
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
X, W, R, B, LENGTHS, H, C, P = range(8)
# Behind a sigmoid 1, and its negative 0, whatever else the gate reads: cells grow with the steps, and a peephole reads
# them. It is finite in the type, since 0 times infinity would be NaN where nothing is to be shut.
SHUT, NARROW_SHUT = 1e30, 3e4


def walked_axes(traced: Traced) -> Iterator[Any]:
    """The sizes of axes along which recurrent layers go."""
    for node in traced.graph.nodes:
        walks = node.record.kind == "recurrent" and not node.domain
        known = traced.graph.types.get(node.inputs[X]) if walks else None
        if isinstance(known, Tensor) and known.dims is not None:
            yield known.dims[int(bool(node.attrs.get("layout", 0)))]


@dataclass(frozen=True, slots=True)
class StepAxes:
    """The axis of a recurrent layer's steps, at `first` of its sequences (0, or 1 where batches come before), and that
    of the batch."""

    first: int
    steps: Axis
    batch: Axis

    @property
    def size(self) -> Size:
        return self.steps[0]


@rule_for("LSTM", "GRU", "RNN")
def recurrent(g: PaddedGraph, node: Node) -> None:
    """LSTM, GRU and RNN: one direction at a time, for which padding comes last; the state behind the last step that
    counts is read from the results. The sequences of a batch may be padded as their states are."""
    names = [*node.inputs, *[""] * (8 - len(node.inputs))]
    x, first = g.value(names[X]), int(bool(node.attrs.get("layout", 0)))
    at = StepAxes(first, x.axes[first], x.axes[1 - first])
    _check_operands(g, node, names, at)
    if g.pads(at.steps) and len(at.steps) > 1:
        raise refused(node, "steps are made of several sizes")
    if names[LENGTHS] or not g.pads(at.steps):  # lengths of their own count no padding
        as_it_is(g, node, names, at)
        return
    ways = DIRECTIONS[str(node.attrs.get("direction", "forward"))]
    if len(ways) > 1 and (node.attrs.get("activation_alpha") or node.attrs.get("activation_beta")):
        raise refused(node, "numbers of activations are told for both directions together")
    wanted = (*node.outputs, "", "")[:3]
    for d, back in enumerate(ways):
        one_way(g, node, names, at, d if len(ways) > 1 else None, back)
    for i, output in enumerate(wanted):
        if output and len(ways) > 1:
            axis = first if i else first + 1
            parts = [f"{output}@{d}" for d in range(len(ways))]
            padded = g.value(parts[0])
            both = PaddedValue(padded.dtype, replaced(padded.axes, axis, (len(ways),)))
            g.emit(node, parts, {output: both}, op="Concat", domain="", attrs={"axis": axis})


def _check_operands(g: PaddedGraph, node: Node, names: Sequence[str], at: StepAxes) -> None:
    """Raise NotPadded for padding where none can be: in features, in weights, in states that are not those of the
    sequences."""
    weights = [axis for i in (W, R, B, P) if names[i] for axis in g.value(names[i]).axes]
    if any(map(g.pads, (*g.value(names[X]).axes[2:], *weights))):
        raise refused(node, "features or weights have padding")
    for i, axis in ((H, 1 - at.first), (C, 1 - at.first), (LENGTHS, 0)):
        axes = g.value(names[i]).axes if names[i] else ()
        others = [a for n, a in enumerate(axes) if n != axis]
        if any(map(g.pads, others)) or (axes and g.pads(at.batch) and axes[axis] != at.batch):
            raise refused(node, "states or lengths are padded in another way than sequences")


def as_it_is(g: PaddedGraph, node: Node, names: Sequence[str], at: StepAxes) -> None:
    """A layer that reads no step of padding."""
    inputs = list(names)
    if inputs[LENGTHS]:
        inputs[LENGTHS] = g.filled(node, inputs[LENGTHS], 0, 0.0)
        if g.pads(at.steps):
            inputs[LENGTHS] = _within(g, node, inputs[LENGTHS], at)
    directions, _, hidden = g.value(names[R]).axes
    results_padded = zip(node.outputs, _results(g, names, at, directions, hidden), strict=False)
    results = {o: padded for o, padded in results_padded if o}
    g.emit(node, inputs[: len(node.inputs)], results)


def _within(g: PaddedGraph, node: Node, lengths: str, at: StepAxes) -> str:
    """The lengths, none above the steps that count: a longer sequence ends with these, and would go on in padding."""
    padded, steps, result = g.value(lengths), f"{OWN}{len(g.nodes)}", f"{OWN}{len(g.nodes) + 1}"
    to = {"to": padded.dtype.onnx}
    g.emit(node, (g.count(as_terms(at.size)),), {steps: PaddedValue(padded.dtype, ())}, op="Cast", domain="", attrs=to)
    g.emit(node, (lengths, steps), {result: padded}, op="Min", domain="", attrs={})
    return result


def _results(g: PaddedGraph, names: Sequence[str], at: StepAxes, directions: Axis, hidden: Axis) -> list[PaddedValue]:
    """The states behind each step, and twice those behind the last one."""
    dtype = g.value(names[X]).dtype
    y = (at.batch, at.steps, directions, hidden) if at.first else (at.steps, directions, at.batch, hidden)
    last = (at.batch, directions, hidden) if at.first else (directions, at.batch, hidden)
    fills = {at.first: 0.0} if names[LENGTHS] and g.pads(at.steps) else {}
    return [PaddedValue(dtype, y, fills), PaddedValue(dtype, last), PaddedValue(dtype, last)]


def one_way(g: PaddedGraph, node: Node, names: Sequence[str], at: StepAxes, d: int | None, back: bool) -> None:
    """One direction, whose results have the names of the node's, with its number `d` if there are two."""
    outputs = [o and (o if d is None else f"{o}@{d}") for o in (*node.outputs, "", "")[:3]]
    inputs = list(names)
    for i, axis in ((W, 0), (R, 0), (B, 0), (P, 0), (H, at.first), (C, at.first)):
        if inputs[i] and d is not None:
            inputs[i] = _part(g, node, inputs[i], axis, d)
    attrs = {**node.attrs, "direction": "forward"}
    if d is not None and node.attrs.get("activations"):
        count = len(node.attrs["activations"]) // 2
        attrs["activations"] = node.attrs["activations"][d * count :][:count]
    terms = as_terms(at.size)
    if back:
        inputs[X] = _reversed(g, node, inputs[X], at, f"{OWN}{len(g.nodes)}")
    if outputs[2]:
        inputs[X], inputs[W] = _closed_behind(g, node, inputs[X], inputs[W], attrs, at)
    states = outputs[0] if outputs[0] and not back else f"{OWN}{len(g.nodes)}"
    y, _, last = _results(g, names, at, (), g.value(names[R]).axes[2])
    results = {states: y}
    if outputs[2]:
        results |= {f"{states}@last": last, outputs[2]: last}
    while not inputs[-1]:
        inputs.pop()
    g.emit(node, inputs, results, op=node.op, domain="", attrs=attrs)
    if outputs[1]:
        end = g.place(g.array([minus(terms, as_terms(1))], ()), [at.steps])
        g.emit(node, (states, end), {outputs[1]: last}, op="Gather", domain="", attrs={"axis": at.first})
    if outputs[0] and back:
        _reversed(g, node, states, at, outputs[0])


def _reversed(g: PaddedGraph, node: Node, name: str, at: StepAxes, result: str) -> str:
    """The steps that count in the opposite order."""
    padded, terms = g.value(name), as_terms(at.size)
    turned = PaddedValue(padded.dtype, padded.axes, {**padded.fills, at.first: 0.0})
    g.emit(node, (name, g.count(terms)), {result: turned}, op="ReverseHead", domain="mezzo", attrs={"axis": at.first})
    return result


def _part(g: PaddedGraph, node: Node, name: str, axis: int, d: int) -> str:
    """The part of weights or states that a direction has."""
    padded = g.value(name)
    result, one = f"{name}@{d}", PaddedValue(padded.dtype, replaced(padded.axes, axis, ()))
    array = g.constants.get(name)
    if array is not None and axis == 0:
        g.constants[result] = derived(array, f"direction {d}", lambda: array[d : d + 1])
        g.known[result] = one
        return result
    ends = [g.constant(np.array([n], np.int64)) for n in (d, d + 1, axis)]
    g.emit(node, (name, *ends), {result: one}, op="Slice", domain="", attrs={})
    return result


def _closed_behind(g: PaddedGraph, node: Node, x: str, w: str, attrs: dict[str, Any], at: StepAxes) -> tuple[str, str]:
    """Sequences with one more feature, which is 1 in the padding, and weights for which it shuts the gates there: the
    cells of an LSTM stay as they are behind the last step that counts."""
    weights, padded = g.constants.get(w), g.value(x)
    if weights is None or attrs.get("clip") or [*(attrs.get("activations") or USUAL)] != USUAL:
        raise refused(node, "its last cells are asked for, and gates of other functions or weights do not shut")

    def with_column() -> Array:
        gates = np.zeros((1, 4, weights.shape[1] // 4, 1), weights.dtype)
        shut = NARROW_SHUT if weights.dtype == np.float16 else SHUT
        gates[:, 0], gates[:, 2] = -shut, shut  # nothing comes in, nothing is forgotten
        return np.concatenate([weights, gates.reshape(1, -1, 1)], 2)

    wide = f"{w}@closed"
    g.constants[wide] = derived(weights, "closed", with_column)
    g.known[wide] = PaddedValue(padded.dtype, (*g.value(w).axes[:2], (weights.shape[2] + 1,)))
    axes = (*padded.axes[:2], ())
    told = g.constant(np.zeros(g.sizes(axes), padded.dtype.numpy))
    g.known[told] = PaddedValue(padded.dtype, axes)
    told = g.filled(node, told, at.first, 1.0)
    clean = g.filled(node, x, at.first, 0.0)
    result = f"{OWN}{len(g.nodes)}"
    both = PaddedValue(padded.dtype, replaced(padded.axes, 2, (weights.shape[2] + 1,)))
    g.emit(node, (clean, told), {result: both}, op="Concat", domain="", attrs={"axis": 2})
    return result, wide


@rule_for("TopK")
def best(g: PaddedGraph, node: Node) -> None:
    """TopK, which sorts: behind the least that there is, or where the smallest are asked for the greatest, what counts
    comes first, elements that equal it too. NaN is the greatest."""
    x, name = g.value(node.inputs[0]), node.inputs[0]
    axis, count = int(node.attrs.get("axis", -1)) % len(x.axes), _number(g, node.inputs[1])
    if count is None:
        raise refused(node, "how many are asked for is not known")
    if g.pads(x.axes[axis]):
        if len(x.axes[axis]) > 1:
            raise refused(node, "its axis has several sizes")
        smallest = np.nan if x.dtype.floating else np.inf
        name = g.filled(node, name, axis, -np.inf if node.attrs.get("largest", 1) else smallest)
    many = node.inputs[1]
    if g.padded(count):
        many = g.constant(np.array([g.planned(count)], np.int64))
    axes = replaced(x.axes, axis, () if count == 1 else (count,))
    kept = zip(node.outputs, dtypes(g, node), strict=False)
    g.emit(node, (name, many), {o: PaddedValue(d, axes) for o, d in kept if o})


def _number(g: PaddedGraph, name: str) -> Size | None:
    """The single element of a constant, or of what follows from sizes; None where data tell it."""
    array = g.traced.graph.initializers.get(name)
    if array is None or np.size(array) != 1 or np.asarray(array).dtype.kind not in "iuO":
        return None
    g.value(name)
    return g.normal.of(np.asarray(array).ravel().tolist()[0])


@rule_for("CumSum", "CumProd")
def running(g: PaddedGraph, node: Node) -> None:
    """Running sums and products: from the beginning they read what counts first, from the end what changes nothing."""
    x, axes, name = g.value(node.inputs[0]), g.ints(node.inputs[1]), node.inputs[0]
    axis = None if axes is None else axes[0] % len(x.axes)
    if axis is None or len(x.axes[axis]) > 1:
        raise refused(node, "its axis is not known, or several sizes")
    if node.attrs.get("reverse", 0):
        name = g.filled(node, name, axis, float(node.op == "CumProd"))
    g.emit(node, (name, *node.inputs[1:]), {node.outputs[0]: PaddedValue(x.dtype, x.axes)})


@rule_for("DFT")
def transform(g: PaddedGraph, node: Node) -> None:
    """DFT over a number of elements that no size changes: fewer are continued by zeros."""
    x, *_ = operands(g, node)
    assert x is not None
    names = (*node.inputs, "", "")[:3]
    axes = g.ints(names[2]) if names[2] else [int(node.attrs.get("axis", -2))]
    length = g.ints(names[1]) if names[1] else None
    if axes is None or g.pads(x.axes[-1]):
        raise refused(node, "its axis is not known, or numbers have padding")
    axis, name = axes[0] % len(x.axes), names[0]
    if g.pads(x.axes[axis]):
        if length is None:
            raise refused(node, "the transform of more elements has other frequencies")
        if len(x.axes[axis]) > 1:
            raise refused(node, "its axis has several sizes")
        name = g.filled(node, name, axis, 0.0)
    (sizes,) = typed(g, node)
    changed = {a: () if sizes[a] == 1 else (sizes[a],) for a in (axis, len(sizes) - 1)}
    padded = PaddedValue(x.dtype, tuple(changed.get(a, old) for a, old in enumerate(x.axes)))
    g.emit(node, (name, *node.inputs[1:]), {node.outputs[0]: padded})


@rule_for("STFT")
def frames(g: PaddedGraph, node: Node) -> None:
    """STFT of as many frames as are planned for those that count: the signal is continued, or cut, to just these."""
    x, *others = operands(g, node)
    assert x is not None
    (sizes,) = typed(g, node)
    step, name = g.ints(node.inputs[1]), node.inputs[0]
    if g.pads(x.axes[2]) or any(o is not None and any(map(g.pads, o.axes)) for o in others):
        raise refused(node, "numbers or the window have padding")
    if g.pads(x.axes[1]):
        length = _number(g, node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else None
        if length is None and len(node.inputs) > 2 and node.inputs[2]:
            length = g.normal.of(g.dims_of(node.inputs[2])[0])
        if step is None or not isinstance(length, int) or len(x.axes[1]) > 1:
            raise refused(node, "frames follow a size that is rounded up")
        (had,), read = g.sizes(x.axes[1:2]), (g.planned(sizes[1]) - 1) * step[0] + length
        ends, axis = [g.constant(np.array([n], np.int64)) for n in (0, min(had, read))], g.constant(np.array([1]))
        cut, longer = f"{OWN}{len(g.nodes)}", f"{OWN}{len(g.nodes)}@"
        axes = replaced(x.axes, 1, (read,))
        g.emit(node, (name, *ends, axis), {cut: PaddedValue(x.dtype, axes)}, op="Slice", domain="", attrs={})
        name = cut
        if read > had:
            more = g.constant(np.array([0, read - had], np.int64))
            g.emit(node, (cut, more, "", axis), {longer: PaddedValue(x.dtype, axes)}, op="Pad", domain="", attrs={})
            name = longer
    axes = (x.axes[0], *((() if s == 1 else (s,)) for s in sizes[1:]))
    g.emit(node, (name, *node.inputs[1:]), {node.outputs[0]: PaddedValue(x.dtype, axes)})
