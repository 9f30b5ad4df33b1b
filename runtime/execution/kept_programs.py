"""The programs that a session keeps, in the order of their last use, and the bytes that they hold."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar
from weakref import WeakMethod

import numpy as np

from ...ops.dataclasses import dataclass
from ...ops.types import Array
from ..compile.executable import Executable
from ..compile.program import Program

T = TypeVar("T")
USUAL_BYTES: Final = 256 << 20  # of the programs of a session without a ceiling, beside two layouts of the weights
# What Python holds of one step of a program, and of its calls in an instance, as measured for transformers.
STEP_BYTES, CALL_BYTES = 2 << 10, 2 << 10
SMALL_CONSTANT = 4 << 10


def weakly(method: Callable[..., T], default: T) -> Callable[..., T]:
    """A call of a method that does not keep its object alive, and answers `default` once that is gone: sessions hold
    much, and are to end with their last reference."""
    reference = WeakMethod(method)

    def call(*args: Any) -> T:
        method = reference()
        return default if method is None else method(*args)

    return call


def call_bytes(executable: Executable) -> int:
    """Bytes of the calls of an instance."""
    return CALL_BYTES * len(executable.program.steps)


@dataclass(slots=True, eq=False)
class _Kept:
    """A program with what lets go of it elsewhere, and when it was last used; `parts` are its bytes by what several
    programs may share."""

    used: int
    forget: Callable[[], None]
    constants: Mapping[Any, int]
    parts: Mapping[Any, int]


class _Shared:
    """Bytes of things by key, each counted once however many programs have it. With `alone`, those count that one of
    several programs has for itself: dropping it gives them back, while what all of them have are the model's."""

    def __init__(self, *, alone: bool) -> None:
        self.nbytes, self._alone = 0, alone
        self._users: dict[Any, tuple[int, int]] = {}  # how many have it, and its bytes

    def change(self, parts: Mapping[Any, int], by: int) -> None:
        """Note that a program has these, or has them no more."""
        for key, nbytes in parts.items():
            count, before = self._users.pop(key, (0, nbytes))
            self.nbytes -= self._counted(count) * before
            count += by
            self.nbytes += self._counted(count) * nbytes
            if count:
                self._users[key] = count, nbytes

    def _counted(self, count: int) -> bool:
        return count == 1 if self._alone else count > 0


class KeptPrograms:
    """The programs of a session, for many threads: at most `most` of them (None: any number), the one that was not used
    for longest first. `primitives` tells what a program holds outside of Python's memory (see Executor.held). `clock`
    goes on with each new program; `ran` tells at which time those ran last that did without a call of `use`.
    """

    def __init__(
        self,
        most: int | None,
        primitives: Callable[[Program], Mapping[Any, int]],
        ran: Callable[[], Mapping[Executable, int]],
    ) -> None:
        self.most, self.evicted, self.clock = most, 0, 0
        self._primitives, self._ran = primitives, ran
        self._kept: OrderedDict[Executable, _Kept] = OrderedDict()
        self._steps = self._weights = 0  # steps of all, and bytes of constants of the one that had most
        self._parts, self._constants = _Shared(alone=False), _Shared(alone=True)
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """Bytes of all programs without their calls: steps, plans, primitives, constants that one alone has."""
        with self._lock:
            constants = self._constants.nbytes if len(self._kept) > 1 else 0
            return STEP_BYTES * self._steps + self._parts.nbytes + constants

    @property
    def usual_bytes(self) -> int:
        """Bytes of programs for which there is room without a ceiling. Two sizes that read all weights in different
        layouts can take turns: to lay a weight out again for each takes much longer than to run."""
        return USUAL_BYTES + 2 * self._weights

    def __contains__(self, executable: Executable) -> bool:
        return executable in self._kept

    def use(self, executable: Executable, forget: Callable[[], None]) -> bool:
        """Keep a program, or note that it is used again; return whether it is new. `forget` is called when it is
        dropped."""
        with self._lock:
            kept = self._kept.get(executable)
            if kept is not None:
                kept.used = self.clock
                self._kept.move_to_end(executable)
                return False
            self.clock += 1
            self._kept[executable] = kept = _Kept(self.clock, forget, _constants(executable), {})
            self._steps += len(executable.program.all_steps())
            self._weights = max(self._weights, sum(kept.constants.values()))
            self._constants.change(kept.constants, 1)
            self._weigh(executable, kept)
            return True

    def weigh(self, executable: Executable) -> None:
        """Count what has been made for a program since."""
        with self._lock:
            kept = self._kept.get(executable)
            if kept is not None:
                self._weigh(executable, kept)

    def _weigh(self, executable: Executable, kept: _Kept) -> None:
        self._parts.change(kept.parts, -1)
        kept.parts = self._primitives(executable.program)
        self._parts.change(kept.parts, 1)

    def drop(self, executable: Executable) -> None:
        """Keep a program no longer."""
        with self._lock:
            kept = self._kept.pop(executable, None)
            if kept is None:
                return
            self._steps -= len(executable.program.all_steps())
            self._parts.change(kept.parts, -1)
            self._constants.change(kept.constants, -1)
        kept.forget()

    def too_many(self) -> bool:
        """True if there are more than `most`."""
        return self.most is not None and len(self._kept) > self.most

    def refresh(self) -> None:
        """Put them in the order of their last use."""
        ran = self._ran()
        with self._lock:
            for executable, used in ran.items():
                kept = self._kept.get(executable)
                if kept is not None:
                    kept.used = max(kept.used, used)
            for executable, _ in sorted(self._kept.items(), key=lambda item: item[1].used):
                self._kept.move_to_end(executable)

    def evict(self, spared: Collection[Executable]) -> Executable | None:
        """Drop the program that was not used for longest, none of the `spared`; None where there is no other."""
        with self._lock:
            gone = next((b for b in self._kept if b not in spared), None)
            if gone is not None:
                self.evicted += 1
                self.drop(gone)
            return gone


def _constants(executable: Executable) -> dict[Any, int]:
    """Bytes of the constants of a program by identity. Those of a file are mapped, and none of the process."""
    if executable.stored:
        return {}
    return {id(a): a.nbytes for a in map(_whole, executable.constants.values()) if a.nbytes >= SMALL_CONSTANT}


def _whole(array: Array) -> Array:
    """The array that has the bytes of a view."""
    return array.base if isinstance(array.base, np.ndarray) else array
