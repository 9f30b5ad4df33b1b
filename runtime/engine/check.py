"""Access checks: finds workloads that touch what they did not declare."""

from __future__ import annotations

import threading
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ...ops.dataclasses import dataclass
from ...ops.errors import ExecutionError
from ...ops.types import Array
from .work import Variable, Workload


def digest(value: Any) -> str:
    """Return a digest of a value: of the type, shape and bytes of arrays, the state of generators, the elements of
    lists.

    >>> digest(np.zeros(3)) == digest([0.0, 0.0, 0.0]), digest([1, np.ones(2)]) == digest([1, np.ones(2)])
    (False, True)
    """
    match value:
        case np.ndarray() if not value.dtype.hasobject:
            hasher = blake2b(f"{value.dtype} {value.shape}".encode(), digest_size=16)
            hasher.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
            return hasher.hexdigest()
        case np.random.Generator():
            return digest(value.bit_generator.state)
        case dict():
            return f"{{{', '.join(f'{digest(k)}: {digest(v)}' for k, v in value.items())}}}"
        case list() | tuple() | np.ndarray():
            return f"[{', '.join(map(digest, value))}]"
    return repr(value) if isinstance(value, (bool, int, float, complex, str, bytes, np.generic)) else str(id(value))


@dataclass(slots=True)
class AccessCheck:
    """Access state of a variable's array: whether it may be written at all, the numbers of running workloads that may
    and may not write it, and the number of declared writes."""

    array: Array | None
    writeable: bool
    strangers: int = 0
    writers: int = 0
    written: int = 0

    def set_flag(self) -> None:
        """Let NumPy refuse to write while only those run that did not declare it."""
        if self.array is not None and self.writeable:
            self.array.flags.writeable = self.writers > 0 or not self.strangers


class AccessGuard:
    """Detector of workloads that touch what they did not declare, among the variables that stand for a value.

    `Variable.value` is for those that declare the variable, and setting it for those that declare to write it. Around a
    workload the arrays of all other variables are read-only and must keep their bytes, so that it is also found when a
    workload has an array from elsewhere; each costs a digest before and after. Raises ExecutionError, which becomes the
    workload's error.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: WeakKeyDictionary[Variable, AccessCheck] = WeakKeyDictionary()
        self._before: dict[Workload, dict[Variable, tuple[str | None, int]]] = {}

    def add(self, var: Variable) -> None:
        """Look after a variable."""
        with self._lock:
            self._watches[var] = _watch(var._value)

    def pushed(self, work: Workload) -> None:
        """Handle a push: nothing is touched yet."""

    def begins(self, work: Workload) -> None:
        """Close what it did not declare."""
        with self._lock:
            before = self._before[work] = {}
            for var, watch in self._watches.items():
                if var in work._writes:
                    watch.writers += 1
                else:
                    watch.strangers += 1  # another one that runs now may be about to change it
                    before[var] = None if watch.writers else digest(var._value), watch.written
                watch.set_flag()

    def ends(self, work: Workload, error: BaseException | None) -> None:
        """Open it again, and see what has changed."""
        touched, closed = [], []
        with self._lock:
            before = self._before.pop(work, {})
            for var, watch in self._watches.items():
                if var in work._writes:
                    watch.writers -= 1
                    watch.written += 1
                    if watch.array is not var._value:
                        self._watches[var] = _watch(var._value, watch)
                elif var in before:
                    watch.strangers -= 1
                    closed += [var.name] if watch.array is not None else []
                    was, written = before[var]
                    if was and not watch.writers and watch.written == written and digest(var._value) != was:
                        touched.append(var.name)
                self._watches[var].set_flag()
        if touched:
            raise _undeclared(work, "wrote", " and ".join(map(repr, touched)), "writes")
        if closed and isinstance(error, ValueError) and "read-only" in str(error):
            raise _undeclared(work, "was about to write", " or ".join(map(repr, closed)), "writes") from error

    def reading(self, work: Workload, var: Variable) -> Any:
        """The value for a workload; read-only where it does not declare to write it."""
        value = var._value
        if var in work._writes:
            return value
        if var not in work._reads:
            raise _undeclared(work, "reads", repr(var.name), "reads")
        if isinstance(value, np.ndarray):
            value = value.view()
            value.flags.writeable = False
        return value

    def writing(self, work: Workload, var: Variable) -> None:
        """A workload is about to set the value."""
        if var not in work._writes:
            raise _undeclared(work, "sets", repr(var.name), "writes")


def _watch(value: Any, former: AccessCheck | None = None) -> AccessCheck:
    array = value if isinstance(value, np.ndarray) else None
    check = AccessCheck(array, array is not None and array.flags.writeable)
    if former is not None:
        check.strangers, check.writers, check.written = former.strangers, former.writers, former.written
    return check


def _undeclared(work: Workload, did: str, what: str, where: str) -> ExecutionError:
    declared = f"reads {_names(work._reads)}, writes {_names(work._writes)}"
    return ExecutionError(
        f"it {did} {what}, which it did not declare: {declared}",
        where=work.where,
        hint=f"push it with {where}=(..., that variable)",
    )


def _names(variables: tuple[Variable, ...]) -> str:
    return ", ".join(repr(v.name) for v in variables) or "nothing"
