"""Element types, and inspection of the namespace.

https://data-apis.org/array-api/2024.12/API_specification/data_type_functions.html, inspection
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops import DType
from ..ops.dataclasses import dataclass
from ..ops.errors import InputError
from .array import Array
from .place import Place, cpu, place_of
from .running import cast, moved
from .specs import FLOAT, INT, dtype_of, together

bool = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{n}") for n in (16, 32, 64))
complex64, complex128 = np.dtype(np.complex64), np.dtype(np.complex128)

_SORTS: dict[str, tuple[np.dtype[Any], ...]] = {
    "bool": (bool,),
    "signed integer": (int8, int16, int32, int64),
    "unsigned integer": (uint8, uint16, uint32, uint64),
    "real floating": (float32, float64),
    "complex floating": (complex64, complex128),
}
_SORTS["integral"] = _SORTS["signed integer"] + _SORTS["unsigned integer"]
_SORTS["numeric"] = _SORTS["integral"] + _SORTS["real floating"] + _SORTS["complex floating"]


def astype(x: Array, dtype: Any, /, *, copy: Any = True, device: Place | str | None = None) -> Array:
    """The same numbers in another element type, as C casts them: `Cast`."""
    there = x if device is None else moved(x, place_of(device))
    result = cast(there, dtype_of(dtype))
    return result.copy() if copy and result is x else result


def can_cast(from_: Any, to: Any, /) -> Any:
    """Return True if promotion leads from one element type, or array, to the other."""
    of = from_.dtype if isinstance(from_, Array) else dtype_of(from_)
    return np.can_cast(of, dtype_of(to))


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """The element type that operands are brought to. Raises ShapeError where there is none."""
    given = [
        x.dtype if isinstance(x, Array) else x if isinstance(x, int | float | complex) else dtype_of(x)
        for x in arrays_and_dtypes
    ]
    if not any(isinstance(g, np.dtype) for g in given):
        raise InputError("numbers of Python have no element type", where="mezzo.nd.result_type", hint="give an array")
    return together(*given)


def isdtype(dtype: Any, kind: Any) -> Any:
    """Return True if an element type is of a kind: a dtype, a name such as 'integral', or a tuple of those."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in _SORTS:
            raise InputError(f"kind {kind!r}", where="mezzo.nd.isdtype", hint=f"there are {', '.join(_SORTS)}")
        return dtype_of(dtype) in _SORTS[kind]
    return dtype_of(dtype) == dtype_of(kind)


@dataclass(frozen=True, slots=True)
class FInfo:
    """Limits of a float type: bits, and numbers of Python."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class IInfo:
    """Limits of an integer type."""

    bits: int
    max: int
    min: int
    dtype: np.dtype[Any]


def finfo(type: Any, /) -> FInfo:
    """Limits of a float type, or of the parts of a complex one. Raises InputError for others."""
    dtype = type.dtype if isinstance(type, Array) else dtype_of(type)
    if dtype.kind == "c":
        dtype = np.dtype(np.float32 if dtype == complex64 else np.float64)
    if not DType.of(dtype).floating:
        raise InputError(f"{dtype} is no float", where="mezzo.nd.finfo")
    limits: Any = np.finfo
    if dtype.kind != "f":
        import ml_dtypes

        limits = ml_dtypes.finfo
    info = limits(dtype)
    eps, high, low, normal = (float(v) for v in (info.eps, info.max, info.min, info.smallest_normal))
    return FInfo(DType.of(dtype).bits, eps, high, low, normal, dtype)


def iinfo(type: Any, /) -> IInfo:
    """Limits of an integer type. Raises InputError for others."""
    dtype = type.dtype if isinstance(type, Array) else dtype_of(type)
    if dtype.kind not in "iu":
        raise InputError(f"{dtype} is no integer", where="mezzo.nd.iinfo")
    info = np.iinfo(dtype)
    return IInfo(info.bits, info.max, info.min, dtype)


class Info:
    """The result of `__array_namespace_info__`."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks as indices, shapes that depend on data, and ranks up to NumPy's limit."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Place:
        """The CPU."""
        return cpu()

    def devices(self) -> list[Place]:
        """Return the devices of arrays; `cpu(1)` and so on are places in the same memory."""
        return [cpu()]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype[Any]]:
        """float32 for floats, as networks have it, and int64."""
        return {"real floating": FLOAT, "complex floating": complex64, "integral": INT, "indexing": INT}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """The standard's element types by name, or those of a sort."""
        listed = (bool, *_SORTS["numeric"])
        return {str(d): d for d in listed if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> Info:  # noqa: N807 (the standard's name)
    """Return the capabilities of this namespace."""
    return Info()


__all__ = [
    "__array_namespace_info__", "astype", "bool", "can_cast", "complex64", "complex128", "finfo",
    "float16", "float32", "float64", "iinfo", "int8", "int16", "int32", "int64", "isdtype", "result_type", "uint8",
    "uint16", "uint32", "uint64",
]  # fmt: skip
