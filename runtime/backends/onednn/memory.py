"""Memory descriptors: the layout of one operand, and layouts read back from oneDNN."""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import Final, Self

from ....ops import DType, Tensor
from ....ops.dataclasses import dataclass
from ....ops.layouts import channels_last, is_permutation, parse, row_major, usual
from . import api

ANY: Final = "any"  # the layout of an operand is oneDNN's choice


class Handle:
    """An object of the library; `destroy` names the function that frees it. What it `reads` lives longer."""

    __slots__ = ("__weakref__", "_destroy", "_reads", "value")

    def __init__(self, value: int, destroy: str, reads: Handle | None = None) -> None:
        self.value, self._destroy, self._reads = value, api.function(destroy), reads

    def __del__(self) -> None:
        if self.value and self._destroy is not None:
            self._destroy(self.value)


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory descriptor: sizes, element type, and a layout as ops/layouts.py writes it, ANY, or strides in elements.
    `inside` makes it a part of a larger one: the sizes of that, and the offsets of the part."""

    dims: tuple[int, ...]
    dtype: DType
    layout: str = ""
    strides: tuple[int, ...] | None = None
    inside: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @classmethod
    def of(cls, type: Tensor) -> Self:
        """The descriptor of a static type."""
        return cls(type.sizes, type.dtype, type.layout)

    def any(self) -> Memory:
        """The same operand in a layout that oneDNN chooses."""
        return Memory(self.dims, self.dtype, ANY)

    def row_major(self) -> Memory:
        """The same operand in row-major order."""
        return Memory(self.dims, self.dtype)

    @property
    def handle(self) -> Handle:
        """The descriptor; Refused if there is none of this kind."""
        return _descriptor(self)


def moved(dtype: DType) -> DType:
    """The element type that a primitive is told which only moves elements: float32 for int32, whose bits stay.
    A reorder of int32 makes float32 of it on the way: docs/onednn-defects.md."""
    return DType.FLOAT if dtype is DType.INT32 else dtype


@lru_cache(maxsize=1024)
def _descriptor(memory: Memory) -> Handle:
    rank, dtype = len(memory.dims), api.DTYPES.get(memory.dtype)
    if dtype is None or not 0 < rank <= 6 or 0 in memory.dims:
        raise api.Refused(f"there is no memory of {memory.dtype} {list(memory.dims)}")
    dims = api.dims(memory.dims)
    if memory.inside is not None:
        parent_dims, begin = memory.inside
        parent = _descriptor(Memory(parent_dims, memory.dtype, memory.layout, memory.strides))
        descriptor = api.create("memory_desc_create_submemory", parent.value, dims, api.dims(begin))
    elif memory.layout == ANY:
        descriptor = api.create("memory_desc_create_with_tag", rank, dims, dtype, api.TAG_ANY)
    elif memory.layout in api.TAGS:
        descriptor = api.create("memory_desc_create_with_tag", rank, dims, dtype, api.TAGS[memory.layout])
    else:
        strides = _certain(memory)
        descriptor = api.create("memory_desc_create_with_strides", rank, dims, dtype, api.dims(strides))
    return Handle(descriptor, "memory_desc_destroy")


def _certain(memory: Memory) -> tuple[int, ...]:
    """Strides in elements, of which those of dims of size 1 are always the same. oneDNN looks at them, tells layouts by
    them and remembers primitives without them: those of one layout could be given to another, which they do not fit."""
    dims, layout = memory.dims, memory.layout
    if memory.strides is None:
        if is_permutation(layout) and layout != channels_last(len(dims)):
            layout = usual(layout, dims)
        return strides_of(layout or row_major(len(dims)), dims)
    strides = list(memory.strides)
    span = max((s * n for s, n in zip(strides, dims, strict=True) if n != 1), default=1)
    for d, n in enumerate(dims):  # as if it lay behind the dim before it, which is what `usual` says
        if n == 1:
            strides[d] = strides[d - 1] if d else span
    return tuple(strides)


def strides_of(layout: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a permutation; Refused for another layout."""
    if not is_permutation(layout):
        raise api.Refused(f"{layout} is not known by name")
    order, _, _ = parse(layout, len(sizes))
    strides, step = [0] * len(sizes), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= sizes[dim]
    return tuple(strides)


def nbytes(descriptor: int) -> int:
    """Bytes of the memory that a descriptor describes."""
    return int(api.getter("memory_desc_get_size")(descriptor))


def extent(descriptor: int) -> int:
    """Bytes from the first to behind the last element: less than `nbytes` where rows lie apart."""
    query = api.function("memory_desc_query")
    rank, count = ctypes.c_int(), ctypes.c_int()
    query(descriptor, api.QUERY_NDIMS, ctypes.byref(rank))
    query(descriptor, api.QUERY_INNER, ctypes.byref(count))
    if count.value:
        return nbytes(descriptor)
    sizes, strides = (_vector(descriptor, what, rank.value) for what in (api.QUERY_PADDED, api.QUERY_STRIDES))
    return (sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1) * _itemsize(descriptor)


def layout_of(descriptor: int) -> str | None:
    """The layout of a descriptor in our notation; None where it has none (gaps between elements, opaque)."""
    query = api.function("memory_desc_query")
    rank, kind, count = (ctypes.c_int() for _ in range(3))
    query(descriptor, api.QUERY_NDIMS, ctypes.byref(rank))
    query(descriptor, api.QUERY_FORMAT, ctypes.byref(kind))
    if kind.value != api.FORMAT_BLOCKED:
        return None
    query(descriptor, api.QUERY_INNER, ctypes.byref(count))
    padded, strides = (
        _vector(descriptor, api.QUERY_PADDED, rank.value),
        _vector(descriptor, api.QUERY_STRIDES, rank.value),
    )
    sizes = _vector(descriptor, api.QUERY_BLOCKS, count.value)
    blocks = list(zip(_vector(descriptor, api.QUERY_BLOCK_DIMS, count.value), sizes, strict=True))
    inner = [math.prod(n for d, n in blocks if d == dim) for dim in range(rank.value)]
    outer = [n // w for n, w in zip(padded, inner, strict=True)]
    # a dim of one block can stand anywhere: after those of the same stride, in the order of the letters
    order = sorted(range(rank.value), key=lambda d: (-strides[d], outer[d] == 1, d))
    step = math.prod(sizes)
    for dim in reversed(order):
        if outer[dim] > 1 and strides[dim] != step:
            return None
        step *= outer[dim]
    letters = row_major(rank.value)
    head = "".join(letters[d].upper() if inner[d] > 1 else letters[d] for d in order)
    tail = "".join(f"{n}{letters[d]}" for d, n in blocks)
    known = math.prod(padded) * _itemsize(descriptor)
    extra = nbytes(descriptor) - known
    return f"{head}{tail}" + (f"+{extra}" if extra > 0 else "")


def _vector(descriptor: int, what: int, count: int) -> list[int]:
    pointer = ctypes.POINTER(ctypes.c_int64)()
    api.function("memory_desc_query")(descriptor, what, ctypes.byref(pointer))
    vector: list[int] = pointer[:count]
    return vector


def _itemsize(descriptor: int) -> int:
    dtype = ctypes.c_int()
    api.function("memory_desc_query")(descriptor, api.QUERY_DTYPE, ctypes.byref(dtype))
    return _ITEMSIZES[dtype.value]


_ITEMSIZES: Final = {number: dtype.itemsize for dtype, number in api.DTYPES.items()}
