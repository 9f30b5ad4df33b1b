"""Operators that take complex numbers: those that move elements, as https://onnx.ai/onnx/operators has it in their
types, pointwise ones, and some sums and products; and those with complex derivatives. Others are refused by type,
before an imaginary part is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ShapeError
from ..types import DType, Tensor, Type

if TYPE_CHECKING:
    from ..op import Builder, Op, Value

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
    Cast CastLike Cholesky Cofactors Conj CumProd CumSum Det Fused Gemm MatMul PInv QR ReduceMean ReduceProd ReduceSum
    Solve SumTo
    """.split()
)
ALONE = {"GridSample": 0, "OneHot": 2, "Resize": 0}  # the only input that may be complex
# What these return has a type of its own, and loses nothing.
MEASURING = frozenset(
    """
    BitCast Eigh If Loop NonZero OptionalHasElement RandomNormalLike RandomUniformLike RealImag SVD Scan ScanRows
    SequenceLength SequenceMap Shape Size SlogDet
    """.split()
)
# Gradients of complex numbers z are dL/dRe z + 1j * dL/dIm z. Rules that give these as they stand: sums, moved
# elements, and those that are written for it.
STRAIGHT = frozenset(
    """
    Add Cast CastLike Cholesky Complex Concat Conj CumSum DepthToSpace Eigh Expand Flatten Gather GatherElements
    GatherGrad GatherND Identity Mean Neg PInv Pad PadGrad QR RealImag ReduceMean ReduceSum Reshape SVD ScatterElements
    ScatterND Slice SliceGrad SlogDet Solve SpaceToDepth Split Squeeze StopGradient Sub Sum SumTo Tile Transpose Trilu
    Unsqueeze Where
    """.split()
)
# Functions with a complex derivative: the gradient is the conjugate of what the rule makes of the conjugate.
HOLOMORPHIC = frozenset(
    """
    Acos Acosh Asin Asinh Atan Atanh Cos Cosh Det Div Exp Expm1 Log Log10 Log1p Log2 MatMul Mul Pow Reciprocal Sin Sinh
    Sqrt Tan Tanh
    """.split()
)


def is_complex(type: Type | None) -> bool:
    """True if a type is a tensor of complex numbers."""
    return isinstance(type, Tensor) and type.dtype in COMPLEX


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


def derived(
    record: Op,
    g: Builder,
    dys: Sequence[Value | None],
    ys: Sequence[Value | None],
    xs: Sequence[Value | None],
    **attrs: Any,
) -> Sequence[Value | None]:
    """The gradients that a record's rule gives (see Op.grad), of complex numbers too: see STRAIGHT and HOLOMORPHIC."""
    assert record.grad_rule is not None
    if record.name not in HOLOMORPHIC or not any(y is not None and is_complex(g.type_of(y)) for y in ys):
        return record.grad_rule(g, dys, ys, xs, **attrs)
    turned = [dy if dy is None else g.Conj(dy, domain="mezzo") for dy in dys]
    return [dx if dx is None else g.Conj(dx, domain="mezzo") for dx in record.grad_rule(g, turned, ys, xs, **attrs)]


def part_of(g: Builder, x: Value, which: int) -> Value:
    """The real (0) or imaginary (1) parts of complex numbers."""
    return g.Gather(g.RealImag(x, domain="mezzo"), g.const(which), axis=-1)


def real_part(g: Builder, x: Value) -> Value:
    """The real parts of complex numbers."""
    return part_of(g, x, 0)
