"""The import surface of Apache MXNet, on Mezzo: docs/from-mxnet.md has a table of it.

>>> import mezzo.compat.mxnet as mx
>>> (mx.nd.ones((2, 2)) * 2).asnumpy()
array([[2., 2.],
       [2., 2.]], dtype=float32)
"""

from ..nd import autograd
from ..nd.place import cpu, gpu
from ..tools import profiler
from ..tools.mx.contexts import Context, cpu_pinned, current_context, num_gpus
from ..tools.mx.surface import (
    MXNetError,
    callback,
    context,
    gluon,
    init,
    initializer,
    install,
    io,
    kv,
    lr_scheduler,
    metric,
    mod,
    model,
    module,
    nd,
    ndarray,
    optimizer,
    random,
    recordio,
    sym,
    symbol,
    test_utils,
    visualization,
    viz,
    waitall,
)

__all__ = [
    "Context",
    "MXNetError",
    "autograd",
    "callback",
    "context",
    "cpu",
    "cpu_pinned",
    "current_context",
    "gluon",
    "gpu",
    "init",
    "initializer",
    "install",
    "io",
    "kv",
    "lr_scheduler",
    "metric",
    "mod",
    "model",
    "module",
    "nd",
    "ndarray",
    "num_gpus",
    "optimizer",
    "profiler",
    "random",
    "recordio",
    "sym",
    "symbol",
    "test_utils",
    "visualization",
    "viz",
    "waitall",
]
