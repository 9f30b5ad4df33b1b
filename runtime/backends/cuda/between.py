"""Interpolated reads at coordinates that are operands: GridSample and RoiAlign, one thread for each result."""

from __future__ import annotations

from ....ops import DType, Tensor
from ....ops.nn.points import CUBIC
from ...compile.kernel import Declined, KernelRequest, listed
from .generated import Generated, operands
from .launch import In, Launch, Out, Written
from .text import Element, each, reads, strides_of, writes

_CUBIC_NEAR = f"((({CUBIC + 2!r}f) * ({{0}}) - ({CUBIC + 3!r}f)) * ({{0}}) * ({{0}}) + 1)"
_CUBIC_FAR = f"((((({{0}}) - 5) * ({{0}}) + 8) * ({{0}}) - 4) * ({CUBIC!r}f))"
# the first of the neighbours of a place, and their weights
NEIGHBOURS = {
    "nearest": ("rintf({at})", ["1"]),
    "linear": ("floorf({at})", ["1 - t", "t"]),
    "cubic": ("floorf({at}) - 1",
              [_CUBIC_FAR.format("t + 1"), _CUBIC_NEAR.format("t"), _CUBIC_NEAR.format("1 - t"),
               _CUBIC_FAR.format("2 - t")]),
}  # fmt: skip


class GridSample(Generated):
    """Floats of 16 and 32 bits at the points of a grid, in every mode."""

    name = "gpu.grid_sample"
    operators = listed("GridSample")

    def write(self, request: KernelRequest) -> Written | Declined:
        (forms, x, y), attrs = operands(request), request.node.attrs
        if any(not e.dtype.floating or e.dtype is DType.DOUBLE for e in forms):
            return Declined("integers and float64 run on the host")
        mode, padding = attrs.get("mode", "linear"), attrs.get("padding_mode", "zeros")
        if mode not in NEIGHBOURS or padding not in ("zeros", "border", "reflection"):
            return Declined(f"mode {mode!r} with padding_mode {padding!r}")
        if not y.elements:
            return Written(())
        if not x.elements:
            return Declined("an image without elements")
        return Written((_sampled(forms[0], forms[1], x, y, mode, padding, attrs.get("align_corners", 0)),))


def _moved(place: str, n: int, padding: str, align: int) -> str:
    """Return the source of the place inside an axis for a place outside of it."""
    if padding == "border":
        return f"fminf(fmaxf({place}, 0.0f), {n - 1}.0f)"
    low, span = (0.0, n - 1.0) if align else (-0.5, float(n))
    if span <= 0:
        return "0.0f"
    way = f"fmodf(fabsf({place} - {low!r}f), {2 * span!r}f)"
    return f"(fminf({way}, {2 * span!r}f - {way}) + {low!r}f)"


def _sampled(e: Element, point: Element, x: Tensor, y: Tensor, mode: str, padding: str, align: int) -> Launch:
    n, sizes, strides = x.rank - 2, x.sizes[2:], strides_of(x.sizes)
    points = strides_of((y.sizes[0], *y.sizes[2:], n))
    first, weights = NEIGHBOURS[mode]
    at = " + ".join(f"c{d} * {s}" for d, s in zip((0, *range(2, y.rank)), points, strict=False))
    lines = [f"const int point = (int)({at});"]
    for d, size in enumerate(sizes):
        place = point.read(f"grid[point + {n - 1 - d}]")
        scaled = f"({place} + 1) / 2 * {size - 1}" if align else f"(({place} + 1) * {size} - 1) / 2"
        lines.append(f"float at{d} = {scaled};")
        if mode == "linear" and padding != "zeros":
            lines.append(f"at{d} = {_moved(f'at{d}', size, padding, align)};")
        lines.append(f"const float first{d} = {first.format(at=f'at{d}')};")
        listed = ", ".join(w.replace("t", f"(at{d} - floorf(at{d}))") for w in weights)
        lines.append(f"const float weights{d}[] = {{{listed}}};")
    lines.append("float sum = 0;")
    lines += [f"for (int k{d} = 0; k{d} < {len(weights)}; ++k{d}) {{" for d in range(n)]
    inside = []
    for d, size in enumerate(sizes):
        lines.append(f"float s{d} = first{d} + k{d};")
        if padding != "zeros":
            lines.append(f"s{d} = {_moved(f's{d}', size, padding, align)};")
        inside.append(f"s{d} >= 0 && s{d} <= {size - 1}")
    where = " + ".join(f"(long long)s{d} * {strides[d + 2]}" for d in range(n))
    value = e.read(f"x[c0 * {strides[0]} + c1 * {strides[1]} + {where}]")
    product = " * ".join([value, *(f"weights{d}[k{d}]" for d in range(n))])
    lines += [f"if ({' && '.join(inside)}) sum += {product};", "}" * n, f"y[i] = {e.write('sum')};"]
    parameters = [reads(e, "x", In(0)), reads(point, "grid", In(1)), writes(e, "y", Out(0))]
    return each("grid_sample", parameters, y.sizes, "\n".join(lines), largest=x.elements or 0)


class RoiAlign(Generated):
    """Averages and maxima of samples in the bins of regions."""

    name = "gpu.roi_align"
    operators = listed("RoiAlign")

    def write(self, request: KernelRequest) -> Written | Declined:
        (forms, x, y), attrs = operands(request, floats=True), request.node.attrs
        mode, transform = attrs.get("mode", "avg"), attrs.get("coordinate_transformation_mode", "half_pixel")
        if mode not in ("avg", "max") or transform not in ("half_pixel", "output_half_pixel"):
            return Declined(f"mode {mode!r} with {transform!r} coordinates")
        if not y.elements:
            return Written(())
        if not x.elements:
            return Declined("images without elements")
        e, shifted, ratio = forms[0], transform == "half_pixel", attrs.get("sampling_ratio", 0)
        scale, lines = float(attrs.get("spatial_scale", 1.0)), []
        for d, (a, b, count) in enumerate(((1, 3, y.sizes[2]), (0, 2, y.sizes[3]))):
            for name, corner in (("first", a), ("last", b)):
                place = forms[1].read(f"rois[c0 * 4 + {corner}]")
                lines.append(f"const double {name}{d} = (double){place} * {scale!r} - {0.5 if shifted else 0.0};")
            extent = f"last{d} - first{d}" if shifted else f"fmax(last{d} - first{d}, 1.0)"
            lines.append(f"const double extent{d} = {extent}, step{d} = extent{d} / {count};")
            many = str(ratio) if ratio > 0 else f"max((int)ceil(step{d}), 1)"
            lines.append(f"const int many{d} = {many};")
        h, w = x.sizes[2:]
        own = f"min(max((long long)images[c0], 0ll), {x.sizes[0] - 1}ll)"  # nothing is read beside the images
        image = f"{own} * {x.sizes[1] * h * w} + c1 * {h * w}"
        lines += [
            f"const {e.stored}* const image = x + {image};",
            f"double total = {'0' if mode == 'avg' else '-1.0 / 0.0'};",
        ]
        for d, size in enumerate((h, w)):
            lines += [
                f"for (int k{d} = 0; k{d} < many{d}; ++k{d}) {{",
                f"double at{d} = first{d} + (c{d + 2} * step{d} + (k{d} + 0.5) * step{d} / many{d});",
                f"const bool out{d} = at{d} < -1 || at{d} > {size};",
                f"at{d} = fmin(fmax(at{d}, 0.0), {size - 1}.0);",
                f"const int low{d} = (int)at{d}, high{d} = min(low{d} + 1, {size - 1});",
                f"const double part{d} = at{d} - low{d};",
                f"const double near{d}[] = {{out{d} ? 0 : 1 - part{d}, out{d} ? 0 : part{d}}};",
            ]
        take = "total += v;" if mode == "avg" else "total = v > total || v != v ? v : total;"
        value = e.read(f"image[(b0 ? high0 : low0) * {w} + (b1 ? high1 : low1)]")
        lines += [
            "for (int b0 = 0; b0 < 2; ++b0) for (int b1 = 0; b1 < 2; ++b1) {",
            f"    const double v = (double){value} * (near0[b0] * near1[b1]);",
            f"    {take}",
            "}",
            "}}",
            f"y[i] = {e.write('(' + e.wide + ')' + ('(total / (many0 * many1))' if mode == 'avg' else 'total'))};",
        ]
        parameters = [reads(e, "x", In(0)), reads(forms[1], "rois", In(1)), reads(forms[2], "images", In(2))]
        pooled = each(
            "roi_align", [*parameters, writes(e, "y", Out(0))], y.sizes, "\n".join(lines), largest=x.elements or 0
        )
        return Written((pooled,))
