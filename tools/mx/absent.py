"""Names of MXNet's that are not there, and what to do: by module, `""` for `mx` itself."""

from __future__ import annotations

from types import ModuleType
from typing import Any

ABSENT: dict[str, dict[str, str]] = {
    "": {
        "mon": "bind symbol.get_internals() to look at what is computed inside",
        "monitor": "bind symbol.get_internals() to look at what is computed inside",
        "np": "use mx.nd, or mz.nd, which is in NumPy's style",
        "npx": "use mx.nd, or mz.nd, which is in NumPy's style",
        "engine": "leave it out: a program is planned ahead",
        "rtc": "register an operator with mz.op or mz.pointwise",
    },
    "mod": {
        "SequentialModule": "compose the symbols, second(data=first), and give one Module",
        "PythonModule": "write the network as a gluon.Block",
        "PythonLossModule": "write the loss as a symbol with sym.MakeLoss, or as a gluon loss",
    },
    "sym": {"Custom": "write a gluon.Block with nd.Custom, or an operator with mz.op"},
    "rnn": {
        "FusedRNNCell": "use gluon.rnn.LSTM, GRU or RNN, or sym.RNN",
        "save_rnn_checkpoint": "use model.save_checkpoint with cells that are not fused",
        "load_rnn_checkpoint": "use model.load_checkpoint with cells that are not fused",
        "do_rnn_checkpoint": "use callback.do_checkpoint with cells that are not fused",
    },
    "optimizer": {
        "LBSGD": "use LARS, or SGD with a schedule that warms up",
    },
    "image": {"ImageIter": "use io.ImageRecordIter or mz.data", "CreateAugmenter": "use gluon.data.vision.transforms"},
    "io": {"LibSVMIter": "read the file into an array and give it to io.NDArrayIter"},
    "metric": {"PCC": "use metric.MCC for two classes, or metric.CustomMetric"},
    "gluon": {"contrib": "use mz.gluon.fit in place of the Estimator; its layers are not there"},
}


def refuse(module: str, name: str) -> None:
    """Raises AttributeError for a name that is known to be missing."""
    if name in ABSENT.get(module, {}):
        whole = ".".join(filter(None, ("mx", module, name)))
        raise AttributeError(f"{whole} is not there: {ABSENT[module][name]} (docs/from-mxnet.md, 'What differs')")


def refusing(target: ModuleType, module: str) -> None:
    """Let a module say what to do in place of the names that it has not."""
    before: Any = vars(target).get("__getattr__")

    def missing(name: str) -> Any:
        refuse(module, name)
        if before is None:
            raise AttributeError(f"module {target.__name__!r} has no attribute {name!r}")
        return before(name)

    target.__getattr__ = missing  # type: ignore[method-assign]


def front(name: str) -> None:
    """`__getattr__` of `mx` itself."""
    refuse("", name)
    raise AttributeError(f"module 'mezzo.compat.mxnet' has no attribute {name!r}")


__all__ = ["ABSENT", "front", "refusing"]
