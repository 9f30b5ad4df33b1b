"""Which operators take complex numbers: those that move elements, as https://onnx.ai/onnx/operators has it in their
types, pointwise ones, and some sums and products. Others are refused by type, before an imaginary part is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .errors import ShapeError
from .types import DType, Tensor, Type

if TYPE_CHECKING:
    from .op import Op

COMPLEX = frozenset((DType.COMPLEX64, DType.COMPLEX128))
# An operator of somebody else's domain says for itself what it takes.
DOMAINS = frozenset(("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft", "mezzo"))
TAKING = frozenset(
    """
    CenterCropPad Col2Im Compress Concat ConcatFromSequence DepthToSpace Expand Flatten Gather GatherElements
    GatherND GridSample Identity OneHot Optional OptionalGetElement Pad Reshape
    Resize ReverseSequence Scatter ScatterElements ScatterND SequenceAt SequenceConstruct SequenceErase SequenceInsert
    Slice SpaceToDepth Split SplitToSequence Squeeze TensorScatter Tile Transpose Trilu Unique Unsqueeze Where
    Await Emit GatherGrad PadGrad Reorder ReshapeTo SliceGrad
    Cast CastLike CumProd CumSum Det Fused MatMul ReduceMean ReduceProd ReduceSum SumTo
    """.split()
)
ALONE = {"GridSample": 0, "OneHot": 2, "Resize": 0}  # the only input that may be complex
# What these return has a type of its own, and loses nothing.
MEASURING = frozenset(
    """
    BitCast If Loop NonZero OptionalHasElement RandomNormalLike RandomUniformLike Scan ScanRows SequenceLength
    SequenceMap Shape Size
    """.split()
)


def check_complex(op: Op, inputs: Sequence[Type | None], made: Sequence[Type]) -> None:
    """Raise ShapeError where an operator is given complex numbers and would lose their imaginary parts, or has nothing
    to do with them."""
    if op.domain not in DOMAINS or op.name in MEASURING:
        return
    given = [i for i, t in enumerate(inputs) if isinstance(t, Tensor) and t.dtype in COMPLEX]
    if (op.tree is not None or op.name in TAKING) and (op.name not in ALONE or given == [ALONE[op.name]]):
        first = made[0]
        if not isinstance(first, Tensor) or first.dtype in COMPLEX or first.dtype is DType.BOOL:
            return
    shown = ", ".join("-" if t is None else str(t) for t in inputs)
    raise ShapeError(
        f"{op.name} takes no complex numbers there, and is given ({shown})",
        hint="feed real and imaginary parts as two values",
    )
