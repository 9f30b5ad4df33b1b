"""`mz.autograd`: gradients of computations on arrays, by the same rules as those of graphs.

>>> from mezzo import autograd, nd
>>> x = nd.asarray([1.0, 2.0])
>>> x.attach_grad()
>>> with autograd.record():
...     y = (x * x).sum()
>>> y.backward()
>>> x.grad.asnumpy()
array([2., 4.], dtype=float32)
"""

from .function import Function
from .leaks import HeldTape
from .scopes import (
    attach_grad,
    backward,
    detach,
    grad,
    is_recording,
    is_training,
    mark_variables,
    pause,
    predict_mode,
    record,
    train_mode,
)  # fmt: skip

__all__ = [
    "Function", "HeldTape", "attach_grad", "backward", "detach", "grad", "is_recording", "is_training",
    "mark_variables", "pause", "predict_mode", "record", "train_mode",
]  # fmt: skip
