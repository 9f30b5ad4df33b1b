"""Programs of padded graphs: which sizes they serve, what they are fed, and how their results are cut."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np

from ...ops import MezzoError, Tensor, Type
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, field
from ...ops.symbolic import NotSymbolic, Terms, concrete, tracing
from ...ops.types import Array
from ..ir.graph import Graph, Node
from ..ir.infer import infer
from ..ir.prune import prune
from ..passes.chains import Chains
from .executable import Executable, declined, executable_of
from .growing import Growing, GrowingArray
from .lower import Learned, Options
from .padding import NO_CACHES, Axis, CacheSizes, NotPadded, PaddedGraph
from .padding_rules import caches_of, padded_graph
from .rewriting import fused, simplified
from .sizes import NormalSizes, Size
from .template import NoTemplate, Traced, evaluated, traced

MOST_PROGRAMS = 256  # of one pattern
MOST_PATTERNS = 8  # traces of a graph
MOST_TRIES = 4  # traces for sizes of one kind that came to nothing: two sizes that are equal by chance may be why
MOST_KINDS = 32
MOST_ERRORS = 32  # traces that ended in an error of an operator
MOST_SIZES = 64  # of one program, of which what follows from them is kept
MOST_SERVED = 512  # sizes of inputs, of which the program is remembered


@dataclass(slots=True, eq=False)
class SizePattern:
    """A trace of a graph whose sizes in `open` are rounded up. `terms` are all sizes that are rounded, by which, and by
    the sizes of the other symbols, a program is found."""

    traced: Traced
    normal: NormalSizes
    open: frozenset[int]
    terms: tuple[Terms, ...]
    caches: CacheSizes
    programs: OrderedDict[tuple[int, ...], PaddedProgram | str] = field(
        default_factory=OrderedDict[tuple[int, ...], Any]
    )
    chains: Chains = field(default_factory=Chains)  # those that the first program found

    def values(self, types: Mapping[str, Type]) -> list[int] | None:
        """Return the values of the symbols for these types of the inputs; None if the pattern is not for them."""
        return self.traced.symbols.values(types)

    def key(self, values: Sequence[int], state: PaddedGraph) -> tuple[int, ...]:
        """Return the sizes by which programs are told apart."""
        closed = [values[s] for s in self.normal.left(len(self.traced.symbols.places)) if s not in self.open]
        return (*(state.planned(t) for t in self.terms), *closed)


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
    """An executable for rounded sizes. `state` tells what its inputs and outputs are; `sized` are the nodes that make
    its further inputs of the true sizes. `growing` are the inputs that may have room for more rows."""

    executable: Executable
    state: PaddedGraph
    sized: tuple[Node, ...]
    read: Mapping[str, Array]
    outputs: tuple[tuple[str, str], ...]
    growing: Growing
    known: OrderedDict[tuple[int, ...], TrueSizes | None] = field(default_factory=OrderedDict[tuple[int, ...], Any])

    def at(self, values: tuple[int, ...]) -> TrueSizes | None:
        """Return the facts of true sizes for the program; None where a place that follows from them lies outside of
        what counts."""
        if values not in self.known:
            more = self._sized(values)
            self.known[values] = None if more is None else TrueSizes(more, self._ends(values))
            while len(self.known) > MOST_SIZES:
                self.known.popitem(last=False)
        return self.known[values]

    def feeds(self, arrays: Mapping[str, Array], sizes: TrueSizes) -> dict[str, Array]:
        """The inputs of the program, in its order, for arrays of these true sizes."""
        types, more, roomy = self.executable.program.types, sizes.inputs, self.growing.inputs
        return {
            name: more[name] if name in more else _grown(arrays[name], types[name], room=name in roomy)
            for name in self.executable.program.given
        }

    def _ends(self, values: Sequence[int]) -> dict[str, ResultEnds]:
        state, ends = self.state, dict[str, ResultEnds]()
        for name, value in self.outputs:
            axes = state.known[value].axes
            if any(map(state.pads, axes)):
                true = [[_true(s, state, values) for s in axis] for axis in axes]
                shape = tuple(int(np.prod(sizes, dtype=np.int64)) for sizes in true)
                plain = all(len(axis) <= 1 or not state.pads(axis) for axis in axes)
                planned = None if plain else tuple(state.planned(s) for axis in axes for s in axis)
                parts = shape if plain else tuple(chain.from_iterable(true))
                ends[name] = ResultEnds(planned, tuple(map(slice, parts)), shape)
        return ends

    def _sized(self, values: Sequence[int]) -> dict[str, Array] | None:
        """The inputs that follow from the true sizes."""
        state, trace, types = self.state, self.state.normal.trace, self.executable.program.types
        put = concrete(trace, values)
        arrays = evaluated(self.sized, self.read, put)
        given = set(self.executable.program.given)
        more = {name: _grown(np.asarray(array), types[name]) for name, array in arrays.items() if name in given}
        for terms, name in state.counts.items():
            more[name] = np.asarray(trace.value(terms, values), np.int64)
        for name, array in state.numbers.items():
            more[name] = np.asarray(put(array), np.int64).reshape(array.shape)
        for name, sizes in state.shares.items():
            more[name] = np.asarray(np.prod([state.planned(t) / trace.value(t, values) for t in sizes]))
        for name, (source, axes, each) in state.places.items():
            if name in given:
                true = np.asarray(arrays[source] if isinstance(source, str) else put(source)).astype(np.int64)
                columns = [true[..., i] for i in range(len(axes))] if each else [true]
                moved = [_moved(column, state, axis, values) for column, axis in zip(columns, axes, strict=True)]
                if any(column is None for column in moved):
                    return None
                more[name] = _grown(
                    np.stack([np.asarray(m) for m in moved], -1) if each else np.asarray(moved[0]), types[name]
                )
        return {name: array for name, array in more.items() if name in given}

    def cut(self, results: Mapping[str, Any], sizes: TrueSizes, kept: Collection[str] = ()) -> dict[str, Any]:
        """The results without padding; those in `kept` with the room that padding is, where it lies behind."""
        return {
            name: results[name] if name not in sizes.ends else sizes.ends[name].cut(results[name], name in kept)
            for name, _ in self.outputs
        }


def _true(size: Size, state: PaddedGraph, values: Sequence[int]) -> int:
    return size if isinstance(size, int) else state.normal.trace.value(size, values)


def _moved(indices: Array, state: PaddedGraph, axis: Axis, values: Sequence[int]) -> Array | None:
    """The indices into an axis with padding that are the same elements as these without; None for those outside."""
    sizes = [_true(s, state, values) for s in axis]
    total = int(np.prod(sizes, dtype=np.int64))
    indices = np.where(indices < 0, indices + total, indices)
    if indices.size and not 0 <= indices.min() <= indices.max() < total:
        return None
    moved = np.zeros_like(indices)
    for size in reversed(range(len(sizes))):
        inner = int(np.prod([state.planned(s) for s in axis[size + 1 :]], dtype=np.int64))
        moved += indices % sizes[size] * inner
        indices = indices // sizes[size]
    return moved


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


Served = tuple[PaddedProgram, tuple[int, ...]]
Sizes = tuple[Any, ...]  # of inputs in their order, None for what is no tensor


def sizes_of(types: Mapping[str, Type]) -> Sizes:
    return tuple([t.dims if isinstance(t, Tensor) else None for t in types.values()])


def _kind(types: Mapping[str, Type]) -> Sizes:
    """Return which sizes are 0, 1 or more: they are treated otherwise, by operators and by passes."""
    return tuple([tuple(min(n, 2) for n in t.sizes) if isinstance(t, Tensor) else None for t in types.values()])


@dataclass(slots=True, eq=False)
class PaddedPrograms:
    """The programs for rounded sizes of one graph, whose outputs have public `names`.

    `patterns` are in the order of their last use. `reasons` tells why there was none, `failed` how often for sizes of a
    kind (see `_kind`): what a rule refuses for a few it refuses for the rest. Errors of the operators are not counted
    there: whoever feeds what does not fit shall change nothing for others.
    """

    graph: Graph
    names: tuple[str, ...]
    options: Options
    budget: Budget
    patterns: list[SizePattern] = field(default_factory=list[SizePattern])
    reasons: list[str] = field(default_factory=list[str])
    failed: Counter[Sizes] = field(default_factory=Counter[Any])
    errors: int = 0
    _served: OrderedDict[Sizes, Served | None] = field(default_factory=OrderedDict[Any, Any])
    learned: Learned = field(default_factory=Learned)

    def served(self, sizes: Sizes) -> tuple[bool, Served | None]:
        """Return whether inputs of these sizes were met before, and the answer that `serve` gave then."""
        return sizes in self._served, self._served.get(sizes)

    def serve(self, types: Mapping[str, Type]) -> Served | None:
        """A program for inputs of these types, with the values of its symbols; None where there is none."""
        answer = self._served[sizes_of(types)] = self._serve(types)
        while len(self._served) > MOST_SERVED:
            self._served.popitem(last=False)
        return answer

    def _serve(self, types: Mapping[str, Type]) -> Served | None:
        for pattern in chain([*self.patterns], self._another(types)):
            values = pattern.values(types)
            if values is None:
                continue
            self.patterns.remove(pattern)
            self.patterns.insert(0, pattern)
            program = self._program(pattern, values)
            return None if isinstance(program, str) else (program, tuple(values))
        return None

    def executables(self) -> list[Executable]:
        """All that are kept."""
        return [p.executable for t in self.patterns for p in [*t.programs.values()] if isinstance(p, PaddedProgram)]

    def forget(self, executable: Executable) -> None:
        """Let a program be planned again. Others may plan at the same time."""
        for sizes in [s for s, served in [*self._served.items()] if served and served[0].executable is executable]:
            self._served.pop(sizes, None)
        for pattern in [*self.patterns]:
            made = [(key, p) for key, p in [*pattern.programs.items()] if not isinstance(p, str)]
            for key in [key for key, program in made if program.executable is executable]:
                pattern.programs.pop(key, None)

    def _another(self, types: Mapping[str, Type]) -> Iterator[SizePattern]:
        kind = _kind(types)
        if self.failed[kind] >= MOST_TRIES or len(self.failed) > MOST_KINDS or self.errors >= MOST_ERRORS:
            return
        try:
            pattern = _pattern(self.graph, types, self.options, self.budget)
        except (NoTemplate, NotPadded, NotSymbolic) as error:
            self.failed[kind] += 1
            self._note(str(error))
        except MezzoError as error:
            self.errors += 1
            self._note(str(error))
        else:
            self.patterns.insert(0, pattern)
            del self.patterns[MOST_PATTERNS:]
            self._served.clear()  # others may be served now, and programs of the last one are kept no longer
            yield pattern

    def _note(self, reason: str) -> None:
        if reason not in self.reasons and len(self.reasons) < MOST_KINDS:
            self.reasons.append(reason)

    def _program(self, pattern: SizePattern, values: Sequence[int]) -> PaddedProgram | str:
        """The program for these values, or the reason why there is none."""
        state = PaddedGraph(pattern.traced, pattern.normal, pattern.open, values, pattern.caches)
        key = pattern.key(values, state)
        program = pattern.programs.get(key)
        if program is None:
            try:
                program = self._made(pattern, values)
            except (NotPadded, MezzoError) as error:
                program = str(error)
            pattern.programs[key] = program
            while len(pattern.programs) > MOST_PROGRAMS:
                pattern.programs.popitem(last=False)
                self._served.clear()
        pattern.programs.move_to_end(key)
        return program

    def _made(self, pattern: SizePattern, values: Sequence[int]) -> PaddedProgram:
        options, budget = self.options, self.budget
        graph, state = padded_graph(pattern.traced, pattern.normal, pattern.open, values, pattern.caches)
        typed = simplified(infer(graph, budget=budget), options, budget)
        known = bool(pattern.chains)
        bound = executable_of(fused(typed, options, budget, pattern.chains), options, self.names, self.learned)
        if known and declined(bound):
            pattern.chains.clear()
            bound = executable_of(fused(typed, options, budget, pattern.chains), options, self.names, self.learned)
        sized = pattern.traced.sized
        sources = [source for source, _, _ in state.places.values() if isinstance(source, str)]
        wanted = tuple(dict.fromkeys(n for n in (*graph.inputs, *sources) if n in sized.outputs))
        sized = prune(sized.but(outputs=wanted))
        outputs = tuple(zip(self.names, graph.outputs, strict=True))
        return PaddedProgram(bound, state, sized.nodes, sized.initializers, outputs, Growing.of(bound.program))


def _pattern(graph: Graph, types: Mapping[str, Type], options: Options, budget: Budget) -> SizePattern:
    """Trace a graph, and find the sizes of it that can be rounded up: as many as can be. Raises NoTemplate or NotPadded
    with the reason where none can."""
    if options.target.sm or any(n.bodies for n in graph.nodes):
        raise NoTemplate("it has subgraphs, or is for a GPU")
    with tracing():
        trace = traced(graph, types, options, budget)
    values = trace.symbols.values(types)
    if values is None:
        raise NoTemplate("its own sizes do not meet its guards")
    normal = NormalSizes(trace.symbols.trace)
    symbols = sorted({s for name, axis in trace.symbols.places for s in open_symbols(trace, normal, name, axis)})
    reasons: list[str] = []
    for count in range(len(symbols), 0, -1):
        for open in combinations(symbols, count):
            try:
                _, state = padded_graph(trace, normal, open, values, NO_CACHES)
            except NotPadded as error:
                reasons.append(str(error))
            else:
                return SizePattern(trace, normal, frozenset(open), tuple(state.rounded), caches_of(state))
    raise NotPadded("; ".join(dict.fromkeys(reasons)) or "no size is open behind the first axis")


def open_symbols(trace: Traced, normal: NormalSizes, name: str, axis: int) -> set[int]:
    """The symbols of an input's axis: of the first of several, none, which are batches and so many as they are."""
    known = trace.symbols.types[name]
    assert isinstance(known, Tensor)
    if axis == 0 and known.rank > 1:
        return set()
    size = normal.of(known.shape[axis])
    return set() if isinstance(size, int) else normal.symbols(size)
