"""The array: its kind, place and memory, and how it is read. `nd/methods.py` attaches what computes."""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..ops.errors import ShapeError
from ..runtime.engine import Ordered, Variable
from . import pending
from .place import Place
from .reading import dlpack, read
from .sites import line_of
from .specs import TensorSpec

if TYPE_CHECKING:
    from .lazy import LazyNode
    from .methods import ArrayMethods
else:
    ArrayMethods = object  # its members are attached once the functions that they call are there

Key = tuple[Any, ...]  # integers, slices, None and one Ellipsis


class Array(Ordered, ArrayMethods):
    """An array of one element type, computed by the engine: operations return at once, reading waits.

    Made by the functions of `mz.nd`. Its methods and operators are those of the Python array API standard
    (https://data-apis.org/array-api/2024.12), and MXNet's `asnumpy`, `wait_to_read`, `copyto` and `as_in_context`. An
    operation that fails tells so where its result is read, with the line that asked for it. A basic index (integers,
    slices, None, ...) is a view: it shares the memory, and is ordered with it.

    >>> from mezzo import nd
    >>> a = nd.ones((2, 3))
    >>> (a * 2).asnumpy()
    array([[2., 2., 2.],
           [2., 2., 2.]], dtype=float32)
    >>> a[0] += 1
    >>> a
    [[2. 2. 2.]
     [1. 1. 1.]]
    <Array float32[2,3] on cpu(0)>
    """

    __slots__ = ("__weakref__", "_at", "_code", "_lazy", "_origin", "_place", "_spec", "_variable", "_view")
    __array_priority__ = 1000  # NumPy leaves operators to us
    _code: CodeType  # where it was made: a line is looked up when it is asked for
    _at: int
    _variable: Variable  # not there while the array is gathered

    def __init__(self, var: Variable | None, kind: TensorSpec, place: Place, view: tuple[Key, ...] = ()) -> None:
        self._spec, self._place, self._view = kind, place, view
        self._lazy: LazyNode | None = None
        self._origin: Any = None  # how it came to be, for gradients: see nd/autograd/tape.py
        if var is not None:
            self._variable = var

    @property
    def _var(self) -> Variable:
        """The engine's variable of the array; lazy operations are sent to the engine first."""
        if pending.waiting:
            pending.flush()
        return self._variable

    @property
    def variable(self) -> Variable:
        """The variable that workloads which use the array declare."""
        return self._var

    @property
    def lying(self) -> np.ndarray[Any, Any]:
        """The memory of the array, for workloads that have declared its variable."""
        memory: np.ndarray[Any, Any] = self._look(self._var.value)
        return memory

    # -- what is known at once ----------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self._spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._spec.dtype

    @property
    def ndim(self) -> int:
        return len(self._spec.shape)

    @property
    def size(self) -> int:
        return self._spec.size

    @property
    def nbytes(self) -> int:
        return self._spec.tensor.nbytes

    @property
    def itemsize(self) -> int:
        return self._spec.dtype.itemsize

    @property
    def device(self) -> Place:
        """The device of the array."""
        return self._place

    context = ctx = device  # MXNet's names

    @property
    def where(self) -> str:
        """Kind, device, and the line that made it: how errors speak of it."""
        return f"{self._spec} on {self._place}, made at {line_of(self._code, self._at)}"

    @property
    def grad(self) -> Any:
        """The gradient, after `attach_grad`: an Array, or a RowSparse if that was requested; None before."""
        return getattr(self._origin, "grad", None)

    def __len__(self) -> int:
        if not self._spec.shape:
            raise TypeError("len() of an array without axes")
        return self._spec.shape[0]

    # -- reading ------------------------------------------------------------------------------------------------------

    def _look(self, root: Any) -> Any:
        """Return this array's part of the buffer."""
        for key in self._view:
            root = root[key]
        return root

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """A copy in NumPy, once it is computed. Raises the error of what computed it."""
        return read(self)

    def wait_to_read(self) -> Self:
        """Wait until the array is computed. Raises the error of its computation."""
        self._var._engine.wait(self._var)
        return self

    def item(self) -> Any:
        """The only element, as a number of Python. Raises ShapeError if there are several."""
        return self._number(None)

    asscalar = item

    def _number(self, sort: type | None) -> Any:
        """The only element; `sort` says as what it is wanted."""
        if self._spec.size != 1:
            raise ShapeError(f"{self._spec} is not one number", where="mezzo.nd", hint="asnumpy() or tolist()")
        return read(self, sort).item()

    def tolist(self) -> Any:
        """The elements as numbers of Python, in lists."""
        return read(self).tolist()

    def __bool__(self) -> bool:
        return bool(self._number(bool))

    def __int__(self) -> int:
        return int(self._number(int))

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if self._spec.dtype.kind not in "iu" or self._spec.shape:
            raise TypeError(f"{self._spec} is no index")
        return int(self._number(int))

    def __repr__(self) -> str:
        return f"{read(self)}\n<Array {self._spec} on {self._place}>"

    def __format__(self, spec: str) -> str:
        return format(self.item() if spec else repr(self), spec)

    # -- protocols ----------------------------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("an array that the engine writes is not NumPy's without a copy")
        elements = read(self)
        return elements if dtype is None else elements.astype(dtype, copy=False)

    def __dlpack__(
        self,
        /,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule, once the array is computed: of its own memory, unless `copy` or another device
        (`dl_device`: the host) requires a copy. Later writes through the capsule are not ordered with the operations on
        this array. Raises BufferError if the array cannot be exported."""
        return dlpack(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self._place.name == "cpu" else (2, self._place.index)

    __hash__ = None  # type: ignore[assignment]  # arrays compare element by element
