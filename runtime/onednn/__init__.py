"""CPU kernels of oneDNN, called through its C API.

https://oneapi-src.github.io/oneDNN/ (the C API of version 3). `library.py` finds it, `api.py` declares its functions,
`memory.py` and `primitive.py` wrap descriptors; each family of kernels has a module of its own, and `KERNELS` lists
them. Without the library nothing here is used.
"""

from __future__ import annotations

from ..kernels.kernel import Kernel
from .concat import Concat, Split
from .conv import Conv, ConvTranspose
from .conv_grads import ConvGradInput, ConvGradWeights
from .elementwise import Binary, Eltwise
from .elementwise_grads import EltwiseGrad, SoftmaxGrad
from .matmul import Gemm, MatMul
from .movement import Reorder, Transpose, Units
from .norm import ChannelNorm, LayerNorm, LocalNorm, Softmax
from .norm_grads import BatchNormGrad, BatchNormTrain, LayerNormGrad, LayerNormTrain
from .operands import Cast, PRelu, Sum
from .pool import Pool
from .pool_grads import AveragePoolGrad, MaxPoolGrad, MaxPoolTrain
from .quantised import QUANTISED
from .quantised_dynamic import DYNAMIC
from .quantised_elements import ELEMENTS
from .quantised_matmul import PRODUCTS
from .recurrent import Recurrent
from .recurrent_train import RECURRENT
from .reduce import Reduce
from .resample import Resize
from .update import ChainedUpdate

KERNELS: tuple[Kernel, ...] = (
    *QUANTISED, *PRODUCTS, *ELEMENTS, *DYNAMIC,
    Conv(), ConvTranspose(), MatMul(), Gemm(), Pool(), Softmax(), LayerNorm(), Eltwise(), Binary(), Reorder(),
    Transpose(), Units(), Recurrent(), Concat(), Split(), Reduce(), Resize(), ChannelNorm(), LocalNorm(),
    Cast(), PRelu(), Sum(), ConvGradInput(), ConvGradWeights(), EltwiseGrad(), SoftmaxGrad(),
    MaxPoolTrain(), MaxPoolGrad(), AveragePoolGrad(), BatchNormTrain(), BatchNormGrad(), LayerNormTrain(),
    LayerNormGrad(), ChainedUpdate(), *RECURRENT,
)  # fmt: skip

__all__ = ["KERNELS"]
