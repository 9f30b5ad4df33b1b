"""The kernels of a GPU, in the order in which they are asked."""

from __future__ import annotations

from ...compile.kernel import Kernel
from . import cublaslt, cudnn
from .batchnorm import BatchNormalisationTraining
from .between import GridSample, RoiAlign
from .conv import Convolution
from .copy import CudaCopies
from .determinant import Determinant
from .einsum import Einsum
from .exchange import CudaExchanges
from .fourier import Fourier
from .gemm import Gemm
from .images import Images
from .indexing import CudaScatter, Gather
from .linear_attention import LinearAttention
from .losses import Losses
from .made import Made
from .movement import CudaMovement, Pad
from .norm import BatchNormalisation, LocalNormalisation, Normalisation
from .pointwise import CudaPointwise
from .pool import CudaPool, GlobalPool
from .pool_grads import PoolGradients
from .quantised import DynamicQuantise, Quantise
from .random import Random
from .recurrence import Recurrence
from .reduce import CudaReduce
from .resize import Resize
from .scans import Cumulated, ScanPlaces
from .softmax import Softmax
from .table_rows import CudaGatherGradRows, CudaUpdateRows
from .topk import TopK
from .total_norm import TotalNorm

GPU_KERNELS: tuple[Kernel, ...] = (
    *cudnn.KERNELS, *cublaslt.KERNELS, *cudnn.PRODUCTS,
    CudaPointwise(), CudaReduce(), TotalNorm(), CudaMovement(), Pad(), Softmax(), Normalisation(), BatchNormalisation(),
    LocalNormalisation(),
    CudaPool(), GlobalPool(), PoolGradients(), Gather(), CudaScatter(), CudaGatherGradRows(), CudaUpdateRows(),
    Quantise(), DynamicQuantise(), TopK(), Cumulated(), ScanPlaces(), Losses(),
    BatchNormalisationTraining(), CudaExchanges(), CudaCopies(), Random(),
    Resize(), GridSample(), RoiAlign(), Made(), Gemm(), Einsum(), Convolution(), Recurrence(),
    Images(), Determinant(), LinearAttention(), Fourier(),
)  # fmt: skip
