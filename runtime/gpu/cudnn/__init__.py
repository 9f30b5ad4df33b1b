"""Graphs of cuDNN: convolutions, attention and batch normalisation, each with what follows it, through the module
`cudnn` of nvidia-cudnn-frontend. Nothing is imported before a kernel is asked.

`draft.py` is what is asked, as data; `build.py` makes graphs of it, `plans.py` chooses, times and keeps their plans,
`rule.py` stands in where a program is planned without cuDNN.
"""

from __future__ import annotations

from ...kernels.kernel import Kernel
from .conv import Conv, ConvTranspose

KERNELS: tuple[Kernel, ...] = (Conv(), ConvTranspose())

__all__ = ["KERNELS"]
