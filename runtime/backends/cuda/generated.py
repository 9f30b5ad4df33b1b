"""Base of all generated kernels: chosen as launches, prepared as calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar

import numpy as np

from ....ops import Tensor, Type
from ....ops.layouts import parse, row_major
from ....ops.types import Array
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, Listed, without_layouts
from .launch import Written
from .source import Unwritten
from .text import Element, elements
from .unwanted import completed, unwanted_to_workspace

ALL = range(1 << 31)  # outputs that a family may leave out


class Generated(Listed, ABC):
    """A family of operators whose steps are launches of our own kernels.

    `written` depends on nothing but what is asked (types, layouts, attributes). Its launches are part of the choice,
    and what is prepared is made from these; the tests that run them without a GPU ask for them by themselves. A family
    is asked to `write` all outputs of an operator but those numbered in `spares`, which it leaves out if nobody wants
    them; see unwanted.py.
    """

    name: ClassVar[str]
    remembers: ClassVar[bool] = True
    spares: ClassVar[Collection[int]] = ()

    @abstractmethod
    def write(self, request: KernelRequest) -> Written | Declined:
        """The launches for these types, or why there are none, which Unwritten says as well."""

    def written(self, request: KernelRequest) -> Written | Declined:
        """The launches for these types, with no output that nobody wants, or why there are none."""
        whole = completed(request, self.spares)
        try:
            written = self.write(whole)
        except Unwritten as error:
            return Declined(str(error))
        return (
            written
            if whole is request or isinstance(written, Declined)
            else unwanted_to_workspace(written, whole, request)
        )

    def select(self, request: KernelRequest) -> Choice | Declined:
        written = self.written(request)
        if isinstance(written, Written) and not any(written.layouts):
            written = self.written(without_layouts(request))  # so it will lie, whatever the readers would like
        if isinstance(written, Declined):
            return written
        names = "+".join(dict.fromkeys(launch.source.name for launch in written.launches))
        return Choice(
            self.name,
            workspace=written.workspace,
            aliases=written.aliases,
            layouts=written.layouts,
            implementation=f"nvrtc {names}" if names else "nothing to do",
            deterministic=not written.draws,
            primitives=(written,),
        )

    def prepare(self, args: KernelArgs) -> Call:
        from .driver import bound  # with the first step on a device

        (written,) = args.choice.primitives
        return bound(written, args)

    def pack(self, request: KernelRequest, choice: Choice, index: int, array: Array) -> Array:
        """A constant in the layout that the launches read."""
        return laid(array, choice.layouts[index])


def operands(
    request: KernelRequest, inputs: Sequence[Type | None] | None = None, *, floats: bool = False
) -> tuple[list[Element], Tensor, Tensor]:
    """Elements of the operands that are there, inputs (all if not given) before outputs; the first input, and the first
    output. Raises Unwritten where one is nothing to compute with, or (`floats`) the first is no float."""
    present = [t for t in (*(request.inputs if inputs is None else inputs), *request.outputs) if t is not None]
    forms, x, y = elements(present), request.inputs[0], request.outputs[0]
    if forms is None or not isinstance(x, Tensor) or not isinstance(y, Tensor) or (floats and not x.dtype.floating):
        kind = "floats" if floats else "numbers of 8 bits or more"
        raise Unwritten(f"an operand is no tensor of {kind}, or its sizes are not known")
    return forms, x, y


def laid(array: Array, layout: str) -> Array:
    """The bytes of an array in a layout that is an order of its dims.

    >>> laid(np.array([[1, 2, 3], [4, 5, 6]], np.int8), "ba").tolist()
    [1, 4, 2, 5, 3, 6]
    """
    order, blocks, behind = parse(layout or row_major(np.ndim(array)), np.ndim(array))
    assert not blocks and not behind
    return np.ascontiguousarray(np.transpose(array, order)).reshape(-1).view(np.uint8)
