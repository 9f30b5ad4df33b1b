"""Results of `mezzo check` as a table, JSON, JUnit, Markdown or GitHub annotations."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .check_sarif import sarif
from .report import Report, Table
from .verdict import GOOD, STATUS, Verdict

__all__ = ["as_json", "github", "junit", "markdown", "reports", "sarif", "worst"]

UNPRINTABLE = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML cannot hold


def worst(verdicts: Iterable[Verdict]) -> int:
    """The exit code for all of them."""
    return max((v.code for v in verdicts), default=GOOD)


def reports(verdicts: Sequence[Verdict]) -> list[Report]:
    """One report for one file; for many a table of all, and a report for each that has problems."""
    if len(verdicts) == 1:
        return [verdicts[0].report()]
    parts = _parts(verdicts)
    rows = [(v.path, v.status, *(v.said(p) for p in parts), v.seconds) for v in verdicts]
    all_of_them = Report(
        f"{len(verdicts)} models: {STATUS[worst(verdicts)]}",
        tables=[Table("Models", ("file", "status", *parts, "seconds"), rows)],
    )
    return [all_of_them, *(Report(v.path, {"status": v.status}, v.report().tables[-1:]) for v in verdicts if v.code)]


def as_json(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as JSON."""
    models = [{**json.loads(v.report().json_text()), "exit_code": v.code, "seconds": v.seconds} for v in verdicts]
    code = worst(verdicts)
    return json.dumps({"status": STATUS[code], "exit_code": code, "models": models}, indent=1)


def junit(verdicts: Sequence[Verdict]) -> str:
    """A test suite for each file, a test case for each part of its check."""
    root = ElementTree.Element("testsuites", name="mezzo check")
    for v in verdicts:
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(v.path), time=str(v.seconds))
        for part in _parts([v]):
            case = ElementTree.SubElement(suite, "testcase", classname=_clean(v.path), name=part)
            problems = [p for p in v.problems if p.part == part and not p.known]
            if problems:
                text = "\n".join(f"{p}\n  hint: {p.hint}" if p.hint else str(p) for p in problems)
                failure = ElementTree.SubElement(case, "failure", message=_clean(str(problems[0])), type=v.status)
                failure.text = _clean(text)
        cases = suite.findall("testcase")
        suite.set("tests", str(len(cases)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
    return ElementTree.tostring(root, "unicode", xml_declaration=True)


def markdown(verdicts: Sequence[Verdict]) -> str:
    """A table of all files, and under it every problem: for a job summary or a comment."""
    parts = _parts(verdicts)
    lines = [_row(["model", "status", *parts]), _row(["---"] * (len(parts) + 2))]
    lines += [_row([f"`{v.path}`", v.status, *(v.said(p) for p in parts)]) for v in verdicts]
    for v in verdicts:
        if v.problems or v.gone:
            lines += ["", f"`{v.path}`: {v.status}", ""]
            lines += [
                f"- **{p.part}**{' (known)' * p.known}: {_one_line(str(p))}" + (f" ({p.hint})" if p.hint else "")
                for p in v.problems
            ]
            lines += [f"- gone: {_one_line(text)}" for text in v.gone]
    return "\n".join(lines) + "\n"


def github(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Commands that make GitHub show each problem at its file.

    https://docs.github.com/actions/reference/workflow-commands-for-github-actions#setting-an-error-message
    """
    base = os.environ.get("GITHUB_WORKSPACE", ".")
    for v in verdicts:
        path = Path(v.path).resolve()
        inside = path.is_relative_to(Path(base).resolve())
        file = path.relative_to(Path(base).resolve()).as_posix() if inside else v.path
        for p in v.problems:
            text = f"{p}\nhint: {p.hint}" if p.hint else str(p)
            title = _escaped(f"mezzo check: {p.part}", ":,")
            yield f"::{'notice' if p.known else 'error'} file={_escaped(file, ':,')},title={title}::{_escaped(text)}"


def _parts(verdicts: Sequence[Verdict]) -> list[str]:
    """The parts that were made of any check, in order."""
    return list(dict.fromkeys(part for v in verdicts for part in (*v.parts, *(p.part for p in v.problems))))


def _escaped(text: str, more: str = "") -> str:
    for sign in f"%\r\n{more}":
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def _clean(text: str) -> str:
    return UNPRINTABLE.sub("?", text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _row(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(_one_line(str(c)).replace("|", "\\|") for c in cells) + " |"
