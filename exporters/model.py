"""A graph as a ModelProto: chooses opset and IR version, writes nodes at that opset, and operators of ours as
functions."""

from __future__ import annotations

import numpy as np
import onnx

from ..ops import DType
from ..ops.types import Array
from ..runtime.ir.graph import DOMAIN, MODEL_VERSION, Graph
from ..runtime.version import __version__
from .fit import fit
from .lower import SCHEMATA, is_composed
from .parts import Part, Parts
from .proto import tensor
from .target import Chosen, check_graph, check_target, has_functions
from .write import PartWriter, Store, function_proto


def to_model(
    graph: Graph,
    *,
    opset: int | None = None,
    ir_version: int | None = None,
    standard: bool = False,
    store: Store = tensor,
) -> onnx.ModelProto:
    """See `mezzo.exporters.to_onnx`. `store` turns an initialiser into a TensorProto."""
    check_graph(graph)
    check_target(opset, ir_version)
    top = Part.of(graph)
    fit(top)
    parts = Parts(top, functions_wanted=has_functions(opset, ir_version) and not standard)
    parts.resolve(lambda n: is_composed(n) or (standard and n.domain not in SCHEMATA))
    chosen = Chosen(parts, opset)
    while chosen.misfits:  # what the chosen opset does not have
        parts.resolve(chosen.is_misfit)
        chosen = Chosen(parts, opset)
    chosen.refuse()
    chosen.choose_ir(ir_version)
    model = onnx.ModelProto(producer_name="mezzo", producer_version=__version__, doc_string=graph.doc)
    for domain, version in chosen.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    model.ir_version = chosen.ir_version
    model_version = graph.metadata.get(MODEL_VERSION, "")
    model.domain = graph.metadata.get(DOMAIN, "")
    if model_version.isdecimal():
        model.model_version = int(model_version[:18])
    for key, value in graph.metadata.items():
        if key not in (DOMAIN, MODEL_VERSION):
            model.metadata_props.add(key=key, value=value)
    PartWriter(chosen, parts.top, store).fill(model.graph, parts.top.graph)
    model.functions.extend(function_proto(chosen, f) for f in parts.made())
    return model


def opset_for(graph: Graph, opset: int | None, *, ir_version: int | None, standard: bool) -> int:
    """See `mezzo.exporters.expressible`."""

    def declared(name: str, array: Array) -> onnx.TensorProto:  # of weights only their types matter here
        return onnx.TensorProto(name=name, data_type=DType.of(np.asarray(array).dtype).onnx, dims=np.shape(array))

    model = to_model(graph, opset=opset, ir_version=ir_version, standard=standard, store=declared)
    return next(int(o.version) for o in model.opset_import if not o.domain)
