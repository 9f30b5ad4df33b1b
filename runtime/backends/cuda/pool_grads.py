"""Gradients of pools: each element of the image looks at the windows that hold it, so that no two threads add to one
place. A thread takes neighbouring channels where these lie together."""

from __future__ import annotations

from ....ops import Tensor
from ....ops.nn.windows import Window, known, windows
from ...compile.kernel import Declined, KernelRequest, listed
from .generated import Generated, operands
from .launch import In, Launch, Out, Written
from .pool import lanes_of
from .text import Element, dot, each, permuted, reads, strides_of, writes


class PoolGradients(Generated):
    """mezzo::MaxPoolGrad and mezzo::AveragePoolGrad, of any number of axes."""

    name = "gpu.pool_gradients"
    operators = listed("mezzo::MaxPoolGrad mezzo::AveragePoolGrad")

    def write(self, request: KernelRequest) -> Written | Declined:
        images = 2 if request.node.op == "MaxPoolGrad" else 1  # the slope, and the positions of maxima
        forms, dy, x = operands(request, request.inputs[:images], floats=True)
        layout = permuted(dy)
        layouts = (*[layout] * images, "", layout) if layout else ()
        if not x.elements:
            return Written((), layouts=layouts)
        attr = {**request.node.record.attrs, **request.node.attrs}
        around = known(
            windows(
                *(x.sizes[2:], attr["kernel_shape"], attr["strides"], attr["dilations"], attr["pads"]),
                *(attr["auto_pad"], attr["ceil_mode"]),
            )
        )
        padded = bool(attr.get("count_include_pad"))
        return Written((_gathered(request.node.op, dy, x, layout, around, forms, padded),), layouts=layouts)


def _gathered(
    op: str, dy: Tensor, x: Tensor, layout: str, around: tuple[Window, ...], forms: list[Element], padded: bool
) -> Launch:
    e, largest = forms[0], op == "MaxPoolGrad"
    lanes = lanes_of(e, x, layout)
    thin_x, thin_dy = (Tensor(e.dtype, (t.sizes[0], t.sizes[1] // lanes, *t.sizes[2:])) for t in (x, dy))
    body = [f"{e.wide} sums[{lanes}] = {{}};", *_over(around, thin_dy, layout)]
    if largest:
        taps = strides_of([w.kernel for w in around])
        body += [f"const int tap = {dot([0, 0, *taps], 'k')};", "const KERNEL_places place = places[p];"]
        term = f"if (place.e[l] == tap) sums[l] += {e.read('slope.e[l]')};"
    else:
        body += [line for d, w in enumerate(around, 2) for line in _counted(d, w, x.sizes[d], padded)]
        counts = " * ".join(f"n{d}" for d in range(2, x.rank))
        term = f"sums[l] += {e.read('slope.e[l]')} / ({e.wide})({counts});"
    every = f"for (int l = 0; l < {lanes}; ++l)"
    body += [
        f"const KERNEL_lanes slope = dy[p];\n{every} {term}",
        "}" * len(around),
        "KERNEL_lanes made;",
        f"{every} made.e[l] = {e.write('sums[l]')};",
        "dx[i] = made;",
    ]
    structs = _struct("KERNEL_lanes", e, lanes)
    parameters = [reads("KERNEL_lanes", "dy", In(0))]
    if largest:
        structs += _struct("KERNEL_places", forms[1], lanes)
        parameters.append(reads("KERNEL_places", "places", In(1)))
    parameters.append(writes("KERNEL_lanes", "dx", Out(0)))
    family = "max_pool_grad" if largest else "average_pool_grad"
    return each(
        *(family, parameters, thin_x.sizes, "\n".join(body)), layout=layout, largest=dy.elements or 0, before=structs
    )


def _struct(name: str, e: Element, lanes: int) -> str:
    """The type of the numbers of neighbouring channels, which are read at once."""
    return f"struct alignas({lanes * e.dtype.itemsize}) {name} {{ {e.stored} e[{lanes}]; }};\n"


def _over(around: tuple[Window, ...], dy: Tensor, layout: str) -> list[str]:
    """Loops over the windows that hold the element at c2, c3, ..., in the order of the places `k2`, `k3`, ... at which
    they hold it; a window is at `o2`, `o3`, ..., its slope at `p`."""
    lines = []
    for d, w in enumerate(around, 2):
        behind = f"(int)c{d} + {w.before}"
        lines += [
            f"const int t{d} = {behind};",
            f"const int last{d} = min(t{d} / {w.stride}, {w.out - 1});",
            f"const int first{d} = t{d} < {w.span} ? 0 : (t{d} - {w.span}) / {w.stride} + 1;",
        ]
    for d, w in enumerate(around, 2):
        lines += [
            f"for (int o{d} = last{d}; o{d} >= first{d}; --o{d}) {{",
            f"const int rest{d} = t{d} - o{d} * {w.stride}, k{d} = rest{d} / {w.dilation};",
            *([f"if (rest{d} % {w.dilation}) continue;"] if w.dilation > 1 else []),
        ]
    strides = strides_of(dy.sizes, layout)
    image = dot(strides[:2], "c", dy.sizes[:2])
    place = dot([0, 0, *strides[2:]], "o", dy.sizes)
    return [*lines, f"const auto p = {image} + {place};"]


def _counted(d: int, w: Window, size: int, padded: bool) -> list[str]:
    """Statements: the number of places of window `o` along axis `d` that its average counts."""
    low, high = (-w.before, size + w.after) if padded else (0, size)
    start = f"o{d} * {w.stride} - {w.before}"
    if w.dilation == 1:
        return [f"const int n{d} = min({start} + {w.kernel}, {high}) - max({start}, {low});"]
    seen = f"{start} + k * {w.dilation}"
    return [
        f"int n{d} = 0;",
        f"for (int k = 0; k < {w.kernel}; ++k) n{d} += {seen} >= {low} && {seen} < {high};",
    ]
