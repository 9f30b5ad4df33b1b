"""Recurrent networks: LSTM, GRU and RNN over whole sequences.

https://oneapi-src.github.io/oneDNN/dev_guide_rnn.html. ONNX keeps the two biases apart and orders gates and the axes of
its results in its own way: weights and biases are packed ahead, results of two directions are reordered after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ....ops import DType, Tensor, Type
from ....ops.core.fused import ABSENT
from ....ops.dataclasses import dataclass
from ....ops.types import Array
from ...compile.kernel import Choice, KernelRequest
from .api import BIAS, DST, DST_1, DST_2, SRC, SRC_1, SRC_2, WEIGHTS, WEIGHTS_1, WEIGHTS_2, Refused
from .kernel import WORK, OneDnn, chosen, floats
from .library import library
from .memory import ANY, Memory, layout_of, nbytes, strides_of
from .postops import Link, keeping, only
from .primitive import Descriptor, Draft, Operand, Place, reorder, repacked

# the order of ONNX's gates that oneDNN wants: i, o, f, c become i, f, c, o; z, r, h stay
GATES = {"LSTM": (0, 2, 3, 1), "GRU": (0, 1, 2), "RNN": (0,)}
DIRECTIONS = {"forward": 1, "reverse": 2, "bidirectional": 3}
DEFAULTS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}
ACTIVATIONS = {
    "tanh": "eltwise_tanh",
    "relu": "eltwise_relu",
    "leakyrelu": "eltwise_relu",
    "sigmoid": "eltwise_logistic",
}
W, R, B, LENGTHS, H, C, P = range(1, 8)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Steps, batch, inputs, hidden units, directions, gates; and whether the batch axis comes before the steps."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: int
    gates: int
    batch_first: bool

    def state(self, dtype: DType) -> Memory:
        """A state: oneDNN has layer, direction, batch, unit."""
        dims = (1, self.directions, self.batch, self.hidden)
        return Memory(dims, dtype, strides=strides_of("acbd", dims) if self.batch_first else None)

    def sequence(self, dtype: DType, width: int, layout: str = "") -> Memory:
        """A sequence: oneDNN has step, batch, element."""
        dims = (self.steps, self.batch, width)
        order = layout or "abc"
        if self.batch_first:  # the letters name ONNX's axes
            order = order.translate(str.maketrans("ab", "ba"))
        return Memory(dims, dtype, strides=strides_of(order, dims))


class Recurrent(OneDnn):
    """LSTM, GRU and RNN with constant weights, in one or both directions, with any of their results.

    `ref` is oneDNN's name for the form over its own matrix product, which reads weights as they are; for one sequence
    at a time it is mostly the faster one, and without AVX-512 there is no other.
    """

    name = "onednn.recurrent"
    ops = frozenset(GATES)
    slow = ()

    def plans(self, request: KernelRequest) -> Iterator[tuple[Draft, ...]]:
        """The primitive, and the reordering of what two directions give."""
        link = only(request.node)
        keeping(request, link)
        sizes = _sizes(request, link)
        _usual(request, link, sizes)
        (x,) = floats(request, link.operands[:1])
        for plain in (True, False) if _reads_only(request, sizes) else (False, True):
            yield _drafts(request, link, sizes, x, plain)

    def pack(self, request: KernelRequest, choice: Choice, index: int, array: Array) -> Array:
        """Weights and biases with the gates in oneDNN's order."""
        descriptors = chosen(choice, request.target)
        link = only(request.node)
        sizes, order = _sizes(request, link), GATES[link.op]
        if index in (W, R):
            operand = descriptors[0].draft.at(("in", index))[0]
            assert operand.source is not None
            gates = array.reshape(sizes.directions, sizes.gates, sizes.hidden, -1)[:, order, :]
            target = _target(descriptors[0], operand)
            return repacked(np.ascontiguousarray(gates), operand.source, target)
        if index == P:  # i, o, f
            peepholes = array.astype(np.float32).reshape(sizes.directions, 3, -1)[:, (0, 2, 1)]
            return np.ascontiguousarray(peepholes).reshape(-1).view(np.uint8)
        halves = array.astype(np.float32).reshape(sizes.directions, 2, sizes.gates, -1)[:, :, order]
        if link.op == "GRU" and link.attr("linear_before_reset"):
            # the candidate's recurrent bias is added before the reset, so that it stays apart
            both = np.concatenate([halves.sum(1)[:, :2], halves[:, 0, 2:], halves[:, 1, 2:]], 1)
        else:
            both = halves.sum(1)
        return np.ascontiguousarray(both, np.float32).reshape(-1).view(np.uint8)

    def _layout(
        self, request: KernelRequest, descriptors: Sequence[Descriptor], place: Place, type: Type | None
    ) -> str:
        side, index = place
        if side == "in" and index in (W, R, B, P) and descriptors[0].draft.at(place):
            return _packed(descriptors[0], request.node.op, place)
        return super()._layout(request, descriptors, place, type)


# Bytes of recurrent weights between which two threads read packed ones faster than one thread reads plain ones, on
# processors with AMX, whose second-level caches hold 2 MiB (LSTM of 64 steps, microseconds, packed and plain: 128 units
# 306 and 321, 256 units 597 and 674, 512 units 3342 and 4514; but 64 units 154 and 88, 1024 units 20.1 and 17.0 ms).
SHARED_WEIGHTS = range(1 << 17, 1 << 23)


def _reads_only(request: KernelRequest, sizes: _Sizes) -> bool:
    """True if reading the weights dominates, so that plain ones are best: products with one column."""
    if sizes.batch > 1 or sizes.steps == 1:
        return False
    loaded = library()
    shared = request.target.threads > 1 and loaded is not None and loaded.amx
    return not (shared and 4 * sizes.gates * sizes.hidden**2 in SHARED_WEIGHTS)


def _drafts(request: KernelRequest, link: Link, sizes: _Sizes, x: Tensor, plain: bool) -> tuple[Draft, ...]:
    dtype, states = x.dtype, 2 if link.op == "LSTM" else 1
    gates, two = sizes.gates, sizes.directions == 2
    layout = x.layout if x.layout in ("abc", "bac") else ""
    operands = [Operand(SRC, ("in", 0), sizes.sequence(dtype, sizes.inputs, layout), layout)]
    wanted = [bool(name) for name in request.node.outputs] + [False] * (1 + states - len(request.node.outputs))
    starts = [link.operand(i) for i in (H, C)[:states]]
    initial, kept = any(at != ABSENT for at in starts), any(wanted[1:])
    if dtype is not DType.FLOAT and (initial or kept):  # oneDNN wants both or neither
        initial = kept = True
    if initial:
        for argument, at in zip((SRC_1, SRC_2), starts, strict=False):
            state = sizes.state(dtype)
            operands.append(_zeros(argument, state) if at == ABSENT else Operand(argument, ("in", at), state))
    for argument, at, rows in ((WEIGHTS, W, sizes.inputs), (WEIGHTS_1, R, sizes.hidden)):
        dims = (1, sizes.directions, rows, gates, sizes.hidden)
        memory = Memory(dims, dtype)
        source = Memory(dims, dtype, strides=strides_of("abdec", dims))
        operands.append(Operand(argument, ("in", at), memory if plain else memory.any(), source=source))
    biases = gates + (link.op == "GRU" and bool(link.attr("linear_before_reset")))
    bias = Memory((1, sizes.directions, biases, sizes.hidden), DType.FLOAT)
    # oneDNN has no fast form without a bias
    operands.append(_zeros(BIAS, bias) if link.operand(B) == ABSENT else Operand(BIAS, ("in", B), bias))
    if link.operand(P) != ABSENT:
        operands.append(Operand(WEIGHTS_2, ("in", P), Memory((1, sizes.directions, 3, sizes.hidden), DType.FLOAT)))
    moved = two and not sizes.batch_first and sizes.batch > 1 and wanted[0]
    place: Place = (WORK, 0) if moved or not wanted[0] else ("out", 0)
    operands.append(Operand(DST, place, sizes.sequence(dtype, sizes.directions * sizes.hidden)))
    if kept:
        for i, argument in enumerate((DST_1, DST_2)[:states], 1):
            operands.append(Operand(argument, ("out", i) if wanted[i] else (WORK, i), sizes.state(dtype)))
    draft = Draft(_kind(link), tuple(operands), _settings(link))
    if not moved:
        return (draft,)
    shape = (sizes.steps, sizes.directions, sizes.batch, sizes.hidden)
    source = Memory(shape, dtype, strides=strides_of("acbd", shape))
    return draft, Draft("reorder", (Operand(SRC, (WORK, 0), source), Operand(DST, ("out", 0), Memory(shape, dtype))))


def _zeros(argument: int, memory: Memory) -> Operand:
    """An operand that the step has not got: zero throughout."""
    return Operand(argument, ("given", argument), memory, value=bytes(nbytes(memory.handle.value)))


def _sizes(request: KernelRequest, link: Link) -> _Sizes:
    """The sizes, from the types of the sequence and of the recurrent weights."""
    x, recurrent = floats(request, (link.operands[0], link.operands[R]))
    first, second, inputs = x.sizes
    batch_first = bool(link.attr("layout"))
    steps, batch = (second, first) if batch_first else (first, second)
    directions, rows, hidden = recurrent.sizes
    return _Sizes(steps, batch, inputs, hidden, directions, rows // hidden, batch_first)


def _usual(request: KernelRequest, link: Link, sizes: _Sizes) -> None:
    """Raises Refused for what oneDNN does not compute as ONNX means it."""
    if len({t.dtype for i, t in enumerate(request.inputs) if isinstance(t, Tensor) and i != LENGTHS}) > 1:
        raise Refused("operands are of different types")
    for i in (W, R, B, P):
        if link.operand(i) != ABSENT and not request.constant(i):
            raise Refused("the weights are no constants")
    if link.operand(LENGTHS) != ABSENT:
        raise Refused("sequences have lengths of their own")
    if link.attr("clip") is not None:
        raise Refused("inputs of activations are clipped")
    if link.op == "LSTM" and link.attr("input_forget"):
        raise Refused("the forget gate is coupled to the input gate")
    if link.op != "RNN" and _activations(link) != DEFAULTS[link.op] * sizes.directions:
        raise Refused("activations are not the usual ones")


def _activations(link: Link) -> tuple[str, ...]:
    """The names of the activation functions, in small letters."""
    directions = 2 if link.attr("direction") == "bidirectional" else 1
    if link.op == "RNN":
        return tuple(n.lower() for n in link.attr("activations") or ("tanh", "tanh"))[:directions]
    names = link.attr("activations")
    return tuple(n.lower() for n in names) if names else DEFAULTS[link.op] * directions


def _kind(link: Link) -> str:
    if link.op == "GRU":
        return "lbr_gru_forward" if link.attr("linear_before_reset") else "gru_forward"
    return "lstm_forward" if link.op == "LSTM" else "vanilla_rnn_forward"


def _settings(link: Link) -> tuple[int | str | float, ...]:
    """The direction; of an RNN its function too."""
    direction = DIRECTIONS[link.attr("direction")]
    if link.op != "RNN":
        return (direction,)
    names, alphas = _activations(link), link.attr("activation_alpha")
    if len(set(names)) > 1 or names[0] not in ACTIVATIONS:
        raise Refused(f"activations are {', '.join(names)}")
    slopes = {0.0}
    if names[0] == "leakyrelu":
        slopes = set((list(alphas or ()) + [0.01] * len(names))[: len(names)])
    if len(slopes) > 1:
        raise Refused("each direction has a slope of its own")
    if names[0] == "leakyrelu" and 0 in slopes:
        raise Refused("a rectifier whose slope is 0 makes numbers of NaN")
    return direction, ACTIVATIONS[names[0]], slopes.pop()


def _target(primitive: Descriptor, operand: Operand) -> int:
    """The descriptor that the primitive wants of an operand."""
    return primitive.memory(operand.argument) if operand.memory.layout == ANY else operand.memory.handle.value


def _packed(primitive: Descriptor, op: str, place: Place) -> str:
    """The layout of packed weights or biases, which says all that their bytes depend on."""
    (operand,) = primitive.draft.at(place)
    descriptor = _target(primitive, operand)
    shown = ",".join(map(str, operand.memory.dims))
    if operand.source is None:
        kind = f"{primitive.draft.kind}.{operand.argument}"
    else:
        kind = layout_of(descriptor) or ""
        if not kind:
            # packed for oneDNN's matrix product, in a form that depends on everything around it, and which oneDNN
            # may ask for without being able to make it: of a GRU over one step it is
            reorder(operand.source.handle.value, descriptor)
            kind = f"packed.{','.join(map(str, primitive.draft.operands[0].memory.dims))}"
    return f"{op}.{kind}({shown})={nbytes(descriptor)}"
