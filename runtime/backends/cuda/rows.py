"""Rows: elements combined along some axes of a tensor, by a thread, a warp or a block for each row."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ....ops.dataclasses import dataclass, replace
from .text import WARP, Element, coordinates, dot, index_type, strides_of

BLOCKS = 132  # that many processors wait for work
REGISTERS = 32  # elements that a thread keeps


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of an array: `outer` has the kept axes, which count the rows, `inner` the combined ones, both as (sizes,
    strides); `size` is the number of elements of a row, `count` the number of rows. A thread takes `width` neighbours
    at once of a row in registers."""

    outer: tuple[tuple[int, ...], tuple[int, ...]]
    inner: tuple[tuple[int, ...], tuple[int, ...]]
    width: int = 1

    @classmethod
    def of(cls, sizes: Sequence[int], axes: Sequence[int], layout: str = "") -> Rows:
        """The rows of a tensor along axes, its elements lying in a layout."""
        strides = strides_of(sizes, layout)
        gone = [d for d in range(len(sizes)) if d in axes and sizes[d] != 1]
        kept = [d for d in range(len(sizes)) if d not in axes and sizes[d] != 1]
        return cls(_merged(sizes, strides, kept), _merged(sizes, strides, gone))

    @property
    def size(self) -> int:
        return math.prod(self.inner[0])

    @property
    def count(self) -> int:
        return math.prod(self.outer[0])

    @property
    def columns(self) -> bool:
        """True if neighbouring rows begin with neighbouring elements, so that adjacent threads take adjacent rows."""
        return self.size > 1 and self.inner[1][-1] != 1 and self.outer[1][-1:] == (1,) and self.count >= WARP

    @property
    def team(self) -> int:
        """Threads for a row: a warp or a block; one, or some of different warps, in columns."""
        if self.columns:
            few = self.count % WARP == 0 and self.count < BLOCKS * 1024
            return min(8, 2 ** int(math.log2(self.size / 2))) if few and self.size >= 4 else 1
        if self.size == 1:
            return 1
        if self.size <= WARP * 4 or (self.size <= WARP * REGISTERS and self.count >= BLOCKS * 8):
            return WARP
        return int(min(1024, max(WARP, 2 ** math.ceil(math.log2(self.size / 4)))))

    @property
    def threads(self) -> int:
        """Threads of a block; of several warps, for one row alone."""
        if self.columns and self.team > 1:
            return WARP * self.team
        if self.team > WARP:
            return self.team
        return max(self.team, min(256, -(-self.count * self.team // WARP) * WARP))

    @property
    def blocks(self) -> int:
        return -(-self.count // (self.threads // self.team))

    @property
    def index(self) -> str:
        """The type that counts elements of the array."""
        return index_type(self.size * self.count)

    def begin(self) -> list[str]:
        """Statements: the number of the row in `row`, of the thread among those of the row in `lane`, the place of its
        first element in `at`."""
        teams = self.threads // self.team
        lane, row = ("threadIdx.x", "blockIdx.x") if teams == 1 else (
            f"threadIdx.x % {self.team}", f"blockIdx.x * {teams} + threadIdx.x / {self.team}"
        )  # fmt: skip
        if self.columns and self.team > 1:
            lane, row = f"threadIdx.x / {WARP}", f"blockIdx.x * {WARP} + threadIdx.x % {WARP}"
        sizes, strides = self.outer
        return [
            f"const int lane = {'0' if self.team == 1 else lane};",
            f"const {self.index} row = ({self.index}){row};",
            f"if (row >= {self.count}) return;",
            *coordinates(self.index, "row", sizes, "o"),
            f"const {self.index} at = {dot(strides, 'o')};",
        ]

    def place(self, j: str) -> str:
        """Return the source of the offset of element number `j` (a name) of the row from its first."""
        sizes, strides = self.inner
        if len(sizes) < 2:
            return f"({self.index}){j} * {strides[0]}" if strides and strides[0] != 1 else j
        parts, step = [], math.prod(sizes)
        for n, s in zip(sizes, strides, strict=True):
            span, step = step, step // n
            part = j if span == self.size else f"{j} % {span}"
            parts.append(f"({self.index})({part} / {step}) * {s}" if step > 1 else f"({part}) * {s}")
        return " + ".join(parts)

    def loop(self, *body: str) -> list[str]:
        """The body for each element `j` of the row that is this thread's, at `p`."""
        inner = self._inner(body)
        return [f"for (int j = lane; j < {self.size}; j += {self.team}) {{\n{inner}}}"]

    def _inner(self, body: Sequence[str]) -> str:
        placed = any(re.search(r"\bp\b", line) for line in body)
        lines = [*([f"const {self.index} p = at + {self.place('j')};"] if placed else []), *body]
        return "".join(f"    {line}\n" for line in lines)

    def across(self, kind: str, name: str, combine: str) -> list[str]:
        """Combine the values that the threads of a row have in `name`: `combine` makes one of it and of `other`."""
        if self.team == 1:
            return []
        if self.columns:
            return [
                f"__shared__ {kind} {name}s[{self.team}][{WARP}];",
                f"{name}s[lane][threadIdx.x % {WARP}] = {name};",
                "__syncthreads();",
                f"{name} = {name}s[0][threadIdx.x % {WARP}];",
                f"for (int w = 1; w < {self.team}; ++w) {{ const {kind} other = {name}s[w][threadIdx.x % {WARP}]; "
                f"{name} = {combine}; }}",
            ]
        lines = [
            f"for (int m = {WARP // 2}; m; m >>= 1) {{ const {kind} other = __shfl_xor_sync(0xffffffffu, {name}, m); "
            f"{name} = {combine}; }}"
        ]
        warps = self.team // WARP
        if warps > 1:
            lines += [
                f"__shared__ {kind} {name}s[{warps}];",
                f"if (lane % {WARP} == 0) {name}s[lane / {WARP}] = {name};",
                "__syncthreads();",
                f"{name} = {name}s[0];",
                f"for (int w = 1; w < {warps}; ++w) {{ const {kind} other = {name}s[w]; {name} = {combine}; }}",
            ]
        return lines

    @property
    def kept(self) -> int:
        """Number of elements of a row for each thread."""
        return -(-self.size // (self.team * self.width)) * self.width

    def wide(self, itemsize: int) -> Rows:
        """The rows with 16 bytes for a thread at once, as far as elements of this size lie so and suffice for all."""
        if self.inner[1] != (1,):
            return self
        width = math.gcd(16 // itemsize, self.size, *self.outer[1])
        while width > 1 and (width * self.team > self.size or not replace(self, width=width).in_registers):
            width //= 2
        return replace(self, width=width)

    @property
    def in_registers(self) -> bool:
        """True if they fit into registers."""
        return self.kept <= REGISTERS

    def unrolled(self, *body: str) -> list[str]:
        """Return the loop as `loop` does, with the number of the thread's element in `k`, known to the compiler."""
        inner, width = self._inner(body), self.width
        test = "" if self._even else f"if (j < {self.size}) "
        place = (
            f"(k / {width} * {self.team} + lane) * {width} + k % {width}" if width > 1 else f"k * {self.team} + lane"
        )
        number = f"const int j = {place};\n" if test or "j" in re.findall(r"\w+", inner) else ""
        return ["#pragma unroll", f"for (int k = 0; k < {self.kept}; ++k) {{\n{number}{test}{{\n{inner}}}\n}}"]

    @property
    def _even(self) -> bool:
        """True if all threads of a row have as many elements."""
        return self.size % (self.team * self.width) == 0

    def load(self, e: Element, x: str, into: str) -> list[str]:
        """Statements that read the elements of the row that are this thread's, from `x` into the array `into`."""
        if self.width == 1:
            return self.unrolled(f"{into}[k] = {e.read(f'{x}[p]')};")
        return self._pieces(
            f"const KERNEL_piece piece = *(const KERNEL_piece*)({x} + at + first);",
            *("#pragma unroll", f"for (int r = 0; r < {self.width}; ++r) {into}[q + r] = {e.read('piece.v[r]')};"),
        )

    def store(self, y: str, value: str, *before: str) -> list[str]:
        """Statements that write `value` to `y` for each element of this thread; `before` are statements of its own."""
        if self.width == 1:
            return self.unrolled(*before, f"{y}[p] = {value};")
        inner = self._inner([*before, f"piece.v[r] = {value};"])
        return self._pieces(
            "KERNEL_piece piece;",
            "#pragma unroll",
            f"for (int r = 0; r < {self.width}; ++r) {{ const int k = q + r, j = first + r;\n{inner}}}",
            f"*(KERNEL_piece*)({y} + at + first) = piece;",
        )

    def _pieces(self, *body: str) -> list[str]:
        test = "" if self._even else f"if (first < {self.size}) "
        return [
            "#pragma unroll",
            f"for (int q = 0; q < {self.kept}; q += {self.width}) {{",
            f"const int first = (q / {self.width} * {self.team} + lane) * {self.width};",
            *(f"{test}{{", *body, "}}"),
        ]

    def piece(self, e: Element) -> str:
        """The type of neighbours that `load` and `store` take, in front of the kernel."""
        if self.width == 1:
            return ""
        return f"struct alignas({self.width * e.dtype.itemsize}) KERNEL_piece {{ {e.stored} v[{self.width}]; }};\n"


def _merged(
    sizes: Sequence[int], strides: Sequence[int], axes: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of these axes; those that follow one another in memory as one."""
    merged: list[tuple[int, int]] = []
    for d in axes:
        if merged and merged[-1][1] == strides[d] * sizes[d]:
            merged[-1] = merged[-1][0] * sizes[d], strides[d]
        else:
            merged.append((sizes[d], strides[d]))
    return tuple(n for n, _ in merged), tuple(s for _, s in merged)


LARGER = "(other > {0} || other != other) ? other : {0}"  # of two, NaN before all others


def larger(name: str) -> str:
    """The larger of `other` and a value; NaN if one of them is."""
    return LARGER.format(name)
