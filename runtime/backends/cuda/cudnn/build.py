"""Conversion of drafts to cuDNN graphs: the only module that knows the methods of operations and the descriptors of
tensors."""

from __future__ import annotations

from typing import Any

from .....ops import DType
from .draft import ARGUMENTS, GraphDraft, GraphNode, GraphRefused, GraphTensor, Value

MOST = 160  # characters of what cuDNN says
# what its errors have in them, without underscores, that come again for the same graph
LASTING = ("NOTSUPPORTED", "BADPARAM", "INVALIDVALUE", "INVALID VALUE", "NO VALID", "SHAPE", "NOT SUPPORTED")
_TYPES = {DType.FLOAT: "FLOAT", DType.FLOAT16: "HALF", DType.BFLOAT16: "BFLOAT16", DType.DOUBLE: "DOUBLE"}


def uids(draft: GraphDraft) -> dict[int, GraphTensor]:
    """The number by which a call names each tensor."""
    return dict(enumerate(draft.all, start=1))


def graph_of(module: Any, draft: GraphDraft, properties: Any, sm: int) -> Any:
    """The draft as a validated graph. Raises Refused with cuDNN's words where it cannot be one."""
    kind = module.data_type
    types = {dtype: getattr(kind, name) for dtype, name in _TYPES.items()}
    wide = types[draft.wide]
    graph = module.pygraph(
        io_data_type=types[draft.result.dtype],
        intermediate_data_type=wide,
        compute_data_type=wide,
        device_property=properties,
        sm_version=sm,
    )
    tensors = [
        graph.tensor(name=f"t{uid}", uid=uid, dim=list(o.sizes), stride=list(o.strides), data_type=types[o.dtype])
        for uid, o in uids(draft).items()
        if o is not draft.result
    ]
    results: list[Any] = []
    for node in draft.nodes:
        inputs = [_value(module, graph, v, tensors, results) for v in node.inputs]
        results.append(_result(graph, node, inputs))
    last, result = results[-1], draft.result
    last.set_output(True).set_data_type(types[result.dtype]).set_uid(len(draft.all))
    last.set_dim(list(result.sizes)).set_stride(list(result.strides))
    try:
        graph.validate()
        graph.build_operation_graph()
    except Exception as error:  # cuDNN raises errors of its own and RuntimeError
        raise refusal(error) from error
    return graph


def _value(module: Any, graph: Any, value: Value, tensors: list[Any], results: list[Any]) -> Any:
    if isinstance(value, float):
        return graph.tensor_scalar(value, module.scalar_type.COMPILE_TIME_CONST)
    return tensors[value] if value >= 0 else results[~value]


def _result(graph: Any, node: GraphNode, inputs: list[Any]) -> Any:
    settings: dict[str, Any] = {a: list(v) if isinstance(v, tuple) else v for a, v in node.settings}
    outputs = getattr(graph, node.op)(**dict(zip(ARGUMENTS[node.op], inputs, strict=False)), **settings)
    result = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
    if node.op in ("conv_dgrad", "conv_wgrad"):  # several sizes of the result would fit
        result.set_dim(list(node.sizes))
    return result


def create_plans(module: Any, graph: Any, draft: GraphDraft) -> list[str]:
    """Let the heuristics name plans, best first; those that the draft forbids will not build. Raises Refused where
    there are none."""
    notes = module.numerical_note
    barred = [notes.NONDETERMINISTIC]
    if draft.math == "strict":
        barred.append(notes.DOWN_CONVERT_INPUTS)
        if draft.operands[0].dtype is DType.FLOAT:
            barred.append(notes.TENSOR_CORE)  # whose float32 is TF32
    if draft.wide is not draft.result.dtype:
        barred.append(notes.REDUCED_PRECISION_REDUCTION)
    try:
        graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])
        graph.deselect_numeric_notes(barred)
    except Exception as error:
        raise refusal(error) from error
    return [str(graph.get_plan_name_at_index(i)) for i in range(graph.get_execution_plan_count())]


def refusal(error: Exception) -> GraphRefused:
    """What cuDNN says, as a refusal: for good where it says that it does not support the graph, or that the graph is
    wrong."""
    refused = GraphRefused(words(error))
    said = f"{type(error).__name__} {error}".upper().replace("_", "")
    refused.for_now = not any(word in said for word in LASTING)
    return refused


def words(error: Exception) -> str:
    """The beginning of what cuDNN says: it goes on for pages."""
    said = " ".join(str(error).split())
    return said if len(said) <= MOST else f"{said[:MOST]}..."
