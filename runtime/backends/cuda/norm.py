"""Normalisations over rows (layers, groups, instances, any axes), batch normalisation by known statistics, and LRN.

Mean and squared distances are taken one after the other, from registers where a row fits: no sum of squares is
subtracted from another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....ops import DType, Tensor
from ....ops.core.rules import axes_of, axis_of
from ....ops.dataclasses import dataclass
from ...compile.kernel import Declined, KernelRequest, listed
from ...ir.graph import Node
from .generated import Generated, operands
from .launch import In, Launch, Operand, Out, Written
from .rows import Rows
from .text import Element, coordinates, dot, each, elements, has_input, launch, permuted, reads, strides_of, writes

Parameter = tuple[str, str, Operand]
OPS = (
    "LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization",
    "MeanVarianceNormalization", "LpNormalization",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NormForm:
    """A normalisation of rows. From the `sum` of the squares (or of absolute values, `power` 1) over the `n` elements
    of a row follows `factor`, which multiplies each element; `result` is computed from that product, `v`."""

    rows: Rows
    wide: str
    factor: str
    result: str
    centre: bool = True
    power: int = 2
    more: tuple[str, ...] = ()  # statements for each element before the result
    after: tuple[str, ...] = ()  # statements for each row


class Normalisation(Generated):
    """One launch, with a warp or a block for each row."""

    name = "gpu.normalisation"
    spares = (1, 2)

    def serves(self, node: Node) -> bool:
        return not node.domain and node.op in OPS

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, x, _ = operands(request)
        if any(not e.dtype.floating for e in forms):
            return Declined("integers are not normalised")
        if not x.elements:
            empty = not any(isinstance(t, Tensor) and t.elements for t in request.outputs)
            return Written(()) if empty else Declined("there is nothing to take the mean of")
        form = _FORMS[request.node.op](request, x)
        return form if isinstance(form, Declined) else Written((_launch(request, form),))


def _launch(request: KernelRequest, form: NormForm) -> Launch:
    x, y, wide = _element(request.inputs[0]), _element(request.outputs[0]), form.wide
    rows = form.rows.wide(x.dtype.itemsize) if x.dtype is y.dtype else form.rows
    parameters = _parameters(request)
    kept, over = rows.in_registers, rows.unrolled if rows.in_registers else rows.loop
    value = "v[k]" if kept else f"({wide}){x.read('x0[p]')}"
    body = rows.begin()
    if kept:
        body += [f"{wide} v[{rows.kept}];", *rows.load(x, "x0", "v")]
    if form.centre:
        body += [f"{wide} sum = 0;", *over(f"sum += {value};"), *rows.across(wide, "sum", "sum + other")]
        body.append(f"const {wide} mean = sum / {rows.size};")
    distance = f"{value} - mean" if form.centre else value
    term = "squares += d * d;" if form.power == 2 else "squares += d < 0 ? -d : d;"
    body += [
        f"{wide} squares = 0;",
        *over(f"const {wide} d = {distance};", term),
        *rows.across(wide, "squares", "squares + other"),
        f"const {wide} factor = {form.factor};",
    ]
    result, before = y.write(form.result), (*form.more, f"const {wide} d = ({distance}) * factor;")
    body += rows.store("y0", result, *before) if kept else rows.loop(*before, f"y0[p] = {result};")
    body += form.after
    family = request.node.op.removesuffix("ormalization").lower()
    return launch(family, parameters, "\n".join(body), rows.blocks, rows.threads, before=rows.piece(x))


def _parameters(request: KernelRequest) -> list[Parameter]:
    """The inputs as x0, x1, ..., the outputs as y0, y1, ..."""
    ins = [reads(_element(t), f"x{i}", In(i)) for i, t in enumerate(request.inputs) if t is not None]
    names = [o for o in request.node.outputs if o]
    places = [i for i, o in enumerate(request.node.outputs) if o]
    outs = [writes(_element(t), f"y{i}", Out(i)) for i, t in zip(places, request.outputs, strict=True) if names]
    return [*ins, *outs]


def _element(type: object) -> Element:
    forms = elements([type]) if isinstance(type, Tensor) else None
    assert forms  # `written` has looked
    return forms[0]


def _wide(*dtypes: DType) -> str:
    return "double" if DType.DOUBLE in dtypes else "float"


def _number(wide: str, value: float) -> str:
    return f"({wide}){float(value)!r}"


def _root(wide: str) -> str:
    return "sqrt" if wide == "double" else "sqrtf"


def _beside(request: KernelRequest, i: int, sizes: Sequence[int], inner: int) -> tuple[list[str], str]:
    """Statements, and the value of operand `i`, broadcast against the input, for the element at `p`; the elements of a
    row are the last `inner` axes."""
    t = request.inputs[i]
    assert isinstance(t, Tensor)
    e, shape = _element(t), (1,) * (len(sizes) - t.rank) + t.sizes
    if shape == (*[1] * (len(sizes) - inner), *sizes[len(sizes) - inner :]):
        return [], e.read(f"x{i}[j]")
    strides = [0 if n == 1 else s for n, s in zip(shape, strides_of(shape), strict=True)]
    return coordinates("int", "p", sizes, f"q{i}_"), e.read(f"x{i}[{dot(strides, f'q{i}_')}]")


def _layer(request: KernelRequest, x: Tensor) -> NormForm | Declined:
    attrs = request.node.attrs
    axis = axis_of(attrs.get("axis", -1), x.rank)
    rows = Rows.of(x.sizes, range(axis, x.rank))
    wide = "float" if attrs.get("stash_type", 1) == 1 and x.dtype is not DType.DOUBLE else "double"
    epsilon = _number(wide, attrs.get("epsilon", 1e-5))
    more, result = _scaled(request, x, axis, "d")
    after = []
    for i, value in ((1, "mean"), (2, "factor")):
        if i < len(request.node.outputs) and request.node.outputs[i]:
            after.append(f"if (lane == 0) y{i}[row] = {_stash(request, i).write(value)};")
    return NormForm(
        rows, wide, f"1 / {_root(wide)}(squares / {rows.size} + {epsilon})", result, more=more, after=tuple(after)
    )


def _stash(request: KernelRequest, i: int) -> Element:
    """The element type of output `i`: outputs that nobody wants are not in the list."""
    return _element(request.outputs[sum(1 for o in request.node.outputs[:i] if o)])


def _scaled(request: KernelRequest, x: Tensor, axis: int, value: str) -> tuple[tuple[str, ...], str]:
    more, scale = _beside(request, 1, x.sizes, x.rank - axis)
    if not has_input(request, 2):
        return tuple(more), f"{value} * {scale}"
    others, bias = _beside(request, 2, x.sizes, x.rank - axis)
    return (*more, *others), f"{value} * {scale} + {bias}"


def _rms(request: KernelRequest, x: Tensor) -> NormForm | Declined:
    attrs = request.node.attrs
    axis = axis_of(attrs.get("axis", -1), x.rank)
    rows = Rows.of(x.sizes, range(axis, x.rank))
    wide = _wide(x.dtype, DType.from_onnx(attrs.get("stash_type", 1)))
    epsilon = _number(wide, attrs.get("epsilon", 1e-5))
    more, result = _scaled(request, x, axis, "d")
    return NormForm(
        rows, wide, f"1 / {_root(wide)}(squares / {rows.size} + {epsilon})", result, centre=False, more=more
    )


def _channels(x: Tensor) -> tuple[tuple[str, ...], str]:
    """The number of the channel of the element at `p`."""
    image = math.prod(x.sizes[2:])
    return (), f"(p / {image}) % {x.sizes[1]}" if image > 1 else f"p % {x.sizes[1]}"


def _instance(request: KernelRequest, x: Tensor) -> NormForm | Declined:
    wide = _wide(*(t.dtype for t in request.inputs if isinstance(t, Tensor)))
    rows = Rows.of(x.sizes, range(2, x.rank))
    epsilon = _number(wide, request.node.attrs.get("epsilon", 1e-5))
    more, channel = _channels(x)
    result = f"d * {_element(request.inputs[1]).read('x1[c]')} + {_element(request.inputs[2]).read('x2[c]')}"
    more = (*more, f"const int c = (int)({channel});")
    return NormForm(rows, wide, f"1 / {_root(wide)}(squares / {rows.size} + {epsilon})", result, more=more)


def _group(request: KernelRequest, x: Tensor) -> NormForm | Declined:
    attrs = request.node.attrs
    groups = attrs["num_groups"]
    wide = _wide(
        *(t.dtype for t in request.inputs if isinstance(t, Tensor)), DType.from_onnx(attrs.get("stash_type", 1))
    )
    rows = Rows.of((x.sizes[0], groups, math.prod(x.sizes[1:]) // groups), [2])
    epsilon = _number(wide, attrs.get("epsilon", 1e-5))
    more, channel = _channels(x)
    result = f"d * {_element(request.inputs[1]).read('x1[c]')} + {_element(request.inputs[2]).read('x2[c]')}"
    more = (*more, f"const int c = (int)({channel});")
    return NormForm(rows, wide, f"1 / {_root(wide)}(squares / {rows.size} + {epsilon})", result, more=more)


def _mean_variance(request: KernelRequest, x: Tensor) -> NormForm | Declined:
    wide, axes = _wide(x.dtype), axes_of(request.node.attrs.get("axes", (0, 2, 3)), x.rank)
    rows = Rows.of(x.sizes, axes)
    return NormForm(rows, wide, f"1 / ({_root(wide)}(squares / {rows.size}) + {_number(wide, 1e-9)})", "d")


def _lp(request: KernelRequest, x: Tensor) -> NormForm | Declined:
    wide, p = _wide(x.dtype), request.node.attrs.get("p", 2)
    if p not in (1, 2):
        return Declined(f"p={p} is none of 1, 2")
    rows = Rows.of(x.sizes, [axis_of(request.node.attrs.get("axis", -1), x.rank)])
    norm = "squares" if p == 1 else f"{_root(wide)}(squares)"
    return NormForm(rows, wide, f"squares == 0 ? ({wide})1 : 1 / {norm}", "d", centre=False, power=p)


_FORMS = dict(zip(OPS, (_layer, _rms, _instance, _group, _mean_variance, _lp), strict=True))


class BatchNormalisation(Generated):
    """BatchNormalization by given statistics, in the order of axes that the input has."""

    name = "gpu.batch_normalisation"
    operators = listed("BatchNormalization")
    spares = (1, 2)

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, x, y = operands(request)
        if request.node.attrs.get("training_mode") or any(not e.dtype.floating for e in forms):
            return Declined("statistics are those of the batch, or operands are integers")
        layout = permuted(x)
        layouts = (layout, *[""] * (len(request.inputs) - 1), layout) if layout else ()
        if not y.elements:
            return Written((), layouts=layouts)
        wide = _wide(*(e.dtype for e in forms))
        channel = strides_of(x.sizes, layout)[1] if x.rank > 1 else 1
        scale, bias, mean, variance = (f"({wide}){e.read(f'x{i}[c]')}" for i, e in enumerate(forms[1:5], 1))
        body = f"""
const int c = (int)(i / {channel} % {x.sizes[1]});
const {wide} factor = {scale} / {_root(wide)}({variance} + {_number(wide, request.node.attrs.get("epsilon", 1e-5))});
y0[i] = {forms[-1].write(f"{forms[0].read('x0[i]')} * factor + ({bias} - {mean} * factor)")};
"""
        parameters = [reads(e, f"x{i}", In(i)) for i, e in enumerate(forms[:5])]
        normalised = each("batch_norm", [*parameters, writes(forms[-1], "y0", Out(0))], (x.elements or 0,), body)
        return Written((normalised,), layouts=layouts)


class LocalNormalisation(Generated):
    """LRN: each element divided by a power of the squares of its neighbours among the channels."""

    name = "gpu.lrn"
    operators = listed("LRN")

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, x, _ = operands(request, floats=True)
        layout = permuted(x)
        layouts = (layout, layout) if layout else ()
        if not x.elements:
            return Written((), layouts=layouts)
        e, attrs, n = forms[0], request.node.attrs, x.sizes[1]
        channel, size = strides_of(x.sizes, layout)[1], attrs["size"]
        alpha, bias = e.number(attrs.get("alpha", 1e-4) / size), e.number(attrs.get("bias", 1.0))
        base = f"{bias} + {alpha} * sum"
        body = f"""
const int c = (int)(i / {channel} % {n});
const int first = max(c - {(size - 1) // 2}, 0), last = min(c + {size // 2}, {n - 1});
{e.wide} sum = 0;
for (int k = first; k <= last; ++k) {{
    const {e.wide} v = {e.read(f"x[i + (k - c) * {channel}]")};
    sum += v * v;
}}
y[i] = {e.write(f"{e.read('x[i]')} / {e.f('pow')}({base}, {e.number(attrs.get('beta', 0.75))})")};
"""
        normalised = each("lrn", [reads(e, "x", In(0)), writes(e, "y", Out(0))], (x.elements or 0,), body)
        return Written((normalised,), layouts=layouts)
