"""A graph builder with the words that the rules of MXNet's operators are written in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ops import DType
from ...ops.dataclasses import dataclass
from ...ops.errors import ShapeError, UnsupportedModel
from ...ops.types import Array, Dim
from ...runtime.ir.typed import TypedBuilder
from .arrays import DTYPES
from .sizes import UnknownSize

Value = Any  # the name of a value; of some operators a tuple of names
NAMES = {d.numpy.name: d for d in DTYPES} | {"bfloat16": DType.BFLOAT16}


def element_type(name: Any) -> DType:
    """The element type of a `dtype` attribute: NumPy's name, or MXNet's number."""
    if isinstance(name, int) and 0 <= name < len(DTYPES):
        return DTYPES[name]
    if name in NAMES:
        return NAMES[name]
    raise UnsupportedModel(f"the element type {name!r} is not known")


@dataclass(frozen=True, slots=True)
class Part:
    """A subgraph of the node that is being written: how many inputs it has, what writes it with a converter and
    operands, and returns its results, and its operators with their attributes."""

    inputs: int
    write: Callable[[Converter, Sequence[str]], list[str]]
    uses: tuple[tuple[str, Mapping[str, str]], ...] = ()


class Converter(TypedBuilder):
    """`c` in rules: `c.Add(a, b)` adds a node of ONNX, whose type is known at once."""

    def __init__(self, *, prefix: str = "", captured: tuple[str, ...] = ()) -> None:
        super().__init__(prefix=prefix, captured=captured)
        self.stem = ""  # the name of MXNet's node that is being written
        self.parts: tuple[Part, ...] = ()  # its subgraphs
        self.partial: dict[str, tuple[int, ...]] = {}  # fills of which MXNet infers the sizes that are 0

    def _new_name(self, stem: str) -> str:
        name = super()._new_name(stem)
        return f"{self.stem}/{name}" if self.stem and not self.prefix else name

    def _within(self, prefix: str) -> TypedBuilder:
        return Converter(prefix=prefix, captured=self.captured)

    # What is known of a value

    def dims(self, x: str) -> tuple[Dim, ...]:
        dims = self._tensor(x).dims
        if dims is None:
            raise UnknownSize(f"the rank of {x!r} has to be known here", hint="give shapes={name: (sizes)}")
        return dims

    def rank(self, x: str) -> int:
        return len(self.dims(x))

    def dtype(self, x: str) -> DType:
        return self._tensor(x).dtype

    def axis(self, x: str, axis: int, more: int = 0) -> int:
        """An axis counted from the front."""
        rank = self.rank(x) + more
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} is none of {rank}")
        return axis % rank

    def axes(self, x: str, axes: Any, *, exclude: bool = False) -> list[int]:
        """Axes from the front; all where none are named."""
        rank = self.rank(x)
        if axes is None or axes == ():
            return list(range(rank))
        named = {self.axis(x, a) for a in ((axes,) if isinstance(axes, int) else axes)}
        return [i for i in range(rank) if (i in named) != exclude]

    def size(self, x: str, axis: int, why: str = "here") -> int:
        """The size of an axis; ShapeError where it is open."""
        dim = self.dims(x)[axis]
        if not isinstance(dim, int):
            raise UnknownSize(
                f"the size of axis {axis % self.rank(x)} of {x!r} has to be known {why}",
                hint="give the sizes of the inputs: shapes={name: (sizes)}",
            )
        return dim

    def agree(self, x: str, axis: int, size: int, what: str) -> None:
        """ShapeError where the size of an axis is known, and is another one than a setting says."""
        dim = self.dims(x)[axis] if self._tensor(x).dims is not None else None
        if isinstance(dim, int) and dim != size:
            raise ShapeError(f"{what}={size}, and axis {axis} of {x!r} has {dim}")

    def sizes(self, x: str, why: str = "here") -> tuple[int, ...]:
        return tuple(self.size(x, i, why) for i in range(self.rank(x)))

    # Constants

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def number(self, value: float, like: str) -> str:
        """A number in the element type of another value, cut to a whole one where that is an integer."""
        dtype = self.dtype(like)
        return self.const(np.array(value if dtype.floating or math.isinf(value) else int(value)).astype(dtype.numpy))

    def array(self, values: Any, like: str) -> str:
        return self.const(np.asarray(values).astype(self.dtype(like).numpy))

    def known(self, x: str) -> Array | None:
        """The elements of a constant, if it is one."""
        return self.constants().get(x)

    # Small steps

    def cast(self, x: str, dtype: DType) -> Value:
        return x if self.dtype(x) is dtype else self.op("Cast", x, to=dtype.onnx)

    def whole(self, x: str) -> Value:
        """Indices as int64: MXNet keeps them in floats."""
        return self.cast(x, DType.INT64)

    def truth(self, x: str) -> Value:
        """Truths: elements that are not 0."""
        if self.dtype(x) is DType.BOOL:
            return x
        return self.op("Not", self.op("Equal", x, self.number(0, x)))

    def slice(self, x: str, axis: int, begin: int, end: int | None, step: int = 1) -> Value:
        edge = (1 << 62) * (1 if step > 0 else -1) if end is None else end
        return self.op("Slice", x, self.ints(begin), self.ints(edge), self.ints(axis), self.ints(step))

    def reshape(self, x: str, shape: Sequence[int]) -> Value:
        """0 keeps a size, -1 is what is left."""
        return self.op("Reshape", x, self.ints(*shape))

    def unsqueeze(self, x: str, *axes: int) -> Value:
        return self.op("Unsqueeze", x, self.ints(*axes)) if axes else x

    def squeeze(self, x: str, *axes: int) -> Value:
        return self.op("Squeeze", x, self.ints(*axes)) if axes else x

    def transpose(self, x: str, perm: Iterable[int]) -> Value:
        order = tuple(perm)
        return x if order == tuple(range(len(order))) else self.op("Transpose", x, perm=order)

    def dim(self, x: str, axis: int) -> Value:
        """The size of an axis as a vector of one element: a constant where it is known."""
        known = self.dims(x)[axis]
        if isinstance(known, int):
            return self.ints(known)
        start = axis % self.rank(x)
        return self.op("Shape", x, start=start, end=start + 1)

    def shape_with(self, parts: Sequence[int | str]) -> Value:
        """A shape of sizes and of vectors of sizes."""
        parts = [p if isinstance(p, int) or (k := self.known(p)) is None else int(k[0]) for p in parts]
        if all(isinstance(p, int) for p in parts):
            return self.ints(*parts)  # type: ignore[arg-type]
        vectors = [self.ints(p) if isinstance(p, int) else p for p in parts]
        return self.op("Concat", *vectors, axis=0) if len(vectors) > 1 else vectors[0]

    def full(self, shape: str, value: float, dtype: DType) -> Value:
        return self.op("Expand", self.const(np.array(value).astype(dtype.numpy)), shape)

    def like(self, x: str, value: float, dtype: DType | None = None) -> Value:
        return self.full(self.shape_of(x), value, dtype or self.dtype(x))

    def constant(self, x: str) -> Value:
        """The value, which does not learn."""
        return self.op("StopGradient", x, domain="mezzo")

    def channels_first(self, x: str, layout: str | None) -> tuple[str, list[int]]:
        """The data with channels at axis 1, and the permutation that brings a result back."""
        rank = self.rank(x)
        if layout is None or layout.index("C") == 1:
            return x, list(range(rank))
        if len(layout) != rank:
            raise ShapeError(f"the layout {layout} is none of {rank} axes")
        plain = "NC" + "".join(a for a in layout if a not in "NC")
        return self.transpose(x, [layout.index(a) for a in plain]), [plain.index(a) for a in layout]
