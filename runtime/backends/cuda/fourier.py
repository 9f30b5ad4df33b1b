"""Fourier transforms as sums: a table of the points of the unit circle, then one thread for each bin of each signal.

The sums take as many steps as a signal has points, each from a table that is computed in float64. That is no fast
transform: it serves frames of speech, and lengths that are no powers of two, in two launches without a library.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....ops import Tensor
from ....ops.core.rules import axis_of
from ...compile.kernel import Declined, KernelRequest, listed
from .gemm import Parameter
from .generated import Generated, operands
from .launch import In, Launch, Out, Scratch, Written
from .text import Element, constant, dot, each, elements, has_input, reads, strides_of, writes

MOST = 1 << 14  # points: beyond, sums of all points cost more than the way to the host


class Fourier(Generated):
    """DFT and STFT of known lengths."""

    name = "gpu.fourier"
    operators = listed("DFT STFT")

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, x, y = operands(request, request.inputs[:1], floats=True)
        if not y.elements:
            return Written(())
        if max(x.elements or 0, y.elements) >= 2**31:
            return Declined("too many elements for 32-bit indices")
        return _dft(request, forms[0], x, y) if request.node.op == "DFT" else _stft(request, forms[0], x, y)


def _table(points: int, wide: str) -> Launch:
    """Cosines and sines of all parts of a turn."""
    turn = f"const double turn = 6.283185307179586 * (double)i / {points};"
    body = f"{turn}\ntable[2 * i] = ({wide})cos(turn);\ntable[2 * i + 1] = ({wide})sin(turn);"
    return each("circle", [(f"{wide}*", "table", Scratch(0))], (points,), body)


def _sum(e: Element, points: int, many: int, bin: str, real: str, imaginary: str | None, sign: int) -> list[str]:
    """Statements that add up `re` and `im` of one bin; `real` and `imaginary` are the elements at point `n`."""
    turn = f"table[2 * at + 1] * ({e.wide}){sign}"
    lines = [
        f"{e.wide} re = 0, im = 0;",
        "int at = 0;",
        f"for (int n = 0; n < {many}; ++n) {{",
        f"    const {e.wide} c = table[2 * at], s = {turn}, a = {real};",
    ]
    if imaginary is None:
        lines += ["    re += a * c;", "    im += a * s;"]
    else:
        lines += [f"    const {e.wide} b = {imaginary};", "    re += a * c - b * s;", "    im += a * s + b * c;"]
    return [*lines, f"    at += {bin};", f"    if (at >= {points}) at -= {points};", "}"]


def _dft(request: KernelRequest, e: Element, x: Tensor, y: Tensor) -> Written | Declined:
    attrs = request.node.attrs
    inverse, half = attrs.get("inverse", 0), attrs.get("onesided", 0)
    place = constant(request, 2) if has_input(request, 2) else [-2]
    length = constant(request, 1) if has_input(request, 1) else []
    if place is None or length is None:
        return Declined("the length or the axis is no constant")
    axis = axis_of(place[0], x.rank)
    along, back = x.sizes[axis], inverse and half
    points = length[0] if length else 2 * (along - 1) if back else along
    if not 0 < points <= MOST or (half and not inverse and x.sizes[-1] == 2):
        return Declined(f"a transform of {points} points")
    strides, own = strides_of(x.sizes), list(strides_of(x.sizes))
    own[axis] = own[-1] = 0
    many = min(along, points // 2 + 1 if back else points)
    outer = dot(own[:-1])
    element = f"x[{outer} + n * {strides[axis]}"
    real, imaginary = e.read(f"{element}]"), e.read(f"{element} + 1]") if x.sizes[-1] == 2 else None
    if back:  # all bins but the first and the middle one stand for two
        twice = f"(n == 0 || 2 * n == {points} ? 1 : 2)"
        real, imaginary = f"{twice} * {real}", imaginary and f"{twice} * {imaginary}"
    lines = _sum(e, points, many, f"(int)c{axis}", real, imaginary, 1 if inverse else -1)
    scale = f" / {points}" if inverse else ""
    return _written(e, points, [], lines, [f"re{scale}"] if back else [f"re{scale}", f"im{scale}"], y, x)


def _stft(request: KernelRequest, e: Element, x: Tensor, y: Tensor) -> Written | Declined:
    step = constant(request, 1)
    if step is None or y.sizes[1] < 1:
        return Declined("the step is no constant")
    window, length = (
        request.inputs[2] if has_input(request, 2) else None,
        constant(request, 3) if has_input(request, 3) else [],
    )
    if length is None:
        return Declined("the length is no constant")
    points = window.sizes[0] if isinstance(window, Tensor) else length[0] if length else x.sizes[1]
    if points > MOST:
        return Declined(f"frames of {points} points")
    parts, factor = x.sizes[2], ""
    more: list[Parameter] = []
    if isinstance(window, Tensor):
        kinds = elements([window])
        if kinds is None:
            return Declined("a window of no floats")
        more, factor = [reads(kinds[0], "window_of", In(2))], f" * ({e.wide}){kinds[0].read('window_of[n]')}"
    element = f"x[(c0 * {x.sizes[1]} + c1 * {step[0]} + n) * {parts}"
    real, imaginary = e.read(f"{element}]"), e.read(f"{element} + 1]") if parts == 2 else None
    lines = _sum(e, points, points, "(int)c2", real + factor, imaginary and imaginary + factor, -1)
    return _written(e, points, more, lines, ["re", "im"], y, x)


def _written(
    e: Element, points: int, more: Sequence[Parameter], lines: list[str], parts: Sequence[str], y: Tensor, x: Tensor
) -> Written:
    """The table, then a thread for each bin, which writes its parts."""
    parameters = [reads(e, "x", In(0)), *more, (f"const {e.wide}* __restrict__", "table", Scratch(0))]
    parameters.append(writes(e, "y", Out(0)))
    stores = [f"y[i * {len(parts)} + {k}] = {e.write(part)};" for k, part in enumerate(parts)]
    sums = each("fourier", parameters, y.sizes[:-1], "\n".join([*lines, *stores]), largest=x.elements or 0)
    return Written((_table(points, e.wide), sums), 2 * points * (8 if e.wide == "double" else 4))
