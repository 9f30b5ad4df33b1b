"""Graphs of cuDNN: convolutions with the operators that follow them, their gradients, and attention, through the module
`cudnn` of nvidia-cudnn-frontend. Nothing is imported before the first query of a kernel.

`draft.py` is what is asked, as data; `build.py` makes graphs of it, `plans.py` chooses, times and keeps their plans,
`rule.py` stands in where a program is planned without cuDNN.
"""

from __future__ import annotations

from ....compile.kernel import Kernel
from .attention import Attention
from .conv import Conv, ConvTranspose
from .conv_grads import ConvGradInput, ConvGradWeights
from .matmul import MatMul

KERNELS: tuple[Kernel, ...] = (Conv(), ConvTranspose(), ConvGradInput(), ConvGradWeights(), Attention())

PRODUCTS: tuple[Kernel, ...] = (MatMul(),)  # which are asked behind cuBLASLt

__all__ = ["KERNELS", "PRODUCTS"]
