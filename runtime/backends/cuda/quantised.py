"""Quantisation and dequantisation: QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear."""

from __future__ import annotations

from ....ops import DType, Tensor
from ....ops.core.rules import axis_of
from ....ops.quantization.quantize import int_range
from ...compile.kernel import Declined, KernelRequest, listed
from ...memory.liveness import aligned
from .generated import Generated, operands
from .launch import In, Launch, Operand, Out, Scratch, Written
from .rows import Rows
from .text import Element, each, elements, has_input, launch, reads, strides_of, writes

WHOLE = tuple(d for d in DType if d.integer and d.bits in (8, 16, 32))
SHARE, PARTS = 1 << 14, 512  # elements that a block looks through at least, and such blocks at most
REAL = (DType.FLOAT, DType.FLOAT16, DType.BFLOAT16)


def step_of(e: Element, steps: str, zero: str) -> str | Declined:
    """A float as a number of steps: rounded to the nearest even, moved by the zero point, saturated; 0 for NaN."""
    if not e.dtype.integer or e.dtype.bits > 32:
        return Declined(f"steps in {e.dtype}")
    low, high = int_range(e.dtype)
    moved = f"rint((double)({steps})) + (double){zero}"
    return f"(({steps}) != ({steps}) ? (double){zero} : fmin(fmax({moved}, {low}.0), {high}.0))"


class Quantise(Generated):
    """QuantizeLinear and DequantizeLinear for integers of 8, 16 and 32 bits, with scales per tensor, per axis or per
    block."""

    name = "gpu.quantise"
    operators = listed("QuantizeLinear DequantizeLinear")

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, x, y = operands(request)
        attrs, up = request.node.attrs, request.node.op == "DequantizeLinear"
        scale, integer = request.inputs[1], forms[0] if up else forms[-1]
        real = forms[1] if up else forms[0]
        assert isinstance(scale, Tensor)
        if integer.dtype not in WHOLE or real.dtype not in REAL or forms[1].dtype not in REAL or attrs.get("precision"):
            return Declined(f"{x} with scales {scale} in another precision")
        if not y.elements:
            return Written(())
        place = _scale_at(x, scale, attrs.get("axis", 1), attrs.get("block_size", 0))
        parameters = [reads(forms[0], "x", In(0)), reads(forms[1], "scale", In(1)), writes(forms[-1], "y", Out(0))]
        zero = f"zero[{place}]" if has_input(request, 2) else "0"
        if has_input(request, 2):
            parameters.append(reads(integer, "zero", In(2)))
        by = forms[1].read(f"scale[{place}]")
        if up:
            value = f"(float)((long long){forms[0].read('x[i]')} - (long long){zero}) * {by}"
        else:
            divided = f"{forms[0].read('x[i]')} / {by}"
            if forms[1].dtype is not DType.FLOAT:  # the quotient is one of the scale's type
                divided = forms[1].read(forms[1].write(divided))
            step = step_of(integer, "quotient", zero)
            if isinstance(step, Declined):
                return step
            value = step
        lines = [] if up else [f"const float quotient = {divided};"]
        body = "\n".join([*lines, f"y[i] = {forms[-1].write(value)};"])
        return Written((each("dequantise" if up else "quantise", parameters, x.sizes, body),))


def _scale_at(x: Tensor, scale: Tensor, axis: int, block_size: int) -> str:
    """Return the source of the index of an element's scale, as `spread` (ops/quantization/quantize.py) defines it."""
    if scale.elements == 1 and scale.rank < 2:
        return "0"
    at = axis_of(axis, x.rank) if x.rank > 1 else 0
    if scale.rank == 1 and not block_size:
        return f"c{at}"
    block = block_size or -(-x.sizes[at] // max(scale.sizes[at], 1))
    parts = [f"c{d} / {block} * {s}" if d == at else f"c{d} * {s}" for d, s in enumerate(strides_of(scale.sizes))]
    return " + ".join(parts)


class DynamicQuantise(Generated):
    """DynamicQuantizeLinear: one block finds the range, then all elements are quantised."""

    name = "gpu.dynamic_quantise"
    operators = listed("DynamicQuantizeLinear")

    def write(self, request: KernelRequest) -> Written | Declined:
        x = request.inputs[0]
        if not isinstance(x, Tensor) or not x.static or x.dtype is not DType.FLOAT or not x.elements:
            return Declined("the input is no tensor of float32 with elements, or its sizes are not known")
        zero, step = step_of_uint8("-least / by", "0"), step_of_uint8("quotient", "zero[0]")
        parts = min(PARTS, -(-x.elements // SHARE))
        extremes = [Scratch(0), Scratch(aligned(4 * parts))]
        outs = [writes("float", "scale", Out(1)), writes("unsigned char", "zero", Out(2))]
        last = [
            "const float range = (most - least) / 255.0f, by = range == 0 ? 1.0f : range;",
            f"if (lane == 0) {{ scale[0] = by; zero[0] = (unsigned char){zero}; }}",
        ]
        own = [reads("float", "x", In(0))]
        if parts == 1:
            launches = [_range(x.elements, x.elements, ("x[p]", "x[p]"), [*own, *outs], last)]
        else:
            share = -(-x.elements // parts)
            stores = "if (lane == 0) { lows[row] = least; highs[row] = most; }"
            places = list(zip(("lows", "highs"), extremes, strict=True))
            operands = [*own, *(writes("float", name, place) for name, place in places)]
            launches = [_range(x.elements, share, ("x[p]", "x[p]"), operands, [stores])]
            ends = [reads("float", name, place) for name, place in places]
            launches.append(_range(parts, parts, ("lows[p]", "highs[p]"), [*ends, *outs], last))
        parameters = [
            reads("float", "x", In(0)),
            reads("float", "scale", Out(1)),
            reads("unsigned char", "zero", Out(2)),
        ]
        text = f"const float quotient = x[i] / scale[0];\ny[i] = (unsigned char){step};"
        second = each("quantise", [*parameters, writes("unsigned char", "y", Out(0))], (x.elements,), text)
        return Written((*launches, second), 2 * aligned(4 * parts) if parts > 1 else 0)


def _range(
    count: int, share: int, elements: tuple[str, str], parameters: list[tuple[str, str, Operand]], last: list[str]
) -> Launch:
    """The `least` and the `most` of each `share` of `count` elements, and of zero; NaN if one is. `elements` are the
    sources of what is compared at `p`, and `last` is done with the results, those of share `row`."""
    rows = Rows.of((-(-count // share), share), [1])
    inside = [f"if (p >= {count}) break;"] if count % share else []
    body = [
        *rows.begin(),
        "float least = 0, most = 0;",
        *rows.loop(
            *(*inside, f"const float low = {elements[0]}, high = {elements[1]};"),
            "least = low < least || low != low ? low : least;",
            "most = high > most || high != high ? high : most;",
        ),
        *rows.across("float", "least", "other < least || other != other ? other : least"),
        *rows.across("float", "most", "other > most || other != other ? other : most"),
        *last,
    ]
    return launch("range", parameters, "\n".join(body), rows.blocks, rows.threads)


def step_of_uint8(steps: str, zero: str) -> str:
    """`step_of` for unsigned 8-bit numbers."""
    forms = elements([Tensor(DType.UINT8, ())])
    assert forms
    step = step_of(forms[0], steps, zero)
    assert isinstance(step, str)
    return step
