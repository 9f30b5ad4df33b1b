"""The order between streams of a device that is not there: who has read and written which bytes, and who has waited.

What streams do happens at once in the stand-in (cupy_standin.py), so that results are right whatever they wait for.
Here it is told where they would be wrong on a device: bytes are taken that another stream still writes, written that
another still reads, or given back while a stream has not finished with them.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Span = tuple[int, int]  # from address to address


class Clocked(Protocol):
    """A stream: how often it and others have ticked, as far as it has waited for them."""

    ptr: int

    @property
    def seen(self) -> Mapping[Any, int]: ...


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes that a stream reads or writes, at which of its ticks."""

    begin: int
    end: int
    by: Clocked
    at: int
    writes: bool

    def meets(self, span: Span) -> bool:
        return span[0] < self.end and self.begin < span[1]

    def covers(self, before: Use) -> bool:
        """Whether who waits for this waits for that, too: it was waited for here, or it is of the same stream."""
        within = self.begin <= before.begin and before.end <= self.end
        return within and (self.writes or (before.by is self.by and not before.writes))


@dataclass
class Order:
    """What streams have begun and nobody has waited for."""

    _races: list[str] = field(default_factory=list[str])
    _uses: list[Use] = field(default_factory=list[Use])
    _freed: deque[tuple[Span, Clocked]] = field(default_factory=deque[tuple[Span, Clocked]])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def races(self) -> list[str]:
        """Who has not waited for whom."""
        with self._lock:
            self._settle()
        return self._races

    def touch(self, stream: Clocked, reads: Sequence[Span], writes: Sequence[Span]) -> None:
        """Bytes are read and written by what a stream does in its present tick. Reads do not wait for reads."""
        spans = [(span, False) for span in reads] + [(span, True) for span in writes]
        with self._lock:
            self._settle()
            for span, writing in spans:
                late = [u for u in self._uses if u.meets(span) and stream.seen.get(u.by, -1) < u.at]
                for use in (u for u in late if writing or u.writes):
                    verb, has = ("writes" if writing else "takes"), ("written" if use.writes else "read")
                    self._races.append(f"stream {stream.ptr} {verb} bytes that stream {use.by.ptr} has not {has} yet")
            for span, writing in spans:
                new = Use(*span, stream, stream.seen[stream], writing)
                self._uses = [u for u in self._uses if not new.covers(u)]
                self._uses.append(new)

    def waited(self, seen: Mapping[Any, int]) -> None:
        """The host has waited for these ticks of streams: what they did is over for all."""
        with self._lock:
            self._settle()
            self._uses = [u for u in self._uses if seen.get(u.by, -1) < u.at]

    def free(self, span: Span, stream: Clocked) -> None:
        """Bytes are given back, which CuPy's pool gives to the next who asks on the same stream as who had them.

        Python asks this at any moment, in the middle of what else is done here too: it is only noted.
        """
        self._freed.append((span, stream))

    def _settle(self) -> None:
        while self._freed:
            span, stream = self._freed.popleft()
            late = [u for u in self._uses if u.meets(span) and stream.seen.get(u.by, -1) < u.at]
            self._races += [f"bytes are freed that stream {u.by.ptr} has not finished with" for u in late]
            self._uses = [u for u in self._uses if not u.meets(span)]


PARAMETERS = re.compile(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\((.*)\) \{")


def written_by(text: str) -> tuple[bool, ...]:
    """Which parameters of a kernel, from its source, are pointers that it may write through."""
    (found,) = PARAMETERS.finditer(text)
    return tuple("*" in p and not p.lstrip().startswith("const ") for p in found[2].split(", "))
