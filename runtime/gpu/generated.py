"""What all kernels have in common whose source is written here: chosen from launches, prepared as calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from ...ops import Tensor
from ...ops.layouts import parse
from ...ops.types import Array
from ..graph import Node
from ..kernels.kernel import Ask, Call, Choice, Declined, Work
from .launch import Written


class Generated(ABC):
    """A family of operators whose steps are launches of our own kernels.

    `written` depends on nothing but what is asked (types, layouts, attributes), so that the launches of a step are
    found again when it is prepared, and by the tests that run them without a GPU.
    """

    name: ClassVar[str]
    remembers: ClassVar[bool] = True

    @abstractmethod
    def serves(self, node: Node) -> bool:
        """Whether the node belongs to this family."""

    @abstractmethod
    def written(self, ask: Ask) -> Written | Declined:
        """The launches for these types, or why there are none."""

    def select(self, ask: Ask) -> Choice | Declined:
        found = self.written(ask)
        if isinstance(found, Declined):
            return found
        names = "+".join(dict.fromkeys(launch.source.name for launch in found.launches))
        return Choice(
            self.name,
            workspace=found.workspace,
            aliases=found.aliases,
            layouts=found.layouts,
            implementation=f"nvrtc {names}" if names else "nothing to do",
        )

    def prepare(self, work: Work) -> Call:
        from .driver import bound  # with the first step on a device

        found = self.written(work.ask)
        assert isinstance(found, Written)  # it was chosen
        return bound(found, work)

    def pack(self, ask: Ask, index: int, array: Array) -> Array:
        """A constant in a layout that is an order of its dims."""
        known = ask.inputs[index]
        assert isinstance(known, Tensor)
        order, blocks, behind = parse(known.layout, known.rank)
        assert not blocks and not behind
        return np.ascontiguousarray(np.transpose(array, order)).reshape(-1).view(np.uint8)
