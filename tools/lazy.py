"""Lazy names of the package: another package or a whole layer is imported on the first use of its name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final


def names() -> list[str]:
    """`__dir__` of `mezzo`: all its names, those that are not imported yet too."""
    return sorted(sys.modules[__name__.partition(".")[0]].__all__)


Homes = dict[
    str, tuple[str, str]
]  # of names that are imported when they are used: a module, and what it is called there
HOMES: Final[Homes] = {  # of `mezzo`
    "TensorParallel": ("runtime.passes.place", "TensorParallel"),
    "Trainer": ("train.trainer", "Trainer"),
    "amp": ("gluon.amp", ""),
    "as_onnxruntime": ("tools.ort.stand_in", "as_onnxruntime"),
    "autograd": ("nd.autograd", ""),
    "caches": ("runtime.caches", "caches"),
    "callbacks": ("train.callbacks", ""),
    "cpu": ("nd.place", "cpu"),
    "data": ("data", ""),
    "generate": ("tools.generate", "generate"),
    "gluon": ("gluon", ""),
    "gpu": ("nd.place", "gpu"),
    "gpu_memory_info": ("runtime.backends.cuda.memory", "gpu_memory_info"),
    "grad": ("runtime.ir.autodiff", "grad"),
    "kv": ("kvstore", ""),
    "lora": ("train.lora", "lora"),
    "loss": ("train.loss", ""),
    "memory": ("runtime.memory.usage", ""),
    "merge_lora": ("train.lora", "merge_lora"),
    "metrics": ("train.metrics", ""),
    "models": ("models", ""),
    "mxnet": ("mxnet", ""),
    "nd": ("nd", ""),
    "AutoPlace": ("runtime.compile.auto_place", "AutoPlace"),
    "num_gpus": ("nd.place", "num_gpus"),
    "onnxruntime": ("onnxruntime", ""),
    "optimizer": ("runtime.optimizer", ""),
    "profiler": ("tools.profiler", ""),
    "quantize": ("train.quantize", "quantize"),
    "random": ("nd.random", ""),
    "schedule": ("runtime.optimizer.schedule", ""),
    "sym": ("sym", ""),
    "viz": ("tools.viz", ""),
    "with_head": ("train.head", "with_head"),
}


ONNX: Final[Homes] = {  # of `mezzo.onnx`
    "Backend": ("tools.backend", "Backend"),
    "coverage": ("tools.coverage", "coverage"),
}


ELSEWHERE: Final[dict[str, str]] = {  # what other libraries call these, and what they are called here
    "init": "gluon.initializer", "initializer": "gluon.initializer", "nn": "gluon.nn", "rnn": "gluon.rnn",
    "metric": "metrics", "optim": "optimizer", "losses": "loss",
    "lr_scheduler": "schedule", "callback": "callbacks", "io": "data",
    "ndarray": "nd", "np": "nd", "tensor": "nd.array", "symbol": "sym", "kvstore": "kv",
    "model_zoo": "models", "vision": "models", "profile": "profiler",
    "visualization": "viz", "context": "cpu", "device": "cpu", "load_model": "load", "save": "nd.save",
    "mod": "compat.mxnet.mod", "module": "compat.mxnet.mod", "quantization": "quantize",
}  # fmt: skip


def training(name: str) -> Any:
    """`__getattr__` of `mezzo`: arrays, training and the KVStore, which whoever only runs models does not need.

    Raises AttributeError for any other name, with ours where other libraries use that one.
    """
    return _brought("", HOMES, name, ELSEWHERE)


def of_onnx(name: str) -> Any:
    """`__getattr__` of `mezzo.onnx` (PEP 562): `Backend` imports onnx, which `import mezzo` does not need, and
    `coverage` the tools that run samples.

    Raises AttributeError for any other name.
    """
    return _brought(".onnx", ONNX, name)


def _brought(within: str, homes: Homes, name: str, elsewhere: Mapping[str, str] = MappingProxyType({})) -> Any:
    """Import the object of this name and store it as an attribute of the module. Raises AttributeError if there is
    none."""
    top = __name__.partition(".")[0]
    home = homes.get(name)
    if home is None:
        ours = elsewhere.get(name.lower())
        hint = f": it is {top}.{ours} here" if ours else ""
        raise AttributeError(f"module {top + within!r} has no attribute {name!r}{hint}")
    module = import_module(f"{top}.{home[0]}")
    value = getattr(module, home[1]) if home[1] else module
    setattr(sys.modules[top + within], name, value)
    return value
