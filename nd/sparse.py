"""Row-sparse tables: gradients of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ..ops.errors import InputError, ShapeError
from . import functions
from .array import Array
from .place import Place
from .running import apply, as_array
from .specs import known


class RowSparse:
    """Some rows of a table, each once and in ascending order; all others are zeros. `indices` are their numbers, `data`
    the rows. MXNet's RowSparseNDArray, as far as gradients need it: it is added to others and multiplied by numbers,
    and may be given to a KVStore.

    >>> from mezzo.nd import row_sparse_array
    >>> x = row_sparse_array(([[1.0, 2], [3, 4], [5, 6]], [2, 0, 2]), (4, 2))
    >>> x.indices.tolist(), x.data.tolist()
    ([0, 2], [[3.0, 4.0], [6.0, 8.0]])
    >>> (x + x / 2).asnumpy()[2]
    array([ 9., 12.], dtype=float32)
    """

    __slots__ = ("_ids", "_rows", "shape")
    stype = "row_sparse"

    def __init__(self, ids: Array, rows: Array, shape: Sequence[int]) -> None:
        """`ids` and `rows` are as `mezzo.GatherGradRows` makes them: behind the last row stand numbers of no row."""
        self._ids, self._rows, self.shape = ids, rows, tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._rows.dtype

    @property
    def device(self) -> Place:
        """The device of the array."""
        return self._rows.device

    def _count(self) -> int:
        return int((self._ids.asnumpy() < self.shape[0]).sum())

    @property
    def indices(self) -> Array:
        """The numbers of the rows, int64. How many there are is known when they are computed: this waits."""
        return self._ids[: self._count()]

    @property
    def data(self) -> Array:
        """The rows. This waits, as `indices` does."""
        return self._rows[: self._count()]

    def tostype(self, stype: str) -> Any:
        """The whole table (`default`), or this (`row_sparse`). Raises InputError for another word."""
        if stype == "row_sparse":
            return self
        if stype != "default":
            raise InputError(f"stype {stype!r}", where="tostype", hint="'default' or 'row_sparse'")
        size, *rest = self.shape
        zeros = functions.zeros((size + 1, *rest), dtype=self.dtype, device=self.device)
        whole: Array = apply("ScatterND", zeros, functions.reshape(self._ids, (-1, 1)), self._rows)
        return whole[:size]

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """The whole table in NumPy."""
        found: np.ndarray[Any, Any] = self.tostype("default").asnumpy()
        return found

    def wait_to_read(self) -> Self:
        """Wait until the array is computed. Raises the error of its computation."""
        self._rows.wait_to_read()
        return self

    def copy(self) -> RowSparse:
        """The same rows; what is assigned to one is not seen by the other."""
        return RowSparse(self._ids, self._rows, self.shape)

    def assign(self, value: Any) -> None:
        """Have other rows: those of a RowSparse, all of an array, or none (0). Raises ShapeError for another shape."""
        if isinstance(value, RowSparse | Array):
            if value.shape != self.shape or value.dtype != self.dtype:
                raise ShapeError(f"{value.dtype}{list(value.shape)} for {self.dtype}{list(self.shape)}", where="assign")
            if isinstance(value, RowSparse):
                self._ids, self._rows = value._ids, value._rows
            else:
                self._ids, self._rows = functions.arange(len(value), dtype="int64", device=value.device), value
        elif np.ndim(value) == 0 and value == 0:
            self._ids, self._rows = self._ids[:0], self._rows[:0]
        else:
            raise InputError("rows are assigned rows, a whole table, or 0", where="assign")

    def fill(self, ids: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> None:
        """Have copies of these rows, whose numbers are int64, ascending and each there once."""
        self._ids, self._rows = as_array(ids, self.device), as_array(rows, self.device)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Array):
            return self.tostype("default") + other
        if not isinstance(other, RowSparse):
            return NotImplemented
        if other.shape != self.shape or other.dtype != self.dtype:
            raise ShapeError(f"{self!r} and {other!r} differ", where="add")
        rows, ids = functions.concat((self._rows, other._rows)), functions.concat((self._ids, other._ids))
        return RowSparse(*_summed(rows, ids, self.shape), self.shape)

    def __iadd__(self, other: Any) -> Self:
        self.assign(self + other)
        return self

    def __mul__(self, number: float) -> RowSparse:
        return RowSparse(self._ids, self._rows * number, self.shape)

    __rmul__ = __mul__

    def __truediv__(self, number: float) -> RowSparse:
        return RowSparse(self._ids, self._rows / number, self.shape)

    def __itruediv__(self, number: float) -> Self:
        self._rows = self._rows / number
        return self

    def __repr__(self) -> str:
        return f"<RowSparse {self.dtype}{list(self.shape)} of at most {len(self._ids)} rows on {self.device}>"


def row_sparse_array(given: tuple[Any, Any], shape: Sequence[int], dtype: Any = None) -> RowSparse:
    """Make a table of this shape from some rows: (their elements, their indices), as in MXNet. Rows with the same index
    are summed, in order. Raises ShapeError for indices out of range."""
    data, indices = given
    rows = as_array(data) if dtype is None else as_array(data).astype(dtype)
    ids = as_array(indices)
    if ids.dtype.kind not in "iu":
        ids = ids.astype("int64")
    if rows.shape != (*ids.shape, *shape[1:]):
        raise ShapeError(f"rows {list(rows.shape)} for indices {list(ids.shape)} of {list(shape)}", where="row_sparse")
    return RowSparse(*_summed(rows, ids, shape), shape)


def no_rows(like: Array) -> RowSparse:
    """A table of zeros, of the kind of an array."""
    ids = functions.zeros((0,), dtype="int64", device=like.device)
    return RowSparse(ids, functions.zeros((0, *like.shape[1:]), dtype=like.dtype, device=like.device), like.shape)


def _summed(rows: Array, ids: Array, shape: Sequence[int]) -> tuple[Array, Array]:
    summed: tuple[Array, Array] = apply("GatherGradRows", rows, ids, known(tuple(shape)), domain="mezzo", outputs=2)
    return summed
