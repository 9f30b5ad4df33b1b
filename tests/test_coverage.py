"""The coverage table: what it counts, that docs/coverage.md is not stale, and that it says no where there is no yes."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.defs
import pytest

import mezzo as mz
from mezzo.exporters import to_onnx
from mezzo.ops import OPS
from mezzo.ops.errors import InputError
from mezzo.runtime.backends.cpu import CPU_KERNELS
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.compile.target import Target
from mezzo.runtime.devices import DEVICES, device_named
from mezzo.runtime.execution.session import Session
from mezzo.tools import coverage_page as page
from mezzo.tools.attributes import ENTRIES, FLAGS, VALUES, documented
from mezzo.tools.cells import digest
from mezzo.tools.coverage import Coverage, coverage, names, processor
from mezzo.tools.coverage_cells import Mark, OperatorCoverage
from mezzo.tools.one_node import any_schema, versions

from .models import referee
from .test_cli import mezzo

STORED = (Path(__file__).parents[1] / "docs/coverage.md").read_text("utf8")
STALE = f"docs/coverage.md is stale: {page.COMMAND}"
KEYS = names()


def named(key: tuple[str, str]) -> str:
    return "::".join(filter(None, key))


def stored_rows() -> dict[str, str]:
    """The lines of the table, by operator."""
    rows = re.findall(r"^\| (\S+) \|.*\|$", STORED, re.M)
    lines = re.findall(r"^\| \S+ \|.*\|$", STORED, re.M)
    return {name: line for name, line in zip(rows, lines, strict=True) if name not in ("operator", "---")}


def stored_digests() -> dict[str, str]:
    block = STORED[STORED.index("<!-- samples and schemas:") :]
    return dict(re.findall(r"(\S+) ([0-9a-f]{8})\b", block))


def same_processor() -> bool:
    return f"on a processor with {processor() or 'without oneDNN'}:" in STORED


def lines_of(found: Coverage) -> list[tuple[str, str]]:
    """A line for each operator as this machine has it, and as it is stored; kernels are those of one processor."""
    stored = stored_rows()
    pairs = []
    for o in found.operators:
        line, kept = page.line(page.row(o, found)), stored.get(o.name, "")
        if not same_processor():
            line, kept = (re.sub(r"\| [^|]* (\| [^|]* \| [^|]* \|)$", r"\1", text) for text in (line, kept))
        pairs.append((line, kept))
    return pairs


def test_every_operator_opset_and_sample_is_the_one_of_the_table() -> None:
    """What can be told without running anything, of all operators."""
    assert list(stored_rows()) == [named(k) for k in KEYS], STALE
    opsets = {n: line.split("|")[2].strip() for n, line in stored_rows().items()}
    assert opsets == {named(k): " ".join(map(str, versions(*k))) for k in KEYS}, STALE
    assert stored_digests() == {named(k): digest(k) for k in KEYS}, STALE


@pytest.mark.parametrize("part", range(3))
def test_a_fifth_runs_as_the_table_says(part: int) -> None:
    """The fifth is fixed by the digests, which have nothing to do with what is covered."""
    referee()
    fifth = [named(k) for k in KEYS if int(digest_of_name(k), 16) % 5 == 0]
    assert len(KEYS) / 7 < len(fifth) < len(KEYS) / 4
    for line, kept in lines_of(coverage(*fifth[part::3], jobs=1)):
        assert line == kept, STALE


def digest_of_name(key: tuple[str, str]) -> str:
    return hashlib.blake2b(named(key).encode(), digest_size=4).hexdigest()


@pytest.mark.soak
def test_all_of_it_runs_as_the_table_says() -> None:
    referee()
    found = coverage()
    wrong = [line for line, kept in lines_of(found) if line != kept]
    assert not wrong, STALE
    if same_processor():
        assert page.markdown(found) == STORED, STALE


# What it counts


def test_a_cell_says_yes_only_where_a_sample_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator without samples has no cell that says yes, one with a wrong kernel none that runs."""
    relu = OPS["", "Relu"]
    assert coverage("Relu")["Relu"].count("run") == (18, 18)
    with monkeypatch.context() as m:
        m.setattr(relu, "samples", ())
        empty = coverage("Relu")["Relu"]
        assert {c.run for c in empty.cells} == {Mark.NO}
        assert empty.digest != stored_digests()["Relu"]
    with monkeypatch.context() as m:
        wrong_results(m)
        broken = coverage("Relu")["Relu"]
        assert broken.count("run")[0] == 0
        assert "reference of the operator says otherwise" in next(broken.problems())


def wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session whose results are more than twice what they should be."""

    class Wrong(Session):
        def run(self, feeds: Any, *args: Any, **kwargs: Any) -> Any:
            return {n: y + y + np.ones_like(y) for n, y in super().run(feeds, *args, **kwargs).items()}

    monkeypatch.setattr("mezzo.tools.compare_node.Session", Wrong)


def test_a_wrong_reference_is_told_by_the_referees(monkeypatch: pytest.MonkeyPatch) -> None:
    referee()
    neg = OPS["", "Neg"]
    monkeypatch.setattr(neg, "reference", lambda k, X: X.copy())
    monkeypatch.setattr("mezzo.runtime.devices.DEVICES", {"cpu": references_only()})
    found = coverage("Neg")["Neg"]
    assert found.count("run")[0] < found.count("run")[1]
    assert any("ONNX Runtime says otherwise" in text for text in found.problems())


def references_only() -> Any:
    return replace(DEVICES["cpu"], target=Target("cpu", CPU_KERNELS[-1:]))


def test_a_wrong_gradient_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPS["", "Sin"], "grad_rule", lambda g, dys, ys, xs: (g.Mul(dys[0], g.Sin(xs[0])),))
    found = coverage("Sin")["Sin"]
    assert found.count("run") == (found.count("run")[1],) * 2
    assert found.count("train")[0] == 0
    assert "not that of finite differences" in next(found.problems())


def test_a_wrong_exporter_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(graph: Any, **how: Any) -> Any:
        made = to_onnx(graph, **how)
        made.graph.node[0].op_type = "Floor"
        return made

    monkeypatch.setattr("mezzo.tools.compare_node.to_onnx", other)
    found = coverage("Ceil")["Ceil"]
    assert found.count("export")[0] == 0
    assert "another one after export and import" in next(found.problems())


def test_who_judged_and_which_kernels_ran() -> None:
    referee()
    cells = coverage("Relu")["Relu"].cells
    assert {c.device for c in cells} == {"cpu"}
    by_type = {c.type: c for c in cells if c.opset == 14}
    assert by_type["float"].judges == ("ONNX Runtime",)
    assert by_type["bfloat16"].judges == ("the reference evaluator",)
    assert by_type["int64"].kernels == ("generated",)
    assert not library() or by_type["float"].kernels == ("oneDNN",)


def test_a_device_that_is_not_there_was_not_run() -> None:
    found = coverage("Relu")
    assert (found.devices["cpu"], found.devices["gpu"]) == (Mark.YES, Mark.NOT_RUN)
    assert page.row(found["Relu"], found)[-2] == "not run"


def test_a_device_that_appears_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    device_named("gpu:0@sm_90")  # for which programs are planned, and do not run
    monkeypatch.setitem(DEVICES, "gpu", replace(DEVICES["cpu"], target=replace(DEVICES["cpu"].target, name="gpu")))
    found = coverage("Relu")
    assert found["Relu"].count("run", "gpu") == (18, 18)
    assert page.row(found["Relu"], found)[-2] == "18/18"


# Attributes


@pytest.mark.parametrize("key", [*VALUES, *ENTRIES])
def test_the_values_of_attributes_are_those_of_the_descriptions(key: str) -> None:
    op, _, name = key.partition(".")
    (domain,) = [d for d, o in KEYS if o == op]
    text = any_schema(domain, op, versions(domain, op)[-1])
    told = f"{text.attributes[name].description} {text.doc}".lower()
    for value in {**VALUES, **ENTRIES}[key]:
        assert str(value).lower() in told, f"{key}={value}"


def test_every_text_of_few_values_and_every_switch_is_listed() -> None:
    free = set("equation value_string y locale delimiter pattern default_string".split())
    for domain, op in KEYS:
        schema = any_schema(domain, op, versions(domain, op)[-1])
        texts = {a for a, s in schema.attributes.items() if s.type == onnx.defs.OpSchema.AttrType.STRING}
        assert not texts - free - set(documented(op, schema)), op
    every = {a for d, o in KEYS for a in any_schema(d, o, versions(d, o)[-1]).attributes}
    assert not FLAGS - every


# How it is told


def test_the_command(tmp_path: Path) -> None:
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "markdown", "html")}
    printed = mezzo(
        "coverage", "Softmax", "ai.onnx.ml::Scaler", *(x for k, p in paths.items() for x in (f"--{k}", str(p)))
    )
    assert "Softmax" in printed
    assert "has no derivative" in printed
    told = json.loads(paths["json"].read_text())
    softmax = next(o for o in told["operators"] if o["operator"] == "Softmax")
    assert {c["opset"] for c in softmax["cells"]} == {1, 11, 13}
    assert "| Softmax | 1 11 13 | T: floats | 10/10 | 10/10 | 10/10 |" in paths["markdown"].read_text()
    drawn = paths["html"].read_text()
    assert drawn.count("<i ") == 4 + 3 * (10 + len(told["operators"][1]["cells"]))
    assert "opset 13, T: float: yes" in drawn
    assert "there is no operator 'Frobnicate'" in mezzo("coverage", "Frobnicate", code=2)


def test_from_python() -> None:
    found = mz.onnx.coverage("Exp")
    assert isinstance(found["Exp"], OperatorCoverage)
    assert "Exp" in str(found)
    with pytest.raises(KeyError):
        found["Log"]
    with pytest.raises(InputError, match="no operator 'Nothing'"):
        mz.onnx.coverage("Nothing")


def test_types_in_few_words() -> None:
    assert page.spelled(["float", "double", "float16", "bfloat16", "bool"]) == "floats bool"
    assert page.spelled(["seq(int4)", "seq(uint4)", "float"]) == "seq(int4s) float"
