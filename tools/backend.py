"""Mezzo as an ONNX backend: the interface that `onnx.backend.test` and other callers use.

https://onnx.ai/onnx/repo-docs/ImplementingAnOnnxBackend.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.shape_inference
from onnx.backend.base import Backend as BaseBackend
from onnx.backend.base import BackendRep

from ..importers import load_onnx
from ..ops.errors import InputError, MissingPackage
from ..ops.types import Array, DType
from ..runtime.devices import device_named
from ..runtime.execution.session import Session


class Representation(BackendRep):
    """A prepared model: `run(inputs)` takes and returns positional lists."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """The outputs in order; sequences are lists, empty optionals None.

        `inputs` is a list (as long as the model's inputs, or as those without a default), a dict by name, or one
        array. Raises InputError where they do not fit.
        """
        return tuple(self.session.run(self._feeds(inputs)).values())

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        graph = self.session.graph
        names = graph.inputs
        if len(given) < len(names):
            names = tuple(n for n in names if n not in graph.initializers)
        if len(given) != len(names):
            raise InputError(
                f"{len(given)} inputs given, the model takes {len(names)}",
                where=graph.name,
                hint=f"give {', '.join(names) or 'an empty list'}, in this order",
            )
        return dict(zip(names, given, strict=True))


class Backend(BaseBackend):
    """The official interface. It declines no model; one that is not supported fails with a MezzoError.

    Operators with a `seed` draw NumPy's numbers here, as the stored answers of the official suite do.

    >>> node = onnx.helper.make_node("Add", ["a", "b"], ["c"])
    >>> Backend.run_node(node, [np.ones(2, np.float32), np.float32(1)])
    (array([2., 2.], dtype=float32),)
    """

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:
        """Always: a model that cannot be run fails in `prepare`, with the reason."""
        return True

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True if models run on the device of this ONNX name (`CPU`, `CUDA`, `CUDA:1`)."""
        kind, _, index = device.partition(":")
        if kind != "CUDA" or not (index or "0").isdecimal():
            return kind == "CPU"
        try:
            return bool(device_named(f"gpu:{index or 0}").sm)
        except MissingPackage:
            return False

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", *, onednn: bool = True, **_: Any) -> Representation:
        """Load a model; `onednn=False` leaves it to NumPy. Raises ModelError, UnsupportedModel, ShapeError or
        BudgetError as `mezzo.load` does."""
        if not cls.supports_device(device):
            raise InputError(f"there is no device {device!r} here", where="Backend.prepare", hint="device='CPU'")
        kind, _separator, index = device.partition(":")
        on = "cpu" if kind == "CPU" else f"gpu:{index or 0}"
        return Representation(Session(load_onnx(model), device=on, random="numpy", instances=1, onednn=onednn))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator on tensors. `opset_version` is the opset of the node (default: the newest).

        Raises the errors of `prepare` and `run`.
        """
        arrays = {n: np.asarray(x) for n, x in zip(filter(None, node.input), inputs, strict=True)}
        graph = onnx.helper.make_graph([node], "node", [_info(n, x) for n, x in arrays.items()], [])
        opset = onnx.helper.make_opsetid(node.domain, kwargs.pop("opset_version", None) or _newest(node.domain))
        model = onnx.helper.make_model(graph, opset_imports=[opset])
        inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
        known = {i.name: i for i in inferred}
        for index, name in enumerate(node.output):
            if name in known:
                model.graph.output.append(known[name])
            elif name:
                info = outputs_info[index] if outputs_info else (next(iter(arrays.values()), np.float32()).dtype, None)
                kind = DType.of(info[0]).onnx
                model.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, info[1]))
        return cls.run_model(model, arrays, device, **kwargs)


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, DType.of(array.dtype).onnx, array.shape)


def _newest(domain: str) -> int:
    return max((s.since_version for s in onnx.defs.get_all_schemas() if s.domain == domain), default=1)
