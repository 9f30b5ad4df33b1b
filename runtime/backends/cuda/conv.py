"""Convolution kernels of our own, for any number of axes and groups, where cuDNN declines.

Products of the weights with patches that are read in place; for single channels one thread for each element."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....ops import DType, Tensor
from ....ops.nn.conv import transposed_windows
from ....ops.nn.windows import Window, known, windows
from ...compile.kernel import Declined, KernelRequest
from ...ir.graph import Node
from .gemm import GemmProduct
from .generated import Generated, operands
from .launch import In, Launch, Out, Written
from .pool import over
from .quantised import step_of
from .text import Element, coordinates, each, element, has_input, permuted, reads, strides_of, writes

# operator -> the numbers of its image, weights and bias, of their zero points, and of the scales of both
OPERANDS: dict[str, tuple[tuple[int, int, int], tuple[int, int], tuple[int, int]]] = {
    "Conv": ((0, 1, 2), (-1, -1), (-1, -1)),
    "ConvTranspose": ((0, 1, 2), (-1, -1), (-1, -1)),
    "ConvInteger": ((0, 1, -1), (2, 3), (-1, -1)),
    "QLinearConv": ((0, 3, 8), (2, 5), (1, 4)),
}


class Convolution(Generated):
    """Conv, ConvTranspose, ConvInteger and QLinearConv."""

    name = "gpu.conv"

    def serves(self, node: Node) -> bool:
        return not node.domain and node.op in OPERANDS

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, _, y = operands(request)
        image, weights, _ = OPERANDS[request.node.op][0]
        x, w = request.inputs[image], request.inputs[weights]
        assert isinstance(x, Tensor) and isinstance(w, Tensor)
        if max(t.elements or 0 for t in (x, w, y)) >= 2**31:
            return Declined("too many elements for 32-bit indices")
        if request.node.op in ("Conv", "ConvTranspose") and not forms[0].dtype.floating:
            return Declined(f"{x.dtype} is convolved by ConvInteger")
        group = request.node.attrs.get("group", 1)
        single = request.node.op == "Conv" and w.sizes[1] == 1 and w.sizes[0] == group == x.sizes[1]
        layout = permuted(x) if single else ""
        layouts = (layout, *[""] * (len(request.inputs) - 1), layout) if layout else ()
        if not y.elements:
            return Written((), layouts=layouts)
        if single:
            return Written((_single(request, x, w, y, layout),), layouts=layouts)
        product = _transposed(request, x, w, y) if request.node.op == "ConvTranspose" else _patches(request, x, w, y)
        return product if isinstance(product, Declined) else Written((product.launch(),))


def _e(t: object) -> Element:
    form = element(t.dtype) if isinstance(t, Tensor) else None
    assert form is not None  # `written` has looked
    return form


def _windows(request: KernelRequest, x: Tensor, w: Tensor) -> tuple[Window, ...]:
    attr = {**request.node.record.attrs, **request.node.attrs}
    return known(windows(x.sizes[2:], w.sizes[2:], attr["strides"], attr["dilations"], attr["pads"], attr["auto_pad"]))


def _single(request: KernelRequest, x: Tensor, w: Tensor, y: Tensor, layout: str) -> Launch:
    """Return the launch of a depthwise convolution."""
    e, around = _e(x), _windows(request, x, w)
    parameters = [reads(e, "x", In(0)), reads(_e(w), "w", In(1))]
    tap = " + ".join(f"k{d} * {s}" for d, s in enumerate(strides_of(w.sizes[2:]), 2)) or "0"
    start = "0"
    if has_input(request, 2):
        parameters.append(reads(_e(request.inputs[2]), "b", In(2)))
        start = _e(request.inputs[2]).read("b[c1]")
    weight = _e(w).read(f"w[(int)c1 * {math.prod(w.sizes[2:])} + {tap}]")
    body = [
        f"{e.wide} sum = {start};",
        *over(around, x, layout, f"sum += {e.read('image[p]')} * {weight};"),
        f"y[i] = {e.write('sum')};",
    ]
    return each(
        "depthwise", [*parameters, writes(e, "y", Out(0))], y.sizes, "\n".join(body), layout=layout,
        largest=x.elements or 0,
    )  # fmt: skip


def _patches(request: KernelRequest, x: Tensor, w: Tensor, y: Tensor) -> GemmProduct | Declined:
    """Rows are filters, columns places of the result, the inner axis channels and taps."""
    op, around = request.node.op, _windows(request, x, w)
    (image, weights, bias), (xz, wz), (xs, ws) = OPERANDS[op]
    group, kernel, places = request.node.attrs.get("group", 1), w.sizes[2:], y.sizes[2:]
    depth, filters, taps = w.sizes[1], w.sizes[0] // group, math.prod(kernel)
    integers = op != "Conv"
    kind = "int" if integers else _e(x).wide
    if op == "QLinearConv" and depth * taps > 30000:
        return Declined("sums do not fit 32 bits")
    parameters = [reads(_e(x), "x", In(image)), reads(_e(w), "w", In(weights))]
    left = f"({kind}){_e(w).read(f'w[(g * {filters} + row) * {depth * taps} + k]')}"
    value = f"({kind}){_e(x).read('x[p]')}"
    if xz >= 0 and has_input(request, xz):
        parameters.append(reads(_e(request.inputs[xz]), "xz", In(xz)))
        value += " - (int)xz[0]"
    if wz >= 0 and has_input(request, wz):
        zero = request.inputs[wz]
        assert isinstance(zero, Tensor)
        parameters.append(reads(_e(zero), "wz", In(wz)))
        left += f" - (int)wz[{f'g * {filters} + row' if (zero.elements or 0) > 1 else 0}]"
    at = [(f"o{d} * {v.stride} + t{d + 1} * {v.dilation} + {-v.before}", 1) for d, v in enumerate(around)]
    lines = _read_at(x, depth, kernel, places, at)
    lines.append(f"if (there) value = {value};")
    result, e = "sum", _e(y)
    if bias >= 0 and has_input(request, bias):
        parameters.append(reads(_e(request.inputs[bias]), "b", In(bias)))
        result += f" + {_e(request.inputs[bias]).read(f'b[g * {filters} + row]')}"
    if xs >= 0:
        scale = request.inputs[ws]
        assert isinstance(scale, Tensor)
        for name, i in (("xs", xs), ("ws", ws), ("ys", 6), ("yz", 7)):
            parameters.append(reads(_e(request.inputs[i]), name, In(i)))
        if any(_e(request.inputs[i]).dtype is not DType.FLOAT for i in (xs, ws, 6)):
            return Declined("scales are not of float32")
        by = f"ws[{f'g * {filters} + row' if (scale.elements or 0) > 1 else 0}]"
        step = step_of(e, f"(float)({result}) * (xs[0] * {by} / ys[0])", "yz[0]")
        if isinstance(step, Declined):
            return step
        result = step
    total = math.prod(places)
    return GemmProduct(
        *(op.lower(), kind, x.sizes[0] * group, filters, total, depth * taps),
        f"value = {left};",
        " ".join(lines),
        f"y[((n * {group} + g) * {filters} + row) * {total} + column] = {e.write(result)};",
        (*parameters, writes(e, "y", Out(0))),
        (f"const int n = z / {group}, g = z % {group};",),
    )


def _read_at(
    x: Tensor, depth: int, kernel: Sequence[int], places: Sequence[int], at: Sequence[tuple[str, int]]
) -> list[str]:
    """Statements: whether the image has an element `there` for place `column` and tap `k`, and where, in `p`. Along
    each axis it lies `at` an expression over the places `o` and the taps `t`, divided by a number."""
    lines = [
        *coordinates("int", "column", places, "o"),
        *coordinates("int", "k", (depth, *kernel), "t"),
        f"int p = (n * {x.sizes[1]} + g * {depth} + t0) * {math.prod(x.sizes[2:])};",
        "bool there = true;",
    ]
    for (place, by), size, step in zip(at, x.sizes[2:], strides_of(x.sizes)[2:], strict=True):
        divides, own = (f" && s % {by} == 0", f"s / {by}") if by > 1 else ("", "s")
        lines.append(f"{{ const int s = {place};")
        lines.append(f"there = there && s >= 0{divides} && {own} < {size}; p += {own} * {step}; }}")
    return lines


def _transposed(request: KernelRequest, x: Tensor, w: Tensor, y: Tensor) -> GemmProduct | Declined:
    """Return the product of a transposed convolution: each place of the result gathers from the places whose windows
    see it."""
    attr = {**request.node.record.attrs, **request.node.attrs}
    around = known(
        transposed_windows(
            *(x.sizes[2:], w.sizes[2:], attr["strides"], attr["dilations"], attr["pads"], attr["auto_pad"]),
            *(attr["output_padding"], attr["output_shape"]),
        )
    )
    group, kernel, places, e = attr["group"], w.sizes[2:], y.sizes[2:], _e(y)
    depth, filters, taps = x.sizes[1] // group, w.sizes[1], math.prod(kernel)
    left = [
        *(f"const int tap = k % {taps};", f"const int from = g * {depth} + k / {taps};"),
        f"value = {_e(w).read(f'w[(from * {filters} + row) * {taps} + tap]')};",
    ]
    at = [(f"o{d} + {v.before} - t{d + 1} * {v.dilation}", v.stride) for d, v in enumerate(around)]
    lines = _read_at(x, depth, kernel, places, at)
    lines.append(f"if (there) value = {_e(x).read('x[p]')};")
    parameters, result = [reads(_e(x), "x", In(0)), reads(_e(w), "w", In(1))], "sum"
    if has_input(request, 2):
        parameters.append(reads(_e(request.inputs[2]), "b", In(2)))
        result += f" + {_e(request.inputs[2]).read(f'b[g * {filters} + row]')}"
    total = math.prod(places)
    return GemmProduct(
        *("conv_transpose", _e(x).wide, x.sizes[0] * group, filters, total, depth * taps),
        " ".join(left),
        " ".join(lines),
        f"y[((n * {group} + g) * {filters} + row) * {total} + column] = {e.write(result)};",
        (*parameters, writes(e, "y", Out(0))),
        (f"const int n = z / {group}, g = z % {group};",),
        left_runs=taps > 1,
    )
