"""Programs for rounded sizes: which sizes they serve, and how they come about."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any

from ...ops import MezzoError, Tensor, Type
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, field
from ...ops.symbolic import NotSymbolic, Terms, tracing
from ..ir.graph import Graph
from ..ir.infer import infer
from ..ir.prune import prune
from ..passes.chains import Chains
from . import window_rules as window_rules  # enters its rules
from .decoder_rules import read_directly
from .executable import Executable, declined, executable_of
from .growing import Growing
from .lower import Learned, Options
from .padded_program import PaddedProgram, SizeFacts
from .padding import NO_CACHES, CacheSizes, NotPadded, PaddedGraph, planned_size
from .padding_rules import caches_of, padded_graph
from .rewriting import fused, simplified
from .sequence_rules import walked_axes
from .sizes import NormalSizes
from .template import NoTemplate, Symbols, Traced, traced

MOST_PROGRAMS = 256  # of one pattern
MOST_PATTERNS = 8  # traces of a graph
MOST_TRIES = 4  # traces for sizes of one kind that came to nothing: two sizes that are equal by chance may be why
MOST_KINDS = 32
MOST_ERRORS = 32  # traces that ended in an error of an operator
MOST_SERVED = 512  # sizes of inputs, of which the program is remembered


@dataclass(frozen=True, slots=True)
class RoundedSize:
    """A size as it is planned: `terms` are its own or those of what it grows to, rounded up as `rows` of a cache or as
    other sizes."""

    terms: Terms
    rows: bool


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPattern:
    """The trace of a graph by which a pattern makes programs; `chains` are those that the first program found."""

    traced: Traced
    normal: NormalSizes
    open: frozenset[int]
    caches: CacheSizes
    chains: Chains = field(default_factory=Chains)


Loader = Callable[[], "PaddedProgram | str"]


@dataclass(slots=True, eq=False)
class SizePattern:
    """A way in which sizes of a graph are rounded up, for those that meet the guards of its `symbols`. By the planned
    number of each size in `rounded`, and by the values of the symbols in `closed`, a program is found. `stored` reads
    those that a file has; without `source` there are no others."""

    symbols: Symbols
    rounded: tuple[RoundedSize, ...]
    closed: tuple[int, ...]
    source: PlannedPattern | None
    programs: OrderedDict[tuple[int, ...], PaddedProgram | str] = field(
        default_factory=OrderedDict[tuple[int, ...], Any]
    )
    stored: Mapping[tuple[int, ...], Loader] = field(default_factory=dict[tuple[int, ...], Any])

    def values(self, types: Mapping[str, Type]) -> list[int] | None:
        """Return the values of the symbols for these types of the inputs; None if the pattern is not for them."""
        return self.symbols.values(types)

    def key(self, values: Sequence[int]) -> tuple[int, ...]:
        """Return the sizes by which programs are told apart."""
        trace = self.symbols.trace
        sizes = [planned_size(trace.value(r.terms, values), rows=r.rows) for r in self.rounded]
        return (*sizes, *(values[s] for s in self.closed))


Served = tuple[PaddedProgram, tuple[int, ...]]
Sizes = tuple[Any, ...]  # of inputs in their order, None for what is no tensor


def sizes_of(types: Mapping[str, Type]) -> Sizes:
    return tuple([t.dims if isinstance(t, Tensor) else None for t in types.values()])


def _kind(types: Mapping[str, Type]) -> Sizes:
    """Return which sizes are 0, 1 or more: they are treated otherwise, by operators and by passes."""
    return tuple([tuple(min(n, 2) for n in t.sizes) if isinstance(t, Tensor) else None for t in types.values()])


@dataclass(slots=True, eq=False)
class PaddedPrograms:
    """The programs for rounded sizes of one graph, which is asked for when one is to be planned, and whose outputs have
    public `names`.

    `patterns` are in the order of their last use. `reasons` tells why there was none, `failed` how often for sizes of a
    kind (see `_kind`): what a rule refuses for a few it refuses for the rest. Errors of the operators are not counted
    there: whoever feeds what does not fit shall change nothing for others.
    """

    graph: Callable[[], Graph]
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

    def serve(self, types: Mapping[str, Type], *, as_they_are: bool = False) -> Served | None:
        """A program for inputs of these types, with the values of its symbols; None where there is none, or they are to
        be served as they are."""
        answer = self._served[sizes_of(types)] = None if as_they_are else self._serve(types)
        while len(self._served) > MOST_SERVED:
            self._served.popitem(last=False)
        return answer

    def _serve(self, types: Mapping[str, Type]) -> Served | None:
        # those of a file first: the others would plan
        for pattern in chain(sorted(self.patterns, key=lambda p: p.source is not None), self._another(types)):
            values = pattern.values(types)
            program = None if values is None else self._program(pattern, values)
            if values is None or program is None:
                continue
            self.patterns.remove(pattern)
            self.patterns.insert(0, pattern)
            return None if isinstance(program, str) else (program, tuple(values))
        return None

    def read(self) -> list[PaddedProgram]:
        """All that are kept, after those that lie in a file are read."""
        for pattern in self.patterns:
            for key in [key for key in pattern.stored if key not in pattern.programs]:
                self._stored(pattern, key)
        return [p for t in self.patterns for p in t.programs.values() if isinstance(p, PaddedProgram)]

    def executables(self) -> list[Executable]:
        """All that are kept."""
        return [p.executable for t in self.patterns for p in [*t.programs.values()] if isinstance(p, PaddedProgram)]

    def forget(self, executable: Executable) -> None:
        """Let a program be planned again. Others may plan at the same time."""
        for sizes in [s for s, served in [*self._served.items()] if served and served[0].executable is executable]:
            self._served.pop(sizes, None)
        for pattern in [*self.patterns]:
            programs = [(key, p) for key, p in [*pattern.programs.items()] if not isinstance(p, str)]
            for key in [key for key, program in programs if program.executable is executable]:
                pattern.programs.pop(key, None)

    def _another(self, types: Mapping[str, Type]) -> Iterator[SizePattern]:
        kind = _kind(types)
        if self.failed[kind] >= MOST_TRIES or len(self.failed) > MOST_KINDS or self.errors >= MOST_ERRORS:
            return
        try:
            pattern = _pattern(self.graph(), types, self.options, self.budget)
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

    def _program(self, pattern: SizePattern, values: Sequence[int]) -> PaddedProgram | str | None:
        """The program for these values, or the reason why there is none; None where the pattern makes none."""
        try:
            key = pattern.key(values)
        except NotSymbolic:  # sizes beyond int64
            return None
        program = pattern.programs.get(key) or self._stored(pattern, key)
        if program is None:
            if pattern.source is None:
                return None
            try:
                program = self._made(pattern.source, values)
            except (NotPadded, MezzoError) as error:
                program = str(error)
            pattern.programs[key] = program
            while len(pattern.programs) > MOST_PROGRAMS:
                pattern.programs.popitem(last=False)
                self._served.clear()
        pattern.programs.move_to_end(key)
        return program

    def _stored(self, pattern: SizePattern, key: tuple[int, ...]) -> PaddedProgram | None:
        """The program that a file has; None where it has none, or this machine would make another one."""
        if key not in pattern.stored:
            return None
        program = pattern.stored[key]()
        if isinstance(program, str):
            self._note(program)
            pattern.stored = {k: load for k, load in pattern.stored.items() if k != key}
            return None
        pattern.programs[key] = program
        return program

    def _made(self, source: PlannedPattern, values: Sequence[int]) -> PaddedProgram:
        options, budget, chains = self.options, self.budget, source.chains
        graph, state = padded_graph(source.traced, source.normal, source.open, values, source.caches)
        typed = simplified(infer(graph, budget=budget), options, budget)
        known = bool(chains)
        executable = executable_of(fused(typed, options, budget, chains), options, self.names, self.learned)
        if known and declined(executable):
            chains.clear()
            executable = executable_of(fused(typed, options, budget, chains), options, self.names, self.learned)
        sized = source.traced.sized
        sources = [place for place, _, _ in state.places.values() if isinstance(place, str)]
        wanted = tuple(dict.fromkeys(n for n in (*graph.inputs, *sources) if n in sized.outputs))
        sized = prune(sized.but(outputs=wanted))
        facts = SizeFacts.of(state, tuple(zip(self.names, graph.outputs, strict=True)))
        return PaddedProgram(
            executable, facts, sized.nodes, sized.initializers, self.names, Growing.of(executable.program)
        )


def _pattern(graph: Graph, types: Mapping[str, Type], options: Options, budget: Budget) -> SizePattern:
    """Trace a graph, and find the sizes of it that can be rounded up: as many as can be. Raises NoTemplate or NotPadded
    with the reason where none can."""
    if options.target.sm or any(n.bodies for n in graph.nodes):
        raise NoTemplate("it has subgraphs, or is for a GPU")
    with tracing():
        trace = traced(read_directly(graph), types, options, budget)
    if trace.symbols.ranks:
        raise NoTemplate("an input may have any rank")
    values = trace.symbols.values(types)
    if values is None:
        raise NoTemplate("its own sizes do not meet its guards")
    normal = NormalSizes(trace.symbols.trace)
    candidates = {s for name, axis in trace.symbols.places for s in open_symbols(trace, normal, name, axis)}
    walked = [normal.of(dim) for dim in walked_axes(trace)]
    symbols = sorted(candidates.union(*(normal.symbols(size) for size in walked if not isinstance(size, int))))
    reasons: list[str] = []
    for count in range(len(symbols), 0, -1):
        for open in combinations(symbols, count):
            try:
                _, state = padded_graph(trace, normal, open, values, NO_CACHES)
            except NotPadded as error:
                reasons.append(str(error))
            else:
                source = PlannedPattern(trace, normal, frozenset(open), caches_of(state))
                return SizePattern(trace.symbols, *_told_apart(state, source), source)
    raise NotPadded("; ".join(dict.fromkeys(reasons)) or "no size is open behind the first axis")


def _told_apart(state: PaddedGraph, source: PlannedPattern) -> tuple[tuple[RoundedSize, ...], tuple[int, ...]]:
    """Return the sizes that are rounded up, and the symbols of the others."""
    caches, normal = source.caches, source.normal
    rounded = [
        RoundedSize(caches.grown.get(t, t), t in caches.sizes or normal.symbols(t) <= caches.masks)
        for t in state.rounded
    ]
    closed = (s for s in normal.left(len(source.traced.symbols.places)) if s not in source.open)
    return tuple(rounded), tuple(closed)


def open_symbols(trace: Traced, normal: NormalSizes, name: str, axis: int) -> set[int]:
    """The symbols of an input's axis: of the first of several, none, which are batches and so many as they are."""
    known = trace.symbols.types[name]
    assert isinstance(known, Tensor)
    if axis == 0 and known.rank > 1:
        return set()
    size = normal.of(known.shape[axis])
    return set() if isinstance(size, int) else normal.symbols(size)
