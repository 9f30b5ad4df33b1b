"""Image operators: grids of affine maps, patches, unpooling, maxima of regions, deformable convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ....ops import Tensor
from ....ops.nn.pool import unpooled
from ....ops.nn.windows import Window, known, windows
from ...compile.kernel import Declined, KernelRequest
from ...ir.graph import Node
from .gemm import GemmProduct
from .generated import Generated, operands
from .launch import In, Out, Scratch, Written
from .text import Element, constant, coordinates, dot, each, has_input, index_type, reads, strides_of, writes


class Images(Generated):
    """AffineGrid, Col2Im, MaxUnpool, MaxRoiPool and DeformConv."""

    name = "gpu.images"

    def serves(self, node: Node) -> bool:
        return not node.domain and node.op in MAKERS

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, x, y = operands(request, floats=True)
        if not y.elements:
            return Written(())
        if max(x.elements or 0, y.elements) >= 2**31:
            return Declined("too many elements for 32-bit indices")
        return MAKERS[request.node.op](request, forms, x, y)


def _affine(request: KernelRequest, forms: list[Element], theta: Tensor, y: Tensor) -> Written | Declined:
    """A place along an axis is between -1 and 1; a point lists its places from the innermost axis."""
    e, n, align = forms[0], y.rank - 2, request.node.attrs.get("align_corners", 0)
    row = f"theta[(c0 * {n} + c{n + 1}) * {n + 1} + "
    lines = [f"{e.wide} sum = {e.read(f'{row}{n}]')};"]
    for i in range(n):
        axis = n - i
        size = y.sizes[axis]
        at = f"({e.wide})c{axis} * 2 / {max(size - 1, 1)} - 1" if align else f"({e.wide})(2 * c{axis} + 1) / {size} - 1"
        lines.append(f"sum += ({at}) * {e.read(f'{row}{i}]')};")
    parameters = [reads(e, "theta", In(0)), writes(e, "y", Out(0))]
    return Written((each("affine_grid", parameters, y.sizes, "\n".join([*lines, f"y[i] = {e.write('sum')};"])),))


def _windows(request: KernelRequest, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[Window, ...]:
    attrs = request.node.attrs
    return known(windows(sizes, kernel, attrs.get("strides"), attrs.get("dilations"), attrs.get("pads")))


def _col2im(request: KernelRequest, forms: list[Element], x: Tensor, y: Tensor) -> Written | Declined:
    """Return the launch of Col2Im: each element of the image gathers from the blocks that have it."""
    block, e = constant(request, 2), forms[0]
    if block is None:
        return Declined("block_shape is no small constant")
    wins = _windows(request, y.sizes[2:], block)
    spread, places = math.prod(block), strides_of([w.out for w in wins])
    lines, taps = [f"{e.wide} sum = 0;"], strides_of(block)
    for d, w in enumerate(wins):
        lines += [
            f"for (int t{d} = 0; t{d} < {w.kernel}; ++t{d}) {{",
            f"const int s{d} = c{d + 2} + {w.before} - t{d} * {w.dilation};",
            f"if (s{d} < 0 || s{d} % {w.stride} || s{d} / {w.stride} >= {w.out}) continue;",
        ]
    where = " + ".join(f"s{d} / {w.stride} * {s}" for d, (w, s) in enumerate(zip(wins, places, strict=True)))
    row = f"(c0 * {x.sizes[1]} + c1 * {spread} + {dot(taps, 't') if spread > 1 else 0}) * {x.sizes[2]}"
    lines += [f"sum += {e.read(f'x[{row} + {where}]')};", "}" * len(wins), f"y[i] = {e.write('sum')};"]
    parameters = [reads(e, "x", In(0)), writes(e, "y", Out(0))]
    return Written((each("col2im", parameters, y.sizes, "\n".join(lines), largest=x.elements or 0),))


def _unpool(request: KernelRequest, forms: list[Element], x: Tensor, y: Tensor) -> Written | Declined:
    """Return the launches of MaxUnpool: each place records the last element that is written to it, so that the order of
    threads has no effect."""
    attrs, e, places = request.node.attrs, forms[0], forms[1]
    sizes = unpooled(x.sizes[2:], attrs["kernel_shape"], attrs.get("pads"), attrs.get("strides"))
    shape = (*x.sizes[:2], *(s or 0 for s in sizes))
    count = math.prod(shape)
    if count >= 2**31:
        return Declined("too many elements for 32-bit indices")
    last = ("int*", "last", Scratch(0))
    note = f"""
long long at = (long long){places.read("places[i]")};
if (at < 0) at += {count};
if (at >= 0 && at < {count}) atomicMax(last + at, (int)i + 1);
"""
    inside = [f"c{d} < {n}" for d, (n, m) in enumerate(zip(shape, y.sizes, strict=True)) if n < m]
    take = f"""
const int from = {" && ".join(inside) or "true"} ? last[{dot(strides_of(shape), sizes=y.sizes)}] : 0;
y[i] = from ? x[from - 1] : {e.write("0")};
"""
    launches = [
        each("unpool_none", [last], (count,), "last[i] = 0;") if count else None,
        each("unpool_places", [reads(places, "places", In(1)), last], x.sizes, note) if x.elements and count else None,
        each("unpool", [reads(e, "x", In(0)), last, writes(e, "y", Out(0))], y.sizes, take, largest=count),
    ]
    return Written(tuple(launch for launch in launches if launch is not None), 4 * max(count, 1))


def _roi_pool(request: KernelRequest, forms: list[Element], x: Tensor, y: Tensor) -> Written | Declined:
    """Corners are rounded, halves away from zero; bins without elements are 0."""
    e, corner, scale = forms[0], forms[1], float(request.node.attrs.get("spatial_scale", 1.0))
    h, w = x.sizes[2:]
    if not x.elements:
        return Declined("images without elements")
    lines = []
    for d, (a, b, size) in enumerate(((2, 4, h), (1, 3, w))):
        for name, k in (("first", a), ("last", b)):
            place = f"(double){corner.read(f'rois[c0 * 5 + {k}]')} * {scale!r}"
            lines.append(f"const double {name}{d}_ = {place};")
            lines.append(f"const double {name}{d} = copysign(floor(fabs({name}{d}_) + 0.5), {name}{d}_);")
        lines += [
            f"const double step{d} = fmax(last{d} - first{d} + 1, 1.0) / {y.sizes[d + 2]};",
            f"const int low{d} = (int)fmin(fmax(floor(c{d + 2} * step{d}) + first{d}, 0.0), {size}.0);",
            f"const int high{d} = (int)fmin(fmax(ceil((c{d + 2} + 1) * step{d}) + first{d}, 0.0), {size}.0);",
        ]
    image = f"min(max((int){corner.read('rois[c0 * 5]')}, 0), {x.sizes[0] - 1})"  # nothing is read beside the images
    lines += [
        f"const {e.stored}* const image = x + ({image} * {x.sizes[1]} + c1) * {h * w};",
        f"{e.wide} most = low0 < high0 && low1 < high1 ? {e.lowest} : ({e.wide})0;",
        "for (int s = low0; s < high0; ++s) for (int t = low1; t < high1; ++t) {",
        f"    const {e.wide} v = {e.read(f'image[s * {w} + t]')};",
        "    most = v > most || v != v ? v : most;",
        "}",
        f"y[i] = {e.write('most')};",
    ]
    parameters = [reads(e, "x", In(0)), reads(corner, "rois", In(1)), writes(e, "y", Out(0))]
    return Written((each("max_roi_pool", parameters, y.sizes, "\n".join(lines), largest=x.elements or 0),))


def _deformed(request: KernelRequest, forms: list[Element], x: Tensor, y: Tensor) -> Written | Declined:
    """Return one launch that gathers the deformed windows by linear interpolation; the product with the kernel
    follows."""
    attrs, e, (w, offset) = request.node.attrs, forms[0], request.inputs[1:3]
    assert isinstance(w, Tensor) and isinstance(offset, Tensor)
    if len({e.dtype for e in forms}) > 1:
        return Declined("operands of several types")
    wins = _windows(request, x.sizes[2:], w.sizes[2:])
    n, group, moved = len(wins), attrs.get("group", 1), attrs.get("offset_group", 1)
    outs, spread = [v.out for v in wins], math.prod(v.kernel for v in wins)
    places, (batch, channels) = math.prod(outs), x.sizes[:2]
    count = batch * channels * spread * places
    if count >= 2**31:
        return Declined("too many elements for 32-bit indices")
    if not count:
        return Declined("windows without elements")
    kind, place = e.wide, dot(strides_of(outs), "o")
    lines = [*coordinates("int", "c2", [v.kernel for v in wins], "t"), *coordinates("int", "c3", outs, "o")]
    lines.append(f"const int part = c0 * {moved} + c1 / {channels // moved};")
    for d, v in enumerate(wins):
        own = e.read(f"offset[((part * {spread} + c2) * {n} + {d}) * {places} + {place}]")
        lines += [
            f"const {kind} at{d} = {own} + (t{d} * {v.dilation} + o{d} * {v.stride} - {v.before});",
            f"const {kind} first{d} = {e.f('floor')}(at{d}), part{d} = at{d} - first{d};",
            f"const {kind} weights{d}[] = {{1 - part{d}, part{d}}};",
        ]
    lines.append(f"{kind} sum = 0;")
    lines += [f"for (int k{d} = 0; k{d} < 2; ++k{d}) {{ const {kind} s{d} = first{d} + k{d};" for d in range(n)]
    inside = " && ".join(f"s{d} >= 0 && s{d} <= {size - 1}" for d, size in enumerate(x.sizes[2:]))
    strides = strides_of(x.sizes)
    where = " + ".join(f"(int)s{d} * {strides[d + 2]}" for d in range(n))
    value = e.read(f"x[c0 * {strides[0]} + c1 * {strides[1]} + {where}]")
    lines += [f"if ({inside}) sum += {' * '.join([value, *(f'weights{d}[k{d}]' for d in range(n))])};", "}" * n]
    seen = [reads(e, "x", In(0)), reads(e, "offset", In(2))]
    if has_input(request, 4):
        seen.append(reads(e, "mask", In(4)))
        lines.append(f"sum *= {e.read(f'mask[(part * {spread} + c2) * {places} + {place}]')};")
    lines.append("patches[i] = sum;")
    seen.append(writes(kind, "patches", Scratch(0)))
    first = each("deformed", seen, (batch, channels, spread, places), "\n".join(lines), largest=offset.elements or 0)
    rows, inner = w.sizes[0] // group, channels // group * spread
    parameters = [reads(e, "w", In(1)), reads(kind, "patches", Scratch(0))]
    result = "sum"
    if has_input(request, 3):
        parameters.append(reads(e, "b", In(3)))
        result += " + " + e.read(f"b[z % {group} * {rows} + row]")
    index = index_type(count)
    second = GemmProduct(
        *("deformed_conv", kind, batch * group, rows, places, inner),
        f"value = {e.read(f'w[(z % {group} * {rows} + row) * {inner} + k]')};",
        f"value = patches[(({index})z * {inner} + k) * {places} + column];",
        f"y[(z * {rows} + row) * {places} + column] = {e.write(result)};",
        (*parameters, writes(e, "y", Out(0))),
    )
    return Written((first, second.launch()), count * (8 if kind == "double" else 4))


MAKERS: dict[str, Callable[[KernelRequest, list[Element], Tensor, Tensor], Written | Declined]] = {
    "AffineGrid": _affine, "Col2Im": _col2im, "MaxUnpool": _unpool, "MaxRoiPool": _roi_pool, "DeformConv": _deformed,
}  # fmt: skip
