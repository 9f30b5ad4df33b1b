"""Making arrays. https://data-apis.org/array-api/2024.12/API_specification/creation_functions.html

Where no element type is given, floats are float32 and integers int64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ops import DType
from ..ops.errors import InputError, ShapeError
from .array import Array
from .place import Place, cpu, gpu, place_of
from .running import adopt, apply, as_array, cast, moved
from .shaping import broadcast_to, permute_dims, reshape
from .specs import FLOAT, INT, checked_sizes, dtype_of, known

Where = Place | str | None
ON_GPU = (2, 13)  # DLPack's numbers of CUDA's device memory and of managed memory


class NotShared(InputError, BufferError, ValueError):
    """The memory cannot be shared as requested; the standard uses BufferError and ValueError for this."""


class NoDLPack(NotShared, AttributeError):
    """The object does not support DLPack."""


def array(obj: Any, dtype: Any = None, device: Where = None, ctx: Where = None) -> Array:
    """An array of its own of whatever NumPy takes for one."""
    return asarray(obj, dtype=dtype, device=device or ctx, copy=True)


def asarray(obj: Any, /, *, dtype: Any = None, device: Where = None, copy: bool | None = None) -> Array:
    """An array of numbers, lists, NumPy arrays, or whatever speaks DLPack.

    Memory of others is shared only for `copy=False`: they could write it before an operation here has read it. Raises
    InputError where that cannot be done.
    """
    wanted = None if dtype is None else dtype_of(dtype)
    if isinstance(obj, Array):
        result = obj if device is None else moved(obj, place_of(device))
        if copy is False and (result is not obj or wanted not in (None, obj.dtype)):
            raise NotShared(f"{obj.where}, cannot be {wanted or device} without a copy", where="asarray")
        result = result if wanted is None else cast(result, wanted)
        return result.copy() if copy and result is obj else result
    if copy is False:
        shared, place = (obj, cpu()) if isinstance(obj, np.ndarray) else _of_dlpack(obj)
        if wanted not in (None, shared.dtype) or (isinstance(shared, np.ndarray) and not shared.dtype.isnative):
            raise NotShared(
                f"{shared.dtype} cannot be {wanted or DType.of(shared.dtype)} without a copy", where="asarray"
            )
        if device is not None and place_of(device) is not place:
            raise NotShared(f"what lies on {place} cannot be on {device} without a copy", where="asarray")
        return adopt(shared, place)
    if wanted is not None and not isinstance(obj, np.ndarray) and not hasattr(obj, "__dlpack__"):
        try:
            return adopt(np.array(obj, wanted), place_of(device))
        except (OverflowError, ValueError, TypeError) as error:
            raise InputError(f"no {wanted}: {error}", where="asarray") from error
    if not isinstance(obj, np.ndarray | np.generic) and hasattr(obj, "__dlpack__"):
        obj, place = _of_dlpack(obj)
        if place.name != "cpu":
            held = moved(adopt(obj, place), place_of(place if device is None else device), copy=True).wait_to_read()
            return held if wanted is None else cast(held, wanted)
    result = as_array(obj, place_of(device))
    return result if wanted is None else cast(result, wanted)


def _of_dlpack(obj: Any) -> tuple[Any, Place]:
    """The memory that DLPack hands over, as an array of NumPy or CuPy, and where it lies."""
    if not hasattr(obj, "__dlpack__") or not hasattr(obj, "__dlpack_device__"):
        raise NoDLPack(f"a {type(obj).__name__} shares no memory", where="from_dlpack", hint="nd.asarray copies it")
    try:
        sort, index = obj.__dlpack_device__()
        if sort in ON_GPU:
            from ..runtime.backends.cuda.arrays import shared

            return shared(obj), gpu(index)
        return np.from_dlpack(obj), cpu()
    except (TypeError, BufferError, RuntimeError, ValueError) as error:
        raise NotShared(
            f"a {type(obj).__name__} shares no memory: {error}", where="from_dlpack", hint="nd.asarray copies it"
        ) from error


def from_dlpack(x: Any, /, *, device: Where = None, copy: bool | None = None) -> Array:
    """An array over the memory that DLPack hands over; a copy if that is asked for. Raises NotShared, which is
    InputError, BufferError and ValueError, where that cannot be."""
    memory, place = _of_dlpack(x)
    wanted = place if device is None else place_of(device)
    if copy is False and wanted is not place:
        raise NotShared(f"what lies on {place} cannot be on {wanted} without a copy", where="from_dlpack")
    array = adopt(memory, place)
    return moved(array, wanted, copy=True).wait_to_read() if copy else moved(array, wanted)


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in checked_sizes(shape))
    if min(sizes, default=0) < 0:
        raise ShapeError(f"{sizes} is no shape: sizes cannot be negative", where="mezzo.nd")
    return sizes


def full(
    shape: int | Sequence[int], fill_value: Any, *, dtype: Any = None, device: Where = None, ctx: Where = None
) -> Array:
    """One number everywhere."""
    if dtype is None:
        kinds = {bool: np.dtype(np.bool_), int: INT, float: FLOAT, complex: np.dtype(np.complex64)}
        dtype = kinds.get(type(fill_value)) or np.asarray(fill_value).dtype
    wanted = dtype_of(dtype)
    try:
        value = np.full(1, fill_value, wanted)
    except (OverflowError, TypeError) as error:
        raise InputError(f"{fill_value} does not fit {wanted}", where="mezzo.nd.full") from error
    sizes = _shape(shape)
    return _filled(sizes, value, place_of(device or ctx))


def _filled(sizes: tuple[int, ...], value: np.ndarray[Any, Any], place: Place) -> Array:
    one = adopt(value.reshape(()), place)
    return apply("Expand", one, known(sizes))


def zeros(shape: int | Sequence[int], dtype: Any = FLOAT, *, device: Where = None, ctx: Where = None) -> Array:
    """0 everywhere."""
    return full(shape, 0, dtype=dtype or FLOAT, device=device or ctx)


def ones(shape: int | Sequence[int], dtype: Any = FLOAT, *, device: Where = None, ctx: Where = None) -> Array:
    """1 everywhere.

    >>> print((ones((2, 3)) * 2).asnumpy())
    [[2. 2. 2.]
     [2. 2. 2.]]
    """
    return full(shape, 1, dtype=dtype or FLOAT, device=device or ctx)


def empty(shape: int | Sequence[int], dtype: Any = FLOAT, *, device: Where = None, ctx: Where = None) -> Array:
    """Return an array whose elements will be written: zeros, so that nothing depends on earlier memory."""
    return zeros(shape, dtype, device=device or ctx)


def full_like(x: Array, /, fill_value: Any, *, dtype: Any = None, device: Where = None) -> Array:
    """`full` in the shape, element type and place of another array."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(x: Array, /, *, dtype: Any = None, device: Where = None) -> Array:
    """Zeros like another array."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Array, /, *, dtype: Any = None, device: Where = None) -> Array:
    """Ones like another array."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Array, /, *, dtype: Any = None, device: Where = None) -> Array:
    """Return zeros like another array, whose elements will be written."""
    return zeros_like(x, dtype=dtype, device=device)


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: Where = None,
    ctx: Where = None,
) -> Array:
    """Return the numbers from `start` up to, but without, `stop`: `Range`. Raises ShapeError for a step of 0."""
    if stop is None:
        start, stop = 0, start
    whole = all(isinstance(v, int) for v in (start, stop, step))
    wanted = dtype_of(dtype) if dtype is not None else INT if whole else FLOAT
    if step == 0:
        raise ShapeError("a step of 0", where="mezzo.nd.arange")
    count = max(math.ceil((stop - start) / step), 0)
    first = np.dtype(np.float64) if wanted.kind == "f" or not whole else INT
    bounds = [known(v, first.type) for v in (0, count, 1)]
    places = apply("Range", *bounds, place=place_of(device or ctx))
    return cast(places * first.type(step) + first.type(start), wanted)


def linspace(
    start: float, stop: float, /, num: int, *, dtype: Any = None, device: Where = None, endpoint: bool = True
) -> Array:
    """`num` numbers from `start` to `stop`, evenly apart; without the last one where `endpoint` is False."""
    wanted = dtype_of(dtype) if dtype is not None else FLOAT
    if num < 0:
        raise ShapeError(f"{num} numbers", where="mezzo.nd.linspace")
    parts = num - 1 if endpoint else num
    at = apply("Range", *(known(v, np.float64) for v in (0, num, 1)), place=place_of(device))
    numbers = at * np.float64((stop - start) / parts if parts > 0 else 0.0) + np.float64(start)
    if endpoint and num > 1:  # exactly
        numbers[-1] = stop
    if wanted.kind in "iu":
        numbers = apply("Floor", numbers)
    return cast(numbers, wanted)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Where = None) -> Array:
    """Ones on a diagonal: `EyeLike`."""
    wanted = dtype_of(dtype) if dtype is not None else FLOAT
    shape = zeros((n_rows, n_rows if n_cols is None else n_cols), np.int8, device=device)
    return apply("EyeLike", shape, dtype=DType.of(wanted).onnx, k=k)


def tril(x: Array, /, *, k: int = 0) -> Array:
    """Return the elements on and below a diagonal, zeros elsewhere: `Trilu`."""
    return apply("Trilu", x, known(k), upper=0)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """Return the elements on and above a diagonal, zeros elsewhere: `Trilu`."""
    return apply("Trilu", x, known(k), upper=1)


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """Coordinates of a grid. Raises InputError for another `indexing` than xy and ij."""
    if indexing not in ("xy", "ij"):
        raise InputError(f"indexing {indexing!r}", where="mezzo.nd.meshgrid", hint="give 'xy' or 'ij'")
    sizes = tuple(x.size for x in arrays)
    rank = len(arrays)
    grids = [
        broadcast_to(reshape(x, tuple(x.size if i == j else 1 for j in range(rank))), sizes)
        for i, x in enumerate(arrays)
    ]
    if indexing == "xy" and rank > 1:
        grids = [permute_dims(g, (1, 0, *range(2, rank))) for g in grids]
    return grids
