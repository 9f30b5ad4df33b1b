"""Known defects of oneDNN: their conditions, and the reasons that kernels decline with.

docs/onednn-defects.md has the smallest cases and the versions; tests/test_onednn_defects.py looks whether the installed
library still has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ....ops.dataclasses import dataclass
from ....ops.layouts import channels_last, is_permutation, row_major, usual
from .api import DST, SRC, WEIGHTS
from .memory import Memory, strides_of

if TYPE_CHECKING:
    from .primitive import Draft, PostOp

Holds = Callable[["Draft", str, Memory, "PostOp"], bool]  # of the draft, its implementation, the result and a post-op


@dataclass(frozen=True, slots=True)
class Defect:
    """A post-op that primitives of this kind compute wrongly, perhaps with what lies outside of its operand."""

    kind: str
    reason: str
    holds: Holds


@dataclass(frozen=True, slots=True)
class WrongPrimitive:
    """A primitive that is wrong whatever follows it, told by its draft, its implementation and its result."""

    kind: str
    reason: str
    holds: Callable[[Draft, str, Memory], bool]


def _operand(holds: Callable[[Draft, str, Memory, Memory], bool]) -> Holds:
    """A condition of a post-op's operand, as one of the post-op."""

    def of_post_op(draft: Draft, implementation: str, result: Memory, post: PostOp) -> bool:
        beside = post.other if post.kind != "sum" else None
        return beside is not None and holds(draft, implementation, result, beside)

    return of_post_op


def _order(memory: Memory) -> str:
    """Return the order of elements: "rows", "channels last", "blocks" or "otherwise"."""
    rank = len(memory.dims)
    if memory.strides is not None:
        steps = strides_of(row_major(rank), memory.dims)
        same = all(n == 1 or a == b for n, a, b in zip(memory.dims, memory.strides, steps, strict=True))
        return "rows" if same else "otherwise"
    if memory.layout and not is_permutation(memory.layout):
        return "blocks"
    layout = usual(memory.layout, memory.dims)
    return "otherwise" if layout not in ("", channels_last(rank)) else "channels last" if layout else "rows"


def _number(operand: Memory) -> bool:
    return math.prod(operand.dims) == 1


def _channels(result: Memory, operand: Memory) -> bool:
    """True if there is one number for each channel."""
    ones = (1,) * len(result.dims)
    return len(ones) > 1 and operand.dims == (1, result.dims[1], *ones[2:]) and operand.dims not in (result.dims, ones)


@_operand
def _channels_mistaken(draft: Draft, implementation: str, result: Memory, operand: Memory) -> bool:
    order, pixels = _order(result), math.prod(result.dims[2:])
    told = order == "blocks" or (order != "otherwise" and (pixels > 1 or len(result.dims) == 2))
    return _channels(result, operand) and not told


@_operand
def _not_along_channels(draft: Draft, implementation: str, result: Memory, operand: Memory) -> bool:
    axis = draft.settings[1]
    if _order(result) == "rows":
        return _channels(result, operand) and axis > 1
    return axis != 1 and not _number(operand)


@_operand
def _rows_pooled(draft: Draft, implementation: str, result: Memory, operand: Memory) -> bool:
    return operand.dims == result.dims and implementation.startswith("jit") and not result.layout


@_operand
def _resampled_simply(draft: Draft, implementation: str, result: Memory, operand: Memory) -> bool:
    told = _number(operand) or _channels(result, operand) or _order(result) == "rows"
    return implementation.startswith("simple") and not told


@_operand
def _resampled_to_a_pixel(draft: Draft, implementation: str, result: Memory, operand: Memory) -> bool:
    return math.prod(result.dims[2:]) == 1 and not _number(operand)


@_operand
def _product_out_of_order(draft: Draft, implementation: str, result: Memory, operand: Memory) -> bool:
    return _order(result) != "rows" and not _number(operand)


def _one_by_one(draft: Draft, implementation: str, result: Memory, post: PostOp) -> bool:
    """The sigmoid of NaN is 0 where post-ops are computed without vectors, with no flag raised."""
    return post.kind == "eltwise_logistic" and implementation.startswith(("x64:gemm", "conv:any"))


DEFECTS: Final = (
    Defect("binary", "oneDNN mistakes the channels of an operand where axes are of size 1 or in another order",
           _channels_mistaken),
    Defect("softmax_forward", "oneDNN mistakes the axes of an operand behind a softmax of another axis than channels",
           _not_along_channels),
    Defect("pooling_forward", "oneDNN adds another image to row-major pooled ones wrongly", _rows_pooled),
    Defect("resampling_forward", "oneDNN's simple resampling reads an operand in another order", _resampled_simply),
    Defect("resampling_forward", "oneDNN mistakes the channels of an operand where images become one pixel",
           _resampled_to_a_pixel),
    Defect("matmul", "oneDNN reads an operand of a post-op wrongly where the product is not row-major",
           _product_out_of_order),
    Defect("convolution_forward", "oneDNN makes 0 of the sigmoid of NaN behind its convolution by products",
           _one_by_one),
    Defect("deconvolution_forward", "oneDNN makes 0 of the sigmoid of NaN behind a transposed convolution",
           _one_by_one),
)  # fmt: skip


def _fours(memory: Memory) -> bool:
    return _order(memory) == "blocks" and memory.layout.endswith("4b")


def _halves_in_fours(draft: Draft, implementation: str, result: Memory) -> bool:
    """Vectors of eight numbers are written to blocks of four: over the next block, and behind the last."""
    return _fours(result) and any(o.memory.dtype.itemsize == 2 for o in draft.operands)


def _padding_overwritten(draft: Draft, implementation: str, result: Memory) -> bool:
    """In the place of the second operand, the blocks' padding is computed over numbers that are still to be read."""
    return implementation.startswith("ref") and _order(result) == "blocks"


def _slopes_in_fours(draft: Draft, implementation: str, result: Memory) -> bool:
    return _fours(result) and draft.operands[1].memory.dims == result.dims and result.dims[1] % 4 > 0


def _slopes_out_of_order(draft: Draft, implementation: str, result: Memory) -> bool:
    """Slopes of channels are read as if channels came second or last."""
    return _order(result) == "otherwise" and _channels(result, draft.operands[1].memory)


def _few_rows_apart(draft: Draft, implementation: str, result: Memory) -> bool:
    """Of float32 operands whose matrices lie into each other, with two or three rows, tiles get copies of other
    numbers, and what lies beyond is overwritten."""
    rounds = draft.attributes.math == "bf16" and "_amx" in implementation
    return rounds and any(_interleaved(o.memory) in (2, 3) for o in draft.operands if o.argument in (SRC, WEIGHTS))


def _interleaved(memory: Memory) -> int:
    """The rows of four-dimensional matrices between which others lie; 0 if each matrix lies together."""
    if len(memory.dims) != 4 or memory.strides is None or memory.dims[1] == 1:
        return 0
    step, rows = max((memory.strides[i], memory.dims[i]) for i in (2, 3) if memory.dims[i] > 1 or i == 3)
    return rows if step > memory.strides[1] else 0


def _no_tap_in_depth(draft: Draft, implementation: str, result: Memory) -> bool:
    """True where the window reaches over the whole depth and no tap meets it: tiles are read from nowhere."""
    tiles = "brgconv" in implementation and "_amx" in implementation
    if not tiles or len(result.dims) != 5 or len(draft.settings) < 3:
        return False
    depth = next(o.memory.dims[2] for o in draft.operands if o.argument == SRC)
    taps = next(o.memory.dims[-3] for o in draft.operands if o.argument == WEIGHTS)
    return bool(taps > 1 and draft.settings[2][0] >= depth)  # which counts the places between two taps


WRONG: Final = (
    WrongPrimitive("convolution_forward", "oneDNN ends the process where no tap meets the depth of an image",
                   _no_tap_in_depth),
    WrongPrimitive("deconvolution_forward", "oneDNN ends the process where no tap meets the depth of an image",
                   _no_tap_in_depth),
    WrongPrimitive("matmul", "oneDNN mistakes matrices of two or three rows that lie into each other, in bfloat16",
                   _few_rows_apart),
    WrongPrimitive("binary", "oneDNN writes beyond blocks of four numbers of 16 bits", _halves_in_fours),
    WrongPrimitive("binary", "oneDNN's binary reference mistakes the padding of blocks", _padding_overwritten),
    WrongPrimitive("prelu_forward", "oneDNN mistakes slopes in blocks of four with padding", _slopes_in_fours),
    WrongPrimitive("prelu_forward", "oneDNN mistakes slopes of channels in another order of axes",
                   _slopes_out_of_order),
)  # fmt: skip

KINDS: Final = frozenset(d.kind for d in (*DEFECTS, *WRONG))


def defect(draft: Draft, implementation: str) -> str | None:
    """Return the reason why a primitive is wrong; None if it is not."""
    if draft.kind not in KINDS:
        return None
    result = next(o.memory for o in draft.operands if o.argument == DST)
    for wrong in WRONG:
        if wrong.kind == draft.kind and wrong.holds(draft, implementation, result):
            return wrong.reason
    known = [d for d in DEFECTS if d.kind == draft.kind]
    reasons = (d.reason for d in known for p in draft.attributes.post if d.holds(draft, implementation, result, p))
    return next(reasons, None)
