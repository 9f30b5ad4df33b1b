"""Programs of padded graphs: what they are fed at true sizes, and how their results are cut."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import numpy as np

from ...ops import Tensor, Type
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, field
from ...ops.symbolic import SizeTrace, Terms, concrete
from ...ops.types import Array
from ..ir.graph import Node
from .executable import Executable
from .growing import Growing, GrowingArray
from .padding import Axis, PaddedGraph
from .sizes import Size
from .template import evaluated

MOST_SIZES = 64  # of one program, of which what follows from them is kept


@dataclass(frozen=True, slots=True, eq=False)
class SizeFacts:
    """Facts of a padded graph by which its program is fed and its results are cut, all in terms of the symbols of a
    `trace`: those of PaddedGraph, and the axes of the outputs with padding, by their names. `planned` has the number
    that each size is in the program, `rounded` are those with padding."""

    trace: SizeTrace
    planned: Mapping[Terms, int]
    rounded: frozenset[Terms]
    counts: Mapping[Terms, str]
    numbers: Mapping[str, Array]
    shares: Mapping[str, tuple[Terms, ...]]
    places: Mapping[str, tuple[str | Array, tuple[Axis, ...], bool]]
    axes: Mapping[str, tuple[Axis, ...]]

    @classmethod
    def of(cls, state: PaddedGraph, outputs: Sequence[tuple[str, str]]) -> SizeFacts:
        """The facts of a padded graph, whose outputs are pairs of a public name and a value."""
        all_axes = {name: state.known[value].axes for name, value in outputs}
        axes = {name: axes for name, axes in all_axes.items() if any(map(state.pads, axes))}
        used: list[Size] = [s for shared in state.shares.values() for s in shared]
        of_axes = chain(*axes.values(), *(place[1] for place in state.places.values()))
        used += chain.from_iterable(of_axes)
        sizes = {s: state.planned(s) for s in used if not isinstance(s, int)}
        rounded = frozenset(s for s in sizes if state.padded(s))
        counts, numbers, shares, places = state.counts, state.numbers, state.shares, state.places
        return cls(state.normal.trace, sizes, rounded, counts, numbers, shares, places, axes)

    @property
    def names(self) -> set[str]:
        """The inputs that follow from these facts alone."""
        return {*self.counts.values(), *self.numbers, *self.shares, *self.places}

    def number(self, size: Size) -> int:
        """The number that a size is in the program."""
        return size if isinstance(size, int) else self.planned[size]

    def true(self, size: Size, values: Sequence[int]) -> int:
        """The number that a size is for these values of the symbols."""
        return size if isinstance(size, int) else self.trace.value(size, values)

    def pads(self, axis: Axis) -> bool:
        """True if there is padding in an axis."""
        return any(size in self.rounded for size in axis if not isinstance(size, int))

    def ends(self, values: Sequence[int]) -> dict[str, ResultEnds]:
        """The beginning of the padding of each result that has some."""
        ends = dict[str, ResultEnds]()
        for name, axes in self.axes.items():
            true = [[self.true(s, values) for s in axis] for axis in axes]
            shape = tuple(int(np.prod(sizes, dtype=np.int64)) for sizes in true)
            plain = all(len(axis) <= 1 or not self.pads(axis) for axis in axes)
            planned = None if plain else tuple(self.number(s) for axis in axes for s in axis)
            parts = shape if plain else tuple(chain.from_iterable(true))
            ends[name] = ResultEnds(planned, tuple(map(slice, parts)), shape)
        return ends

    def moved(self, indices: Array, axis: Axis, values: Sequence[int]) -> Array | None:
        """The indices into an axis with padding that are the same elements as these without; None for those outside."""
        sizes = [self.true(s, values) for s in axis]
        total = int(np.prod(sizes, dtype=np.int64))
        indices = np.where(indices < 0, indices + total, indices)
        if indices.size and not 0 <= indices.min() <= indices.max() < total:
            return None
        moved = np.zeros_like(indices)
        for size in reversed(range(len(sizes))):
            inner = int(np.prod([self.number(s) for s in axis[size + 1 :]], dtype=np.int64))
            moved += indices % sizes[size] * inner
            indices = indices // sizes[size]
        return moved


@dataclass(frozen=True, slots=True)
class ResultEnds:
    """Beginning of the padding of a result: seen as an array of the sizes in `planned` (None: as it is), `heads` of it
    are the elements that count, whose shape is `shape`."""

    planned: tuple[int, ...] | None
    heads: tuple[slice, ...]
    shape: tuple[int, ...]

    def cut(self, result: Array, kept: bool) -> Array:
        """The elements that count, with the padding as their room if they are `kept` and it lies behind."""
        if kept and self.planned is None:
            return GrowingArray.of(result, self.heads, writable=True)
        whole = result if self.planned is None else result.reshape(self.planned)
        return np.ascontiguousarray(whole[self.heads]).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class TrueSizes:
    """Facts of true sizes for a program: inputs that follow from them, and the ends of results, both by name."""

    inputs: Mapping[str, Array]
    ends: Mapping[str, ResultEnds]


@dataclass(slots=True, eq=False)
class PaddedProgram:
    """An executable for rounded sizes. `facts` tell what its inputs and outputs are; `sized` are the nodes that make
    its further inputs of the true sizes. `growing` are the inputs that may have room for more rows. What comes from a
    file keeps to a `budget`, and is worked with inside of `checked`, which tells what contradicts itself."""

    executable: Executable
    facts: SizeFacts
    sized: tuple[Node, ...]
    read: Mapping[str, Array]
    outputs: tuple[str, ...]
    growing: Growing
    known: OrderedDict[tuple[int, ...], TrueSizes | None] = field(default_factory=OrderedDict[tuple[int, ...], Any])
    budget: Budget | None = None
    checked: Callable[[], AbstractContextManager[None]] = nullcontext

    def at(self, values: tuple[int, ...]) -> TrueSizes | None:
        """Return the facts of true sizes for the program; None where a place that follows from them lies outside of
        what counts."""
        if values not in self.known:
            with self.checked():
                more = self._sized(values)
                self.known[values] = None if more is None else TrueSizes(more, self.facts.ends(values))
            while len(self.known) > MOST_SIZES:
                self.known.popitem(last=False)
        return self.known[values]

    def feeds(self, arrays: Mapping[str, Array], sizes: TrueSizes) -> dict[str, Array]:
        """The inputs of the program, in its order, for arrays of these true sizes."""
        types, more, roomy = self.executable.program.types, sizes.inputs, self.growing.inputs
        with self.checked():
            return {
                name: more[name] if name in more else _grown(arrays[name], types[name], room=name in roomy)
                for name in self.executable.program.given
            }

    def _sized(self, values: Sequence[int]) -> dict[str, Array] | None:
        """The inputs that follow from the true sizes."""
        facts, types = self.facts, self.executable.program.types
        put = concrete(facts.trace, values)
        arrays = evaluated(self.sized, self.read, put, self.budget)
        given = set(self.executable.program.given)
        more = {name: _grown(np.asarray(array), types[name]) for name, array in arrays.items() if name in given}
        for terms, name in facts.counts.items():
            more[name] = np.asarray(facts.trace.value(terms, values), np.int64)
        for name, array in facts.numbers.items():
            more[name] = np.asarray(put(array), np.int64).reshape(array.shape)
        for name, sizes in facts.shares.items():
            more[name] = np.asarray(np.prod([facts.number(t) / facts.true(t, values) for t in sizes]))
        for name, (source, axes, each) in facts.places.items():
            if name in given:
                true = np.asarray(arrays[source] if isinstance(source, str) else put(source)).astype(np.int64)
                columns = [true[..., i] for i in range(len(axes))] if each else [true]
                moved = [facts.moved(column, axis, values) for column, axis in zip(columns, axes, strict=True)]
                if any(column is None for column in moved):
                    return None
                more[name] = _grown(
                    np.stack([np.asarray(m) for m in moved], -1) if each else np.asarray(moved[0]), types[name]
                )
        if self.budget is not None:
            _check(more, types, given)
        return {name: array for name, array in more.items() if name in given}

    def cut(self, results: Mapping[str, Any], sizes: TrueSizes, kept: Collection[str] = ()) -> dict[str, Any]:
        """The results without padding; those in `kept` with the room that padding is, where it lies behind."""
        with self.checked():
            return {
                name: results[name] if name not in sizes.ends else sizes.ends[name].cut(results[name], name in kept)
                for name in self.outputs
            }


def _check(arrays: Mapping[str, Array], types: Mapping[str, Type], given: Iterable[str]) -> None:
    """Raise ValueError for an array that is not of the type with which kernels were chosen."""
    for name in given:
        array, known = arrays.get(name), types[name]
        wanted = (known.sizes, known.dtype.numpy) if isinstance(known, Tensor) else None
        if array is not None and (array.shape, array.dtype) != wanted:
            raise ValueError(f"{name!r} is {array.dtype} {array.shape}, not {known}")


def _grown(array: Array, type: Type, *, room: bool = False) -> Array:
    """The array with zeros up to the sizes of a type; with `room`, that of one that has as much."""
    assert isinstance(type, Tensor)
    if isinstance(array, GrowingArray):
        if room and array.room is not None and array.room.shape == type.sizes:
            return array.room
    elif array.shape == type.sizes:
        return array
    grown = np.zeros(type.sizes, array.dtype)
    grown[tuple(map(slice, array.shape))] = array
    return grown
