"""Results of `mezzo check` as SARIF 2.1.0, which code hosts show beside the files.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ..runtime.version import __version__
from .check_baseline import digest
from .verdict import STATUS, Problem, Verdict

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(verdicts: Sequence[Verdict]) -> str:
    """One run with a result for each problem: `unchanged` for those that are known, which do not fail."""
    parts = sorted({p.part for v in verdicts for p in v.problems})
    rules = [{"id": _rule(part), "shortDescription": {"text": f"mezzo check: {part}"}} for part in parts]
    results = [_result(v, p, parts) for v in verdicts for p in v.problems]
    driver = {"name": "mezzo check", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def _rule(part: str) -> str:
    return f"mezzo/{part.replace(' ', '-')}"


def _result(verdict: Verdict, problem: Problem, parts: Sequence[str]) -> dict[str, Any]:
    uri = Path(verdict.path).as_posix()
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": uri}}}
    if problem.where:
        location["logicalLocations"] = [{"fullyQualifiedName": problem.where}]
    text = f"{problem}\nhint: {problem.hint}" if problem.hint else str(problem)
    return {
        "ruleId": _rule(problem.part),
        "ruleIndex": parts.index(problem.part),
        "level": "note" if problem.known else "error",
        "baselineState": "unchanged" if problem.known else "new",
        "message": {"text": text},
        "locations": [location],
        "partialFingerprints": {"mezzo/v1": digest(problem)},
        "properties": {"status": STATUS[problem.code]},
    }
