"""Records for the memory planner: lives, owners, offers to share; and whether two lives meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from ...ops.dataclasses import dataclass

ALIGN = 64  # bytes: a cache line, and what vector loads like


def aligned(nbytes: int) -> int:
    """The next multiple of ALIGN.

    >>> aligned(1), aligned(64)
    (64, 64)
    """
    return -(-nbytes // ALIGN) * ALIGN


class Space(Enum):
    """Owner of a value's bytes: the plan places only the arena's; the others are pointers given at instantiation or
    run.

    DYNAMIC values have sizes that data decides: they take their bytes from the session's pool while the program runs
    (or are host objects: strings, sequences).
    """

    ARENA = "arena"
    WEIGHT = "weight"
    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    EXTERN = "extern"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True)
class Life:
    """A value, its bytes, and the first and last step that use it. `name` is the buffer's name in EXTERN space."""

    value: str
    nbytes: int
    first: int
    last: int
    space: Space = Space.ARENA
    name: str = ""


@dataclass(frozen=True, slots=True)
class Sharing:
    """An offer of a kernel to share bytes.

    `value` may take the bytes of `other`, which dies in the step that makes `value` (`inplace`); or `value` is the same
    bytes as `other` from `delta` on, while both live (`view`: a reshape, a slice, an operand written straight into its
    place in a concatenation).
    """

    value: str
    other: str
    kind: str = "inplace"
    delta: int = 0


class Sequential:
    """Steps run one after another: two values meet if their lives overlap."""

    def meets(self, a: Life, b: Life) -> bool:
        """True if both may be alive at the same time."""
        return a.first <= b.last and b.first <= a.last

    def succeeds(self, new: Life, old: Life) -> bool:
        """True if `old` ends in the very step that makes `new`, after all its other readers."""
        return old.first < new.first == old.last


class Parallel:
    """Steps run as soon as their operands are ready: two values may share bytes only if one is done, by every path,
    before the other begins.

    `needs[i]` lists the steps whose results step `i` reads; `touches` maps each value to the steps that touch it.
    """

    def __init__(self, needs: Sequence[Sequence[int]], touches: Mapping[str, Sequence[int]]) -> None:
        self._ancestors: list[int] = []  # as bit sets over steps
        for step in needs:
            mask = 0
            for i in step:
                mask |= self._ancestors[i] | 1 << i
            self._ancestors.append(mask)
        self._touches = {value: sum(1 << i for i in set(steps)) for value, steps in touches.items()}

    def _done_before(self, a: Life, b: Life, allowed: int = 0) -> bool:
        return not self._touches.get(a.value, 1 << a.first) & ~(self._ancestors[b.first] | allowed)

    def meets(self, a: Life, b: Life) -> bool:
        """True if both may be alive at the same time in some order of the steps."""
        return not (self._done_before(a, b) or self._done_before(b, a))

    def succeeds(self, new: Life, old: Life) -> bool:
        """True if every other reader of `old` is done before the step that makes `new`."""
        return old.first < new.first == old.last and self._done_before(old, new, 1 << new.first)


Timeline = Sequential | Parallel
