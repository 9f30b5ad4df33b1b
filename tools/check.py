"""`mezzo check` of one model file: does it run, train and export, and are its numbers right?"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..exporters import expressible
from ..importers import OutOfOrder, first_bytes, is_mxnet, load_graph, load_onnx, mxnet, operators_of
from ..ops.budget import Budget
from ..ops.dataclasses import dataclass, field, replace
from ..ops.errors import MezzoError, UnsupportedModel
from ..ops.types import differentiable
from ..runtime.backends.cuda.host import host_fallbacks
from ..runtime.devices import device_named
from ..runtime.execution.session import Session
from ..runtime.file import is_mezzo, open_file
from ..runtime.ir.graph import Graph
from ..runtime.ir.infer import infer
from ..runtime.passes import modes
from ..train.learning import learning, says
from ..train.prepare import prepared
from .check_options import AS_IT_IS, FOLDED, Options
from .feeds import parse_sizes
from .fills import first_that_runs
from .modules import imported
from .report import Table
from .verdict import MISSING, Problem, Verdict, file_problems, problems_of

OPERATORS = ("domain", "operator", "opset", "nodes", "covered", "what to do")


def check(path: Path, options: Options = AS_IT_IS, budget: Budget | None = None) -> Verdict:
    """Check one model file; whatever is wrong with it is in the verdict, and nothing is raised for it."""
    at = perf_counter()
    imported(options.modules)  # in each process that checks
    findings = _Findings(Budget.of(budget))
    graph = _opened(path, findings)
    if graph is not None:
        _statically(graph, options, findings)
    trip = options.round_trip if options.round_trip is not None else options.against is not None
    sound = not any(p.part in ("file", "run", "device") for p in findings.problems)
    if graph is not None and sound and (options.against or options.record or trip):
        from .numbers import Numbers

        numbers = Numbers(path, graph, options, findings.budget)
        for part in numbers.check(round_trip=trip):
            findings.parts[part.name] = part.said
            findings.problems += part.problems
            findings.tables += part.tables
        findings.facts |= numbers.facts
    seconds = round(perf_counter() - at, 3)
    return Verdict(str(path), findings.parts, tuple(findings.problems), findings.facts, tuple(findings.tables), seconds)


@dataclass(slots=True)
class _Findings:
    budget: Budget
    parts: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[Problem] = field(default_factory=list[Problem])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    tables: list[Table] = field(default_factory=list[Table])

    @contextmanager
    def part(self, name: str, good: str) -> Iterator[None]:
        """Do a part of the check: `good` is said of it, unless it raises."""
        self.parts[name] = good
        try:
            yield
        except MezzoError as error:
            self.problems += problems_of(error, name, MISSING)


def _opened(path: Path, findings: _Findings) -> Graph | None:
    """The graph of a file, if it is one that can be run."""
    findings.parts["file"] = "valid"
    try:
        read = _mezzo if is_mezzo(path) else _mxnet if is_mxnet(first_bytes(path)) else _onnx
        graph = read(path, findings)
        # what a run would say of operands that do not fit, without computing anything large
        limits = replace(findings.budget, fold_elements=min(FOLDED, findings.budget.fold_elements))
        infer(graph, budget=limits)
    except MezzoError as error:
        findings.problems += file_problems(error)
        return None
    findings.parts["run"] = "covered"
    return graph  # as it stands in the file: what is exported has the types of the file


def _mezzo(path: Path, findings: _Findings) -> Graph:
    opened = open_file(path, findings.budget)
    graph, versions = opened.graph, opened.about.vocabulary
    uses = Counter((n.domain, n.op) for _, n in graph.walk())
    _tell(findings, [(d or "ai.onnx", op, versions.get(d), count, "yes", "") for (d, op), count in uses.items()])
    return graph


def _mxnet(path: Path, findings: _Findings) -> Graph:
    hint = "write that part with other operators, and save the symbol again"
    used = mxnet.operator_uses(path, findings.budget)
    _tell(findings, [("mxnet", n, None, count, "yes" if known else "no", "" if known else hint)
                  for n, (count, known) in used.items()])  # fmt: skip
    return load_graph(path, budget=findings.budget)


def _onnx(path: Path, findings: _Findings) -> Graph:
    used = operators_of(path, budget=findings.budget)
    _tell(
        findings, [(u.domain or "ai.onnx", u.op, u.opset, u.count, "no" if u.problem else "yes", u.hint) for u in used]
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OutOfOrder)
        graph = load_onnx(path, budget=findings.budget)
    if caught:
        findings.facts["order"] = "; ".join(str(warning.message) for warning in caught)
    return graph


def _tell(findings: _Findings, rows: list[tuple[Any, ...]]) -> None:
    """The operators, for people to look through."""
    opsets = {row[0]: row[2] for row in rows if row[2] is not None}
    findings.facts["opset"] = ", ".join(f"{d} {v}" for d, v in opsets.items())
    findings.facts |= {"operators": len(rows), "nodes": sum(row[3] for row in rows)}
    findings.tables.append(Table("Operators", OPERATORS, rows))


def _statically(graph: Graph, options: Options, findings: _Findings) -> None:
    """The parts of the check that compute nothing."""
    with findings.part("device", options.device):
        _check_device(graph, options.device)
        if options.device.startswith("gpu:"):
            findings.parts["device"] = _planned_on_gpu(graph, options, findings)
    if options.train:
        with findings.part("train", "covered"):
            _check_training(graph, findings)
    if options.opset is not None:
        with findings.part("export", f"opset {options.opset}"):
            expressible(graph, opset=options.opset)
    try:
        findings.facts["lowest_opset"] = expressible(graph)
    except MezzoError as error:  # said here, and only a problem to whoever wants to export
        findings.facts["lowest_opset"] = f"none: {error.message.splitlines()[0]}"


def _check_device(graph: Graph, name: str) -> None:
    """Raise MissingPackage for a device that is not there, and UnsupportedModel naming the nodes that no kernel of it
    serves, and that no standard operators stand for."""
    if name.startswith("gpu:"):
        return  # what has no kernel there runs on the host, and is listed
    kernels = device_named(name).target.kernels
    parts = [
        UnsupportedModel(f"{node.op} has no kernel on {name}", where=node.place, hint="place it on the CPU")
        for _, node in graph.walk()
        if node.record.body_rule is None and not any(k.serves(node) for k in kernels)
    ]
    if parts:
        raise UnsupportedModel(f"{len(parts)} nodes have no kernel on {name}", where=graph.name, parts=parts)


def _planned_on_gpu(graph: Graph, options: Options, findings: _Findings) -> str:
    """Plan for a GPU, with what --dim says and chosen sizes for others; the steps that would run on the host."""
    from ..runtime.devices import plannable  # with all kernels of GPUs

    name, missing = plannable(options.device)
    session = Session(graph, device=name, budget=findings.budget)
    _, program = first_that_runs(
        session,
        parse_sizes(options.sizes),
        options.seed,
        lambda feeds: session.warmup({n: np.shape(a) for n, a in feeds.items()}),
    )
    steps = host_fallbacks(program)
    findings.facts["gpu_steps"] = len(program.steps) - len(steps)
    findings.facts["host_steps"] = len(steps)
    rows = [(a.step.node.op, a.step.node.name, a.reason, str(a.copies)) for a in steps]
    if rows:
        findings.tables.append(Table("On the host", ("operator", "node", "why", "copies"), rows))
    where = f"planned for sm_{program.target.sm} ({missing})" if missing else options.device
    return f"{where}; {len(steps)} of {len(program.steps)} steps on the host"


def _check_training(graph: Graph, findings: _Findings) -> None:
    """Ask which weights learn by gradients of all outputs; raises UnsupportedModel naming the places that block."""
    limits = replace(findings.budget, fold_elements=FOLDED)
    graph = infer(prepared(graph), budget=limits)
    judged = infer(modes.training(graph), budget=limits)
    outputs = [o for o in judged.outputs if differentiable(judged.types[o])]
    learns = learning(graph, judged, outputs)
    rows = [(n, "overlooked" if n in learns.overlooked else "left out", why) for n, why in learns.frozen.items()]
    if rows:
        findings.tables.append(Table("What does not learn", ("initialiser", "", "why"), rows))
    lost = [*says(graph)]
    if lost:
        findings.tables.append(Table("What the file has lost for training", ("what",), [(text,) for text in lost]))
    if not learns.trained:
        raise UnsupportedModel(
            "none of its outputs is a floating tensor" if not outputs else "none of its floats is a weight that learns",
            where=graph.name,
            hint="train the float model that this one was made of",
        )
    findings.facts["weights_to_train"] = len(learns.trained)
    findings.facts["elements_to_train"] = sum(graph.initializers[n].size for n in learns.trained)
