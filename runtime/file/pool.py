"""Strings, types and attribute values of a section, each stored once and referred to by its index.

What contains something names smaller indices only, so that reading is one pass without recursion, and no file can
describe a thing that contains itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from ...ops import DType, Map, Optional, Tensor, Type
from ...ops import Sequence as ListType
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass
from ...ops.errors import ModelError
from ..ir.graph import Graph
from .table import Table, malformed

TENSOR, UNRANKED, SEQUENCE, OPTIONAL, MAP = range(5)
INT, FLOAT, BOOL, TEXT, BYTES, ARRAY, TYPE, GRAPH, TUPLE, NONE = range(10)
_DTYPES = {d.onnx: d for d in DType}
_DOUBLE, _LONG = struct.Struct("<d"), struct.Struct("<q")


class Indexed(Protocol):
    """Lookup of an object by its number."""

    def __getitem__(self, number: int, /) -> Any: ...


class Ends:
    """A list of lists as two columns: all elements, and the end of each list.

    >>> e = Ends()
    >>> e.add([7, 8]); e.add([])
    >>> e.ends, e.items
    ([2, 2], [7, 8])
    """

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.items: list[int] = []

    def add(self, items: Iterable[int]) -> None:
        self.items += items
        self.ends.append(len(self.items))


def spans(ends: list[int], count: int, *columns: Sequence[Any]) -> list[tuple[int, int]]:
    """Begin and end of each list; ModelError unless there are `count` of them, one after another, and they end where
    the columns end."""
    total = ends[-1] if ends else 0
    if len(ends) != count or any(len(c) != total for c in columns):
        raise malformed("columns that belong together differ in length")
    if ends != sorted(ends):  # quick where they are
        raise malformed("the ends of lists are not in order")
    return list(pairwise((0, *ends)))


def same_length(*columns: Sequence[Any]) -> int:
    """The length of columns that belong together; ModelError if they differ."""
    if len(set(map(len, columns))) > 1:
        raise malformed("columns that belong together differ in length")
    return len(columns[0])


@dataclass(frozen=True, slots=True)
class BodyRef:
    """An attribute value that refers to the graph of this number; nodes replace it by the graph."""

    number: int


# Writing


class TextWriter:
    """Strings in the order of first use."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._known.setdefault(text, len(self._known))

    def content(self) -> dict[str, Any]:
        return strings_content(list(self._known))


def strings_content(strings: Sequence[str]) -> dict[str, Any]:
    """The Strings table of these strings."""
    lengths = np.cumsum([len(t) for t in strings], dtype=np.int64).tolist() if strings else []
    # strings that are not Unicode (file names, tokens) are kept as Python holds them
    return {"utf8": np.frombuffer("".join(strings).encode("utf-8", "surrogatepass"), np.uint8), "ends": lengths}


class PoolWriter:
    """Writer of strings, types and values; every method returns an index."""

    def __init__(self, array: Callable[[Any], int], graph: Callable[[Graph], int] | None = None) -> None:
        self.text = TextWriter()
        self._array, self._graph = array, graph
        self._types: dict[Any, int] = {}
        self._type_rows: list[tuple[int, int, int]] = []
        self._dims = Ends()
        self._values: dict[Any, int] = {}
        self._value_rows: list[tuple[int, int]] = []
        self._elements = Ends()

    def type(self, type: Type) -> int:
        """The index of a type, without what is known of its elements."""
        number = self._types.get(type)
        if number is not None:
            return number
        match type:
            case Tensor():
                dims = type.dims
                layout = 1 + self.text(type.layout) if type.layout else 0
                row = (TENSOR if dims is not None else UNRANKED, layout, type.dtype.onnx)
                coded = [-2 - self.text(d) if isinstance(d, str) else -1 if d is None else d for d in dims or ()]
            case Map():
                row, coded = (MAP, self.type(type.element), type.key.onnx), []
            case ListType() | Optional():
                row, coded = (SEQUENCE if isinstance(type, ListType) else OPTIONAL, self.type(type.element), 0), []
        self._type_rows.append(row)
        self._dims.add(coded)
        return self._types.setdefault(type, len(self._types))

    def value(self, value: Any) -> int:
        """The index of an attribute value; ModelError for a kind that files do not hold."""
        kind, data, elements = self._coded(value)
        key = (kind, data, elements)
        if key not in self._values:
            self._value_rows.append((kind, data))
            if kind == TUPLE:
                self._elements.add(elements)
            self._values[key] = len(self._values)
        return self._values[key]

    def _coded(self, value: Any) -> tuple[int, int, tuple[int, ...]]:
        match value:
            case bool() | np.bool_():
                return BOOL, int(value), ()
            case int() | np.integer():
                if not -(2**63) <= value < 2**63:
                    raise ModelError(f"the attribute {value} has more than 64 bits", hint="split it")
                return INT, int(value), ()
            case float() | np.floating():
                return FLOAT, _LONG.unpack(_DOUBLE.pack(value))[0], ()
            case str():
                return TEXT, self.text(value), ()
            case bytes():
                return BYTES, self.text(value.decode("latin-1")), ()
            case None:
                return NONE, 0, ()
            case tuple() | list():
                return TUPLE, 0, tuple(map(self.value, value))
            case Graph() if self._graph is not None:
                return GRAPH, self._graph(value), ()
            case Tensor() | ListType() | Optional() | Map():
                return TYPE, self.type(value), ()
        if hasattr(value, "dtype"):
            return ARRAY, self._array(value), ()
        raise ModelError(f"a .mezzo file cannot hold a {type(value).__name__}", hint="use numbers, strings or arrays")

    def content(self) -> dict[str, Any]:
        """The Pool table."""
        kinds, data, dtypes = zip(*self._type_rows, strict=True) if self._type_rows else ((), (), ())
        value_kinds, value_data = zip(*self._value_rows, strict=True) if self._value_rows else ((), ())
        return {
            "strings": self.text.content(),
            "type_kinds": list(kinds),
            "type_data": list(data),
            "type_dtypes": list(dtypes),
            "dims_end": self._dims.ends,
            "dims": self._dims.items,
            "value_kinds": list(value_kinds),
            "value_data": list(value_data),
            "elements_end": self._elements.ends,
            "elements": self._elements.items,
        }


# Reading


def read_strings(table: Table) -> list[str]:
    """The strings of a Strings table."""
    try:
        text = table.raw("utf8").tobytes().decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise malformed("the strings are not UTF-8") from error
    ends = table.column("ends")
    return [text[a:b] for a, b in spans(ends, len(ends), text)]


class ConstantPool:
    """The strings, types and values of a section, read and checked on demand. Lists raise IndexError for numbers that
    they lack; callers run under `reading`."""

    def __init__(self, table: Table, arrays: Indexed, budget: Budget) -> None:
        self._table, self._arrays, self._budget = table, arrays, budget
        self.strings = read_strings(table.table("strings"))

    @cached_property
    def types(self) -> list[Type]:
        return _types(self._table, self.strings, self._budget)

    @cached_property
    def values(self) -> list[Any]:
        return _values(self._table, self.strings, self.types, self._arrays)


def dtype_of(number: int) -> DType:
    """The element type with this ONNX number; ModelError if there is none."""
    dtype = _DTYPES.get(number)
    if dtype is None:
        raise malformed(f"element type {number} is unknown")
    return dtype


def _types(table: Table, strings: Sequence[str], budget: Budget) -> list[Type]:
    kinds, data, dtypes = (table.column(f"type_{c}") for c in ("kinds", "data", "dtypes"))
    dims = [d if d >= 0 else None if d == -1 else strings[-2 - d] for d in table.column("dims")]
    lists = spans(table.column("dims_end"), same_length(kinds, data, dtypes), dims)
    types: list[Type] = []
    depth: list[int] = []
    for kind, inner, dtype, (a, b) in zip(kinds, data, dtypes, lists, strict=True):
        if kind in (TENSOR, UNRANKED):
            laid = Tensor(dtype_of(dtype), tuple(dims[a:b]) if kind == TENSOR else None)
            if inner:
                laid = laid.laid(strings[inner - 1])
                if not laid.static or laid.nbytes < 0:  # nbytes raises PlanError for what is no layout
                    raise malformed("a type of unknown sizes has a layout")
            types.append(laid)
            depth.append(0)
            continue
        element = types[inner]  # IndexError: it is not among the types before this one
        depth.append(depth[inner] + 1)
        budget.check("nesting", depth[-1], "types inside types")
        if kind == SEQUENCE:
            types.append(ListType(element))
        elif kind == OPTIONAL:
            types.append(Optional(element))
        elif kind == MAP:
            types.append(Map(dtype_of(dtype), element))
        else:
            raise malformed(f"type kind {kind} is unknown")
    return types


def _values(table: Table, strings: Sequence[str], types: Sequence[Type], arrays: Indexed) -> list[Any]:
    kinds, data = table.column("value_kinds"), table.column("value_data")
    same_length(kinds, data)
    elements = table.column("elements")
    lists = iter(spans(table.column("elements_end"), kinds.count(TUPLE), elements))
    if kinds and min((d for k, d in zip(kinds, data, strict=True) if k not in (INT, FLOAT)), default=0) < 0:
        raise malformed("an attribute names something by a negative number")
    tables: Mapping[int, Indexed] = {TEXT: strings, TYPE: types, ARRAY: arrays}
    values: list[Any] = []
    sizes: list[int] = []  # how much a value holds once every list is written out
    most = len(kinds) + len(elements) + (1 << 16)
    for kind, number in zip(kinds, data, strict=True):
        size = 1
        if kind == INT:
            values.append(number)
        elif kind == TUPLE:
            a, b = next(lists)
            values.append(tuple([values[i] for i in elements[a:b]]))
            size += sum(sizes[i] for i in elements[a:b])
            if size > most:
                raise malformed("lists of attributes repeat one another without end")
        elif kind in tables:
            values.append(tables[kind][number])
        elif kind == FLOAT:
            values.append(_DOUBLE.unpack(_LONG.pack(number))[0])
        elif kind == BOOL:
            values.append(bool(number))
        elif kind == BYTES:
            values.append(_bytes(strings[number]))
        elif kind == GRAPH:
            values.append(BodyRef(number))
        elif kind == NONE:
            values.append(None)
        else:
            raise malformed(f"attribute kind {kind} is unknown")
        sizes.append(size)
    return values


def _bytes(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise malformed("bytes hold more than a byte") from error


__all__ = ["BodyRef", "ConstantPool", "Ends", "PoolWriter", "read_strings", "same_length", "spans", "strings_content"]
