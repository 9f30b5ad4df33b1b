"""Kernels of the CPU, in the order in which they are asked."""

from __future__ import annotations

from functools import partial

from ...compile.kernel import Kernel
from ...compile.lazy_kernel import LazyKernel
from .matmul import Gemm, MatMul
from .movement import Movement, Take
from .pointwise import Pointwise
from .reference import Reference

_later = partial(LazyKernel, __name__, chains=False)
CPU_KERNELS: tuple[Kernel, ...] = (
    Pointwise(), MatMul(), Gemm(), Movement(), Take(),
    _later("numpy.extremes", "reductions.Extremes", "GlobalMaxPool ReduceMax ReduceMin"),
    _later("numpy.sums", "reductions.Sums", "ReduceMean ReduceSum"),
    _later("numpy.places", "reductions.ExtremePlaces", "ArgMax ArgMin"),
    _later("numpy.top_k", "best.TopK", "TopK"),
    _later("numpy.boxes", "best.Boxes", "NonMaxSuppression"),
    _later("numpy.keep_boxes", "best.Kept", "mezzo.KeepBoxes"),
    _later("numpy.detect_boxes", "best.Detections", "mezzo.DetectBoxes"),
    _later("numpy.short_softmax", "softmax.ShortSoftmax", "Softmax", remembers=True),
    _later("numpy.sum_squares", "reductions.SumSquares", "ReduceSumSquare"),
    _later("numpy.total_norm", "reductions.TotalNorm", "mezzo.TotalNorm"),
    _later("numpy.pad", "pad.Pad", "Pad", True),
    _later("numpy.fill_tail", "padding.FillTail", "mezzo.FillTail", True),
    _later("numpy.concat_heads", "padding.ConcatHeads", "mezzo.ConcatHeads", True),
    _later("numpy.reverse_head", "padding.ReverseHead", "mezzo.ReverseHead", True),
    _later("numpy.grouped_rows", "grouped.GroupedRows", "mezzo.GroupedRows"),
    _later("numpy.conv_relu_pool", "strips.ConvReluPool", "mezzo.ConvReluPool"),
    _later("numpy.matmul_n_bits", "packed_weights.PackedProduct", "com.microsoft.MatMulNBits mezzo.MatMulNBitsGrad"),
    _later("numpy.update", "update.Update", "mezzo.Update"),
    _later("numpy.cross_entropy", "losses.CrossEntropy", "SoftmaxCrossEntropyLoss mezzo.SoftmaxCrossEntropyGrad"),
    _later("numpy.scatter", "scatter.Scatter", "mezzo.GatherGrad mezzo.SliceGrad"),
    _later("numpy.gather_rows", "rows.GatherGradRows", "mezzo.GatherGradRows"),
    _later("numpy.update_rows", "rows.UpdateRows", "mezzo.UpdateRows"),
    _later("exchange", "exchange.Exchanges", "mezzo.Await mezzo.Emit"),
    _later("exchange.rows", "exchange.SumRows", "mezzo.SumRows"),
    _later("copy", "copy.HostCopies", "mezzo.Copy"),
    Reference(),
)  # fmt: skip

__all__ = ["CPU_KERNELS"]
