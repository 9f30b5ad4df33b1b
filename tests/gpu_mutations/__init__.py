"""Defects to be planted, one at a time, in a copy of the checkout: would what CI runs without a GPU find them?"""

from __future__ import annotations

from .kernels import KERNELS
from .libraries import LIBRARIES
from .mutation import Mutation
from .streams import STREAMS

__all__ = ["MUTATIONS", "Mutation"]

MUTATIONS: tuple[Mutation, ...] = (*KERNELS, *LIBRARIES, *STREAMS)
