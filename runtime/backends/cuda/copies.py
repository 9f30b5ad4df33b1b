"""Strided copies: arrays of places that stand for tensors, and the launches that copy between them.

What a copy moves is told by NumPy's own views of arrays that are never read: slices, transposes and broadcasts find
sizes, strides and where they begin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops import Tensor
from ....ops.dataclasses import dataclass, replace
from ...compile.kernel import Alias
from .launch import In, Launch, Out
from .text import THREADS, index_type, launch, raw, strides_of

TILE = 32
ALIGNED = 64  # bytes: kernels expect operands to begin at a multiple
MOST = 24  # copies in one launch
_SIZES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}

Shadow = np.ndarray[Any, np.dtype[Any]]


def shadow(type: Tensor) -> Shadow:
    """An array of the sizes and strides of a tensor, over one element: only its views are looked at."""
    dtype = np.dtype(_SIZES[type.dtype.itemsize])
    strides = [s * dtype.itemsize for s in strides_of(type.sizes, type.layout)]
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), type.sizes, strides)


@dataclass(frozen=True, slots=True)
class StridedCopy:
    """A copy of elements of an input to an output: sizes, strides of both, and their first elements, in elements of
    `itemsize` bytes. The axes are in the order of the output's memory, merged as far as possible."""

    source: int
    target: int
    itemsize: int
    sizes: tuple[int, ...]
    to: tuple[int, ...]
    of: tuple[int, ...]
    to_begin: int
    of_begin: int

    @classmethod
    def between(cls, target: int, out: Shadow, to: Shadow, source: int, x: Shadow, of: Shadow) -> StridedCopy:
        """Return the copy from the view `of` of input `source` to the view `to` of output `target`."""
        n = x.itemsize
        axes = [(s, a // n, b // n) for s, a, b in zip(to.shape, to.strides, of.strides, strict=True) if s != 1]
        merged: list[tuple[int, int, int]] = []
        for size, a, b in sorted(axes, key=lambda axis: -abs(axis[1])):
            if merged and (merged[-1][1], merged[-1][2]) == (a * size, b * size):
                merged[-1] = merged[-1][0] * size, a, b
            else:
                merged.append((size, a, b))
        begins = [(view.ctypes.data - base.ctypes.data) // n for view, base in ((to, out), (of, x))]
        return cls(source, target, n, *(tuple(a[i] for a in merged) for i in range(3)), *begins)  # type: ignore[arg-type]

    @property
    def count(self) -> int:
        return math.prod(self.sizes)

    @property
    def flat(self) -> bool:
        """True if the copy is one contiguous run of bytes on both sides."""
        return not self.sizes or (len(self.sizes) == 1 and self.to == self.of == (1,))

    def alias(self, x: Tensor, y: Tensor) -> Alias | None:
        """Return the alias that makes the copy needless: one operand as a whole may be bytes of the other."""
        if not self.flat or x.dtype.itemsize != self.itemsize:
            return None
        kind, begin = ("view", self.of_begin) if self.count == y.elements else ("part", self.to_begin)
        if self.count not in (x.elements, y.elements) or begin * self.itemsize % ALIGNED:
            return None
        return Alias(self.target, self.source, kind, begin * self.itemsize)

    def wider(self) -> StridedCopy:
        """The same copy in larger elements, up to 16 bytes, where runs of elements allow it."""
        if not self.sizes or (self.to[-1], self.of[-1]) != (1, 1):
            return self
        apart = [self.sizes[-1], self.to_begin, self.of_begin, *self.to[:-1], *self.of[:-1]]
        together = math.gcd(16 // self.itemsize, *apart)
        if together == 1:
            return self
        return replace(
            self,
            itemsize=self.itemsize * together,
            sizes=(*self.sizes[:-1], self.sizes[-1] // together),
            to=(*(s // together for s in self.to[:-1]), 1),
            of=(*(s // together for s in self.of[:-1]), 1),
            to_begin=self.to_begin // together,
            of_begin=self.of_begin // together,
        )

    @property
    def turned(self) -> int | None:
        """The axis along which the input's elements follow one another, where it is another than the output's and
        both are long: squares are turned in shared memory then."""
        if not self.sizes or self.to[-1] != 1 or self.of[-1] == 1 or self.itemsize > 8:
            return None
        axes = [d for d, s in enumerate(self.of[:-1]) if s == 1]
        if not axes or min(self.sizes[-1], self.sizes[axes[0]]) < 8 or math.prod(self._tiles(axes[0])) >= 2**31:
            return None
        return axes[0]

    def _tiles(self, axis: int) -> tuple[int, int, int]:
        others = math.prod(n for d, n in enumerate(self.sizes[:-1]) if d != axis)
        return -(-self.sizes[-1] // TILE), -(-self.sizes[axis] // TILE), others

    def places(self, number: str, axes: Sequence[int] | None = None) -> tuple[str, str]:
        """The places in the output and in the input of element `number` of these axes, without where they begin."""
        axes = range(len(self.sizes)) if axes is None else axes
        to, of, step = [], [], 1
        for d in reversed(axes):
            part = number if step == 1 else f"{number} / {step}"
            part = f"({part})" if d == axes[0] else f"({part} % {self.sizes[d]})"
            to.append(part if self.to[d] == 1 else f"{part} * {self.to[d]}")
            of += [part if self.of[d] == 1 else f"{part} * {self.of[d]}"] if self.of[d] else []
            step *= self.sizes[d]
        return " + ".join(to) or "0", " + ".join(of) or "0"

    @property
    def index(self) -> str:
        far = [
            sum(abs(s) * (n - 1) for s, n in zip(strides, self.sizes, strict=True)) for strides in (self.to, self.of)
        ]
        return index_type(self.count, far[0] + self.to_begin, far[1] + self.of_begin)


def launches(
    family: str, copies: Sequence[StridedCopy], types: tuple[Sequence[Any], Sequence[Any]]
) -> tuple[Launch, ...]:
    """The launches of copies; those that may be needless on their own, and the rest together. `types` are those of the
    inputs and outputs."""
    result, others = list[Launch](), list[StridedCopy]()
    for copy in (c for c in copies if c.count):
        alias, wide = copy.alias(types[0][copy.source], types[1][copy.target]), copy.wider()
        if alias is not None:
            result.append(replace(_together("copy", [wide]), copies=alias))
        elif wide.turned is not None:
            result.append(_turned(family, wide, wide.turned))
        else:
            others.append(wide)
    result += [_together(family, others[i : i + MOST]) for i in range(0, len(others), MOST)]
    return tuple(result)


def _parameters(copies: Sequence[StridedCopy]) -> list[tuple[str, str, In | Out]]:
    ins, outs = sorted({c.source for c in copies}), sorted({c.target for c in copies})
    return [
        *(("const unsigned char* __restrict__", f"x{i}", In(i)) for i in ins),
        *(("unsigned char* __restrict__", f"y{i}", Out(i)) for i in outs),
    ]


def _ends(copy: StridedCopy) -> list[str]:
    unit = raw(copy.itemsize)
    return [
        f"const {unit}* const of = (const {unit}*)x{copy.source} + {copy.of_begin};",
        f"{unit}* const to = ({unit}*)y{copy.target} + {copy.to_begin};",
    ]


def _together(family: str, copies: Sequence[StridedCopy]) -> Launch:
    """A row of the grid for each copy, a thread for each element."""
    body = []
    for i, copy in enumerate(copies):
        to, of = copy.places("i")
        lines = [
            *_ends(copy),
            f"const {copy.index} i = ({copy.index})blockIdx.x * {THREADS} + threadIdx.x;",
            f"if (i < {copy.count}) to[{to}] = of[{of}];",
        ]
        body += [f"if (blockIdx.y == {i}) {{" if len(copies) > 1 else "{", *(f"    {line}" for line in lines), "}"]
    most = max(c.count for c in copies)
    return launch(family, _parameters(copies), "\n".join(body), (-(-most // THREADS), len(copies), 1))


def _turned(family: str, copy: StridedCopy, axis: int) -> Launch:
    """Squares of elements, read along the input's rows and written along the output's."""
    last, others = len(copy.sizes) - 1, [d for d in range(len(copy.sizes) - 1) if d != axis]
    across, down, _ = copy._tiles(axis)
    to, of = copy.places("rest", others) if others else ("0", "0")
    n, m, rows, index = copy.sizes[last], copy.sizes[axis], 8, copy.index
    body = [
        *_ends(copy),
        f"__shared__ {raw(copy.itemsize)} square[{TILE}][{TILE + 1}];",
        f"const {index} tile = blockIdx.x;",
        f"const int column = (int)(tile % {across}) * {TILE}, line = (int)(tile / {across} % {down}) * {TILE};",
        f"const {index} rest = tile / {across * down};",
        f"const {index} from = {of}, into = {to};",
        f"for (int r = threadIdx.y; r < {TILE}; r += {rows}) {{",
        "    const int a = column + r, b = line + threadIdx.x;",
        f"    if (a < {n} && b < {m}) square[r][threadIdx.x] = of[from + ({index})a * {copy.of[last]} + b];",
        "}",
        "__syncthreads();",
        f"for (int r = threadIdx.y; r < {TILE}; r += {rows}) {{",
        "    const int a = column + threadIdx.x, b = line + r;",
        f"    if (a < {n} && b < {m}) to[into + ({index})b * {copy.to[axis]} + a] = square[threadIdx.x][r];",
        "}",
    ]
    return launch(family, _parameters([copy]), "\n".join(body), math.prod(copy._tiles(axis)), (TILE, rows, 1))
