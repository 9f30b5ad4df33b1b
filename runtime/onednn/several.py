"""Kernels of several primitives: temporary results lie in the step's workspace between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain as joined
from typing import ClassVar

from ...ops import DType, Tensor, Type
from ...ops.types import Array
from ..graph import Node
from ..kernels.kernel import Alias, Ask, Call, Choice, Declined, Work
from ..lives import aligned
from . import api
from .kernel import REFERENCE, layout_at, unavailable
from .memory import nbytes
from .postops import anchor
from .primitive import Bound, Descriptor, Draft, Place, bind, describe

WORK = "work"  # ("work", 0): the first temporary result


class Several(ABC):
    """A family of operators that a few primitives serve, one after the other.

    A family writes `plans`: lists of drafts that would do, best first. Their operands may lie at ("work", n). `slow`
    names implementations that are too slow to be taken.
    """

    name: ClassVar[str]
    ops: ClassVar[frozenset[str]]
    slow: ClassVar[tuple[str, ...]] = REFERENCE

    @abstractmethod
    def plans(self, ask: Ask) -> Iterator[tuple[Draft, ...]]:
        """The primitives that would do, best first; raises Refused with the reason where there are none."""

    def serves(self, node: Node) -> bool:
        """Whether the node belongs to this family."""
        domain, op = anchor(node)
        return not domain and op in self.ops

    def select(self, ask: Ask) -> Choice | Declined:
        """The first list of fast primitives, with the layouts that it wants and gives."""
        found = self._describe(ask)
        if isinstance(found, Declined):
            return found
        layouts = self._layouts(ask, found)
        temporary, scratch = workspace(found)
        return Choice(
            self.name,
            workspace=sum(map(aligned, temporary.values())) + aligned(scratch),
            aliases=tuple(self._aliases(ask, found)),
            layouts=layouts if any(layouts) else (),
            implementation=", ".join(dict.fromkeys(d.implementation for d in found)),
        )

    def prepare(self, work: Work) -> Call:
        """The primitives over the buffers of the step."""
        found = self._describe(work.ask)
        if isinstance(found, Declined):
            raise api.Refused(found.reason)
        arrays: dict[Place, Array] = {("in", i): a for i, a in enumerate(work.inputs) if a is not None}
        arrays |= {("out", i): a for i, a in enumerate(work.outputs) if a is not None}
        temporary, scratch = workspace(found)
        arrays |= {place: work.scratch(DType.UINT8, (size,)) for place, size in temporary.items()}
        shared = work.scratch(DType.UINT8, (scratch,)) if scratch else None
        calls = [bind(d, arrays, shared) for d in found]
        return calls[0] if len(calls) == 1 else Calls(calls)

    @abstractmethod
    def pack(self, ask: Ask, index: int, array: Array) -> Array:
        """A constant in the layout that the primitives read."""

    def _describe(self, ask: Ask) -> tuple[Descriptor, ...] | Declined:
        if (why := unavailable(ask)) is not None:
            return Declined(why)
        reasons: list[str] = []
        try:
            for drafts in self.plans(ask):
                try:
                    found = tuple(describe(d, ask.target.threads) for d in drafts)
                    self._layouts(ask, found)
                except api.Refused as error:
                    reasons.append(str(error))
                    continue
                slow = [d.implementation for d in found if d.implementation.startswith(self.slow)]
                if not slow:
                    return found
                reasons.append(f"only {slow[0]} would do")
        except api.Refused as error:
            reasons.append(str(error))
        return Declined("; ".join(dict.fromkeys(reasons)))

    def _layouts(self, ask: Ask, found: Sequence[Descriptor]) -> tuple[str, ...]:
        """The layouts of all inputs, then of all outputs."""
        sides = [("in", i, t) for i, t in enumerate(ask.inputs)]
        sides += [("out", i, None) for i in range(len(ask.node.outputs))]
        return tuple(self._layout(ask, found, (side, i), t) for side, i, t in sides)

    def _layout(self, ask: Ask, found: Sequence[Descriptor], place: Place, type: Type | None) -> str:
        layouts = {layout_at(d, place, type) for d in found if d.draft.at(place)}
        if len(layouts) > 1:
            raise api.Refused("an operand is wanted in two layouts")
        return layouts.pop() if layouts else type.layout if isinstance(type, Tensor) else ""

    def _aliases(self, ask: Ask, found: Sequence[Descriptor]) -> Iterator[Alias]:
        """Inputs that results may be written over; none unless a family says so."""
        return iter(())


class Calls:
    """Primitives one after the other; answers with the first bad status."""

    def __init__(self, calls: Sequence[Bound]) -> None:
        self._calls = tuple(calls)

    def __call__(self) -> int:
        for call in self._calls:
            if status := call():
                return status
        return 0

    def rebind(self, place: Place, array: Array) -> None:
        """Let every primitive read or write another array of the same type at this place."""
        for call in self._calls:
            call.rebind(place, array)


def workspace(found: Sequence[Descriptor]) -> tuple[Mapping[Place, int], int]:
    """Bytes of each temporary result, and of the scratchpad that all primitives share."""
    sizes: dict[Place, int] = {}
    for operand in joined.from_iterable(d.draft.operands for d in found):
        if operand.place[0] == WORK:
            size = nbytes(operand.memory.handle.value)
            sizes[operand.place] = max(size, sizes.get(operand.place, 0))
    return sizes, max(d.scratch for d in found)
