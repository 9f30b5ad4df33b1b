"""Scans along one axis in order: CumSum and CumProd, and positions of extremes.

A block takes a row piece by piece: each thread adds up its own few elements, the threads' sums are added up across the
block, and what came before is carried on.
"""

from __future__ import annotations

from ....ops import DType
from ....ops.core.rules import axis_of
from ...compile.kernel import Declined, KernelRequest, listed
from .generated import Generated, operands
from .launch import In, Launch, Out, Written
from .rows import Rows
from .text import WARP, Element, constant, coordinates, dot, launch, reads, writes

THREADS = 256
EACH = 4  # elements of a thread in each piece


class Cumulated(Generated):
    """CumSum and CumProd along a known axis."""

    name = "gpu.cumulated"
    operators = listed("CumSum CumProd")

    def write(self, request: KernelRequest) -> Written | Declined:
        (forms, x, _), axis = operands(request, request.inputs[:1]), constant(request, 1)
        if forms[0].dtype is DType.BOOL:
            return Declined("an operand is of truth values")
        if axis is None:
            return Declined("the axis is no constant")
        if not x.elements:
            return Written(())
        rows, e = Rows.of(x.sizes, [axis_of(axis[0], x.rank)]), forms[0]
        attrs = request.node.attrs
        form = request.node.op == "CumProd", bool(attrs.get("exclusive")), bool(attrs.get("reverse"))
        many = rows.size <= THREADS or (rows.columns and rows.count >= 132 * 64)
        return Written(((_by_thread if many else _by_block)(rows, e, *form),))


def _family(product: bool) -> str:
    return "cum_prod" if product else "cum_sum"


def _by_thread(rows: Rows, e: Element, product: bool, exclusive: bool, reverse: bool) -> Launch:
    sizes, strides = rows.outer
    n, kind, index = rows.size, e.sums, rows.index
    place = f"at + {rows.place(f'({n - 1} - j)' if reverse else 'j')}"
    step = [f"sum {'*' if product else '+'}= ({kind}){e.read('x[p]')};", f"y[p] = {e.write('sum')};"]
    body = [
        f"const {index} row = ({index})blockIdx.x * {THREADS} + threadIdx.x;",
        f"if (row >= {rows.count}) return;",
        *coordinates(index, "row", sizes, "o"),
        f"const {index} at = {dot(strides, 'o')};",
        f"{kind} sum = {1 if product else 0};",
        f"for (int j = 0; j < {n}; ++j) {{",
        f"    const {index} p = {place};",
        *(reversed(step) if exclusive else step),
        "}",
    ]
    parameters = [reads(e, "x", In(0)), writes(e, "y", Out(0))]
    return launch(_family(product), parameters, "\n".join(body), -(-rows.count // THREADS), THREADS)


def _by_block(rows: Rows, e: Element, product: bool, exclusive: bool, reverse: bool) -> Launch:
    sizes, strides = rows.outer
    n, kind, index, sign, none = rows.size, e.sums, rows.index, "*" if product else "+", "1" if product else "0"
    place = f"at + {rows.place(f'({n - 1} - j)' if reverse else 'j')}"
    piece, warps = THREADS * EACH, THREADS // WARP
    body = [
        f"const {index} row = ({index})blockIdx.x;",
        *coordinates(index, "row", sizes, "o"),
        f"const {index} at = {dot(strides, 'o')};",
        f"__shared__ {kind} totals[{warps}];",
        f"{kind} carried = {none};",
        f"const int lane = threadIdx.x % {WARP}, warp = threadIdx.x / {WARP};",
        f"for (int begin = 0; begin < {n}; begin += {piece}) {{",
        f"    {kind} own[{EACH}], sum = {none};",
        f"    for (int q = 0; q < {EACH}; ++q) {{",
        f"        const int j = begin + (int)threadIdx.x * {EACH} + q;",
        f"        own[q] = {none};",
        f"        if (j < {n}) {{ const {index} p = {place}; own[q] = ({kind}){e.read('x[p]')}; }}",
        f"        sum = sum {sign} own[q];",
        "    }",
        f"    {kind} upto = sum;",
        f"    for (int m = 1; m < {WARP}; m *= 2) {{",
        f"        const {kind} other = __shfl_up_sync(0xffffffffu, upto, m);",
        f"        if (lane >= m) upto = other {sign} upto;",
        "    }",
        f"    if (lane == {WARP - 1}) totals[warp] = upto;",
        "    __syncthreads();",
        f"    {kind} before = __shfl_up_sync(0xffffffffu, upto, 1);",
        f"    if (lane == 0) before = {none};",
        f"    {kind} ahead = carried;",
        f"    for (int w = 0; w < {warps}; ++w) {{",
        f"        if (w < warp) ahead = ahead {sign} totals[w];",
        f"        carried = carried {sign} totals[w];",
        "    }",
        f"    {kind} running = ahead {sign} before;",
        f"    for (int q = 0; q < {EACH}; ++q) {{",
        f"        const int j = begin + (int)threadIdx.x * {EACH} + q;",
        f"        const {kind} upon = running {sign} own[q];",
        f"        if (j < {n}) {{ const {index} p = {place}; y[p] = {e.write('running' if exclusive else 'upon')}; }}",
        "        running = upon;",
        "    }",
        "    __syncthreads();",
        "}",
    ]
    parameters = [reads(e, "x", In(0)), writes(e, "y", Out(0))]
    return launch(_family(product), parameters, "\n".join(body), rows.count, THREADS)


class ScanPlaces(Generated):
    """ArgMax, ArgMin and Hardmax: the first of the extreme elements, or the last if requested."""

    name = "gpu.places"
    operators = listed("ArgMax ArgMin Hardmax")

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, x, y = operands(request)
        if not y.elements:
            return Written(())
        if not x.elements:
            return Declined("there is nothing to choose from")
        hard, attrs = request.node.op == "Hardmax", request.node.attrs
        rows = Rows.of(x.sizes, [axis_of(attrs.get("axis", -1 if hard else 0), x.rank)])
        e, last = forms[0], bool(attrs.get("select_last_index"))
        nan = "{0} != {0} && {1} == {1} || " if e.dtype.floating else ""
        alike = "({0} == {1} || ({0} != {0} && {1} != {1}))" if e.dtype.floating else "{0} == {1}"
        better = "{0} < {1}" if request.node.op == "ArgMin" else "{0} > {1}"
        ahead = f"{nan}{better} || ({alike} && {{2}} {'>' if last else '<'} {{3}})"
        body = [
            *rows.begin(),
            f"{e.wide} most = {e.read('x[at]')};",
            "int place = 0;",
            *rows.loop(
                f"const {e.wide} v = {e.read('x[p]')};",
                f"if ({ahead.format('v', 'most', 'j', 'place')}) {{ most = v; place = j; }}",
            ),
            *_first_of_all(rows, e, ahead),
        ]
        if hard:
            body += rows.loop(f"y[p] = {e.write(f'j == place ? ({e.wide})1 : ({e.wide})0')};")
        else:
            body.append("if (lane == 0) y[row] = place;")
        parameters = [reads(e, "x", In(0)), writes(forms[-1], "y", Out(0))]
        name = "hardmax" if hard else "place_of"
        return Written((launch(name, parameters, "\n".join(body), rows.blocks, rows.threads),))


def _first_of_all(rows: Rows, e: Element, ahead: str) -> list[str]:
    """The pairs of value and place that the threads of a row have, as one."""
    take = f"if ({ahead.format('v', 'most', 'q', 'place')}) {{ most = v; place = q; }}"
    if rows.team == 1:
        return []
    if rows.columns:
        return [
            f"__shared__ {e.wide} values[{rows.team}][{WARP}];",
            f"__shared__ int places[{rows.team}][{WARP}];",
            f"const int column = threadIdx.x % {WARP};",
            "values[lane][column] = most; places[lane][column] = place;",
            "__syncthreads();",
            f"for (int w = 0; w < {rows.team}; ++w) {{",
            f"    const {e.wide} v = values[w][column]; const int q = places[w][column];",
            f"    {take}",
            "}",
        ]
    lines = [
        f"for (int m = {WARP // 2}; m; m >>= 1) {{",
        f"    const {e.wide} v = __shfl_xor_sync(0xffffffffu, most, m);",
        "    const int q = __shfl_xor_sync(0xffffffffu, place, m);",
        f"    {take}",
        "}",
    ]
    warps = rows.team // WARP
    if warps > 1:
        lines += [
            f"__shared__ {e.wide} values[{warps}];",
            f"__shared__ int places[{warps}];",
            f"if (lane % {WARP} == 0) {{ values[lane / {WARP}] = most; places[lane / {WARP}] = place; }}",
            "__syncthreads();",
            f"for (int w = 0; w < {warps}; ++w) {{ const {e.wide} v = values[w]; const int q = places[w]; {take} }}",
        ]
    return lines
