"""mezzo: the front door. Everything a user needs, nothing of its own.

>>> import mezzo as mz
>>> from mezzo.models.digits import digits_model, held_out
>>> session = mz.load(digits_model())
>>> session(held_out().inputs[:3]).shape
(3, 10)

The names of arrays (`nd`, `cpu`, `gpu`, `random`, `autograd`), symbols and blocks (`sym`, `gluon`, `models`), `data`,
training (`Trainer`, `loss`, `optimizer`, `schedule`, `metrics`, `callbacks`, `with_head`, `lora`, `merge_lora`, `amp`,
`quantize`), the KVStore (`kv`), what looks on (`profiler`, `viz`, `caches`, `gpu_memory_info`, `num_gpus`), `generate`,
`onnxruntime` and `as_onnxruntime` are imported when they are first used.

>>> a = mz.nd.ones((2, 3))
>>> (a * 2).asnumpy()
array([[2., 2., 2.],
       [2., 2., 2.]], dtype=float32)

>>> trainer = mz.Trainer(digits_model(), optimizer=mz.optimizer.Adam(rate=mz.schedule.Cosine(0.001, 100)))
>>> batch = {"image": held_out().inputs[:64], "target": held_out().labels[:64]}
>>> losses = [trainer.step(batch) for _ in range(3)]
>>> losses[-1] < losses[0]
True
"""

from . import onnx
from .ops.budget import Budget
from .ops.errors import (
    ArgumentError,
    BudgetError,
    Cancelled,
    DeadlineError,
    ExecutionError,
    ForkedProcess,
    InputError,
    MezzoError,
    MissingPackage,
    ModelError,
    OutOfRange,
    PeerError,
    PlanError,
    ShapeError,
    UnsupportedModel,
    WireError,
)
from .ops.op import op, pointwise
from .runtime.execution.session import Session
from .runtime.version import __version__
from .tools.lazy import names as __dir__  # noqa: F401 (PEP 562 too)
from .tools.lazy import training as __getattr__  # noqa: F401 (PEP 562: Python calls it for names of training)
from .tools.load import load
from .tools.ort.options import RunOptions, SessionOptions
from .tools.ort.session import InferenceSession

__all__ = [
    "ArgumentError",
    "AutoPlace",
    "Budget",
    "BudgetError",
    "Cancelled",
    "DeadlineError",
    "ExecutionError",
    "ForkedProcess",
    "InferenceSession",
    "InputError",
    "MezzoError",
    "MissingPackage",
    "ModelError",
    "OutOfRange",
    "PeerError",
    "PlanError",
    "RunOptions",
    "Session",
    "SessionOptions",
    "ShapeError",
    "TensorParallel",
    "Trainer",
    "UnsupportedModel",
    "WireError",
    "__version__",
    "amp",
    "as_onnxruntime",
    "autograd",
    "caches",
    "callbacks",
    "cpu",
    "data",
    "generate",
    "gluon",
    "gpu",
    "gpu_memory_info",
    "grad",
    "kv",
    "load",
    "lora",
    "loss",
    "memory",
    "merge_lora",
    "metrics",
    "models",
    "mxnet",
    "nd",
    "num_gpus",
    "onnx",
    "onnxruntime",
    "op",
    "optimizer",
    "pointwise",
    "profiler",
    "quantize",
    "random",
    "schedule",
    "sym",
    "viz",
    "with_head",
]
