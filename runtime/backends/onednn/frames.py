"""Frames: the axes of a result as a primitive sees them, in the order of their memory, some of them merged.

oneDNN tells how an operand is spread over a result from dims and strides, and errs where dims of size 1 leave a choice,
or where axes lie in an unusual order (docs/onednn-defects.md). A tensor in its order of memory is row-major, whatever
its layout is called, and axes that need not be told apart leave no choice.
"""

from __future__ import annotations

import math
from itertools import pairwise

from ....ops import DType, Tensor
from ....ops.dataclasses import dataclass
from ....ops.layouts import alike, channels_last, is_permutation, parse, row_major, usual
from .api import Refused
from .memory import Memory, strides_of


@dataclass(frozen=True, slots=True)
class Frame:
    """The axes of a tensor of these sizes as a primitive sees them. `groups` has, for each axis of the primitive, the
    tensor's axes that it merges, from outer to inner; axes of size 1 may be in none. `layout` is that of the step's
    tensor, `seen` the order of the primitive's axes."""

    sizes: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    layout: str = ""
    seen: str = ""

    @property
    def dims(self) -> tuple[int, ...]:
        """The sizes of the primitive's axes."""
        return tuple(math.prod(self.sizes[d] for d in group) for group in self.groups)

    def axis(self, axis: int) -> int:
        """The primitive's axis for one of the tensor's."""
        return next(i for i, group in enumerate(self.groups) if axis in group)

    def memory(self, dtype: DType) -> Memory:
        """The descriptor of a tensor of all elements."""
        return Memory(self.dims, dtype, self.seen)

    def beside(self, other: Tensor) -> tuple[Memory, str]:
        """An operand of the tensor's size, or one that is spread over it, and the layout that it is wanted in."""
        sizes = aligned(other.sizes, len(self.sizes))
        if any(n not in (1, size) for n, size in zip(sizes, self.sizes, strict=True)):
            raise Refused("an operand would broadcast the result")
        if sizes == self.sizes:
            if self.layout and len(other.sizes) != len(self.sizes):
                raise Refused("an operand of fewer axes is wanted in a layout")
            return self.memory(other.dtype), self.layout
        steps = strides_of(row_major(len(sizes)), sizes)
        dims, strides = zip(*(self._spread(group, sizes, steps) for group in self.groups), strict=True)
        packed = strides_of(row_major(len(dims)), dims)
        in_order = all(n == 1 or a == b for n, a, b in zip(dims, strides, packed, strict=True))
        return Memory(dims, other.dtype, strides=None if in_order else strides), ""

    def _spread(self, group: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, int]:
        """Size and stride of an operand along an axis of the primitive."""
        moving = [d for d in group if self.sizes[d] != 1]
        if all(sizes[d] == 1 for d in moving):
            return 1, 1
        if any(sizes[d] == 1 for d in moving):
            raise Refused("an operand is spread over a part of the axes that are one")
        if any(steps[a] != steps[b] * sizes[b] for a, b in pairwise(moving)):
            raise Refused("an operand has axes in another order")
        return math.prod(sizes[d] for d in moving), steps[moving[-1]]


def aligned(sizes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The sizes with so many axes, as ONNX spreads one tensor over another; Refused where there are more."""
    more = len(sizes) - rank
    if any(n != 1 for n in sizes[: max(more, 0)]):
        raise Refused("an operand would broadcast the result")
    return sizes[more:] if more > 0 else (1,) * -more + sizes


def as_it_is(sizes: tuple[int, ...], layout: str) -> Frame:
    """The tensor's own axes, one by one: for primitives that know what the axes of an image are."""
    return Frame(sizes, tuple((d,) for d in range(len(sizes))), layout, layout)


def images(sizes: tuple[int, ...], *layouts: str) -> tuple[str, ...]:
    """Layouts of images to try, each once: those that differ in name alone are channels-last, which oneDNN knows."""
    last = channels_last(len(sizes))
    return tuple(dict.fromkeys(last if alike(layout, last, sizes) else usual(layout, sizes) for layout in layouts))


def flat(sizes: tuple[int, ...], at: int) -> Frame:
    """Two axes: those before `at` as one, and those from there on."""
    axes = tuple(range(len(sizes)))
    return Frame(sizes, (axes[:at], axes[at:]))


def lying(sizes: tuple[int, ...], layout: str, apart: int = -1) -> Frame:
    """The axes in the order in which they lie, those of size 1 behind the last other one together with it, but for
    `apart`. Images in blocks and channels-last ones are seen as what they are."""
    layout = usual(layout, sizes)
    if layout and (not is_permutation(layout) or layout == channels_last(len(sizes))):
        return as_it_is(sizes, layout)
    order = parse(layout, len(sizes))[0] if layout else range(len(sizes))
    groups: list[tuple[int, ...]] = [(d,) for d in order]
    while len(groups) > 1 and groups[-1] != (apart,) and groups[-2] != (apart,) and sizes[groups[-1][-1]] == 1:
        last = groups.pop()
        groups[-1] = (*groups[-1], *last)
    return Frame(sizes, tuple(groups), layout)
