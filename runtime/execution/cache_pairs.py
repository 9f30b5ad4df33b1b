"""Caches of decoders: inputs that take the past, outputs that return it with new rows, and the axis along which it
grows.

Hugging Face's exports call them past_key_values.0.key and present.0.key, others past_key_0 and present_key_0, or past_0
and present_0: `"auto"` finds these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...ops import Tensor
from ...ops.dataclasses import dataclass
from ...ops.errors import InputError
from ...ops.types import Array, Type
from ..compile.program import Port

# How names of pasts begin, and how those of their presents may; the rest of the two names is the same.
HABITS = {"past_key_values": ("present", "present_key_values"), "past": ("present",)}
PAST = re.compile(rf"({'|'.join(HABITS)})([._].*)")
# In names of caches that are computed once from the encoder's answer, and do not grow.
OF_ENCODERS = re.compile(r"encoder|cross")
Patterns = str | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CachePair:
    """A cache: the input `past`, the output `present`, the declared type of the past, its axis of time, and that of the
    batch (None where the model fixes its size)."""

    past: str
    present: str
    type: Tensor
    time: int
    batch: int | None

    def shape(self, batch: int, length: int) -> tuple[int, ...]:
        """The sizes of a cache of so many conversations with so many rows of time."""
        given = {self.time: length, self.batch: batch}
        return tuple(int(given.get(axis, dim)) for axis, dim in enumerate(self.type.shape))  # type: ignore[arg-type]

    def row_bytes(self, batch: int) -> int:
        """The bytes of one row of time of such a cache."""
        return self.type.of(self.shape(batch, 1)).nbytes

    def empty(self, batch: int) -> Array:
        """A cache without rows."""
        return np.zeros(self.shape(batch, 0), self.type.dtype.numpy)

    def first(self, cache: Array, length: int, rows: int) -> Array:
        """The first `length` rows of time of a cache, as an array of their own that has room for `rows`."""
        sizes = list(cache.shape)
        sizes[self.time] = rows
        copy, head = np.zeros(sizes, cache.dtype), (slice(None),) * self.time + (slice(length),)
        copy[head] = cache[head]
        return copy


def cache_pairs(inputs: Sequence[Port], outputs: Sequence[Port], patterns: Patterns) -> tuple[CachePair, ...]:
    """Pair inputs and outputs of a model by patterns with one `*`, such as {"past_key_values.*": "present.*"}, or by
    the names that exporters give them, with "auto".

    Raises InputError where there is nothing to pair, an output is missing or asked for twice, types do not agree, or
    no axis grows.
    """
    takes, returns = ({port.name: port.type for port in ports} for ports in (inputs, outputs))
    if not isinstance(patterns, Mapping):
        if patterns != "auto":
            raise _refused(f"{patterns!r} is unknown", 'give "auto", or {"past_key_values.*": "present.*"}')
        names = dict(_by_habit(takes, returns))
    else:
        names = _by_patterns(takes, returns, patterns)
    fed = [type for name, type in takes.items() if name not in names]
    ranked = [t.dims for t in fed if isinstance(t, Tensor) and t.dims is not None]
    batches = {dims[0] for dims in ranked if len(dims) > 1 and isinstance(dims[0], str)}
    return tuple(_pair(past, present, takes[past], returns[present], batches) for past, present in names.items())


def _refused(message: str, hint: str) -> InputError:
    return InputError(message, where="cache", hint=hint)


def _by_habit(takes: Mapping[str, Type], returns: Mapping[str, Type]) -> Iterator[tuple[str, str]]:
    """Names of pasts and presents that follow a habit; those of encoders are left to the caller."""
    none = True
    for name, type in takes.items():
        habit = PAST.fullmatch(name)
        if habit is None or OF_ENCODERS.search(habit[2].replace("decoder", "")):
            continue
        presents = [begin + habit[2] for begin in HABITS[habit[1]]]
        there = [present for present in presents if present in returns]
        if len(there) > 1:
            raise _refused(f"the present of {name!r} may be {there[0]!r} or {there[1]!r}", "name it: cache={...}")
        if there:
            none = False
            yield name, there[0]
        elif isinstance(type, Tensor) and (type.dims is None or len(type.dims) > 2):
            raise _refused(
                f"input {name!r} has no output {presents[0]!r}",
                f'name it: cache={{"{name}": ...}}; the outputs are {_listed(returns)}',
            )
    if none:
        raise _refused(
            f"no input has the name of a cache: {_listed(takes)}",
            "export the model with its past (Optimum: --task text-generation-with-past), or name them: cache={...}",
        )


def _by_patterns(takes: Mapping[str, Type], returns: Mapping[str, Type], patterns: Mapping[str, str]) -> dict[str, str]:
    """Names of pasts and presents by the caller's patterns."""
    names: dict[str, str] = {}
    for past, present in patterns.items():
        if past.count("*") > 1 or past.count("*") != present.count("*"):
            raise _refused(f"{past!r}: {present!r} is no pair of patterns", "each has one *, or neither has")
        before, _, after = map(re.escape, past.partition("*"))
        matched = {n: m for n in takes if (m := re.fullmatch(f"{before}(.+){after}" if "*" in past else before, n))}
        if not matched:
            raise _refused(f"{past!r} matches no input", f"they are {_listed(takes)}")
        for name, match in matched.items():
            output = present.replace("*", match[1]) if "*" in past else present
            if output not in returns:
                raise _refused(f"{present!r} is {output!r} for {name!r}, and no output", f"they are {_listed(returns)}")
            if name in names or output in names.values():
                other = name if name in names else output
                raise _refused(f"several patterns match {other!r}", "give each past one present")
            names[name] = output
    if not names:
        raise _refused("no pattern", 'give {"past_key_values.*": "present.*"}, or "auto"')
    return names


def _listed(names: Mapping[str, Type]) -> str:
    return ", ".join(f"{name}: {type}" for name, type in names.items())


def _pair(past: str, present: str, takes: Type, returns: Type, batches: set[str]) -> CachePair:
    """The pair of these names, its axes found by their types: time is the axis whose size is open, and not that of the
    present; `batches` are names of dims that the model's other inputs begin with."""
    where = f"past {past!r} ({takes}) and present {present!r} ({returns})"
    if not isinstance(takes, Tensor) or not isinstance(returns, Tensor) or takes.dtype is not returns.dtype:
        raise _refused(f"{where} are not of one element type", "pair other names: cache={...}")
    if takes.dims is None:
        raise _refused(f"{where} have no shape", "declare the dims of the past in the model")
    after = returns.dims if returns.dims is not None else (None,) * len(takes.dims)
    if len(after) != len(takes.dims):
        raise _refused(f"{where} differ in rank", "pair other names: cache={...}")
    dims = [*zip(takes.dims, after, strict=True)]
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in dims):
        raise _refused(f"{where} differ in a size that does not grow", "pair other names: cache={...}")
    opened = [axis for axis, (dim, _) in enumerate(dims) if not isinstance(dim, int)]
    growing = [i for i in opened if not batches & {*dims[i]} and (dims[i][1] is None or dims[i][0] != dims[i][1])]
    if not growing:
        raise _refused(
            f"{where} have no axis that grows",
            "leave it out, and feed it: caches of encoders and of recurrent layers keep their size",
        )
    others = [axis for axis in opened if axis not in growing]
    if len(growing) > 1 or len(others) > 1:
        raise _refused(
            f"{where} have several axes that may be time",
            "name the dims of the model's inputs, the batch alike in all of them",
        )
    return CachePair(past, present, takes, growing[0], others[0] if others else None)
