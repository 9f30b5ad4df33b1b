"""Conversations: the caches of a decoder between runs, forked, cut and dropped at will, under a ceiling of bytes."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops.dataclasses import dataclass, replace
from ...ops.errors import BudgetError, InputError
from ...ops.types import Array

if TYPE_CHECKING:
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
    def taken(self, nbytes: int, *, limited: bool = True) -> Iterator[None]:
        """Count these bytes, and no more where the block fails; raises BudgetError if they pass the ceiling."""
        used = self.used
        with self._lock:
            if limited and self.limit is not None and self._used + nbytes > self.limit:
                raise BudgetError(
                    f"caches of {nbytes} bytes more than the {used} in use would pass the ceiling of {self.limit} "
                    "bytes for the conversations of this session",
                    where="conversation",
                    hint="truncate, reset or drop conversations, or load with a larger max_cache_bytes; while a run "
                    "goes on, its past and its present both count",
                )
            self._used += nbytes
        try:
            yield
        except BaseException:
            self.give(nbytes)
            raise

    def give(self, nbytes: int) -> None:
        """Count these bytes no more."""
        self._back.append(nbytes)


class _Caches:
    """Arrays of all caches of a conversation, `length` rows of time each; none is written again. Their bytes are
    counted until the last conversation lets go of them."""

    def __init__(self, arrays: tuple[Array, ...], length: int, nbytes: int, memory: CacheMemory) -> None:
        self.arrays, self.length, self.nbytes = arrays, length, nbytes
        self.forked = False  # another conversation may hold them, too
        weakref.finalize(self, memory.give, nbytes).atexit = False


@dataclass(frozen=True, slots=True, eq=False)
class Unread:
    """Tokens that no run has read yet: `ids`, integers (batch, 1), and `mask`, booleans (batch, 1), False for rows that
    have stopped and whose token is padding."""

    ids: Array
    mask: Array


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A conversation between two runs: `mask` is booleans (batch, length), None where no row is padding."""

    caches: _Caches
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
        return self._state.caches.length

    @property
    def nbytes(self) -> int:
        """Bytes of the caches; forks share them until they go on."""
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
            length, total = state.caches.length, state.caches.length + self._new(feeds)
            if session.capacity is not None and total > session.capacity:
                raise BudgetError(
                    f"{total - length} tokens behind {length} pass the capacity of {session.capacity}",
                    where="conversation",
                    hint="truncate or reset the conversation, or load with a larger capacity",
                )
            mask = self._mask(feeds.get(MASK) if session.masked else None, state.mask, length, total)
            fed = {**feeds, **self._around(feeds, mask, length, total)}
            for pair, array in zip(session.caches, state.caches.arrays, strict=True):
                if pair.past in feeds:
                    raise InputError(
                        f"{pair.past!r} is fed by the conversation", hint="leave it out, or use Session.run"
                    )
                fed[pair.past] = array
            nbytes = self._row_bytes * total
            with memory.taken(nbytes):
                results = session.run(fed, names=wanted, deadline=deadline, cancel=cancel)
                arrays = tuple(results.pop(pair.present) for pair in session.caches)
                for pair, array in zip(session.caches, arrays, strict=True):
                    if array.shape[pair.time] != total:
                        raise InputError(
                            f"{pair.present!r} has the sizes {array.shape}: axis {pair.time} is not {length} rows of "
                            f"the past and {total - length} new",
                            where="conversation",
                            hint="run this model with Session.run, and feed its caches by hand",
                        )
            self._state = _State(_Caches(arrays, total, nbytes, memory), mask)
            return results

    def fork(self) -> Conversation:
        """A conversation that goes on from here on its own. Nothing is copied: caches are never written again."""
        other = Conversation(self.session, self.batch)
        other._state = self._state
        other._state.caches.forked = True
        return other

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` rows. Raises InputError where there are fewer, BudgetError where forks hold
        the caches too, and a copy of these rows would pass the ceiling."""
        with self._alone():
            caches, mask = self._state.caches, self._state.mask
            if not hasattr(length, "__index__") or not 0 <= length <= caches.length:
                raise InputError(
                    f"{length} rows of {caches.length}", where="truncate", hint="give a length from 0 to `.length`"
                )
            if length < caches.length:
                pairs, memory = self.session.caches, self.session.cache_memory
                nbytes = self._row_bytes * length
                with memory.taken(nbytes, limited=caches.forked):  # else it will be less than before
                    arrays = tuple(pair.first(a, length) for pair, a in zip(pairs, caches.arrays, strict=True))
                caches = _Caches(arrays, length, nbytes, memory)
            self._state = _State(caches, None if mask is None else mask[:, :length])

    def reset(self) -> None:
        """Forget all."""
        with self._alone():
            self._state = self._empty()

    def _empty(self) -> _State:
        arrays = tuple(pair.empty(self.batch) for pair in self.session.caches)
        return _State(_Caches(arrays, 0, 0, self.session.cache_memory))

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
