"""Trials of one-node models: run, train and export each, and compare with independent runtimes.

ONNX Runtime and ONNX's reference evaluator are asked here as referees; neither ever computes for a user of ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference

from ..exporters import to_onnx
from ..importers import load_onnx
from ..ops import DType, Tensor
from ..ops.dataclasses import dataclass, field, replace
from ..ops.errors import MezzoError, UnsupportedModel
from ..runtime.compile.program import Program
from ..runtime.execution.session import Session
from ..runtime.ir.graph import Graph
from ..runtime.ir.infer import infer
from ..runtime.ir.interpreter import evaluate
from . import finite
from .compare_models import NEWEST
from .differs import EVALUATOR, RUNTIME
from .gaps import Tolerance, gap
from .numbers import draws
from .one_node import FIRST_EXPORTED, OneNode, any_schema

FAMILIES = {"onednn": "oneDNN", "cudnn": "cuDNN", "numpy.pointwise": "generated", "numpy.update": "generated"}
NOT_OURS = "the reference of the operator says otherwise"
PLAIN = "none"  # memory plan of programs that run once
MOVED = 6  # elements of each input that are moved for finite differences; tests/test_gradients.py moves more
DECIDED = 13  # the opset from which on the reference evaluator is right by definition


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of the trial of a model. Each part is empty on success, else the reason of the failure; None where there
    is nothing to try. `judges` are the reference runtimes that agreed."""

    run: str
    train: str | None = None
    export: str | None = None
    kernels: frozenset[str] = frozenset()
    judges: frozenset[str] = frozenset()


@dataclass(slots=True)
class Known:
    """Cache of gradient checks by finite differences: success, or the reason of the failure, by what was
    differentiated."""

    gradients: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict[str, tuple[dict[str, Any], str]])


def tried(one_node: OneNode, device: str, known: Known | None) -> Trial:
    """Import a model and run it; with `known` export and differentiate it too."""
    graph = one_node.graph
    with quiet():
        try:
            read = load_onnx(one_node.model)
            session = Session(read, device=device)
            ys = list(session.run(one_node.feeds).values())
        except MezzoError as error:
            return Trial(run=f"does not run: {error.message}")
        tolerance = _tolerance(graph)
        random = any(draws(n) for _, n in graph.walk())
        kernels = frozenset(_kernels(session.program))
        if random:
            wrong, judges = _of_other_types(graph, ys), frozenset[str]()
        else:
            mine = list(evaluate(graph, one_node.given).values())
            apart = gap(ys, mine, tolerance)
            wrong = "" if apart.agrees else f"{NOT_OURS}: {apart}"
            judges, against = _judged(one_node, ys, tolerance)
            wrong = wrong or ("" if judges or not against else "; ".join(against))
        if known is None:
            return Trial(wrong, kernels=kernels, judges=judges)
        exported = _exported(one_node, read, ys, device, None if random else tolerance)
        try:
            trained = None if random else _trained(infer(read), one_node.feeds, device, known)
        except Exception as error:  # one bad operator is a line of the table, not its end
            trained = f"{type(error).__name__}: {error}"
    return Trial(wrong, trained, exported, kernels, judges)


@contextmanager
def quiet() -> Iterator[None]:
    """Numbers at the ends of their types are meant here."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def _tolerance(graph: Graph) -> Tolerance:
    return Tolerance().within({t.dtype for t in graph.types.values() if isinstance(t, Tensor)})


def _of_other_types(graph: Graph, ys: list[Any]) -> str:
    """Return the error of random results, of which only element types can be checked."""
    types = [graph.types[o] for o in graph.outputs]
    wrong = [t for t, y in zip(types, ys, strict=True) if isinstance(t, Tensor) and DType.of(y.dtype) is not t.dtype]
    return f"the result is no {wrong[0]}" if wrong else ""


def _kernels(program: Program) -> Iterator[str]:
    """The families of the kernels that a program chose."""
    for step in program.steps:
        name = step.choice.kernel
        family = name.partition(".")[0]
        yield FAMILIES.get(name) or FAMILIES.get(family) or ("reference" if step.choice.allocates else "NumPy")
        for body in step.bodies.values():
            yield from _kernels(body)


# Referees


def _judged(one_node: OneNode, ys: list[Any], tolerance: Tolerance) -> tuple[frozenset[str], list[str]]:
    """The referee that agrees, and what those say that do not. The second is asked where the first does not agree."""
    against = list[str]()
    for name, ask in ((RUNTIME, _runtime), (EVALUATOR, _evaluator)):
        if name in one_node.unasked:
            continue
        theirs = None
        with suppress(Exception):  # whatever a referee raises, it is no judge of this model
            theirs = ask(one_node)
        if theirs is None:
            continue
        apart = gap(ys, theirs, tolerance)
        if apart.agrees:
            return frozenset({name}), against
        if _as_declared(one_node, theirs):
            against.append(f"{name} says otherwise: {apart}")
    return frozenset(), against


def _as_declared(one_node: OneNode, results: list[Any]) -> bool:
    """True if the results have the types that ONNX's own inference gives them; a runtime whose results have not is no
    judge."""
    inferred = onnx.shape_inference.infer_shapes(one_node.model, check_type=True).graph.output
    return all(_has_type(o.type, y) for o, y in zip(inferred, results, strict=True))


def _has_type(kind: onnx.TypeProto, y: Any) -> bool:
    if kind.HasField("optional_type"):
        return y is None or _has_type(kind.optional_type.elem_type, y)
    if kind.HasField("sequence_type"):
        return isinstance(y, list) and all(_has_type(kind.sequence_type.elem_type, v) for v in y)
    if kind.HasField("tensor_type"):
        return isinstance(y, np.ndarray | np.generic) and DType.of(y.dtype).onnx == kind.tensor_type.elem_type
    return True


def _runtime(one_node: OneNode) -> list[Any] | None:
    """ONNX Runtime, for what it has in Python; without elements it may end the process."""
    import onnxruntime as ort

    kinds = [t for t in one_node.graph.types.values() if isinstance(t, Tensor)]
    if any(o.version > NEWEST[0] for o in one_node.model.opset_import if not o.domain) or any(
        t.elements == 0 or (t.dtype is not DType.STRING and t.dtype.numpy.isbuiltin != 1) for t in kinds
    ):
        return None
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(one_node.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[Any] = session.run(None, one_node.feeds)
    return results


def _evaluator(one_node: OneNode) -> list[Any] | None:
    from onnx.reference import ReferenceEvaluator

    if one_node.opset < DECIDED:
        return None
    return list(ReferenceEvaluator(one_node.model).run(None, one_node.feeds))


# Export


def _exported(one_node: OneNode, read: Graph, ys: list[Any], device: str, tolerance: Tolerance | None) -> str | None:
    """Out at the same opset and in again; None below the opsets that are written."""
    node, opset = one_node.node, one_node.opset
    if not node.domain and opset < FIRST_EXPORTED:
        return None
    try:
        out = to_onnx(read, opset=None if node.domain else opset)
        since = {o.domain: o.version for o in out.opset_import}.get(node.domain, 0)
        if since != opset and _since(node, since) != _since(node, opset):
            return f"is written at opset {since} alone"
        onnx.checker.check_model(out)
        again = list(Session(load_onnx(out), device=device, strategy=PLAIN).run(one_node.feeds).values())
    except MezzoError as error:
        return f"cannot be written: {(error.parts or (error,))[0].message}"
    except onnx.checker.ValidationError as error:
        return f"onnx.checker refuses what is written: {str(error).splitlines()[0]}"
    apart = gap(again, ys, tolerance) if tolerance is not None else None
    return "" if apart is None or apart.agrees else f"is another one after export and import: {apart}"


def _since(node: onnx.NodeProto, opset: int) -> int:
    schema = any_schema(node.domain, node.op_type, opset)
    return int(schema.since_version) if schema is not None else 0


# Training


def _trained(graph: Graph, feeds: Mapping[str, Any], device: str, known: Known) -> str | None:
    """The gradients in float64 against finite differences, and those that a session computes in the types of the
    model against them; None where there are no floats, or a derivative that is zero."""
    if not all(finite.ends(graph)):
        return None
    try:
        c = finite.case_of(graph, feeds)
    except (MezzoError, ValueError, TypeError):  # it exists in the types of the sample alone
        c = None
    if c is not None:
        c = replace(c, wrt=tuple(n for n in c.wrt if _is_double(c.feeds[n]) and not _is_given(c.graph, n)))
    if c is None or not c.wrt:
        return None
    key = f"{[str(n) for n in c.graph.nodes]} {c.graph.initializers} {c.feeds}"
    if key not in known.gradients:
        known.gradients[key] = _exact(c)
    exact, wrong = known.gradients[key]
    if wrong or not exact:
        return wrong or None
    backwards = finite.differentiated(graph, c.dys, tuple(exact))
    dys = {f"grad/dy {o}": _typed(dy, graph.types[o]) for o, dy in c.dys.items()}
    results = Session(backwards, device=device, strategy=PLAIN).run({**feeds, **dys})
    bits = [DType.of(x.dtype).bits for v in (*feeds.values(), *dys.values()) for x in finite.leaves(v)
            if isinstance(x, np.ndarray) and x.dtype.kind in "fV"]  # fmt: skip
    near = {64: 1e-6, 32: 1e-4, 16: 3e-2}.get(min(bits), 0.5)
    for name, dx in exact.items():
        for a, b in zip(finite.leaves(results[f"grad/dx {name}"]), finite.leaves(dx), strict=True):
            finite_ones = np.isfinite(b)
            off = np.abs(a.astype(np.float64) - b)[finite_ones].max(initial=0)
            if not off <= near * max(1e-3, float(np.abs(b[finite_ones]).max(initial=0))):
                return f"the gradient to {name} is {off:.1e} off"
    return ""


def _exact(c: finite.Case) -> tuple[dict[str, Any], str]:
    """Gradients by name of input, and what is wrong with them; none where all are zero."""
    try:
        slopes = finite.by_graph(c, c.graph)
    except UnsupportedModel:
        return {}, "" if _is_flat(c) else "has no derivative"
    for name in c.wrt:
        if finite.disagreement(c, slopes, name, finite.numeric(c.graph, c.feeds, c.dys, name, MOVED)):
            return {}, f"the gradient to {name} is not that of finite differences"
    return slopes, ""


def _is_flat(c: finite.Case) -> bool:
    """True if the derivative is zero wherever it exists. False if the outputs depend on exact values of the inputs."""
    try:
        slopes = [pair for n in c.wrt for pair in finite.numeric(c.graph, c.feeds, c.dys, n, MOVED)]
    except (MezzoError, ValueError):
        return False
    return all(not slope[known].any() for slope, known in slopes)


def _is_given(graph: Graph, name: str) -> bool:
    """True if only operators that have, on purpose, no gradient for this input read it."""
    reading = [(n.op, n.inputs.index(name)) for n in graph.nodes if name in n.inputs]
    return bool(reading) and all(r in finite.NOT_TO for r in reading)


def _is_double(value: Any) -> bool:
    """True if all values are float64, so that finite differences can resolve them (8-bit numbers move in leaps)."""
    return all(x.dtype == np.float64 for x in finite.leaves(value))


def _typed(value: Any, kind: Any) -> Any:
    while not isinstance(kind, Tensor):
        kind = kind.element
    return [_typed(v, kind) for v in value] if isinstance(value, list) else value.astype(kind.dtype.numpy)
