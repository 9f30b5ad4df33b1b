"""Canonical forms: operators that exporters write as several nodes become one, and some others get a simpler form.

Kernels then need to know one form only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import repeat

import numpy as np

from ...ops import DType, Tensor
from ...ops.nn.windows import windows
from ...ops.symbolic import is_symbolic
from ...ops.types import Array
from ..ir.graph import Node
from ..memory.shared_constants import derived
from .rewrite import Either, Leaf, Match, Operand, Pattern, Replacement, Rule

X = Leaf("x")
NUMBER = "number"  # leaves whose names begin so are constants of one element


def number(name: str) -> Leaf:
    """A constant of one element."""
    return Leaf(f"{NUMBER} {name}", constant=True)


def turned(op: str, a: Operand, b: Operand, uses: int | None = 1) -> Pattern:
    """An operator whose two operands may stand in either order."""
    return Pattern(op, (a, b), uses=uses, commutes=True)


def fixed(op: str, *operands: Operand) -> Pattern:
    """An operator that only the pattern reads."""
    return Pattern(op, operands, uses=1)


def value(m: Match, name: str) -> float | None:
    """The number behind a `number` leaf."""
    array = m.constant(m.values[f"{NUMBER} {name}"])
    return None if array is None or np.size(array) != 1 else float(np.asarray(array).reshape(()))


def numbers(**wanted: float) -> Callable[[Match], str | None]:
    """A check: the numbers are these, to the precision that exporters write them with, and widen nothing."""

    def check(m: Match) -> str | None:
        x, y = m.tensor(m.values["x"]), m.tensor(m.root.outputs[0])
        if x is None or x.dtype not in (DType.FLOAT, DType.BFLOAT16, DType.FLOAT16):
            return f"the operand is {x}"
        if x != y or x.dims is None:  # a number may be of higher rank than the operand
            return f"{x} becomes {y}"
        for name, number in wanted.items():
            actual = value(m, name)
            # halves and integers are exact in every type, roots in none
            near = 0.0 if (2 * number).is_integer() else 1e-3 if x.dtype.narrow else 1e-5
            if actual is None or not math.isclose(actual, number, rel_tol=near):
                return f"{name} is {actual}"
        return None

    return check


def becomes(op: str, *leaves: str, **attrs: object) -> Callable[[Match], Replacement]:
    """A replacement by one node over remembered values."""

    def replace(m: Match) -> Replacement:
        inputs = tuple(m.values[n] for n in leaves or ("x",))
        return Replacement({}, (_node(m, op, inputs, attrs),))

    return replace


def _node(m: Match, op: str, inputs: tuple[str, ...], attrs: Mapping[str, object]) -> Node:
    origin = tuple(n.name for n in m.nodes)
    return Node(op, inputs, m.root.outputs[:1], attrs, name=m.root.name, where=m.root.where, origin=origin)


# Gelu: 0.5 x (1 + erf(x / sqrt 2)), https://arxiv.org/abs/1606.08415, and its form with tanh
_inner = Either((fixed("Div", X, number("root")), turned("Mul", X, number("inverse root"))))


def _half_of(one_plus: Pattern) -> tuple[Pattern, ...]:
    """0.5 x times something, in the orders that exporters use."""
    return (
        turned("Mul", turned("Mul", X, one_plus), number("half"), uses=None),
        turned("Mul", turned("Mul", X, number("half")), one_plus, uses=None),
        turned("Mul", X, turned("Mul", one_plus, number("half")), uses=None),
    )


_gelu = _half_of(turned("Add", fixed("Erf", _inner), number("one")))


def _is_gelu(m: Match) -> str | None:
    root = {"root": math.sqrt(2)} if f"{NUMBER} root" in m.values else {"inverse root": math.sqrt(0.5)}
    return numbers(half=0.5, one=1.0, **root)(m)


_cube = Either((fixed("Pow", X, number("three")), turned("Mul", X, turned("Mul", X, X))))
_wave = turned("Mul", turned("Add", X, turned("Mul", _cube, number("cubic"))), number("slope"))
_gelu_tanh = _half_of(turned("Add", fixed("Tanh", _wave), number("one")))


def _is_gelu_tanh(m: Match) -> str | None:
    three = {"three": 3.0} if f"{NUMBER} three" in m.values else {}
    return numbers(half=0.5, one=1.0, cubic=0.044715, slope=math.sqrt(2 / math.pi), **three)(m)


# HardSwish as it was written before opset 14: x clip(x + 3, 0, 6) / 6, https://arxiv.org/abs/1905.02244
_clipped = fixed("Clip", turned("Add", X, number("three")), number("zero"), number("six"))
_hard_swish = (
    Pattern("Div", (turned("Mul", X, _clipped), number("sixth"))),
    turned("Mul", X, fixed("Div", _clipped, number("sixth")), uses=None),
)


def _is_hard_swish(m: Match) -> str | None:
    return numbers(three=3.0, zero=0.0, six=6.0, sixth=6.0)(m)


# LayerNormalization, https://arxiv.org/abs/1607.06450
_centred = Pattern("Sub", (X, Pattern("ReduceMean", (X,), name="mean")), name="centred")
_squares = Either((Pattern("Pow", (_centred, number("two"))), Pattern("Mul", (_centred, _centred))))
_deviation = Pattern("Sqrt", (turned("Add", Pattern("ReduceMean", (_squares,)), number("eps")),))
_normal = Pattern("Div", (_centred, _deviation), uses=1)
_layer_norm = turned("Add", turned("Mul", _normal, Leaf("scale")), Leaf("bias"), uses=None)


def _is_layer_norm(m: Match) -> str | None:
    x, scale, bias = (m.tensor(m.values[n]) for n in ("x", "scale", "bias"))
    if x is None or not x.dims or x.dtype is not DType.FLOAT:
        return f"the operand is {x}"
    if x != m.tensor(m.root.outputs[0]):  # epsilon may be of higher rank than the operand
        return f"{x} becomes {m.tensor(m.root.outputs[0])}"
    if f"{NUMBER} two" in m.values and value(m, "two") != 2:
        return "the exponent is not 2"
    width = x.dims[-1]
    if width is None or any(t is None or t.dims != (width,) for t in (scale, bias)):
        return "scale and bias are no rows of the last axis"
    for node in (n for n in m.nodes if n.op == "ReduceMean"):
        axes = m.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if axes is None or [int(a) % len(x.dims) for a in np.ravel(axes)] != [len(x.dims) - 1]:
            return "the mean is not over the last axis"
        if not node.attrs.get("keepdims", 1):
            return "the mean drops its axis"
    return None if value(m, "eps") is not None else "epsilon is not known"


def _layer_norm_node(m: Match) -> Replacement:
    inputs = tuple(m.values[n] for n in ("x", "scale", "bias"))
    return Replacement({}, (_node(m, "LayerNormalization", inputs, {"axis": -1, "epsilon": value(m, "eps")}),))


# Sums of several operands, softmax as it was before opset 13


def _several(m: Match) -> str | None:
    return None if len(m.root.inputs) > 1 else "it has one operand"


def _adds(m: Match) -> Replacement:
    root, total, nodes = m.root, m.root.inputs[0], list[Node]()
    for i, other in enumerate(root.inputs[1:]):
        last = i == len(root.inputs) - 2
        output = root.outputs[0] if last else f"{root.outputs[0]}:sum{i}"
        name = root.name if last else f"{root.name}:sum{i}"
        nodes.append(Node("Add", (total, other), (output,), name=name, where=root.where, origin=(root.name,)))
        total = output
    return Replacement({}, tuple(nodes))


def _square(m: Match) -> Replacement:
    # a product can go on with further operands, where a power cannot
    return Replacement({}, (_node(m, "Mul", (m.values["x"], m.values["x"]), {}),))


def _one_axis(m: Match) -> str | None:
    x = m.tensor(m.input(0))
    if x is None or not x.dims:
        return "the rank is not known, or 0"
    if m.attr("axis") == len(x.dims):
        return "each element is a row of its own"
    if sum(d != 1 for d in x.dims[m.attr("axis") % len(x.dims) :]) > 1:
        return "it runs over several axes"
    return None


def _softmax(m: Match) -> Replacement:
    x = m.tensor(m.input(0))
    assert isinstance(x, Tensor) and x.dims is not None
    first = m.attr("axis") % len(x.dims)
    axis = next((i for i in range(first, len(x.dims)) if x.dims[i] != 1), first)
    op = m.root.op.removesuffix("Flattened")
    return Replacement({}, (_node(m, op, m.root.inputs[:1], {"axis": axis}),))


# Padding that the window itself can do


def _zeros_around(m: Match) -> str | None:
    pad, conv = m.nodes[-1], m.root
    pads = m.constant(pad.inputs[1])
    if pads is None or pad.attrs.get("mode", "constant") != "constant" or any(pad.inputs[3:]):
        return "the padding is not of zeros, or not known"
    if len(pad.inputs) > 2 and pad.inputs[2]:
        filling = m.constant(pad.inputs[2])
        if filling is None or np.any(np.asarray(filling) != 0):
            return "the padding is not of zeros"
    half = len(pads) // 2
    if any(np.asarray(pads)[[0, 1, half, half + 1]]) or np.min(pads) < 0:
        return "it pads batch or channels, or crops"
    return None if conv.attrs.get("auto_pad", "NOTSET") == "NOTSET" else "the window pads by itself"


def _padded_window(m: Match) -> Replacement:
    pad, conv = m.nodes[-1], m.root
    pads = np.asarray(m.constant(pad.inputs[1])).tolist()
    half = len(pads) // 2
    more = pads[2:half] + pads[half + 2 :]
    own = conv.attrs.get("pads") or (0,) * len(more)
    attrs = {**conv.attrs, "pads": tuple(int(a + b) for a, b in zip(own, more, strict=True))}
    return Replacement({}, (_node(m, conv.op, (pad.inputs[0], *conv.inputs[1:]), attrs),))


# Taps of a convolution that see nothing but padding: images of a few pixels have them


def _seen_taps(m: Match) -> list[tuple[int, int, int, int]] | None:
    """Return, for each spatial axis, the first tap that sees a pixel, the one after the last, and the remaining
    padding."""
    x, w, a = m.tensor(m.input(0)), m.tensor(m.input(1)), m.attr
    if x is None or w is None or not x.static or not w.static or a("auto_pad") != "NOTSET":
        return None
    if any(map(is_symbolic, x.sizes)):  # every place would be decided; so the padding stays in the window
        return None
    taps = []
    for n, place in zip(
        x.sizes[2:], windows(x.sizes[2:], w.sizes[2:], a("strides"), a("dilations"), a("pads")), strict=True
    ):
        if place is None or place.out < 1 or min(place.before, place.after) < 0:
            return None
        at = range(-place.before, place.out * place.stride - place.before, place.stride)
        seen = [t for t in range(place.kernel) if any(0 <= p + t * place.dilation < n for p in at)]
        if not seen:
            return None
        first, last = seen[0], seen[-1] + 1
        before = place.before - first * place.dilation
        # what the remaining taps reach behind the image at the last place
        after = (place.out - 1) * place.stride + (last - first - 1) * place.dilation + 1 - before - n
        taps.append((first, last, before, after))
    return taps


EVERY_TAP = "every tap sees a pixel"


def _wide(m: Match) -> bool:
    """True if images are so much larger than the windows that the exact count does not matter, as most are."""
    x, w = m.tensor(m.input(0)), m.tensor(m.input(1))
    if x is None or w is None or not x.static or not w.static:
        return False
    axes = zip(x.sizes[2:], w.sizes[2:], *(m.attr(a) or repeat(1) for a in ("strides", "dilations")), strict=False)
    return all(n > (kernel - 1) * dilation + stride for n, kernel, stride, dilation in axes)


def _blind_taps(m: Match) -> str | None:
    w = m.tensor(m.input(1))
    if w is None or w.value is None:
        return "the weights are not known"
    if not any(m.attr("pads") or ()) or _wide(m):
        return EVERY_TAP
    taps = _seen_taps(m)
    if taps is None:
        return "sizes are not known, or it pads by itself"
    if all(last - first == k for (first, last, *_), k in zip(taps, w.sizes[2:], strict=True)):
        return EVERY_TAP
    return "it crops" if any(min(before, after) < 0 for *_, before, after in taps) else None


def _without_blind_taps(m: Match) -> Replacement:
    taps, w, name = _seen_taps(m), np.asarray(m.constant(m.input(1))), f"{m.root.outputs[0]}:weights"
    assert taps is not None
    seen = (slice(None), slice(None), *(slice(first, last) for first, last, *_ in taps))
    weights = derived(w, f"taps {seen}", lambda: np.array(w[seen]))
    pads = (*(before for _, _, before, _ in taps), *(after for *_, after in taps))
    attrs = {**m.root.attrs, "pads": pads, "kernel_shape": weights.shape[2:]}
    inputs = (m.input(0), name, *m.root.inputs[2:])
    return Replacement({}, (_node(m, "Conv", inputs, attrs),), {name: weights})


# A transposed convolution whose windows do not meet: each pixel becomes a patch of its own


def _patches(m: Match) -> str | None:
    node, x, w = m.root, m.tensor(m.input(0)), m.constant(m.input(1))
    bias = m.constant(m.input(2)) if m.input(2) else np.zeros(1)
    if w is None or bias is None or x is None or not x.static or np.ndim(w) != 4 or x.dtype is not DType.FLOAT:
        return "it is no convolution of float32 images by known weights"
    kernel = tuple(w.shape[2:])
    if tuple(node.attrs.get("strides") or (1, 1)) != kernel or any(node.attrs.get("pads") or ()):
        return "its windows meet, or it crops"
    odd = [a for a in ("output_padding", "output_shape") if any(node.attrs.get(a) or ())]
    if odd or node.attrs.get("group", 1) != 1 or node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return "it has groups, or a size of its own"
    if any(d != 1 for d in node.attrs.get("dilations") or ()):
        return "it is dilated"
    return None if w.shape[1] < FEW else f"it has {w.shape[1]} filters, which is enough for a kernel of its own"


FEW = 8  # filters below which a transposed convolution leaves vectors empty


def _pixels_to_patches(m: Match) -> Replacement:
    node, x, w = m.root, m.tensor(m.input(0)), np.asarray(m.constant(m.input(1)))
    assert x is not None
    (n, channels, high, wide), (_, filters, down, across) = x.sizes, w.shape
    result = node.outputs[0]
    weights = derived(w, "patches", lambda: np.array(w.transpose(1, 2, 3, 0), order="C").reshape(-1, channels, 1, 1))
    constants: dict[str, Array] = {
        f"{result}:weights": weights,
        f"{result}:apart": np.array([n, filters, down, across, high, wide]),
        f"{result}:together": np.array([n, filters, high * down, wide * across]),
    }
    inputs: tuple[str, ...] = (m.input(0), f"{result}:weights")
    if m.input(2):
        constants[f"{result}:bias"] = np.repeat(np.asarray(m.constant(m.input(2))), down * across)
        inputs = (*inputs, f"{result}:bias")

    def step(op: str, inputs: tuple[str, ...], output: str, **attrs: object) -> Node:
        name = output.replace(result, node.name)
        return Node(op, inputs, (output,), attrs, name=name, where=node.where, origin=(node.name,))

    nodes = (
        step("Conv", inputs, f"{result}:pixels"),
        step("Reshape", (f"{result}:pixels", f"{result}:apart"), f"{result}:split"),
        step("Transpose", (f"{result}:split",), f"{result}:turned", perm=(0, 1, 4, 2, 5, 3)),
        step("Reshape", (f"{result}:turned", f"{result}:together"), result),
    )
    return Replacement({}, nodes, constants)


CANONICAL: tuple[Rule, ...] = (
    *(Rule("Gelu", p, _is_gelu, becomes("Gelu")) for p in _gelu),
    *(Rule("Gelu with tanh", p, _is_gelu_tanh, becomes("Gelu", approximate="tanh")) for p in _gelu_tanh),
    Rule("LayerNormalization", _layer_norm, _is_layer_norm, _layer_norm_node),
    Rule("Swish", turned("Mul", X, fixed("Sigmoid", X), uses=None), numbers(), becomes("Swish")),
    Rule(
        "HardSwish",
        turned("Mul", X, Pattern("HardSigmoid", (X,), {"alpha": 1 / 6, "beta": 0.5}, uses=1), uses=None),
        numbers(),
        becomes("HardSwish"),
    ),
    *(Rule("HardSwish of a clipped sum", p, _is_hard_swish, becomes("HardSwish")) for p in _hard_swish),
    Rule("square", Pattern("Pow", (X, number("two"))), numbers(two=2.0), _square),
    Rule("Sum as additions", Pattern("Sum", (X,)), _several, _adds),
    Rule(
        "Softmax along one axis",
        Pattern(("SoftmaxFlattened", "LogSoftmaxFlattened"), (X,), domain="mezzo"),
        _one_axis,
        _softmax,
    ),
    Rule("transposed convolution of separate windows", Pattern("ConvTranspose", (X,)), _patches, _pixels_to_patches),
    Rule("padding into the window", Pattern("Conv", (fixed("Pad", X),)), _zeros_around, _padded_window),
    Rule("taps that see only padding", Pattern("Conv", (X,)), _blind_taps, _without_blind_taps),
)
