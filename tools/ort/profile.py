"""Recording of a session's runs, written as ONNX Runtime writes its profiles."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import datetime
from typing import Any

import numpy as np

from ...ops import DType
from ...runtime.compile.kernel import anchor
from ...runtime.files import replace_file
from .providers import CPU


class RunTimes:
    """The times of steps and runs, in the Trace Event Format: an event of the category `Session` for the start and for
    each run, one of `Node` for each step. Times are microseconds from the beginning of the recording."""

    def __init__(self, begun: int, provider: str, host: str) -> None:
        self.begun, self.provider, self.host = begun, provider, host  # the first provider; a device beside it, if any
        self.events: list[dict[str, Any]] = []
        self._step = threading.local()

    def session(self, name: str, begun: int) -> None:
        """Add something that the session did from `begun` until now, of `time.monotonic_ns()`."""
        self._add("Session", name, begun, time.monotonic_ns(), {})

    def __call__(self, phase: str, index: int, step: Any, instance: Any) -> None:
        """Told by programs before and after each step (runtime.execution.observers)."""
        if phase == "before":
            self._step.read = _listed(instance, step.node.inputs)
            self._step.at = time.monotonic_ns()
            return
        ended, node = time.monotonic_ns(), step.node
        (_, op), written = anchor(node), _listed(instance, node.outputs)
        chain = [link[1] for link in node.attrs.get("chain", ())] if node.op == "Fused" else [op]
        weights = [a for n, a in self._step.read if n in instance.program.weights]
        others = [a for n, a in self._step.read if n not in instance.program.weights]
        about = {
            "op_name": op,
            "provider": CPU if self.host and node.device == self.host else self.provider,
            "node_index": str(index),
            "input_type_shape": _types(self._step.read),
            "output_type_shape": _types(written),
            "activation_size": _bytes(others),
            "parameter_size": _bytes(weights),
            "output_size": _bytes([a for _, a in written]),
            "operators": "+".join(chain),
            "kernel": step.choice.kernel,
            "implementation": step.choice.implementation,
            "where": node.place,
        }
        self._add("Node", f"{node.name or op}_kernel_time", self._step.at, ended, about)

    def _add(self, category: str, name: str, begun: int, ended: int, about: dict[str, Any]) -> None:
        self.events.append(
            {
                "cat": category,
                "pid": os.getpid(),
                "tid": threading.get_native_id(),
                "dur": (ended - begun) // 1000,
                "ts": (begun - self.begun) // 1000,
                "ph": "X",
                "name": name,
                "args": about,
            }
        )

    def write(self, prefix: str) -> str:
        """Write a file of its own, an event to a line, and return its path."""
        path = f"{prefix}_{datetime.now():%Y-%m-%d_%H-%M-%S_%f}_{os.getpid()}.json"
        replace_file(path, [b"[\n", ",\n".join(map(json.dumps, self.events)).encode(), b"\n]\n"])
        return path


def _listed(instance: Any, names: Any) -> list[tuple[str, Any]]:
    """The arrays of these values that are there."""
    values = ((n, instance.arrays.get(n)) for n in names if n)
    return [(n, a) for n, a in values if isinstance(a, np.ndarray)]


def _types(arrays: list[tuple[str, Any]]) -> list[dict[str, list[int]]]:
    return [{DType.of(a.dtype).name.lower(): list(a.shape)} for _, a in arrays]


def _bytes(arrays: list[Any]) -> str:
    return str(sum(int(a.nbytes) for a in arrays))
