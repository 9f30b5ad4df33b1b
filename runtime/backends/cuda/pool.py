"""Pools: one thread for each window, in the order of axes that the image has; whole images row by row."""

from __future__ import annotations

import math

from ....ops import Tensor
from ....ops.nn.windows import Window, known, windows
from ...compile.kernel import Declined, KernelRequest, listed
from .generated import Generated, operands
from .launch import In, Launch, Out, Written
from .rows import Rows, larger
from .text import Element, dot, each, launch, permuted, reads, strides_of, writes

MAXIMA = ("MaxPool", "MaxPoolTrain")
BUSY = 1 << 16  # threads that keep a device busy


class CudaPool(Generated):
    """MaxPool (with Indices, and its training twin), AveragePool and LpPool, of any number of axes."""

    name = "gpu.pool"
    operators = listed("MaxPool AveragePool LpPool mezzo::MaxPoolTrain")
    spares = (1,)

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, x, y = operands(request)
        if request.node.op not in MAXIMA and not forms[0].dtype.floating:
            return Declined("integers have no average")
        layout = permuted(x)
        layouts = (layout,) * (1 + len(request.outputs)) if layout else ()
        if not y.elements:
            return Written((), layouts=layouts)
        attr = {**request.node.record.attrs, **request.node.attrs}
        around = known(
            windows(
                *(x.sizes[2:], attr["kernel_shape"], attr["strides"], attr.get("dilations"), attr["pads"]),
                *(attr["auto_pad"], attr["ceil_mode"]),
            )
        )
        make = _largest if request.node.op in MAXIMA else _summed
        return Written((make(request, x, y, layout, around, forms),), layouts=layouts)


def over(around: tuple[Window, ...], x: Tensor, layout: str, *inner: str) -> list[str]:
    """Loops over the places of a window that lie in the image; `s2`, `s3`, ... are those places, and `v` is what is
    there."""
    strides, lines = strides_of(x.sizes, layout), []
    for d, w in enumerate(around, 2):
        lines += [
            f"for (int k{d} = 0; k{d} < {w.kernel}; ++k{d}) {{",
            f"const int s{d} = (int)c{d} * {w.stride} + k{d} * {w.dilation} - {w.before};".replace("- -", "+ "),
            f"if (s{d} < 0 || s{d} >= {x.sizes[d]}) continue;",
        ]
    at = dot([0, 0, *strides[2:]], "s", [2, 2, *[2] * len(around)])
    return [
        f"const auto* const image = x + ({dot(strides[:2], 'c', x.sizes[:2])});",
        *lines,
        f"const int p = {at};",
        *inner,
        "}" * len(around),
    ]


def lanes_of(e: Element, y: Tensor, layout: str) -> int:
    """Return the number of channels for each thread: up to 16 bytes, if they are neighbours and threads are many."""
    if not layout or ord(layout[-1]) - ord("a") != 1:
        return 1
    lanes = math.gcd(16 // e.dtype.itemsize, y.sizes[1])
    while lanes > 1 and (y.elements or 0) // lanes < BUSY:
        lanes //= 2
    return lanes


def _in_lanes(
    family: str, e: Element, x: Tensor, y: Tensor, layout: str, around: tuple[Window, ...], lanes: int,
    first: str, step: str, before: str, result: str,
) -> Launch:  # fmt: skip
    """A pool of `lanes` channels in each thread: `first` is what `made` begins with, `step` takes `v` in, `before`
    stands before `result` is made of it."""
    thin_x, thin_y = (Tensor(e.dtype, (t.sizes[0], t.sizes[1] // lanes, *t.sizes[2:])) for t in (x, y))
    body = [
        f"{e.wide} total[{lanes}];",
        f"for (int l = 0; l < {lanes}; ++l) total[l] = {first};",
        *over(
            *(around, thin_x, layout, "const KERNEL_lanes piece = image[p];"),
            f"for (int l = 0; l < {lanes}; ++l) {{",
            f"{e.wide}& made = total[l];",
            f"const {e.wide} v = {e.read('piece.e[l]')};",
            step,
            "}",
        ),
        before,
        "KERNEL_lanes piece;",
        f"for (int l = 0; l < {lanes}; ++l) {{ const {e.wide} made = total[l]; piece.e[l] = {e.write(result)}; }}",
        "y[i] = piece;",
    ]
    struct = f"struct alignas({lanes * e.dtype.itemsize}) KERNEL_lanes {{ {e.stored} e[{lanes}]; }};\n"
    parameters = [reads("KERNEL_lanes", "x", In(0)), writes("KERNEL_lanes", "y", Out(0))]
    return each(
        family, parameters, thin_y.sizes, "\n".join(body), layout=layout, largest=x.elements or 0, before=struct
    )


def _largest(
    request: KernelRequest, x: Tensor, y: Tensor, layout: str, around: tuple[Window, ...], forms: list[Element]
) -> Launch:
    e = forms[0]
    if len(forms) == 2:
        larger_one = "if (v > made || v != v) made = v;"
        return _in_lanes(
            *("max_pool", e, x, y, layout, around, lanes_of(e, y, layout)), e.lowest, larger_one, "", "made"
        )
    train = request.node.op == "MaxPoolTrain"
    kernel, sizes = [w.kernel for w in around], x.sizes[2:]
    if request.node.attrs.get("storage_order"):  # counted by columns
        steps: tuple[int, ...] = tuple(math.prod(sizes[:d]) for d in range(len(sizes)))
    else:
        steps = strides_of(sizes)
    place = dot([0, 0, *strides_of(kernel)], "k") if train else dot([0, 0, *steps], "s")
    channel = f"((long long)c0 * {x.sizes[1]} + c1) * {math.prod(sizes)}ll + at" if not train else "at"
    body = [
        f"{e.wide} most = {e.lowest};",
        "long long at = -1;",
        *over(
            *(around, x, layout, f"const {e.wide} v = {e.read('image[p]')};"),
            f"if (at < 0 || v > most || v != v) {{ most = v; at = {place}; }}",
        ),
        f"y[i] = {e.write('most')};",
        f"places[i] = {forms[2].write(channel)};",
    ]
    parameters = [reads(e, "x", In(0)), writes(e, "y", Out(0)), writes(forms[2], "places", Out(1))]
    return each("max_pool", parameters, y.sizes, "\n".join(body), layout=layout, largest=x.elements or 0)


def _summed(
    request: KernelRequest, x: Tensor, y: Tensor, layout: str, around: tuple[Window, ...], forms: list[Element]
) -> Launch:
    e, op = forms[0], request.node.op
    p = request.node.attrs.get("p", 2) if op == "LpPool" else 0
    term, result = powers(e, p, "v", "made")
    before = []
    if op == "AveragePool":
        padded = request.node.attrs.get("count_include_pad", 0)
        counts = []
        for d, (w, n) in enumerate(zip(around, x.sizes[2:], strict=True), 2):
            low, high = (-w.before, n + w.after) if padded else (0, n)
            seen = f"(int)c{d} * {w.stride} + k * {w.dilation} + {-w.before}"
            before.append(
                f"int n{d} = 0; for (int k = 0; k < {w.kernel}; ++k) n{d} += {seen} >= {low} && {seen} < {high};"
            )
            counts.append(f"n{d}")
        result = f"made / ({e.wide})({' * '.join(counts)})"
    family = "average_pool" if op == "AveragePool" else "lp_pool"
    lanes = lanes_of(e, y, layout)
    return _in_lanes(family, e, x, y, layout, around, lanes, "0", f"made += {term};", "\n".join(before), result)


def powers(e: Element, p: int, value: str, sum: str) -> tuple[str, str]:
    """Return the summand of a p-norm and the result for the sum; p=0 is the sum itself."""
    size, root = f"({value} < 0 ? -{value} : {value})", f"{e.f('pow')}({sum}, {e.number(1 / p)})" if p else sum
    if p == 0:
        return value, sum
    if p == 1:
        return size, sum
    if p == 2:
        return f"{value} * {value}", f"{e.f('sqrt')}({sum})"
    return f"{e.f('pow')}({size}, {e.number(p)})", root


class GlobalPool(Generated):
    """GlobalAveragePool, GlobalMaxPool and GlobalLpPool."""

    name = "gpu.global_pool"
    operators = listed("GlobalAveragePool GlobalMaxPool GlobalLpPool")

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, x, y = operands(request, floats=True)
        layout = permuted(x)
        if layout and layout[0] != "a":
            layout = ""
        layouts = (layout, "") if layout else ()
        if not y.elements or not x.elements:
            return Written((), layouts=layouts) if not y.elements else Declined("images without elements")
        e, rows = forms[0], Rows.of(x.sizes, range(2, x.rank), layout)
        read = e.read("x[p]")
        if request.node.op == "GlobalMaxPool":
            total, combine = e.read("x[at]"), larger("total")
            term, result = f"const {e.wide} other = {read}; total = {combine};", "total"
        else:
            p = request.node.attrs.get("p", 2) if request.node.op == "GlobalLpPool" else 0
            value, result = powers(e, p, "v", "total")
            total, combine, term = "0", "total + other", f"const {e.wide} v = {read}; total += {value};"
            result = f"{result} / {rows.size}" if not p else result
        body = [
            *rows.begin(),
            f"{e.wide} total = {total};",
            *rows.loop(term),
            *rows.across(e.wide, "total", combine),
            f"if (lane == 0) y[row] = {e.write(result)};",
        ]
        parameters = [reads(e, "x", In(0)), writes(e, "y", Out(0))]
        pooled = launch("global_pool", parameters, "\n".join(body), rows.blocks, rows.threads)
        return Written((pooled,), layouts=layouts)
