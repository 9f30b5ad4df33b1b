"""Types: the element type of a value, its dims, and its elements where known."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from functools import cache, lru_cache, reduce
from typing import Any

import numpy as np

from .dataclasses import dataclass, field
from .errors import ShapeError
from .layouts import nbytes as layout_bytes
from .symbolic import is_symbolic, may_be_symbolic

Array = Any  # a numpy or cupy array, or a host object (string array, list, dict, None) where the type says so


class DType(Enum):
    """Element types: (numpy name, ONNX TensorProto number, width in bits).

    https://onnx.ai/onnx/intro/concepts.html#element-type. Types below 8 bits are packed in files; in memory the host
    keeps one element a byte, as ml_dtypes does (`itemsize`).
    """

    FLOAT = ("float32", 1, 32)
    UINT8 = ("uint8", 2, 8)
    INT8 = ("int8", 3, 8)
    UINT16 = ("uint16", 4, 16)
    INT16 = ("int16", 5, 16)
    INT32 = ("int32", 6, 32)
    INT64 = ("int64", 7, 64)
    STRING = ("object", 8, 0)
    BOOL = ("bool", 9, 8)
    FLOAT16 = ("float16", 10, 16)
    DOUBLE = ("float64", 11, 64)
    UINT32 = ("uint32", 12, 32)
    UINT64 = ("uint64", 13, 64)
    COMPLEX64 = ("complex64", 14, 64)
    COMPLEX128 = ("complex128", 15, 128)
    BFLOAT16 = ("bfloat16", 16, 16)
    FLOAT8E4M3FN = ("float8_e4m3fn", 17, 8)
    FLOAT8E4M3FNUZ = ("float8_e4m3fnuz", 18, 8)
    FLOAT8E5M2 = ("float8_e5m2", 19, 8)
    FLOAT8E5M2FNUZ = ("float8_e5m2fnuz", 20, 8)
    UINT4 = ("uint4", 21, 4)
    INT4 = ("int4", 22, 4)
    FLOAT4E2M1 = ("float4_e2m1fn", 23, 4)
    FLOAT8E8M0 = ("float8_e8m0fnu", 24, 8)
    UINT2 = ("uint2", 25, 2)
    INT2 = ("int2", 26, 2)
    FLOAT6E2M3 = ("float6_e2m3fn", 27, 6)
    FLOAT6E3M2 = ("float6_e3m2fn", 28, 6)

    __hash__ = object.__hash__  # each is one object; Enum's own is written in Python, and types are hashed often

    @property
    def onnx(self) -> int:
        """Number of this type in ONNX's `TensorProto.DataType`."""
        return int(self._value_[1])

    @property
    def bits(self) -> int:
        return int(self._value_[2])

    @property
    def itemsize(self) -> int:
        """Bytes of one element in host memory."""
        return -(-self.bits // 8)

    @property
    def numpy(self) -> np.dtype[Any]:
        return _numpy(self._value_[0])

    @property
    def floating(self) -> bool:
        return "float" in self.value[0]

    @property
    def narrow(self) -> bool:
        """True if sums of this element type are taken in float32: floats of 16 bits and less."""
        return self.floating and self.bits <= 16

    @property
    def integer(self) -> bool:
        return "int" in self.value[0]

    @property
    def signed(self) -> bool:
        return not self.value[0].startswith("u")

    @classmethod
    def of(cls, dtype: Any) -> DType:
        """The element type of a numpy dtype; object and text arrays are strings.

        >>> DType.of(np.float32).name
        'FLOAT'
        """
        return _of(np.dtype(dtype))

    @classmethod
    def from_onnx(cls, number: int) -> DType:
        """The element type with this number in ONNX's `TensorProto.DataType`; ShapeError if there is none."""
        dtype = _BY_NUMBER.get(number)
        if dtype is None:
            raise ShapeError(f"element type {number} is unknown", hint="the file may need a newer Mezzo")
        return dtype

    def __str__(self) -> str:
        return "string" if self is DType.STRING else str(self.value[0])

    def __repr__(self) -> str:
        return f"DType.{self.name}"


_BY_NAME = {d.value[0]: d for d in DType}
_BY_NUMBER = {d.value[1]: d for d in DType}


@cache
def _of(dtype: np.dtype[Any]) -> DType:
    known = _BY_NAME.get("object" if dtype.kind in "OUST" else dtype.name)
    if known is None:
        raise ShapeError(f"{dtype} is no ONNX element type", hint="cast the array first")
    return known


@cache
def _numpy(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # the types that numpy lacks; loaded only for models that use one

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


Dim = int | str | None  # a size, a name, or not known yet


class UnknownRank(Exception):
    """Raised inside inference rules by `Tensor.shape`; inference then returns an unknown rank."""


@lru_cache(maxsize=4096)
def _product(dims: tuple[Dim, ...]) -> int | None:
    """The product of sizes; None if one is unknown. Asked again and again of the same few dims."""
    sizes = [d for d in dims if isinstance(d, int)]
    return math.prod(sizes) if len(sizes) == len(dims) else None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's type. `dims` is None if even the rank is unknown; `value` holds the elements if they are known.

    `value` is knowledge, not identity: two types with the same dtype and dims are equal. `layout` tells how the
    elements lie in memory (see layouts.py); only programs have types that are not row-major.

    >>> print(Tensor(DType.FLOAT, (2, "n", None)))
    float32[2,n,?]
    """

    dtype: DType
    dims: tuple[Dim, ...] | None
    value: Array | None = field(default=None, compare=False, repr=False)
    layout: str = ""

    def __str__(self) -> str:
        if self.dims is None:
            return f"{self.dtype}[...]"
        shown = f"{self.dtype}[{','.join('?' if d is None else str(d) for d in self.dims)}]"
        return f"{shown}:{self.layout}" if self.layout else shown

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The dims of a known rank; for inference rules (see UnknownRank)."""
        if self.dims is None:
            raise UnknownRank
        return self.dims

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static(self) -> bool:
        """True if every dim is a size (and the elements can live in an arena)."""
        return self.dims is not None and _product(self.dims) is not None and self.dtype is not DType.STRING

    @property
    def sizes(self) -> tuple[int, ...]:
        """The dims of a static type."""
        dims = self.shape
        return dims if _product(dims) is not None else tuple(d for d in dims if isinstance(d, int))  # type: ignore[return-value]

    @property
    def elements(self) -> int | None:
        """Number of elements, or None while a dim is unknown."""
        return None if self.dims is None else _product(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes in host memory, padding of blocked layouts included; the type must be static."""
        if self.layout:
            return layout_bytes(self.layout, self.sizes, self.dtype.itemsize)
        return (self.elements or 0) * self.dtype.itemsize

    def to(self, dtype: DType) -> Tensor:
        """The same dims with another element type."""
        return Tensor(dtype, self.dims)

    def of(self, dims: Iterable[Dim] | None) -> Tensor:
        """The same element type with other dims."""
        return Tensor(self.dtype, None if dims is None else tuple(dims))

    def forget(self) -> Tensor:
        """The same type without knowledge of the elements."""
        return Tensor(self.dtype, self.dims, layout=self.layout)

    def laid(self, layout: str) -> Tensor:
        """The same dtype and dims in another memory layout."""
        return Tensor(self.dtype, self.dims, layout=layout)

    def ints(self) -> list[int] | None:
        """The elements as a list of Python ints or symbolic sizes, where known (axes, shapes, counts)."""
        if self.value is None:
            return None
        values: list[Any] = np.asarray(self.value).ravel().tolist()
        return [v if is_symbolic(v) else int(v) for v in values]


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list of values of one type; a host object."""

    element: Type

    def __str__(self) -> str:
        return f"seq({self.element})"


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be None; a host object."""

    element: Type

    def __str__(self) -> str:
        return f"optional({self.element})"


@dataclass(frozen=True, slots=True)
class Map:
    """A dict from strings or integers to values of one type; a host object."""

    key: DType
    element: Type

    def __str__(self) -> str:
        return f"map({self.key},{self.element})"


Type = Tensor | Sequence | Optional | Map


def type_of(value: Any, *, known: bool = False) -> Type:
    """The type of an array or host object; with `known`, the elements are part of it.

    Empty lists and dicts and None say nothing of what they could hold: they pass for ones of float32.

    >>> print(type_of(np.zeros((2, 3), np.int64)), type_of([np.zeros(3), np.zeros(2)]), type_of({"a": 1.5}))
    int64[2,3] seq(float64[?]) map(string,float32[])
    """
    if isinstance(value, list):
        return Sequence(reduce(join, map(type_of, value)) if value else Tensor(DType.FLOAT, None))
    if isinstance(value, dict):
        key, held = next(iter(value.items()), ("", 0.0))
        scalar = {float: DType.FLOAT, str: DType.STRING, int: DType.INT64}.get(type(held))
        element = Tensor(scalar, ()) if scalar else type_of(held)
        return Map(DType.STRING if isinstance(key, str) else DType.INT64, element)
    if value is None:
        return Optional(Tensor(DType.FLOAT, None))
    array = value if hasattr(value, "dtype") else np.asarray(value)
    dtype = DType.INT64 if array.dtype == object and may_be_symbolic(array) else DType.of(array.dtype)
    return Tensor(dtype, tuple(int(n) for n in array.shape), array if known else None)


def native(array: Array) -> Array:
    """The numbers in this machine's order of bytes, the only one that kernels read; a copy where it is the other one.

    >>> native(np.arange(3, dtype=">f4")).dtype is np.dtype("float32")
    True
    """
    return array if array.dtype.isnative or array.dtype.kind not in "iufc" else array.astype(array.dtype.type)


def differentiable(type: Type) -> bool:
    """True if values of a type have gradients: floats, complex numbers, and lists of them."""
    if isinstance(type, Sequence | Optional):
        return differentiable(type.element)
    return isinstance(type, Tensor) and (type.dtype.floating or type.dtype in _COMPLEX)


_COMPLEX = (DType.COMPLEX64, DType.COMPLEX128)


def join(a: Type, b: Type) -> Type:
    """The least type that covers both: what differs becomes unknown.

    Raises ShapeError where no type covers both (other element types, a tensor and a sequence).
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype is b.dtype:
        if a.dims is None or b.dims is None or len(a.dims) != len(b.dims):
            return Tensor(a.dtype, None)
        return Tensor(a.dtype, tuple(m if m == n else None for m, n in zip(a.dims, b.dims, strict=True)))
    if isinstance(a, Sequence) and isinstance(b, Sequence):
        return Sequence(join(a.element, b.element))
    if isinstance(a, Optional) or isinstance(b, Optional):
        inner = [t.element if isinstance(t, Optional) else t for t in (a, b)]
        return Optional(join(*inner))
    if a == b:
        return a
    raise ShapeError(f"{a} and {b} cannot be one value")


def f32(*dims: Dim) -> Tensor:
    """float32 of these dims: the short form that samples use."""
    return Tensor(DType.FLOAT, dims)


def i64(*dims: Dim) -> Tensor:
    """int64 of these dims."""
    return Tensor(DType.INT64, dims)
