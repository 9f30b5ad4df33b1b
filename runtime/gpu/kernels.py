"""The kernels of a GPU, in the order in which they are asked."""

from __future__ import annotations

from ..kernels.kernel import Kernel
from . import cublaslt, cudnn
from .batchnorm import BatchNormalisationTraining
from .between import GridSample, RoiAlign
from .conv import Convolution
from .determinant import Determinant
from .einsum import Einsum
from .exchange import Exchanges
from .fourier import Fourier
from .gemm import Gemm
from .images import Images
from .indexing import Gather, Scatter
from .linear_attention import LinearAttention
from .losses import Losses
from .made import Made
from .movement import Movement, Pad
from .norm import BatchNormalisation, LocalNormalisation, Normalisation
from .pointwise import Pointwise
from .pool import GlobalPool, Pool
from .quantised import DynamicQuantise, Quantise
from .random import Random
from .recurrence import Recurrence
from .reduce import Reduce
from .resize import Resize
from .scans import Cumulated, Places
from .softmax import Softmax
from .topk import TopK

GPU_KERNELS: tuple[Kernel, ...] = (
    *cudnn.KERNELS, *cublaslt.KERNELS,
    Pointwise(), Reduce(), Movement(), Pad(), Softmax(), Normalisation(), BatchNormalisation(), LocalNormalisation(),
    Pool(), GlobalPool(), Gather(), Scatter(), Quantise(), DynamicQuantise(), TopK(), Cumulated(), Places(), Losses(),
    BatchNormalisationTraining(), Exchanges(), Random(),
    Resize(), GridSample(), RoiAlign(), Made(), Gemm(), Einsum(), Convolution(), Recurrence(),
    Images(), Determinant(), LinearAttention(), Fourier(),
)  # fmt: skip
