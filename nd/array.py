"""The array: what it is before it is computed, and how it is read."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..ops.errors import InputError, ShapeError
from ..runtime.engine import Ordered, Variable
from .place import Place, place_of
from .specs import TensorSpec, kind_of

Key = tuple[Any, ...]  # integers, slices, None and one Ellipsis
Operand = Any  # an Array, a number of Python or NumPy, or what NumPy makes an array of


class Array(Ordered):
    """Numbers of one type in a shape, computed by the engine: operations return at once, reading waits.

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

    __slots__ = ("__weakref__", "_at", "_code", "_kind", "_lazy", "_origin", "_place", "_variable", "_view")
    __array_priority__ = 1000  # NumPy leaves operators to us
    _code: CodeType  # where it was made: a line is looked up when it is asked for
    _at: int
    _variable: Variable  # not there while the array is gathered

    if TYPE_CHECKING:  # methods.py adds functions as methods

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, var: Variable | None, kind: TensorSpec, place: Place, view: tuple[Key, ...] = ()) -> None:
        self._kind, self._place, self._view = kind, place, view
        self._lazy: lazy.LazyNode | None = None
        self._origin: Any = None  # how it came to be, for gradients: see nd/autograd/tape.py
        if var is not None:
            self._variable = var

    @property
    def _var(self) -> Variable:
        """What the engine orders it by; all that is gathered goes to the engine first."""
        if lazy.waiting:
            lazy.flush()
        return self._variable

    @property
    def variable(self) -> Variable:
        """What workloads that touch it name."""
        return self._var

    @property
    def lying(self) -> np.ndarray[Any, Any]:
        """Its memory, for workloads that have named its variable."""
        found: np.ndarray[Any, Any] = self._look(self._var.value)
        return found

    # -- what is known at once ----------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self._kind.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._kind.dtype

    @property
    def ndim(self) -> int:
        return len(self._kind.shape)

    @property
    def size(self) -> int:
        return self._kind.size

    @property
    def nbytes(self) -> int:
        return self._kind.tensor.nbytes

    @property
    def itemsize(self) -> int:
        return self._kind.dtype.itemsize

    @property
    def device(self) -> Place:
        """Where it is."""
        return self._place

    context = ctx = device  # MXNet's names

    @property
    def T(self) -> Array:  # noqa: N802 (the standard's name)
        """The matrix transposed. Raises ShapeError for other ranks."""
        if self.ndim != 2:
            raise ShapeError(f"T of {self._kind}", where="mezzo.nd", hint="permute_dims, or mT for stacks of matrices")
        return functions.permute_dims(self, (1, 0))

    @property
    def mT(self) -> Array:  # noqa: N802
        """Each matrix transposed."""
        return functions.matrix_transpose(self)

    @property
    def where(self) -> str:
        """Kind, device, and the line that made it: how errors speak of it."""
        return f"{self._kind} on {self._place}, made at {running.line_of(self._code, self._at)}"

    @property
    def grad(self) -> Any:
        """Where its gradient goes, after `attach_grad`: an Array, or a RowSparse if that was asked for; None before."""
        return getattr(self._origin, "grad", None)

    def attach_grad(self, grad_req: str = "write", stype: str = "default") -> None:
        """Let backward write its gradient (`add`: add it) to `grad`: see `mz.autograd`."""
        from .autograd import attach_grad

        attach_grad(self, grad_req, stype=stype)

    def backward(self, out_grad: Operand = None, retain_graph: bool = False) -> None:
        """The gradients of (the sum of) this array: see `mz.autograd.backward`."""
        from .autograd import backward

        backward(self, out_grad, retain_graph)

    def detach(self) -> Array:
        """The same numbers, shared, through which no gradient goes back."""
        from .autograd import detach

        return detach(self)

    def __len__(self) -> int:
        if not self._kind.shape:
            raise TypeError("len() of an array without axes")
        return self._kind.shape[0]

    # -- reading ------------------------------------------------------------------------------------------------------

    def _look(self, root: Any) -> Any:
        """This array's part of the buffer."""
        for key in self._view:
            root = root[key]
        return root

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """A copy in NumPy, once it is computed. Raises the error of what computed it."""
        return running.read(self)

    def wait_to_read(self) -> Self:
        """Until it is computed. Raises the error of what computed it."""
        self._var._engine.wait(self._var)
        return self

    def item(self) -> Any:
        """The only element, as a number of Python. Raises ShapeError if there are several."""
        return self._number(None)

    asscalar = item

    def _number(self, sort: type | None) -> Any:
        """The only element; `sort` says as what it is wanted."""
        if self._kind.size != 1:
            raise ShapeError(f"{self._kind} is not one number", where="mezzo.nd", hint="asnumpy() or tolist()")
        return running.read(self, sort).item()

    def tolist(self) -> Any:
        """The elements as numbers of Python, in lists."""
        return running.read(self).tolist()

    def __bool__(self) -> bool:
        return bool(self._number(bool))

    def __int__(self) -> int:
        return int(self._number(int))

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if self._kind.dtype.kind not in "iu" or self._kind.shape:
            raise TypeError(f"{self._kind} is no index")
        return int(self._number(int))

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool(functions.any(self == value))

    def __repr__(self) -> str:
        return f"{running.read(self)}\n<Array {self._kind} on {self._place}>"

    def __format__(self, spec: str) -> str:
        return format(self.item() if spec else repr(self), spec)

    # -- moving and writing -------------------------------------------------------------------------------------------

    def astype(self, dtype: Any, *, copy: bool = True, device: Place | None = None) -> Array:
        """The same numbers in another element type."""
        return functions.astype(self, dtype, copy=copy, device=device)

    def copy(self) -> Array:
        """A copy of its own."""
        made: Array = running.apply("Identity", self)
        return made

    def copyto(self, other: Array | Place) -> Array:
        """Copy into another array of this shape, which is returned, or to a device. Both may be on different ones."""
        if isinstance(other, Place):
            return running.moved(self, place_of(other), copy=True)
        running.assign(other, running.moved(self, other._place))
        return other

    def to_device(self, device: Place | str, /, *, stream: Any = None) -> Array:
        """This array if it is there, else a copy there."""
        return running.moved(self, place_of(device))

    def as_in_context(self, context: Place) -> Array:
        """`to_device`, as MXNet calls it."""
        return running.moved(self, place_of(context))

    def reshape(self, *shape: Any) -> Array:
        """A copy in another shape, given as a tuple or as numbers; -1 is what is left."""
        given = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return functions.reshape(self, tuple(given))

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return functions.sum(self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return functions.mean(self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return functions.max(self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return functions.min(self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Array:
        return functions.argmax(self, axis=axis, keepdims=keepdims)

    def __getitem__(self, key: Any) -> Array:
        return indexing.get(self, key)

    def __setitem__(self, key: Any, value: Operand) -> None:
        indexing.put(self, key, value)

    # -- protocols ----------------------------------------------------------------------------------------------------

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        return functions.namespace(api_version)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("an array that the engine writes is not NumPy's without a copy")
        made = running.read(self)
        return made if dtype is None else made.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        return protocols.ufunc(ufunc, method, inputs, out, options)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return protocols.function(function, args, kwargs)

    def __dlpack__(
        self,
        /,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """What DLPack hands over, once it is computed: the memory itself, unless `copy` or another device (`dl_device`:
        the host) asks for a copy. Who writes it later is not ordered with the operations on this array. Raises
        BufferError for what cannot be handed over so."""
        return protocols.dlpack(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self._place.name == "cpu" else (2, self._place.index)

    # -- operators ----------------------------------------------------------------------------------------------------

    def __add__(self, other: Operand) -> Array:
        return running.binary("Add", self, other)

    def __radd__(self, other: Operand) -> Array:
        return running.binary("Add", other, self)

    def __iadd__(self, other: Operand) -> Self:
        return running.inplace("Add", self, other)

    def __sub__(self, other: Operand) -> Array:
        return running.binary("Sub", self, other)

    def __rsub__(self, other: Operand) -> Array:
        return running.binary("Sub", other, self)

    def __isub__(self, other: Operand) -> Self:
        return running.inplace("Sub", self, other)

    def __mul__(self, other: Operand) -> Array:
        return running.binary("Mul", self, other)

    def __rmul__(self, other: Operand) -> Array:
        return running.binary("Mul", other, self)

    def __imul__(self, other: Operand) -> Self:
        return running.inplace("Mul", self, other)

    def __truediv__(self, other: Operand) -> Array:
        return functions.divide(self, other)

    def __rtruediv__(self, other: Operand) -> Array:
        return functions.divide(other, self)

    def __itruediv__(self, other: Operand) -> Self:
        return running.inplace("Div", self, other, floating=True)

    def __floordiv__(self, other: Operand) -> Array:
        return functions.floor_divide(self, other)

    def __rfloordiv__(self, other: Operand) -> Array:
        return functions.floor_divide(other, self)

    def __ifloordiv__(self, other: Operand) -> Self:
        return self._become(functions.floor_divide(self, other))

    def __mod__(self, other: Operand) -> Array:
        return functions.remainder(self, other)

    def __rmod__(self, other: Operand) -> Array:
        return functions.remainder(other, self)

    def __imod__(self, other: Operand) -> Self:
        whole = self._kind.dtype.kind in "iu"
        return running.inplace("Mod" if whole else "Remainder", self, other, domain="" if whole else "mezzo")

    def __pow__(self, other: Operand) -> Array:
        return running.binary("Pow", self, other)

    def __rpow__(self, other: Operand) -> Array:
        return running.binary("Pow", other, self)

    def __ipow__(self, other: Operand) -> Self:
        return running.inplace("Pow", self, other)

    def __matmul__(self, other: Operand) -> Array:
        return functions.matmul(self, other)

    def __rmatmul__(self, other: Operand) -> Array:
        return functions.matmul(other, self)

    def __imatmul__(self, other: Operand) -> Self:
        return self._become(functions.matmul(self, other))

    def __and__(self, other: Operand) -> Array:
        return functions.bitwise_and(self, other)

    def __rand__(self, other: Operand) -> Array:
        return functions.bitwise_and(other, self)

    def __iand__(self, other: Operand) -> Self:
        return self._become(functions.bitwise_and(self, other))

    def __or__(self, other: Operand) -> Array:
        return functions.bitwise_or(self, other)

    def __ror__(self, other: Operand) -> Array:
        return functions.bitwise_or(other, self)

    def __ior__(self, other: Operand) -> Self:
        return self._become(functions.bitwise_or(self, other))

    def __xor__(self, other: Operand) -> Array:
        return functions.bitwise_xor(self, other)

    def __rxor__(self, other: Operand) -> Array:
        return functions.bitwise_xor(other, self)

    def __ixor__(self, other: Operand) -> Self:
        return self._become(functions.bitwise_xor(self, other))

    def __lshift__(self, other: Operand) -> Array:
        return functions.bitwise_left_shift(self, other)

    def __rlshift__(self, other: Operand) -> Array:
        return functions.bitwise_left_shift(other, self)

    def __ilshift__(self, other: Operand) -> Self:
        return self._become(functions.bitwise_left_shift(self, other))

    def __rshift__(self, other: Operand) -> Array:
        return functions.bitwise_right_shift(self, other)

    def __rrshift__(self, other: Operand) -> Array:
        return functions.bitwise_right_shift(other, self)

    def __irshift__(self, other: Operand) -> Self:
        return self._become(functions.bitwise_right_shift(self, other))

    def __neg__(self) -> Array:
        return running.unary("Neg", self)

    def __pos__(self) -> Array:
        return self.copy()

    def __abs__(self) -> Array:
        return functions.abs(self)

    def __invert__(self) -> Array:
        return functions.bitwise_invert(self)

    def __eq__(self, other: Operand) -> Array:  # type: ignore[override]
        return running.binary("Equal", self, other)

    def __ne__(self, other: Operand) -> Array:  # type: ignore[override]
        return functions.not_equal(self, other)

    def __lt__(self, other: Operand) -> Array:
        return running.binary("Less", self, other)

    def __le__(self, other: Operand) -> Array:
        return running.binary("LessOrEqual", self, other)

    def __gt__(self, other: Operand) -> Array:
        return running.binary("Greater", self, other)

    def __ge__(self, other: Operand) -> Array:
        return running.binary("GreaterOrEqual", self, other)

    __hash__ = None  # type: ignore[assignment]

    def _become(self, result: Array) -> Self:
        """Take the numbers of a result of this kind: what an operation in place is where it has several steps."""
        if result._kind is not self._kind:
            raise ShapeError(
                f"{result._kind} does not fit in place of {self._kind}", where="mezzo.nd", hint="write a = a + b"
            )
        running.assign(self, result)
        return self


def kind_of_value(value: np.ndarray[Any, Any]) -> TensorSpec:
    """The kind of a NumPy array. Raises InputError for text and objects."""
    if value.dtype.hasobject or (value.dtype.kind in "USV" and not value.dtype.isbuiltin == 2):
        raise InputError(f"an array of {value.dtype}", where="mezzo.nd", hint="arrays hold numbers")
    return kind_of(value.dtype, value.shape)


from . import functions, indexing, lazy, protocols, running  # noqa: E402 (they need the class that uses them)
