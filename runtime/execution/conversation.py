"""Conversations: the caches of a decoder between runs, forked, cut and dropped at will, under a ceiling of bytes."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops.dataclasses import dataclass, replace
from ...ops.errors import BudgetError, InputError
from ...ops.types import Array
from ..compile.growing import GrowingArray
from ..compile.padding import rounded_rows

if TYPE_CHECKING:
    from .cache_pairs import CachePair
    from .cached_session import CachedSession

MASK, POSITIONS = "attention_mask", "position_ids"


class CacheMemory:
    """Bytes of the caches of all conversations of a session, and their ceiling (None: none). For many threads."""

    def __init__(self, limit: int | None) -> None:
        self.limit, self._used = limit, 0
        self._lock = threading.Lock()
        self._back: deque[int] = deque()  # caches die anywhere, also while this thread holds the lock

    @property
    def used(self) -> int:
        """Bytes in use; a cache that several conversations share counts once."""
        with self._lock:
            while self._back:
                self._used -= self._back.popleft()
            return self._used

    @contextmanager
    def expected(self, nbytes: int) -> Iterator[None]:
        """Count these bytes while the block runs, before it holds what it makes. Raises BudgetError if they pass the
        ceiling."""
        self._take(nbytes)
        try:
            yield
        finally:
            self._back.append(nbytes)

    def hold(self, arrays: Iterable[Array], expected: int) -> None:
        """Count the bytes of arrays as long as they live. Raises BudgetError where they pass the ceiling and are more
        than was `expected`."""
        arrays = tuple(arrays)
        nbytes = sum(a.nbytes for a in arrays)
        self._take(nbytes, limited=nbytes > expected)
        for array in arrays:
            weakref.finalize(array, self._back.append, array.nbytes).atexit = False

    def _take(self, nbytes: int, *, limited: bool = True) -> None:
        used = self.used
        with self._lock:
            if limited and nbytes and self.limit is not None and self._used + nbytes > self.limit:
                raise BudgetError(
                    f"caches of {nbytes} bytes more than the {used} in use would pass the ceiling of {self.limit} "
                    "bytes for the conversations of this session",
                    where="conversation",
                    hint="truncate, reset or drop conversations, or load with a larger max_cache_bytes; where rows do "
                    "not lie in place, a run's past and its present both count",
                )
            self._used += nbytes


class Shared:
    """A mark on arrays that another conversation may hold, too; caches that have an array of others have their mark."""

    def __init__(self) -> None:
        self.now = False


class _Caches:
    """Arrays of all caches of a conversation, with room for rows to come. Rows that count are never written again,
    those behind them only if the arrays are not `shared` with another conversation."""

    def __init__(self, arrays: tuple[Array, ...], rows: int, shared: Shared | None = None) -> None:
        self.arrays, self.rows, self.shared = arrays, rows, shared or Shared()

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


@dataclass(frozen=True, slots=True, eq=False)
class Unread:
    """Tokens that no run has read yet: `ids`, integers (batch, 1), and `mask`, booleans (batch, 1), False for rows that
    have stopped and whose token is padding."""

    ids: Array
    mask: Array


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A conversation between two runs, `length` rows long: `mask` is booleans (batch, length), None where no row is
    padding."""

    caches: _Caches
    length: int = 0
    mask: Array | None = None
    unread: Unread | None = None


class Conversation:
    """The caches of one text, or of a batch of them, between the runs of a decoder.

    `run` feeds the caches, and keeps what the model returns of them. Conversations of one session may run in several
    threads at once; one conversation belongs to one thread at a time. A run that fails leaves it as it was.
    """

    def __init__(self, session: CachedSession, batch: int = 1) -> None:
        if batch < 1:
            raise InputError(f"a batch of {batch}", where="conversation", hint="give the number of texts, at least 1")
        self.session, self.batch = session, batch
        self._turn, self._row_bytes = threading.Lock(), sum(pair.row_bytes(batch) for pair in session.caches)
        self._state = self._empty()

    def __repr__(self) -> str:
        return f"<Conversation of {self.batch} x {self.length} rows, {self.nbytes} bytes>"

    @property
    def length(self) -> int:
        """Rows of time in the caches: tokens that the model has read, padding included."""
        return self._state.length

    @property
    def nbytes(self) -> int:
        """Bytes of the caches, room for the next rows included; forks share them until they go on."""
        return self._state.caches.nbytes

    @property
    def unread(self) -> Unread | None:
        """The tokens that `generate` yielded last, which the next `generate` runs before its own; any other run leaves
        them to the caller and drops them here."""
        return self._state.unread

    @unread.setter
    def unread(self, unread: Unread | None) -> None:
        with self._alone():
            self._state = replace(self._state, unread=unread)

    def run(
        self,
        feeds: Mapping[str, Any],
        names: Sequence[str] | None = None,
        *,
        deadline: float | None = None,
        cancel: threading.Event | None = None,
    ) -> dict[str, Any]:
        """Run the model once behind what it has read; returns its outputs without the caches, or those in `names`.

        `feeds` has arrays by name, without the caches. Where the model takes `attention_mask` (batch, length + new) and
        none is fed, it is ones, behind what was fed of it before; one of (batch, new) tells of the new tokens alone.
        `position_ids` (batch, new) count the tokens that the mask leaves, as transformers does; those of padding are 0.
        `deadline` and `cancel` are those of `Session.run`, and so are the errors; BudgetError too where the capacity or
        the ceiling would be passed, InputError while another thread runs this conversation.
        """
        session, memory = self.session, self.session.cache_memory
        wanted = session.wanted(names)
        with self._alone():
            state = self._state
            caches, length, total = state.caches, state.length, state.length + self._new(feeds)
            if session.capacity is not None and total > session.capacity:
                raise BudgetError(
                    f"{total - length} tokens behind {length} pass the capacity of {session.capacity}",
                    where="conversation",
                    hint="truncate or reset the conversation, or load with a larger capacity",
                )
            mask = self._mask(feeds.get(MASK) if session.masked else None, state.mask, length, total)
            fed = {**feeds, **self._around(feeds, mask, length, total)}
            writable = not caches.shared.now  # a fork from now on holds the rows that there are, and no others
            for pair, array in zip(session.caches, caches.arrays, strict=True):
                if pair.past in feeds:
                    raise InputError(
                        f"{pair.past!r} is fed by the conversation", hint="leave it out, or use Session.run"
                    )
                fed[pair.past] = self._past(pair, array, length, writable)
            rows = rounded_rows(total) if session.rounds else total
            more = 0 if session.rounds and rows == caches.rows and writable else self._row_bytes * rows
            with memory.expected(more):
                results = session.run(fed, names=wanted, deadline=deadline, cancel=cancel)
                presents = tuple(results.pop(pair.present) for pair in session.caches)
                for pair, array in zip(session.caches, presents, strict=True):
                    if array.shape[pair.time] != total:
                        raise InputError(
                            f"{pair.present!r} has the sizes {array.shape}: axis {pair.time} is not {length} rows of "
                            f"the past and {total - length} new",
                            where="conversation",
                            hint="run this model with Session.run, and feed its caches by hand",
                        )
                caches = self._kept(presents, caches, more)
            self._state = _State(caches, total, mask)
            return results

    def _past(self, pair: CachePair, array: Array, length: int, writable: bool) -> Array:
        """A cache as it is fed: its rows that count, with the room behind them where the session takes it."""
        if not self.session.rounds:
            return array
        heads = (slice(None),) * pair.time + (slice(length),)
        return GrowingArray.of(array, heads, writable=writable)

    def _kept(self, presents: tuple[Array, ...], before: _Caches, expected: int) -> _Caches:
        """Return the caches of a run, counted as far as it lies elsewhere than the caches before."""
        arrays = tuple(a.room if isinstance(a, GrowingArray) and a.room is not None else a for a in presents)
        known = {id(a) for a in before.arrays}
        self.session.cache_memory.hold((a for a in arrays if id(a) not in known), expected)
        time = self.session.caches[0].time
        if all(a is b for a, b in zip(arrays, before.arrays, strict=True)):
            return before
        shared = before.shared if any(id(a) in known for a in arrays) else Shared()
        return _Caches(arrays, arrays[0].shape[time], shared)

    def fork(self) -> Conversation:
        """A conversation that goes on from here on its own. Nothing is copied: the first of both that runs takes memory
        of its own, and so does the other."""
        other = Conversation(self.session, self.batch)
        state = self._state
        state.caches.shared.now = True
        other._state = state
        return other

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` rows. Raises InputError where there are fewer, BudgetError where forks hold
        the caches too, and a copy of these rows would pass the ceiling."""
        with self._alone():
            state = self._state
            caches, mask = state.caches, state.mask
            if not hasattr(length, "__index__") or not 0 <= length <= state.length:
                raise InputError(
                    f"{length} rows of {state.length}", where="truncate", hint="give a length from 0 to `.length`"
                )
            rows = rounded_rows(length) if self.session.rounds else length
            if rows < caches.rows:
                pairs, memory, nbytes = self.session.caches, self.session.cache_memory, self._row_bytes * rows
                with memory.expected(nbytes if caches.shared.now else 0):  # else it will be less than before
                    arrays = tuple(p.first(a, length, rows) for p, a in zip(pairs, caches.arrays, strict=True))
                    memory.hold(arrays, nbytes)
                caches = _Caches(arrays, rows)
            self._state = _State(caches, length, None if mask is None else mask[:, :length])

    def reset(self) -> None:
        """Forget all."""
        with self._alone():
            self._state = self._empty()

    def _empty(self) -> _State:
        arrays = tuple(pair.empty(self.batch) for pair in self.session.caches)
        return _State(_Caches(arrays, 0))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other threads out. Raises InputError where one is inside."""
        if not self._turn.acquire(blocking=False):
            raise InputError(
                "another thread is running this conversation",
                where="conversation",
                hint="give each thread its own: session.conversation(), or fork()",
            )
        try:
            yield
        finally:
            self._turn.release()

    def _new(self, feeds: Mapping[str, Any]) -> int:
        """The number of new tokens of each row."""
        fed = [name for name in self.session.token_inputs if name in feeds]
        if not fed:
            raise InputError(
                "no tokens are fed", where="conversation", hint=f"feed {' or '.join(self.session.token_inputs)}"
            )
        shape = np.shape(feeds[fed[0]])
        if len(shape) < 2 or shape[0] != self.batch or not shape[1]:
            raise InputError(
                f"{fed[0]!r} has the sizes {shape}, in a conversation of {self.batch}",
                where="conversation",
                hint=f"feed ({self.batch}, new tokens), at least one, or make a conversation(batch=...) of that many",
            )
        return int(shape[1])

    def _mask(self, given: Any, before: Array | None, length: int, total: int) -> Array | None:
        """The mask of past and new tokens, booleans (batch, total), by that of the past and what is fed."""
        if given is None and before is None:
            return None
        before = np.ones((self.batch, length), np.bool_) if before is None else before
        given = np.ones((self.batch, total - length)) if given is None else np.asarray(given)
        if given.shape == (self.batch, total - length):
            given = np.concatenate((before, given != 0), 1)
        elif given.shape != (self.batch, total):
            raise InputError(
                f"{MASK!r} has the sizes {given.shape}",
                where="conversation",
                hint=f"feed {(self.batch, total)}, or {(self.batch, total - length)} for the new tokens alone",
            )
        mask: Array = given != 0
        return None if mask.all() else mask

    def _around(self, feeds: Mapping[str, Any], mask: Array | None, length: int, total: int) -> dict[str, Array]:
        """The mask and the positions that the model takes beside the tokens."""
        session, around = self.session, dict[str, Array]()
        if session.masked:
            seen = np.ones((self.batch, total)) if mask is None else mask
            around[MASK] = seen.astype(session.masked.numpy)
        if session.positioned and POSITIONS not in feeds:
            if mask is None:
                positions = np.repeat(np.arange(length, total)[None], self.batch, 0)
            else:
                positions = np.where(mask, np.cumsum(mask, 1) - 1, 0)[:, length:]
            around[POSITIONS] = np.ascontiguousarray(positions, session.positioned.numpy)
        return around
