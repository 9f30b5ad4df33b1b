"""The import surface of Apache MXNet, on Mezzo: docs/from-mxnet.md has a table of it.

>>> import mezzo.compat.mxnet as mx
>>> (mx.nd.ones((2, 2)) * 2).asnumpy()
array([[2., 2.],
       [2., 2.]], dtype=float32)
"""

from ..tools import profiler
from ..tools.mx.absent import front as __getattr__  # noqa: F401 (PEP 562)
from ..tools.mx.contexts import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from ..tools.mx.surface import (
    AttrScope,
    MXNetError,
    attribute,
    autograd,
    callback,
    context,
    gluon,
    image,
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
    operator,
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
from ..tools.mx.surface import cell_module as rnn
from ..tools.mx.surface import contrib_module as contrib
from ..tools.mx.surface import name_module as name

__all__ = [
    "AttrScope",
    "Context",
    "MXNetError",
    "attribute",
    "autograd",
    "callback",
    "context",
    "contrib",
    "cpu",
    "cpu_pinned",
    "current_context",
    "gluon",
    "gpu",
    "image",
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
    "name",
    "nd",
    "ndarray",
    "num_gpus",
    "operator",
    "optimizer",
    "profiler",
    "random",
    "recordio",
    "rnn",
    "sym",
    "symbol",
    "test_utils",
    "visualization",
    "viz",
    "waitall",
]
