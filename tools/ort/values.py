"""ONNX Runtime's OrtValue: a value that runs take and give; here arrays in the memory of the host."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ...ops import DType, Map, Optional, Tensor, Type
from ...ops import Sequence as ListType
from ...ops.errors import ArgumentError, MezzoError
from ...ops.types import Array, type_of
from .errors import WrongType

if TYPE_CHECKING:
    from .devices import OrtDevice, OrtMemoryInfo

_NAMES = {
    DType.FLOAT: "float",
    DType.DOUBLE: "double",
    DType.STRING: "string",
}


def type_name(type: Type) -> str:
    """The name that ONNX Runtime gives a type.

    >>> type_name(Tensor(DType.FLOAT, (2, 3)))
    'tensor(float)'
    """
    if isinstance(type, Tensor):
        return f"tensor({_NAMES.get(type.dtype, str(type.dtype)).replace('_', '')})"
    if isinstance(type, ListType):
        return f"seq({type_name(type.element)})"
    if isinstance(type, Optional):
        return f"optional({type_name(type.element)})"
    assert isinstance(type, Map)
    return f"map({type.key},{type_name(type.element)})"


def element_type(given: Any) -> DType:
    """The element type that NumPy names so, or ONNX numbers so. Raises ArgumentError for others."""
    try:
        if isinstance(given, (int, np.integer)):
            return next(d for d in DType if d.onnx == given)
        named = np.dtype(given)
        return DType.STRING if named.kind in "OSUT" else DType.of(named)
    except (StopIteration, TypeError, MezzoError) as error:
        raise ArgumentError(f"there is no element type {given!r}", where="OrtValue", hint="np.float32, or 1") from error


def _on_host(kind: str | OrtDevice, number: int, vendor: int) -> None:
    from .devices import OrtDevice  # of a start, a millisecond

    (kind if isinstance(kind, OrtDevice) else OrtDevice.make(kind, number, vendor)).on_host()


class _Capsule:
    """A DLPack capsule of the host's memory, as NumPy takes it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU


class OrtValue:
    """A tensor, or a list or dict of such, in the memory of the host.

    >>> v = OrtValue.ortvalue_from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    >>> v.shape(), v.data_type(), v.device_name()
    ([2, 3], 'tensor(float)', 'cpu')
    """

    __slots__ = ("_type", "_value")

    def __init__(self, value: Any, type: Type | None = None) -> None:
        """`value` is an array, a list, a dict or None, which is not copied; `type` that of an element type which NumPy
        does not know."""
        self._value, self._type = value, type

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, /, device_type: str | OrtDevice = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> Self:
        """A value in the array's own bytes, or in a copy if it is not contiguous. Raises ArgumentError for anything but
        arrays of numbers."""
        _on_host(device_type, device_id, vendor_id)
        if not isinstance(numpy_obj, np.ndarray) or numpy_obj.dtype.kind in "OUST":
            raise ArgumentError("only arrays of numbers make values", where="OrtValue", hint="feed strings as arrays")
        element_type(numpy_obj.dtype)
        return cls(np.ascontiguousarray(numpy_obj).reshape(numpy_obj.shape))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> Self:
        """The array's bytes as elements of the type of this number. Raises ArgumentError if their sizes differ."""
        dtype = element_type(onnx_element_type)
        if data.dtype.itemsize != dtype.itemsize or dtype is DType.STRING:
            raise ArgumentError(
                f"elements of {data.dtype} are not as long as those of {dtype}",
                where="OrtValue.ortvalue_from_numpy_with_onnx_type",
                hint=f"give an array of {dtype.itemsize} bytes an element",
            )
        return cls(np.ascontiguousarray(data).reshape(data.shape).view(dtype.numpy))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> Self:
        """A value of this size whose elements are not set. `element_type` is NumPy's, or ONNX's number."""
        if memory_info is None:
            _on_host(device_type, device_id, vendor_id)
        dtype = _element_type(element_type)
        try:
            sizes = [index(n) for n in shape]
        except TypeError:  # 2.5, say, which `int` would cut
            sizes = [-1]
        if dtype is DType.STRING or min(sizes, default=0) < 0:
            raise ArgumentError(
                f"no tensor has {dtype} of shape {shape!r} without elements", where="OrtValue",
                hint="give a list of whole numbers from 0 on, and a type of numbers",
            )  # fmt: skip
        return cls(np.empty(sizes, dtype.numpy))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: Any) -> Self:
        """Refused: there are no sparse tensors."""
        raise ArgumentError(
            "no operator here takes sparse tensors",
            where="OrtValue.ort_value_from_sparse_tensor",
            hint="give the dense array",
        )

    @classmethod
    def from_dlpack(cls, data: Any, /, is_bool_tensor: bool = False) -> Self:
        """A value in the memory of anything that offers DLPack on the host, or of a capsule of its; `is_bool_tensor`
        for bytes that are truth values."""
        array = np.from_dlpack(data if hasattr(data, "__dlpack__") else _Capsule(data))
        return cls.ortvalue_from_numpy(array.view(np.bool_) if is_bool_tensor and array.dtype == np.uint8 else array)

    # Names of ONNX Runtime's that are private, or of its extension module, and that packages use all the same.

    @property
    def _ortvalue(self) -> Self:
        return self

    def _get_c_value(self) -> Self:
        return self

    def to_dlpack(self) -> Any:
        """A capsule of the value's memory."""
        return self.__dlpack__()

    def _array(self, call: str) -> Array:
        if not isinstance(self._value, np.ndarray):
            raise ArgumentError(f"a {self.data_type()} is no tensor", where=f"OrtValue.{call}", hint="see is_tensor()")
        return self._value

    def numpy(self) -> Array:
        """The array, not a copy of it. Raises ArgumentError if this is no tensor."""
        return self._array("numpy")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self._array("__array__")
        if copy is False and dtype is not None and np.dtype(dtype) != array.dtype:
            raise ValueError(f"an array of {dtype} is a copy")
        return np.array(array, dtype, copy=True) if copy else np.asarray(array, dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array("__dlpack__").__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._array("__dlpack_device__").__dlpack_device__()
        return int(kind), int(number)

    def as_sparse_tensor(self) -> Any:
        """Refused: there are no sparse tensors."""
        raise ArgumentError(f"a {self.data_type()} is not sparse", where="OrtValue.as_sparse_tensor", hint="numpy()")

    def data_ptr(self) -> int:
        """Address of the first element."""
        return int(self._array("data_ptr").ctypes.data)

    def device_name(self) -> str:
        """ "cpu": values lie in the memory of the host."""
        return "cpu"

    def shape(self) -> list[int]:
        return list(self._array("shape").shape)

    def _known(self) -> Type:
        return self._type or type_of(self._value)

    def data_type(self) -> str:
        """The type by ONNX Runtime's name, as `tensor(float)`."""
        return type_name(self._known())

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        known = self._known()
        while not isinstance(known, Tensor):
            known = known.element
        return known.dtype.onnx

    def tensor_size_in_bytes(self) -> int:
        return int(self._array("tensor_size_in_bytes").nbytes)

    def has_value(self) -> bool:
        """True unless this is an optional without a value."""
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list)

    def update_inplace(self, np_arr: Array | OrtValue) -> None:
        """Write as many elements of the same type, in their order. Raises ArgumentError for others."""
        own = self._array("update_inplace")
        np_arr = np_arr._array("update_inplace") if isinstance(np_arr, OrtValue) else np_arr
        if not isinstance(np_arr, np.ndarray):
            where = "OrtValue.update_inplace"
            raise WrongType(f"a {type(np_arr).__name__} is no array", where=where, hint="give an array, or a value")
        if np_arr.size != own.size or np_arr.dtype != own.dtype:
            raise ArgumentError(
                f"an array of {np_arr.dtype}{[*np_arr.shape]} for one of {own.dtype}{[*own.shape]}",
                where="OrtValue.update_inplace",
                hint="make another value",
            )
        own[...] = np_arr.reshape(own.shape)

    def __repr__(self) -> str:
        return f"OrtValue({self._known()})"


_element_type = element_type  # where an argument has its name


class OrtValueVector(list[OrtValue]):
    """A list of values, by the name that ONNX Runtime gives it."""

    def push_back(self, value: OrtValue) -> None:
        self.append(value)


def is_dlpack_uint8_tensor(capsule: Any) -> bool:
    """True if a DLPack capsule has elements of uint8, which may be truth values. Raises ArgumentError for what is none.

    >>> is_dlpack_uint8_tensor(np.zeros(3, np.uint8).__dlpack__())
    True
    """
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        address = pointer(capsule, b"dltensor")
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{error}", where="is_dlpack_uint8_tensor", hint="give value.to_dlpack()") from error
    # behind the pointer to the data, the device's kind and number, and the count of axes: the type's code and bits
    code, bits = (ctypes.c_uint8 * 2).from_address(address + 20)
    return (code, bits) == (1, 8)


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: None = None) -> None:
    """Copy tensors into others of the same sizes and types. Raises ArgumentError if they do not fit."""
    if len(src) != len(dst) or stream is not None:
        raise ArgumentError(
            f"{len(src)} values for {len(dst)}, on the stream {stream}",
            where="copy_tensors",
            hint="give as many values, and no stream: all lie in the memory of the host",
        )
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source.numpy())
