"""Runs at other sizes than those that were fed: padded up to buckets that the user gives, or as far as is proven to
change nothing (compile/padding.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from ...ops.dataclasses import dataclass, field
from ...ops.errors import InputError
from ...ops.types import Type
from ..compile.buckets import Buckets, check_buckets, cut, padded
from ..compile.collection import uncollected
from ..compile.executable import Executable
from ..compile.growing import GrowingArray, plain
from ..compile.program import Port

if TYPE_CHECKING:
    from ..compile.padded import PaddedProgram
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


AS_THEY_ARE: Final = AsTheyAre()


@dataclass(frozen=True, slots=True)
class GivenBuckets:
    """Sizes that the user gives for open dims, by their names."""

    sizes: Mapping[str, tuple[int, ...]]

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
    next rows, the output has the rest of that room, and is written in its place if nobody else reads it.
    """

    pasts: Mapping[str, str] = field(default_factory=dict[str, str])

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
        programs = session.compiled(outputs).rounded
        met, served = programs.served(tuple([x.shape if hasattr(x, "shape") else None for x in arrays.values()]))
        if not met:
            return self.plan(session, outputs, session.types_of(arrays))
        if served is not None:
            session.keep(served[0].executable, partial(programs.forget, served[0].executable))
        return served

    def plan(
        self, session: Session, outputs: tuple[str, ...], types: Mapping[str, Type]
    ) -> tuple[PaddedProgram, tuple[int, ...]] | None:
        """The same for inputs of these types, planned if they were not met before."""
        programs = session.compiled(outputs).rounded
        with session.planning, uncollected():
            served = programs.serve(types)
        if served is not None:
            session.keep(served[0].executable, partial(programs.forget, served[0].executable))
        return served


def fitting(
    buckets: Buckets | Literal["auto"] | None, inputs: Sequence[Port]
) -> AsTheyAre | GivenBuckets | ProvenBuckets:
    """The way to fit runs to planned sizes that `buckets` asks for. Raises InputError for what is none."""
    if isinstance(buckets, str):
        if buckets != "auto":
            raise InputError(f"buckets={buckets!r}", where="buckets", hint='give "auto", or sizes by name of a dim')
        return ProvenBuckets()
    return GivenBuckets(check_buckets(buckets, inputs)) if buckets else AS_THEY_ARE
