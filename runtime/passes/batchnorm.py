"""Folding of per-channel scales and shifts, and of batch normalisation, into the convolution before them.

Batch normalisation with fixed statistics is a scale and a shift, and remains one where no convolution precedes it.

https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
"""

from __future__ import annotations

import numpy as np

from ...ops import DType, Tensor
from ...ops.types import Array
from ..ir.graph import Node
from .rewrite import Leaf, Match, Pattern, Replacement, Rule

_STATISTICS = tuple(Leaf(name, constant=True) for name in ("scale", "shift", "mean", "var"))


def _fixed(m: Match) -> str | None:
    if m.attr("training_mode") or any(m.root.outputs[1:]):
        return "it computes its statistics"
    x = m.tensor(m.input(0))
    if x is None or x.dtype is not DType.FLOAT or x.dims is None:
        return f"the input is {x}"
    return _unheld(*_scale_and_shift(m))


def _after_convolution(m: Match) -> str | None:
    return _constant_weights(m) or _fixed(m) or _scaled_beyond(m, *_scale_and_shift(m))


def _unheld(*numbers: Array) -> str | None:
    """Why float32 does not hold numbers, if so: infinities would meet in sums, or zeros, where there was no NaN."""
    held = all(np.abs(n).max(initial=0) <= np.finfo(np.float32).max for n in numbers)
    return None if held else "a scale or shift is beyond float32"


def _scaled_beyond(m: Match, factor: Array, shift: Array) -> str | None:
    """Why float32 might not hold the weights or the bias times a factor, if so."""
    most = np.abs(factor).max(initial=0)
    conv = _convolution(m)
    known = (np.asarray(m.constant(i), np.float64) for i in conv.inputs[1:] if i)
    return _unheld(*(np.abs(a).max(initial=0) * most + np.abs(shift).max(initial=0) for a in known))


def _constant_weights(m: Match) -> str | None:
    conv = _convolution(m)
    known = [m.constant(i) if i else None for i in conv.inputs[1:]]
    if any(i and a is None for i, a in zip(conv.inputs[1:], known, strict=True)):
        return "weights or bias of the convolution are not known"
    return None


def _convolution(m: Match) -> Node:
    return next(n for n in m.nodes if n.op in ("Conv", "ConvTranspose"))


def _per_channel(m: Match) -> str | None:
    """The constant has one number for each channel, or one for all."""
    y, c = m.tensor(m.root.outputs[0]), m.constant(m.values["c"])
    if y is None or y.dims is None or y.dtype is not DType.FLOAT or c is None:
        return f"the result is {y}"
    before = m.tensor(_convolution(m).outputs[0])
    if before != y:
        return f"{before} becomes {y}"
    if m.root.op == "Div" and not np.all(np.asarray(c)):
        return "it divides by zero"
    dims = (1,) * (len(y.dims) - np.ndim(c)) + np.shape(c)
    if len(dims) != len(y.dims) or dims[1] not in (1, y.dims[1]) or any(d != 1 for d in (dims[0], *dims[2:])):
        return "the constant is not one number for each channel"
    return _constant_weights(m) or _scaled_beyond(m, *_constant_scale_and_shift(m))


def _constant_scale_and_shift(m: Match) -> tuple[Array, Array]:
    """The two numbers for each channel of a constant, in float64; one of them changes nothing."""
    c, w = np.asarray(m.constant(m.values["c"]), np.float64).reshape(-1), m.tensor(_convolution(m).inputs[1])
    conv = _convolution(m)
    assert w is not None
    channels = w.sizes[0] if conv.op == "Conv" else w.sizes[1] * conv.attrs.get("group", 1)
    c, ones, zero = np.broadcast_to(c, (channels,)), np.ones(channels), np.zeros(channels)
    if m.root.op in ("Mul", "Div"):
        return c if m.root.op == "Mul" else 1 / c, zero
    return ones, c if m.root.op == "Add" else -c


def _folded_constant(m: Match) -> Replacement:
    return _scaled(m, *_constant_scale_and_shift(m))


def _scale_and_shift(m: Match) -> tuple[Array, Array]:
    """The two numbers for each channel, in float64."""
    arrays = (m.constant(m.values[n]) for n in ("scale", "shift", "mean", "var"))
    scale, shift, mean, var = (np.asarray(a, np.float64) for a in arrays)
    with np.errstate(all="ignore"):  # what is no number declines the rule
        factor = scale / np.sqrt(var + m.attr("epsilon"))
        return factor, shift - mean * factor


def _into_convolution(m: Match) -> Replacement:
    return _scaled(m, *_scale_and_shift(m))


def _scaled(m: Match, factor: Array, shift: Array) -> Replacement:
    """The convolution with each filter times a factor, plus a shift."""
    conv, root = _convolution(m), m.root
    w = np.asarray(m.constant(conv.inputs[1]), np.float64)
    b = m.constant(conv.inputs[2]) if len(conv.inputs) > 2 and conv.inputs[2] else None
    if conv.op == "Conv":
        w = w * factor.reshape(-1, *(1,) * (w.ndim - 1))
    else:  # input channels first, then the filters of each group
        group = conv.attrs.get("group", 1)
        split = w.reshape(group, -1, *w.shape[1:]) * factor.reshape(group, 1, w.shape[1], *(1,) * (w.ndim - 2))
        w = split.reshape(w.shape)
    if b is not None:
        shift = shift + np.asarray(b, np.float64) * factor
    result = root.outputs[0]
    constants = {f"{result}:weights": w.astype(np.float32), f"{result}:bias": shift.astype(np.float32)}
    inputs = (conv.inputs[0], *constants)
    node = Node(conv.op, inputs, root.outputs[:1], conv.attrs, name=root.name, origin=_origin(m), where=root.where)
    return Replacement({}, (node,), constants)


def _alone(m: Match) -> Replacement:
    root, x = m.root, m.tensor(m.input(0))
    assert isinstance(x, Tensor)
    factor, shift = (v.astype(np.float32).reshape(-1, *(1,) * (x.rank - 2)) for v in _scale_and_shift(m))
    result = root.outputs[0]
    scaled = f"{result}:scaled"
    constants = {f"{result}:scale": factor, f"{result}:shift": shift}
    names = tuple(constants)
    nodes = (
        Node("Mul", (root.inputs[0], names[0]), (scaled,), name=f"{root.name}:scale", origin=_origin(m)),
        Node("Add", (scaled, names[1]), (result,), name=root.name, origin=_origin(m)),
    )
    return Replacement({}, nodes, constants)


def _origin(m: Match) -> tuple[str, ...]:
    return tuple(n.name for n in m.nodes)


_convolved = Pattern(("Conv", "ConvTranspose"), (Leaf("x"), Leaf("w", constant=True)), uses=1)
BATCHNORM: tuple[Rule, ...] = (
    Rule(
        "constant scale or shift into the convolution before it",
        Pattern(("Mul", "Add"), (_convolved, Leaf("c", constant=True)), commutes=True),
        _per_channel,
        _folded_constant,
    ),
    Rule(
        "constant scale or shift into the convolution before it",
        Pattern(("Sub", "Div"), (_convolved, Leaf("c", constant=True))),
        _per_channel,
        _folded_constant,
    ),
    Rule(
        "BatchNormalization into the convolution before it",
        Pattern("BatchNormalization", (_convolved, *_STATISTICS)),
        _after_convolution,
        _into_convolution,
    ),
    Rule(
        "BatchNormalization as scale and shift",
        Pattern("BatchNormalization", (Leaf("x"), *_STATISTICS)),
        _fixed,
        _alone,
    ),
)
