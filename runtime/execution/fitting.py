"""Runs at other sizes than those that were fed: padded up to buckets that the user gives, or as far as is proven to
change nothing (compile/padding.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import ref

from ...ops.dataclasses import dataclass, field
from ...ops.errors import InputError
from ...ops.types import Type
from ..compile.buckets import Buckets, check_buckets, cut, padded
from ..compile.collection import collection_paused
from ..compile.executable import Executable
from ..compile.growing import GrowingArray, plain
from ..compile.program import Port

if TYPE_CHECKING:
    from ..compile.padded import PaddedPrograms
    from ..compile.padded_program import PaddedProgram
    from ..ir.graph import Graph
    from .session import Session


@dataclass(frozen=True, slots=True)
class Fitted:
    """The arrays of a run, its executable if that is not the one for their types, what is made of its results, and
    memory that results are written into."""

    arrays: dict[str, Any]
    finish: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    executable: Executable | None = None
    buffers: Mapping[str, Any] = field(default_factory=dict[str, Any])


class AsTheyAre:
    """Sizes that are planned as they are."""

    def fit(
        self, session: Session, wanted: tuple[str, ...], arrays: dict[str, Any], outputs: Mapping[str, Any] | None
    ) -> Fitted:
        """The arrays themselves."""
        return Fitted(arrays)

    def afresh(self) -> AsTheyAre:
        """The same way for a session with other programs."""
        return self


AS_THEY_ARE: Final = AsTheyAre()


@dataclass(frozen=True, slots=True)
class GivenBuckets:
    """Sizes that the user gives for open dims, by their names."""

    sizes: Mapping[str, tuple[int, ...]]

    def afresh(self) -> GivenBuckets:
        """The same way for a session with other programs."""
        return self

    def fit(
        self, session: Session, wanted: tuple[str, ...], arrays: dict[str, Any], outputs: Mapping[str, Any] | None
    ) -> Fitted:
        """The arrays padded up to the next sizes. Raises InputError where results are to go into buffers."""
        if outputs:
            raise InputError("outputs= and buckets= exclude each other", hint="copy from the results instead")
        grown, had = padded(self.sizes, session.inputs, arrays)
        if not had:
            return Fitted(grown)
        types = session.types_of(grown)
        return Fitted(grown, lambda results: cut(session.compiled(wanted), types, results, had))


@dataclass(frozen=True, slots=True)
class ProvenBuckets:
    """Sizes that are rounded up where results do not depend on it; others are planned as they are.

    `pasts` are inputs by the outputs that are these with more rows behind them. Where one is fed with room for its
    next rows, the output has the rest of that room, and is written in its place if nobody else reads it. `made` are the
    programs by the outputs that are asked for.
    """

    pasts: Mapping[str, str] = field(default_factory=dict[str, str])
    made: dict[tuple[str, ...], PaddedPrograms] = field(default_factory=dict[tuple[str, ...], Any])

    def afresh(self) -> ProvenBuckets:
        """The same way for a session with other programs."""
        return ProvenBuckets(self.pasts)

    def programs(self, session: Session, outputs: tuple[str, ...]) -> PaddedPrograms:
        """The programs for these outputs, those of the session's file among them."""
        known = self.made.get(outputs)
        if known is None:
            with session.planning:
                known = self.made.get(outputs)
                if known is None:
                    known = self.made[outputs] = _programs(session, outputs)
        return known

    def count(self) -> int:
        """The number of programs that are kept."""
        return sum(len(programs.executables()) for programs in [*self.made.values()])

    def fit(
        self, session: Session, wanted: tuple[str, ...], arrays: dict[str, Any], outputs: Mapping[str, Any] | None
    ) -> Fitted:
        """The inputs of the program for rounded sizes; the arrays as they are where there is none, and where results
        are to go into buffers."""
        program, values = (None if outputs else self.program(session, wanted, arrays)) or (None, ())
        sizes = None if program is None else program.at(values)
        if program is None or sizes is None:
            return Fitted({name: plain(array) for name, array in arrays.items()})
        if not session.has_room(program.executable.program.arena_bytes):
            return Fitted({name: plain(array) for name, array in arrays.items()})
        feeds = program.feeds(arrays, sizes)
        growing = {output: x for output, name in self.pasts.items() if isinstance(x := arrays[name], GrowingArray)}
        buffers = {
            output: feeds[name]
            for output, name in program.growing.appended.items()
            if output in growing
            and self.pasts[output] == name
            and (growing[output].writable or feeds[name] is not growing[output].room)
        }
        return Fitted(feeds, partial(program.cut, sizes=sizes, kept=growing), program.executable, buffers)

    def program(
        self, session: Session, outputs: tuple[str, ...], arrays: Mapping[str, Any]
    ) -> tuple[PaddedProgram, tuple[int, ...]] | None:
        """The program for sizes rounded up, with the values of its symbols; None where there is none."""
        programs = self.programs(session, outputs)
        met, served = programs.served(tuple([x.shape if hasattr(x, "shape") else None for x in arrays.values()]))
        if not met:
            return self.plan(session, outputs, session.types_of(arrays))
        if served is not None:
            self.keep(session, programs, served[0])
        return served

    def keep(self, session: Session, programs: PaddedPrograms, program: PaddedProgram) -> None:
        """Note that a session uses a program."""
        session.keep(program.executable, partial(programs.forget, program.executable))

    def plan(
        self, session: Session, outputs: tuple[str, ...], types: Mapping[str, Type]
    ) -> tuple[PaddedProgram, tuple[int, ...]] | None:
        """The same for inputs of these types, planned if they were not met before."""
        programs = self.programs(session, outputs)
        with session.planning, collection_paused():
            served = programs.serve(types, as_they_are=session.lies_ready(outputs, types))
        if served is not None:
            self.keep(session, programs, served[0])
        return served


def _programs(session: Session, outputs: tuple[str, ...]) -> PaddedPrograms:
    """New programs for rounded sizes, with those of the session's file."""
    from ..compile.padded import PaddedPrograms  # of a start, some ms

    owner, stored = ref(session), session._stored

    def graph() -> Graph:
        session = owner()
        assert session is not None  # whoever plans has it
        return session.compiled(outputs).graph

    programs = PaddedPrograms(graph, outputs, session._options, session.budget)
    if stored is not None:
        programs.patterns += stored.patterns(session._options, outputs, session.budget)
    return programs


def fitting(
    buckets: Buckets | Literal["auto"] | None, inputs: Sequence[Port], rounds: bool
) -> AsTheyAre | GivenBuckets | ProvenBuckets:
    """The way to fit runs to planned sizes that `buckets` asks for, or a file that `rounds`. Raises InputError for what
    is none."""
    if buckets is None and rounds:
        return ProvenBuckets()
    if isinstance(buckets, str) and buckets == "auto":
        return ProvenBuckets()
    if buckets is not None and not isinstance(buckets, Mapping):
        raise InputError(f"buckets={buckets!r}", where="buckets", hint='give "auto", or sizes by name of a dim')
    return GivenBuckets(check_buckets(buckets, inputs)) if buckets else AS_THEY_ARE
