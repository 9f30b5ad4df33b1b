"""Pieces of source that our templates share: element types, offsets in memory, one kernel around a body.

Helper functions are written out in place, so that the texts of all kernels can stand in one file.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence

from ....ops import DType, Tensor, Type
from ....ops.dataclasses import dataclass
from ....ops.layouts import is_permutation, parse
from ...compile.kernel import KernelRequest
from .launch import Launch, Operand, Source

THREADS = 256  # in a block, where nothing else is said
FEW = 16  # elements of a constant that is still at hand when a step is prepared: see instance.py
WARP = 32

_C = {
    DType.FLOAT: "float", DType.DOUBLE: "double", DType.FLOAT16: "__half", DType.BFLOAT16: "__nv_bfloat16",
    DType.INT8: "signed char", DType.UINT8: "unsigned char", DType.INT16: "short", DType.UINT16: "unsigned short",
    DType.INT32: "int", DType.UINT32: "unsigned int", DType.INT64: "long long", DType.UINT64: "unsigned long long",
    DType.BOOL: "bool",
}  # fmt: skip
_HEADERS = {"__half": "cuda_fp16.h", "__nv_bfloat16": "cuda_bf16.h"}
_READS = {"__half": "__half2float({})", "__nv_bfloat16": "__bfloat162float({})"}
_WRITES = {"__half": "__float2half_rn({})", "__nv_bfloat16": "__float2bfloat16_rn({})"}
_RAW = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


@dataclass(frozen=True, slots=True)
class Element:
    """An element type in C++: its type in memory, and the type it is computed in (float for narrow floats)."""

    dtype: DType
    stored: str
    wide: str

    def read(self, place: str) -> str:
        """The value at a place such as `x[i]`."""
        return _READS.get(self.stored, "{}").format(place)

    def write(self, value: str) -> str:
        """A computed value as it is stored."""
        return _WRITES.get(self.stored, f"({self.stored})({{}})").format(value)

    @property
    def sums(self) -> str:
        """Type of sums and products: unsigned for integers, since those may wrap around."""
        if self.dtype.floating:
            return self.wide
        return "unsigned long long" if self.dtype.bits == 64 else "unsigned int"

    def f(self, name: str) -> str:
        """A function of the mathematical library for this type."""
        return name if self.wide == "double" else f"{name}f"

    def number(self, value: float) -> str:
        """A literal."""
        if not self.dtype.floating:
            return f"{self.integer(int(value))}"
        if math.isnan(value):
            return f"(({self.wide})0 / ({self.wide})0)"
        if math.isinf(value):
            return f"({'-' if value < 0 else ''}({self.wide})1 / ({self.wide})0)"
        return f"({self.wide}){float(value)!r}"

    def integer(self, value: int) -> str:
        """An integer, whatever its size."""
        if value >= 2**63:
            return f"{value}ull"
        return f"({value + 1}ll - 1)" if value == -(2**63) else f"{value}ll" if abs(value) >= 2**31 else str(value)

    @property
    def lowest(self) -> str:
        """Lowest number of the type, as source."""
        bits = self.dtype.bits
        if self.dtype.floating:
            return self.number(-math.inf)
        return self.integer(-(1 << bits - 1)) if self.dtype.signed and self.dtype is not DType.BOOL else "0"


def element(dtype: DType) -> Element | None:
    """Return the C++ form of an element type; None for those of less than 8 bits, 8-bit floats, complex numbers and
    strings."""
    stored = _C.get(dtype)
    return None if stored is None else Element(dtype, stored, "float" if dtype.narrow else stored)


def elements(types: Iterable[Type | None]) -> list[Element] | None:
    """The same for tensors whose sizes are known; None if any is something else."""
    forms = [element(t.dtype) if isinstance(t, Tensor) and t.static else None for t in types]
    kept = [e for e in forms if e is not None]
    return kept if len(kept) == len(forms) else None


def raw(itemsize: int) -> str:
    """A type of so many bytes, to be moved and nothing else; 16 is the struct that `wide_struct` defines."""
    return _RAW.get(itemsize, "KERNEL_16")


WIDE = "struct alignas(16) KERNEL_16 { unsigned int v[4]; };\n"


def launch(
    family: str,
    parameters: Sequence[tuple[str, str, Operand]],
    body: str,
    blocks: int | tuple[int, int, int],
    threads: int | tuple[int, int, int] = THREADS,
    *,
    before: str = "",
) -> Launch:
    """One kernel. `parameters` are (type, name, operand); `before` stands in front of the kernel, and KERNEL in it or
    in the body stands for the kernel's name."""
    block = threads if isinstance(threads, tuple) else (threads, 1, 1)
    grid = blocks if isinstance(blocks, tuple) else (blocks, 1, 1)
    listed = ", ".join(f"{kind} {name}" for kind, name, _ in parameters)
    shown = body + before + listed
    headers = "".join(f"#include <{h}>\n" for c, h in _HEADERS.items() if c in shown)
    struct = WIDE if "KERNEL_16" in shown else ""
    bounds = f"__launch_bounds__({math.prod(block)})"
    inner = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    text = f'{headers}{struct}{before}extern "C" __global__ void {bounds} KERNEL({listed}) {{\n{inner}}}\n'
    name = f"{family}_{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    return Launch(Source(name, text.replace("KERNEL", name)), grid, block, tuple(o for _, _, o in parameters))


def reads(e: Element | str, name: str, operand: Operand) -> tuple[str, str, Operand]:
    """A parameter that is only read."""
    return f"const {e if isinstance(e, str) else e.stored}* __restrict__", name, operand


def writes(e: Element | str, name: str, operand: Operand) -> tuple[str, str, Operand]:
    """A parameter that is written."""
    return f"{e if isinstance(e, str) else e.stored}* __restrict__", name, operand


def index_type(*counts: int) -> str:
    """Return the index type for arrays of these numbers of elements; some room is left for the threads beyond the
    last."""
    return "int" if max(counts, default=0) < 2**31 - 2**20 else "long long"


def each(
    family: str,
    parameters: Sequence[tuple[str, str, Operand]],
    sizes: Sequence[int],
    body: str,
    *,
    layout: str = "",
    largest: int = 0,
    before: str = "",
) -> Launch:
    """One thread for each element of an array of these sizes, in the order in which they lie: `body` finds the number
    of its own in `i` and its place in `c0`, `c1`, ...; `largest` is the number of elements of the largest other
    array."""
    count = math.prod(sizes)
    index = index_type(count, largest)
    used = set(re.findall(r"\bc(\d+)\b", body))
    head = [
        f"const {index} i = ({index})blockIdx.x * {THREADS} + threadIdx.x;",
        f"if (i >= {count}) return;",
        *coordinates(index, "i", sizes, order=lying(layout, len(sizes)), used=[int(c) for c in used]),
    ]
    return launch(family, parameters, "\n".join(head) + "\n" + body, -(-count // THREADS), before=before)


def each_wide(
    family: str,
    arrays: Sequence[tuple[Element, str, Operand]],
    others: Sequence[tuple[str, str, Operand]],
    count: int,
    body: str,
) -> Launch:
    """One thread for up to 16 bytes of arrays that lie alike, of which the last is written. `body` makes its element
    `i`, as it is stored, of those of the others, which bear the names of their arrays."""
    width = math.gcd(count, 16 // max(e.dtype.itemsize for e, _, _ in arrays))
    index, (result, name, _) = index_type(count), arrays[-1]
    kinds = {e.stored: f"KERNEL_{e.dtype}" for e, _, _ in arrays}
    sizes = {e.stored: e.dtype.itemsize * width for e, _, _ in arrays}
    structs = [f"struct alignas({sizes[s]}) {kind} {{ {s} v[{width}]; }};\n" for s, kind in kinds.items()]
    lines = [
        f"const {index} first = (({index})blockIdx.x * {THREADS} + threadIdx.x) * {width};",
        f"if (first >= {count}) return;",
        *(
            f"const {kinds[e.stored]} pack_{n} = *(const {kinds[e.stored]}*)(all_{n} + first);"
            for e, n, _ in arrays[:-1]
        ),
        f"{kinds[result.stored]} pack_{name};",
        "#pragma unroll",
        f"for (int k = 0; k < {width}; ++k) {{",
        f"const {index} i = first + k;",
        *(f"const {e.wide} {n} = {e.read(f'pack_{n}.v[k]')};" for e, n, _ in arrays[:-1]),
        f"{result.stored} {name};",
        body,
        f"pack_{name}.v[k] = {name};",
        "}",
        f"*({kinds[result.stored]}*)(all_{name} + first) = pack_{name};",
    ]
    parameters = [reads(e, f"all_{n}", operand) for e, n, operand in arrays[:-1]]
    parameters += [writes(result, f"all_{name}", arrays[-1][2]), *others]
    blocks = -(-count // (THREADS * width))
    return launch(family, parameters, "\n".join(lines), blocks, before="".join(structs))


def coordinates(
    index: str,
    number: str,
    sizes: Sequence[int],
    name: str = "c",
    *,
    order: Sequence[int] | None = None,
    used: Sequence[int] | None = None,
) -> list[str]:
    """Statements that take the number of an element apart into its places `c0`, `c1`, ...; axes lie in `order`, the
    outermost first, and the places of those in `used` are wanted."""
    lines, step = [], 1
    order = range(len(sizes)) if order is None else order
    count = math.prod(sizes)
    for d in reversed(order):
        span = step * sizes[d]
        if used is None or d in used:
            part = number if step == 1 else f"{number} / {step}"
            part = "0" if sizes[d] == 1 else part if span == count else f"{part} % {sizes[d]}"
            lines.append(f"const {index} {name}{d} = {part};")
        step = span
    return lines


def dot(strides: Sequence[int], name: str = "c", sizes: Sequence[int] | None = None) -> str:
    """The sum of places times strides; axes of size 1 and strides of 0 count for nothing."""
    parts = [
        f"{name}{d}" if s == 1 else f"{name}{d} * {s}"
        for d, s in enumerate(strides)
        if s and (sizes is None or sizes[d] != 1)
    ]
    return " + ".join(parts) or "0"


def strides_of(sizes: Sequence[int], layout: str = "") -> tuple[int, ...]:
    """Return the stride along each axis, in elements.

    >>> strides_of((2, 3, 4)), strides_of((1, 8, 2, 2), "acdb")
    ((12, 4, 1), (32, 1, 16, 8))
    """
    order = parse(layout, len(sizes))[0] if layout else range(len(sizes))
    strides, step = [0] * len(sizes), 1
    for d in reversed(order):
        strides[d] = step
        step *= sizes[d]
    return tuple(strides)


def lying(layout: str, rank: int) -> tuple[int, ...]:
    """The axes in the order in which they lie in memory, the outermost first."""
    return parse(layout, rank)[0] if layout else tuple(range(rank))


def permuted(type: Type | None) -> str:
    """The layout of a tensor, if it is an order of its axes; else that in which a Reorder gives it."""
    layout = type.layout if isinstance(type, Tensor) else ""
    return layout if layout and is_permutation(layout) else ""


def constant(request: KernelRequest, i: int) -> list[int] | None:
    """The elements of a small constant input, which are at hand again when the step is prepared."""
    known = request.inputs[i] if i < len(request.inputs) else None
    if not isinstance(known, Tensor) or not request.constant(i) or known.value is None or (known.elements or 0) > FEW:
        return None
    values = known.ints() or []
    return values if all(-(2**63) <= v < 2**63 for v in values) else None


def has_input(request: KernelRequest, i: int) -> bool:
    """True if an optional input is given."""
    return i < len(request.inputs) and request.inputs[i] is not None
