"""Is a model covered? The static part: every operator of the file against what is carried."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ..importers import load_onnx, operators_of
from ..ops.budget import Budget
from ..ops.errors import MezzoError, UnsupportedModel
from ..runtime.file import is_mezzo, open_file
from .report import Report, Table

GOOD, MISSING, BAD_FILE = 0, 1, 3


def check(path: Path, budget: Budget | None = None) -> tuple[Report, int]:
    """Report on a model file and give the exit code: 0 covered, 1 something is missing, 3 the file is bad."""
    limits = budget or Budget()
    if is_mezzo(path):
        return _check_mezzo(path, limits)
    try:
        used = operators_of(path, budget=limits)
    except MezzoError as error:
        return Report(str(path), {"status": "bad file", "problem": str(error)}), BAD_FILE
    table = Table(
        "Operators",
        ("domain", "operator", "opset", "nodes", "covered", "what to do"),
        [(u.domain or "ai.onnx", u.op, u.opset, u.count, "no" if u.problem else "yes", u.hint) for u in used],
    )
    facts: dict[str, object] = {"operators": len(used), "nodes": sum(u.count for u in used)}
    missing = [u for u in used if u.problem]
    try:
        load_onnx(path, budget=limits)
    except UnsupportedModel as error:
        return Report(str(path), {"status": "not covered", **facts, "problem": str(error)}, (table,)), MISSING
    except MezzoError as error:
        return Report(str(path), {"status": "bad file", **facts, "problem": str(error)}, (table,)), BAD_FILE
    status = "not covered" if missing else "covered"
    return Report(str(path), {"status": status, **facts}, (table,)), MISSING if missing else GOOD


def _check_mezzo(path: Path, limits: Budget) -> tuple[Report, int]:
    """The same of a `.mezzo` file, whose operators are carried if it can be opened."""
    try:
        opened = open_file(path, limits)
    except UnsupportedModel as error:
        return Report(str(path), {"status": "not covered", "problem": str(error)}), MISSING
    except MezzoError as error:
        return Report(str(path), {"status": "bad file", "problem": str(error)}), BAD_FILE
    uses = Counter((n.domain, n.op) for _, n in opened.graph.walk())
    versions = opened.about.vocabulary
    rows = [(d or "ai.onnx", op, versions.get(d), count, "yes", "") for (d, op), count in uses.items()]
    table = Table("Operators", ("domain", "operator", "opset", "nodes", "covered", "what to do"), rows)
    return Report(str(path), {"status": "covered", "operators": len(uses), "nodes": sum(uses.values())}, (table,)), GOOD
