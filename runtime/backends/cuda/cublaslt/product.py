"""Matrix products as data: D = epilogue(alpha * A B + beta * C + bias), for a batch of them, over row-major matrices.

Nothing here needs CUDA. A product follows from types alone, and is the key under which algorithms are kept.
https://docs.nvidia.com/cuda/cublas/#cublasltmatmul
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from .....ops import DType, MezzoError, Tensor
from .....ops.dataclasses import dataclass, replace
from .....ops.layouts import is_permutation
from ..cudnn.draft import Place, strides_of

FEW_CALLS = 4  # for one step; where more would be needed, operands are copied into row-major order first
MOST_CALLS = 64  # of row-major operands


class LtRefused(MezzoError):
    """cuBLASLt does not support the product. What fails `for_now`, for want of memory, is asked again the next time."""

    for_now = False


@dataclass(frozen=True, slots=True)
class Matrix:
    """One operand: `rows` by `columns` as the product sees it; if `turned`, it is stored as `columns` by `rows`.
    `leading` is the distance between stored rows in elements, `apart` that between matrices of the batch (0: all share
    one)."""

    place: Place
    dtype: DType
    rows: int
    columns: int
    turned: bool
    leading: int
    apart: int = 0
    layout: str = ""

    @property
    def transposed(self) -> Matrix:
        return replace(self, rows=self.columns, columns=self.rows, turned=not self.turned)


@dataclass(frozen=True, slots=True)
class LtProduct:
    """A call of cuBLASLt, made once for each of `starts`: the first elements of A, B, C and D. `epilogue` is "", "relu"
    or "gelu" (its tanh form); `bias` has a number for each column of D; `math` is `strict` or `tf32`."""

    a: Matrix
    b: Matrix
    d: Matrix
    c: Matrix | None = None
    bias: Place | None = None
    batch: int = 1
    starts: tuple[tuple[int, int, int, int], ...] = ((0, 0, 0, 0),)
    alpha: float = 1.0
    beta: float = 0.0
    epilogue: str = ""
    math: str = "strict"

    @property
    def operands(self) -> tuple[Matrix, ...]:
        return tuple(m for m in (self.a, self.b, self.c, self.d) if m is not None)


@dataclass(frozen=True, slots=True)
class Spread:
    """A tensor as a batch of matrices: sizes and strides of its last two dims, and its strides along the batch dims (0
    where it is repeated)."""

    place: Place
    dtype: DType
    sizes: tuple[int, int]
    strides: tuple[int, int]
    batch: tuple[int, ...]
    layout: str

    @property
    def transposed(self) -> Spread:
        return replace(self, sizes=self.sizes[::-1], strides=self.strides[::-1])

    def matrix(self) -> Matrix:
        """Return the operand. Raises LtRefused if neither rows nor columns are contiguous."""
        (rows, columns), (down, right) = self.sizes, self.strides
        if (right == 1 or columns == 1) and (down >= columns or rows == 1):
            leading = down if rows > 1 else max(columns, 1)
            return Matrix(self.place, self.dtype, rows, columns, False, leading, layout=self.layout)
        if (down == 1 or rows == 1) and (right >= rows or columns == 1):
            leading = right if columns > 1 else max(rows, 1)
            return Matrix(self.place, self.dtype, rows, columns, True, leading, layout=self.layout)
        raise LtRefused("neither the rows nor the columns of an operand are contiguous")


def spread(place: Place, t: Tensor, batch: Sequence[int], layout: str, vector: str = "") -> Spread:
    """A tensor over the dims of a batch. A `vector` is a "row" or a "column"."""
    sizes, strides = t.sizes, strides_of(layout, t.sizes)
    if vector == "row":
        sizes, strides = (1, *sizes), (sizes[0], *strides)
    elif vector == "column":
        sizes, strides = (*sizes, 1), (*strides, 1)
    lead, inner = sizes[:-2], strides[:-2]
    missing = len(batch) - len(lead)
    along = (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(lead, inner, strict=True))
    return Spread(place, t.dtype, (sizes[-2], sizes[-1]), (strides[-2], strides[-1]), along, layout)


def usable(t: Tensor) -> str:
    """The layout of a tensor, if it is an order of its dims; else row-major."""
    return t.layout if is_permutation(t.layout) and t.rank >= 2 else ""


def products(batch: tuple[int, ...], a: Spread, b: Spread, c: Spread | None, d: Spread) -> LtProduct:
    """The calls for a batch of products; Refused where there would be too many."""
    sides = [s for s in (a, b, c, d) if s is not None]
    most = FEW_CALLS if any(s.layout for s in sides) else MOST_CALLS
    dims, rows = list(range(len(batch))), a.sizes[0]
    dims = [i for i in dims if batch[i] != 1]
    # rows of A that follow one another through the batch, all times one B, are rows of one product
    while dims and not b.batch[dims[-1]] and all(_follows(s, dims[-1], rows) for s in sides if s is not b):
        rows *= batch[dims.pop()]
    grown = [replace(s, sizes=(rows, s.sizes[1])) if s is not b else s for s in sides]
    inner, count = len(dims), 1
    while inner and all(_merges(s, dims[inner - 1], dims[-1], count) for s in grown):
        inner -= 1
        count *= batch[dims[inner]]
    outer = dims[:inner]
    calls = [
        tuple(sum(at * s.batch[i] for at, i in zip(where, outer, strict=True)) for s in grown)
        for where in product(*(range(batch[i]) for i in outer))
    ]
    if len(calls) > most:
        raise LtRefused(f"{len(calls)} calls would be needed")
    matrices = [replace(s.matrix(), apart=s.batch[dims[-1]] if count > 1 else 0) for s in grown]
    if c is None:
        starts = tuple((x, y, 0, z) for x, y, z in calls)
        return LtProduct(matrices[0], matrices[1], matrices[2], batch=count, starts=starts)
    starts = tuple((w, x, y, z) for w, x, y, z in calls)
    return LtProduct(matrices[0], matrices[1], matrices[3], matrices[2], batch=count, starts=starts)


def _follows(s: Spread, dim: int, rows: int) -> bool:
    """True if each matrix along a batch dim begins where the rows of the one before end."""
    return s.batch[dim] == rows * s.strides[0] and (s.strides[1] == 1 or s.sizes[1] == 1) and s.strides[0] >= s.sizes[1]


def _merges(s: Spread, dim: int, last: int, count: int) -> bool:
    """True if one stride covers this dim together with the `count` matrices of the inner ones."""
    return s.batch[dim] == s.batch[last] * count
