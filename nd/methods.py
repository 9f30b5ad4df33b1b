"""Functions that arrays have as methods too, under the names of MXNet's NDArray: `x.expand_dims(1)`, `x.softmax()`."""

from __future__ import annotations

from typing import Final

from . import functions, neural
from .array import Array

METHODS: Final = """
    abs all any argmin argsort broadcast_to ceil clip cos dot exp expand_dims expm1 flip floor log log1p log2 log10 norm
    ones_like prod reciprocal repeat round sign sin sort sqrt square squeeze std take tan tanh tile trunc var zeros_like
""".split()
NEURAL: Final = """
    batch_dot broadcast_like cumsum flatten gather_nd log_softmax one_hot pick relu reshape_like rsqrt sigmoid
    slice_axis softmax softmin split swapaxes topk transpose
""".split()


def add() -> None:
    """Give arrays those that they do not have of their own."""
    for module, names in ((functions, METHODS), (neural, NEURAL)):
        for name in names:
            if name not in vars(Array):
                setattr(Array, name, getattr(module, name))
