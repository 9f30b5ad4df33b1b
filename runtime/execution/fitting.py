"""Runs at other sizes than those that were fed: padded up to buckets that the user gives, or as far as is proven to
change nothing (compile/padding.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from ...ops.dataclasses import dataclass
from ...ops.errors import InputError
from ..compile.buckets import Buckets, check_buckets, cut, padded
from ..compile.executable import Executable
from ..compile.program import Port

if TYPE_CHECKING:
    from .session import Session


@dataclass(frozen=True, slots=True)
class Fitted:
    """The arrays of a run, its executable if that is not the one for their types, and what is made of its results."""

    arrays: dict[str, Any]
    finish: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    executable: Executable | None = None


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


class ProvenBuckets:
    """Sizes that are rounded up where results do not depend on it; others are planned as they are."""

    def fit(
        self, session: Session, wanted: tuple[str, ...], arrays: dict[str, Any], outputs: Mapping[str, Any] | None
    ) -> Fitted:
        """The inputs of the program for rounded sizes; the arrays as they are where there is none, and where results
        are to go into buffers."""
        if outputs:
            return Fitted(arrays)
        served = session.rounded(wanted, session.types_of(arrays))
        if served is None:
            return Fitted(arrays)
        program, values = served
        feeds = program.feeds(arrays, values)
        if feeds is None:
            return Fitted(arrays)
        return Fitted(feeds, partial(program.cut, values=values), program.executable)


def fitting(
    buckets: Buckets | Literal["auto"] | None, inputs: Sequence[Port]
) -> AsTheyAre | GivenBuckets | ProvenBuckets:
    """The way to fit runs to planned sizes that `buckets` asks for. Raises InputError for what is none."""
    if isinstance(buckets, str):
        if buckets != "auto":
            raise InputError(f"buckets={buckets!r}", where="buckets", hint='give "auto", or sizes by name of a dim')
        return ProvenBuckets()
    return GivenBuckets(check_buckets(buckets, inputs)) if buckets else AS_THEY_ARE
