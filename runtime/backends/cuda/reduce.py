"""Reductions along any axes, in one fixed order of additions: no atomics, so that equal inputs give equal bits.

The elements that become one number are a row. Threads of a row lie side by side where its elements do (a team of up to
32 combines by shuffles, a larger one through shared memory); where neighbouring rows lie side by side, so do their
threads, and those of one row meet in shared memory. Few long rows are cut: parts go to the workspace, and a second
launch combines them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ....ops import DType, Tensor
from ....ops.core.rules import axes_of
from ....ops.dataclasses import dataclass
from ....ops.layouts import is_permutation
from ...compile.kernel import Declined, KernelRequest
from ...ir.graph import Node
from .generated import Generated
from .launch import In, Launch, Operand, Out, Scratch, Written
from .loops import Loops, merged
from .source import Unwritten, cast, element_of
from .text import WARP, Element, constant, coordinates, dot, has_input, index_type, launch, strides_of

THREADS = 256
BUSY = 264  # blocks that keep all of a GPU's processors at work
BYTES = 16  # that a thread reads at once


@dataclass(frozen=True, slots=True)
class ReduceForm:
    """State of a reduction: `kept` are (type, name, first value); `step` takes in an element `v`, `combine` merges
    another thread's state (`o_NAME`), `result` is the outcome in the computed type."""

    kept: tuple[tuple[str, str, str], ...]
    step: str
    combine: str
    result: str


Maker = Callable[
    [Element, int, dict[str, str]], ReduceForm
]  # of elements, their number in a row, functions to stand before


class CudaReduce(Generated):
    """ReduceSum and the other reductions, and the gradient of broadcasting."""

    name = "gpu.reduce"

    def serves(self, node: Node) -> bool:
        return (not node.domain and node.op in _FORMS) or (node.domain, node.op) == ("mezzo", "SumTo")

    def write(self, request: KernelRequest) -> Written | Declined:
        x, y = request.inputs[0], request.outputs[0]
        if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.static and y.static):
            return Declined("sizes are not known")
        axes = _axes(request, x)
        if isinstance(axes, Declined):
            return axes
        e, functions = element_of(x.dtype), dict[str, str]()
        count = math.prod(x.sizes[d] for d in axes)
        form = _FORMS[request.node.op if request.node.op in _FORMS else "ReduceSum"](e, count, functions)
        layout = x.layout if is_permutation(x.layout) else ""
        layouts = (layout, *("" for _ in request.inputs[1:]), "") if layout else ()
        if not y.elements:
            return Written((), layouts=layouts)
        rows = _Rows.of(x, y, axes, layout)
        reduction = _Reduction(rows, e, form, "".join(functions.values()), request.node.op.lower())
        return Written(reduction.launches(), reduction.workspace, (), layouts)


def _axes(request: KernelRequest, x: Tensor) -> tuple[int, ...] | Declined:
    """The axes that go."""
    if request.node.op == "SumTo":
        y = request.outputs[0]
        assert isinstance(y, Tensor)
        more = x.rank - y.rank
        return (*range(more), *(d for d, n in enumerate(y.sizes, more) if n != x.sizes[d]))
    axes: list[int] | None = []
    if has_input(request, 1):
        named = request.inputs[1]
        axes = [] if isinstance(named, Tensor) and named.elements == 0 else constant(request, 1)
    if axes is None:
        return Declined("the axes are no constant")
    if axes:
        return axes_of(axes, x.rank)
    return () if request.node.attrs.get("noop_with_empty_axes", 0) else tuple(range(x.rank))


# Forms


def _sum(e: Element, term: str = "v", result: str = "{}") -> ReduceForm:
    """The sum of a term of each element; `result` of the sum as an element."""
    total = "a" if e.dtype.floating else f"({e.wide})a"
    return ReduceForm(((e.sums, "a", "0"),), f"a += ({e.sums})({term});", "a += o_a;", result.format(total))


def _sums(term: str = "v", integer_term: str = "") -> Maker:
    def make(e: Element, count: int, functions: dict[str, str]) -> ReduceForm:
        _numbers(e)
        return _sum(
            e, (integer_term or term) if not e.dtype.floating else term.replace("~", "" if e.wide == "double" else "f")
        )

    return make


def _mean(e: Element, count: int, functions: dict[str, str]) -> ReduceForm:
    _numbers(e)
    if e.dtype.floating:
        return _sum(e, result=f"{{}} / ({e.wide}){count}.0")
    total = f"({'' if e.dtype.signed else 'unsigned '}long long)a"  # which may not fit where the mean does
    kept = (("unsigned long long", "a", "0"),)
    return ReduceForm(kept, "a += (unsigned long long)v;", "a += o_a;", f"({e.wide})({total} / {max(count, 1)})")


def _prod(e: Element, count: int, functions: dict[str, str]) -> ReduceForm:
    _numbers(e)
    total = "a" if e.dtype.floating else f"({e.wide})a"
    return ReduceForm(((e.sums, "a", "1"),), f"a *= ({e.sums})v;", "a *= o_a;", total)


def _extreme(sign: str) -> Maker:
    def make(e: Element, count: int, functions: dict[str, str]) -> ReduceForm:
        held = e.wide if e.dtype.bits >= 32 or e.dtype.floating else "int"

        def better(v: str) -> str:
            return f"if ({v} {sign} a{f' || {v} != {v}' if e.dtype.floating else ''}) a = {v};"

        first = e.lowest if sign == ">" else _highest(e)
        return ReduceForm(((held, "a", first),), better("v"), better("o_a"), f"({e.wide})a")

    return make


def _highest(e: Element) -> str:
    """Return the highest number of an element type."""
    if e.dtype.floating:
        return e.number(math.inf)
    if e.dtype is DType.BOOL:
        return "1"
    return e.integer((1 << (e.dtype.bits - e.dtype.signed)) - 1)


def _after(function: str, term: str = "v") -> Maker:
    """A function of a sum; of integers in float64."""

    def make(e: Element, count: int, functions: dict[str, str]) -> ReduceForm:
        _numbers(e)
        if e.dtype.floating:
            return _sum(e, term, f"{e.f(function)}({{}})")
        _wide(e)
        return _sum(e, term, cast(f"{function}((double)({{}}))", DType.DOUBLE, e.dtype, functions))

    return make


def _log_sum_exp(e: Element, count: int, functions: dict[str, str]) -> ReduceForm:
    """The largest element `m` and the sum `s` of exp(v - m), scaled whenever a larger one turns up
    (https://arxiv.org/abs/1805.02867); infinities equal each other and are never subtracted."""
    _numbers(e)
    held = e.wide if e.dtype.floating else "double"
    if not e.dtype.floating:
        _wide(e)
    f = "exp" if held == "double" else "expf"
    step = (
        f"if (({held})v > m || v != v) {{ s = s * {f}(m - ({held})v) + 1; m = ({held})v; }} "
        f"else s += ({held})v == m ? 1 : {f}(({held})v - m);"
    )
    combine = (
        f"if (o_m > m || o_m != o_m) {{ s = s * {f}(m - o_m) + o_s; m = o_m; }} "
        f"else s += o_m == m ? o_s : o_s * {f}(o_m - m);"
    )
    total = f"{'log' if held == 'double' else 'logf'}(s) + m"
    result = total if e.dtype.floating else cast(f"({total})", DType.DOUBLE, e.dtype, functions)
    return ReduceForm(((held, "m", f"-({held})1 / 0"), (held, "s", "0")), step, combine, result)


def _numbers(e: Element) -> None:
    if e.dtype is DType.BOOL:
        raise Unwritten("truth values have a largest and a smallest, no sum")


def _wide(e: Element) -> None:
    if e.dtype.bits < 32:
        raise Unwritten(f"NumPy answers for {e.dtype} in float16 or float32")


_FORMS: dict[str, Maker] = {
    "ReduceSum": _sums(),
    "ReduceMean": _mean,
    "ReduceMax": _extreme(">"),
    "ReduceMin": _extreme("<"),
    "ReduceProd": _prod,
    "ReduceL1": _sums("fabs~(v)", "v < 0 ? 0 - v : v"),
    "ReduceL2": _after("sqrt", "v * v"),
    "ReduceLogSum": _after("log"),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": _sums("v * v"),
}


# Launches


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a reduction. `outer` counts the rows, with strides in the input and in the result; `inner` the elements
    of a row."""

    outer: Loops
    inner: Loops

    @classmethod
    def of(cls, x: Tensor, y: Tensor, axes: Sequence[int], layout: str) -> _Rows:
        strides = strides_of(x.sizes, layout)
        order = sorted(range(x.rank), key=lambda d: (strides[d], -d), reverse=True)
        stays = [d for d in range(x.rank) if d not in axes]
        results = dict(zip(stays, strides_of([x.sizes[d] for d in stays]), strict=True))
        kept, gone = [d for d in order if d not in axes], [d for d in order if d in axes]
        outer = merged([x.sizes[d] for d in kept], [[strides[d] for d in kept], [results[d] for d in kept]])
        if not math.prod(x.sizes[d] for d in gone):
            return cls(outer, Loops((0,), ((0,),)))
        return cls(outer, merged([x.sizes[d] for d in gone], [[strides[d] for d in gone]]))

    @property
    def columns(self) -> bool:
        """True if neighbouring rows, and not the elements of one, are adjacent."""
        return self.inner.strides[0][-1] != 1 and self.inner.count > 1 and self.outer.count > 1

    @property
    def index(self) -> str:
        return index_type(self.outer.count * self.inner.count, self.outer.count * THREADS)


@dataclass(frozen=True, slots=True)
class _Reduction:
    """The launches of one reduction."""

    rows: _Rows
    element: Element
    form: ReduceForm
    functions: str
    name: str

    @property
    def width(self) -> int:
        """Number of elements of a row that a thread reads at once."""
        inner, outer = self.rows.inner, self.rows.outer
        if self.rows.columns or inner.strides[0] != (1,):
            return 1
        width = BYTES // self.element.dtype.itemsize
        while width > 1 and (inner.sizes[0] % width or any(s % width for s in outer.strides[0])):
            width //= 2
        return width

    @property
    def team(self) -> int:
        """Threads for a row."""
        size = -(-self.rows.inner.count // self.width)
        if self.rows.columns:
            line = max(WARP, 128 // self.element.dtype.itemsize)  # what memory gives at once
            return THREADS // min(line, _power(self.rows.outer.count))
        if size <= WARP:
            return _power(size)
        return max(WARP, min(THREADS, _power(-(-size // 4))) if self.rows.outer.count < 8 * BUSY else WARP)

    @property
    def together(self) -> int:
        """Rows of a block."""
        return THREADS // self.team

    @property
    def blocks(self) -> int:
        return -(-self.rows.outer.count // self.together)

    @property
    def parts(self) -> int:
        """Into how many parts each row is cut, for as many blocks as keep the GPU busy; a part has 16 elements and more
        for each thread."""
        most = self.rows.inner.count // (16 * self.team * self.width)
        return 1 if self.blocks >= BUSY // 2 or most < 2 else min(most, -(-2 * BUSY // self.blocks))

    @property
    def workspace(self) -> int:
        return sum(self._room(kind) for kind, _, _ in self.form.kept) if self.parts > 1 else 0

    def _room(self, kind: str) -> int:
        """Bytes for what all parts have kept under one name."""
        size = 8 if kind in ("double", "long long", "unsigned long long") else 4
        return -(-self.parts * self.rows.outer.count * size // 64) * 64

    def launches(self) -> tuple[Launch, ...]:
        return (self._first(), self._second()) if self.parts > 1 else (self._first(),)

    def _kept(self) -> list[tuple[str, str, Operand]]:
        """The parameters for what parts have kept."""
        parameters, offset = [], 0
        for kind, name, _ in self.form.kept:
            parameters.append((f"{kind}* __restrict__", f"parts_{name}", Scratch(offset)))
            offset += self._room(kind)
        return list(parameters)

    def _first(self) -> Launch:
        """Threads take their elements in, and the team of a row combines what they have kept."""
        rows, e, team, index, width = self.rows, self.element, self.team, self.rows.index, self.width
        size, parts = rows.inner.count, self.parts
        step = team * width
        chunk = -(-size // (parts * step)) * step  # elements of a part
        thread, number = (
            (f"threadIdx.x / {self.together}", f"threadIdx.x % {self.together}")
            if rows.columns
            else (f"threadIdx.x % {team}", f"threadIdx.x / {team}")
        )
        end = str(size) if parts == 1 else f"min(({index}){size}, first + {chunk})"
        scaled = "" if width == 1 else f" * {width}"
        body = [
            f"const int lane = {thread if team > 1 else '0'};",
            f"const {index} row = ({index})blockIdx.x * {self.together} + {number if self.together > 1 else '0'};",
            *coordinates(index, "row", rows.outer.sizes, "o"),
            *self._begin(),
            f"if (row < {rows.outer.count}) {{",
            f"    const {e.stored}* p = x + {dot(rows.outer.strides[0], 'o')};",
            f"    const {index} first = ({index}){f'blockIdx.y * {chunk}' if parts > 1 else '0'};",
            f"    const {index} end = {end};",
            "    #pragma unroll 4",
            f"    for ({index} j = first + lane{scaled}; j < end; j += {step}) {{",
            *(f"        {line}" for line in self._take()),
            "    }",
            "}",
            *self._meet(),
        ]
        ends = [f"if (lane == 0 && row < {rows.outer.count}) {{"]
        parameters: list[tuple[str, str, Operand]] = [(f"const {e.stored}* __restrict__", "x", In(0))]
        if parts > 1:
            at = f"({index})blockIdx.y * {rows.outer.count} + row"
            ends += [f"    parts_{name}[{at}] = {name};" for _, name, _ in self.form.kept]
            parameters += self._kept()
        else:
            ends.append(f"    y[{dot(rows.outer.strides[1], 'o')}] = {e.write(self.form.result)};")
            parameters.append((f"{e.stored}* __restrict__", "y", Out(0)))
        packs = ""
        if width > 1:
            packs = f"struct alignas({width * e.dtype.itemsize}) pack_of_elements {{ {e.stored} v[{width}]; }};\n"
        before = packs + (self.functions if parts == 1 else "")
        grid = (self.blocks, parts, 1)
        return launch(self.name, parameters, "\n".join([*body, *ends, "}"]), grid, THREADS, before=before)

    def _begin(self) -> list[str]:
        return [f"{kind} {name} = {value};" for kind, name, value in self.form.kept]

    def _take(self) -> list[str]:
        """Statements for the elements at number `j` of the row."""
        e, inner = self.element, self.rows.inner
        if self.width > 1:
            taken = f"const {e.wide} v = {e.read('pack.v[k]')}; {self.form.step}"
            return [
                "const pack_of_elements pack = *(const pack_of_elements*)(p + j);",
                "#pragma unroll",
                f"for (int k = 0; k < {self.width}; ++k) {{ {taken} }}",
            ]
        if len(inner.sizes) == 1:
            place = "j" if inner.strides[0][0] == 1 else f"j * {inner.strides[0][0]}"
            return [f"const {e.wide} v = {e.read(f'p[{place}]')}; {self.form.step}"]
        place = dot(inner.strides[0], "r")
        return [
            *coordinates(self.rows.index, "j", inner.sizes, "r"),
            f"const {e.wide} v = {e.read(f'p[{place}]')}; {self.form.step}",
        ]

    def _meet(self) -> list[str]:
        """Statements after which the first thread of each row's team has what all have kept."""
        team, kept, form = self.team, self.form.kept, self.form
        if team == 1:
            return []
        if self.rows.columns:
            return [
                *(f"__shared__ {kind} all_{name}[{THREADS}];" for kind, name, _ in kept),
                *(f"all_{name}[threadIdx.x] = {name};" for _, name, _ in kept),
                "__syncthreads();",
                f"if (lane == 0) for (int k = 1; k < {team}; ++k) {{",
                *(f"    const {c} o_{n} = all_{n}[k * {self.together} + threadIdx.x];" for c, n, _ in kept),
                f"    {form.combine}",
                "}",
            ]
        lines = self._shuffled(min(team, WARP))
        if team > WARP:
            warps = THREADS // WARP  # of several rows
            lines += [
                *(f"__shared__ {kind} all_{name}[{warps}];" for kind, name, _ in kept),
                f"if (threadIdx.x % {WARP} == 0) {{",
                *(f"    all_{name}[threadIdx.x / {WARP}] = {name};" for _, name, _ in kept),
                "}",
                "__syncthreads();",
                f"if (lane == 0) for (int k = 1; k < {team // WARP}; ++k) {{",
                *(f"    const {c} o_{n} = all_{n}[threadIdx.x / {WARP} + k];" for c, n, _ in kept),
                f"    {form.combine}",
                "}",
            ]
        return lines

    def _shuffled(self, team: int) -> list[str]:
        others = [f"const {c} o_{n} = __shfl_xor_sync(0xffffffffu, {n}, d);" for c, n, _ in self.form.kept]
        return [
            f"for (int d = {team // 2}; d; d >>= 1) {{",
            *(f"    {o}" for o in others),
            f"    {self.form.combine}",
            "}",
        ]

    def _second(self) -> Launch:
        """A warp for each row combines its parts."""
        rows, e, index, count = self.rows, self.element, self.rows.index, self.rows.outer.count
        warps = THREADS // WARP
        body = [
            f"const int lane = threadIdx.x % {WARP};",
            f"const {index} row = ({index})blockIdx.x * {warps} + threadIdx.x / {WARP};",
            *coordinates(index, "row", rows.outer.sizes, "o"),
            *self._begin(),
            f"if (row < {count}) for (int k = lane; k < {self.parts}; k += {WARP}) {{",
            *(f"    const {c} o_{n} = parts_{n}[({index})k * {count} + row];" for c, n, _ in self.form.kept),
            f"    {self.form.combine}",
            "}",
            *self._shuffled(WARP),
            f"if (lane == 0 && row < {count}) y[{dot(rows.outer.strides[1], 'o')}] = {e.write(self.form.result)};",
        ]
        parameters = [(f"const {kind}", name, operand) for kind, name, operand in self._kept()]
        parameters.append((f"{e.stored}* __restrict__", "y", Out(0)))
        blocks = -(-count // warps)
        return launch(f"{self.name}_parts", parameters, "\n".join(body), blocks, THREADS, before=self.functions)


def _power(n: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(0, n - 1).bit_length()
