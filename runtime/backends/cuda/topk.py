"""TopK: rows sorted in shared memory, longer ones part by part, or by counting if many elements are requested.

A bitonic network sorts pairs of a value and its place, so that of equals the first comes first, in whatever order the
threads run (https://doi.org/10.1145/1468075.1468121). NaN counts as larger than all numbers.
"""

from __future__ import annotations

import math

from ....ops import Tensor
from ....ops.core.rules import axis_of
from ...compile.kernel import Declined, KernelRequest, listed
from ...memory.liveness import aligned
from .generated import Generated, operands
from .launch import In, Launch, Out, Scratch, Written
from .text import Element, each, launch, reads, writes

SORTED = 2048  # elements that a block sorts
PATIENCE = 2**36  # comparisons, where places are counted


class TopK(Generated):
    """The largest or smallest elements of each row, and their positions."""

    name = "gpu.top_k"
    operators = listed("TopK")

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, x, y = operands(request, request.inputs[:1])
        if not y.elements:
            return Written(())
        axis = axis_of(request.node.attrs.get("axis", -1), x.rank)
        n, k, inner = x.sizes[axis], y.sizes[axis], math.prod(x.sizes[axis + 1 :])
        rows = (x.elements or 0) // n
        e, largest = forms[0], bool(request.node.attrs.get("largest", 1))
        if n <= SORTED:
            source, target = _Place(inner, n), _Place(inner, k)
            return Written((_sort(e, largest, rows, n, n, k, source, target, ("", Out(0), Out(1))),))
        if k <= SORTED // 4:
            return _in_parts(e, largest, rows, n, k, inner)
        if rows * n * n > PATIENCE:
            return Declined("too many places would be compared")
        return Written((_counted(e, largest, x, axis, k),))


class _Place:
    """Offsets of the elements of rows along an axis: `inner` is the distance of neighbours, `n` their number."""

    def __init__(self, inner: int, n: int) -> None:
        self.inner, self.n = inner, n

    def at(self, row: str, j: str) -> str:
        if self.inner == 1:
            return f"(long long){row} * {self.n} + {j}"
        return f"((long long)({row} / {self.inner}) * {self.n} + {j}) * {self.inner} + {row} % {self.inner}"


def _before(e: Element, largest: bool, a: str, i: str, b: str, j: str) -> str:
    """Return the source of the test that element `a` at place `i` comes before `b` at `j`; places behind the end are
    -1, and come last."""
    better = f"{a} > {b}" if largest else f"{a} < {b}"
    if e.dtype.floating:
        odd = f"{a} != {a} && {b} == {b}" if largest else f"{a} == {a} && {b} != {b}"
        alike = f"({a} == {b} || ({a} != {a} && {b} != {b}))"
        ahead = f"({odd}) || {better} || ({alike} && {i} < {j})"
    else:
        ahead = f"{better} || ({a} == {b} && {i} < {j})"
    return f"{i} >= 0 && ({j} < 0 || {ahead})"


def _network(e: Element, largest: bool, size: int) -> list[str]:
    """Sort `size` pairs in shared memory, the threads being half as many, but 1024 at most."""
    threads = _threads(size)
    return [
        f"for (int width = 2; width <= {size}; width *= 2) for (int step = width / 2; step; step /= 2) {{",
        f"    for (int q = threadIdx.x; q < {size // 2}; q += {threads}) {{",
        "        const int a = q / step * step * 2 + q % step, b = a + step;",
        "        const bool up = (a & width) == 0;",
        f"        const bool right = {_before(e, largest, 'vs[a]', 'is[a]', 'vs[b]', 'is[b]')};",
        f"        const bool wrong = {_before(e, largest, 'vs[b]', 'is[b]', 'vs[a]', 'is[a]')};",
        "        if (up ? wrong : right) {",
        f"            const {e.wide} v = vs[a]; vs[a] = vs[b]; vs[b] = v;",
        "            const int i = is[a]; is[a] = is[b]; is[b] = i;",
        "        }",
        "    }",
        "    __syncthreads();",
        "}",
    ]


def _threads(size: int) -> int:
    return int(min(1024, max(32, size // 2)))


def _sort(
    e: Element,
    largest: bool,
    rows: int,
    length: int,
    part: int,
    k: int,
    source: _Place,
    target: _Place,
    where: tuple[str, Out | Scratch, Out | Scratch],
    operands: tuple[In | Scratch, Scratch | None] = (In(0), None),
) -> Launch:
    """The first `k` of each part of each row, in order. `operands` are values and, if they are no input's, their places
    in it; `where` says how values are stored (as they are computed, in workspace) and where both go."""
    parts = -(-length // part)
    size = max(2, 2 ** math.ceil(math.log2(part)))
    stored, final = (e.stored, True) if isinstance(where[1], Out) else (e.wide, False)
    read = e.read if isinstance(operands[0], In) else str
    places = operands[1] is not None
    kind = "long long" if final else "int"
    n = f"min({part}, {length} - part * {part})"
    body = [
        f"__shared__ {e.wide} vs[{size}];",
        f"__shared__ int is[{size}];",
        f"const int row = (int)(blockIdx.x / {parts}), part = (int)(blockIdx.x % {parts}), n = {n};",
        f"for (int j = threadIdx.x; j < {size}; j += {_threads(size)}) {{",
        f"    const long long p = {source.at('row', f'(part * {part} + min(j, n - 1))')};",
        f"    vs[j] = {read('x[p]')};",
        f"    is[j] = j < n ? {'from[p]' if places else f'part * {part} + j'} : -1;",
        "}",
        "__syncthreads();",
        *_network(e, largest, size),
        f"for (int j = threadIdx.x; j < {k}; j += {_threads(size)}) {{",
        f"    const long long p = {target.at('row', f'(part * {k} + j)')};",
        f"    y[p] = {e.write('vs[j]') if final else 'vs[j]'};",
        f"    at[p] = ({kind})is[j];",
        "}",
    ]
    parameters = [reads(e if isinstance(operands[0], In) else e.wide, "x", operands[0])]
    if operands[1] is not None:
        parameters.append(reads("int", "from", operands[1]))
    parameters += [(f"{stored}* __restrict__", "y", where[1]), (f"{kind}* __restrict__", "at", where[2])]
    return launch("top_k", parameters, "\n".join(body), rows * parts, _threads(size))


def _in_parts(e: Element, largest: bool, rows: int, n: int, k: int, inner: int) -> Written:
    """The first of each part, and of those again, until one block has them all."""
    width, launches = (8 if e.wide in ("double", "long long", "unsigned long long") else 4), list[Launch]()
    counts = [n]
    while counts[-1] > SORTED:
        counts.append(-(-counts[-1] // SORTED) * k)
    room = aligned(rows * counts[1] * width), aligned(rows * counts[1] * 4)
    # values and places by turns in two halves of the workspace
    halves = [(Scratch(h * sum(room)), Scratch(h * sum(room) + room[0])) for h in (0, 1)]
    operands: tuple[In | Scratch, Scratch | None] = In(0), None
    source = _Place(inner, n)
    for i, count in enumerate(counts[:-1]):
        to = halves[i % 2]
        target = _Place(1, counts[i + 1])
        launches.append(_sort(e, largest, rows, count, SORTED, k, source, target, (e.wide, *to), operands))
        operands, source = to, target
    last = counts[-1]
    launches.append(_sort(e, largest, rows, last, last, k, source, _Place(inner, k), ("", Out(0), Out(1)), operands))
    return Written(tuple(launches), (1 + (len(counts) > 2)) * sum(room))


def _counted(e: Element, largest: bool, x: Tensor, axis: int, k: int) -> Launch:
    """Return the launch of TopK by counting: the position of an element is the number of those that come before it."""
    n, inner = x.sizes[axis], math.prod(x.sizes[axis + 1 :])
    body = f"""
const {e.wide} v = {e.read("x[i]")};
const int own = (int)(i / {inner} % {n});
const long long begin = i / {inner * n} * {inner * n}ll + i % {inner};
int before = 0;
for (int j = 0; j < {n}; ++j) {{
    const {e.wide} w = {e.read(f"x[begin + (long long)j * {inner}]")};
    before += {_before(e, largest, "w", "j", "v", "own")};
}}
if (before < {k}) {{
    const long long p = (i / {inner * n} * {k}ll + before) * {inner} + i % {inner};
    y[p] = {e.write("v")};
    at[p] = own;
}}
"""
    parameters = [reads(e, "x", In(0)), writes(e, "y", Out(0)), writes("long long", "at", Out(1))]
    return each("top_k_counted", parameters, (x.elements or 0,), body)
