"""`mezzo check --baseline`: only what is new fails; what is gone is told; and SARIF, which carries both."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mezzo.exporters import save_onnx
from mezzo.ops.errors import InputError
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.tools.check_baseline import Baseline, fingerprint
from mezzo.tools.cli_check import BAD_CALL
from mezzo.tools.verdict import DIFFERENT, GOOD, MISSING, Problem, Verdict

from .test_cli import mezzo

ONE = Problem("export", "Bernoulli came with opset 15", "m.onnx: node 3 'a' (Bernoulli)", "give 15")
OTHER = Problem("numbers", "output 'y': 3e-02 apart, 1e-03 allowed", code=DIFFERENT)


def test_numbers_do_not_count_and_names_do() -> None:
    moved = Problem("export", "Bernoulli came with opset 16", "m.onnx: node 12 'a' (Bernoulli)")
    renamed = Problem("export", ONE.message, "m.onnx: node 3 'b7' (Bernoulli)")
    assert fingerprint(ONE) == fingerprint(moved)
    assert fingerprint(ONE) != fingerprint(renamed)
    assert fingerprint(renamed) != fingerprint(Problem("export", ONE.message, "m.onnx: node 3 'b8' (Bernoulli)"))
    assert fingerprint(OTHER) == fingerprint(Problem("numbers", "output 'y': 4.25 apart, 1e-03 allowed"))


PROBLEMS = st.lists(
    st.sampled_from([ONE, OTHER, Problem("run", "no 'X'"), Problem("file", "torn", "at byte 7")]), max_size=6
)


@given(PROBLEMS, PROBLEMS)
def test_new_known_and_gone(before: list[Problem], after: list[Problem]) -> None:
    """What is there twice may be known once."""
    rows = [fingerprint(p) for p in before]
    marked = Baseline({"m.onnx": rows}).marked(Verdict("m.onnx", {}, tuple(after)))
    for kind in {*map(fingerprint, before + after)}:
        had, has = rows.count(kind), sum(fingerprint(p) == kind for p in after)
        known = [p.known for p in marked.problems if fingerprint(p) == kind]
        assert known == [True] * min(had, has) + [False] * max(0, has - had)
    assert len(marked.gone) == sum(max(0, rows.count(k) - sum(fingerprint(p) == k for p in after)) for k in {*rows})
    assert marked.code == max((p.code for p in marked.problems if not p.known), default=GOOD)


def net(path: Path, *operators: str) -> None:
    """A model that cannot be exported at opset 12, for so many reasons."""
    g = GraphBuilder("net")
    x = g.input("x", f32(2, 3))
    for name in operators:
        scattered = name == "ScatterElements"
        x = g.ScatterElements(x, g.const([[0, 0, 0]] * 2), x, reduction="add") if scattered else g.op(name, x)
    save_onnx(g.graph([x]), path)


def test_only_what_is_new_fails(tmp_path: Path) -> None:
    path, known = tmp_path / "net.onnx", tmp_path / "known.json"
    forms = {n: tmp_path / n for n in ("out.sarif", "out.xml", "out.md")}
    asked = ("check", str(path), "--opset", "12", "--baseline", str(known))
    written = ("--sarif", str(forms["out.sarif"]), "--junit", str(forms["out.xml"]), "--markdown", str(forms["out.md"]))
    net(path, "Bernoulli")
    mezzo("check", str(path), "--opset", "12", "--write-baseline", str(known), code=MISSING)
    assert "1 known problem" in mezzo(*asked, code=GOOD)
    net(path, "Relu", "Bernoulli", "ScatterElements")  # another node number, and another problem
    printed = mezzo(*asked, *written, "--github", code=MISSING)
    assert "1 problem, 1 known problem" in printed
    assert printed.count("::notice file=") == printed.count("::error file=") == 1
    said = json.loads(forms["out.sarif"].read_text())
    assert (said["version"], said["runs"][0]["tool"]["driver"]["rules"][0]["id"]) == ("2.1.0", "mezzo/export")
    states = {r["message"]["text"].split("node")[1].split("(")[1].split(")")[0]: r["baselineState"]
              for r in said["runs"][0]["results"]}  # fmt: skip
    assert states == {"Bernoulli": "unchanged", "ScatterElements": "new"}
    assert len({r["partialFingerprints"]["mezzo/v1"] for r in said["runs"][0]["results"]}) == 2
    (failure,) = ElementTree.parse(forms["out.xml"]).getroot().iter("failure")
    assert "ScatterElements" in (failure.text or "")
    assert "Bernoulli" not in (failure.text or "")
    assert "**export** (known): " in forms["out.md"].read_text()
    net(path, "Relu")
    assert "that are gone" in mezzo(*asked, code=GOOD)
    other = tmp_path / "other.onnx"
    net(other, "Bernoulli")
    mezzo("check", str(other), "--opset", "12", "--write-baseline", str(known), code=MISSING)
    assert len(json.loads(known.read_text())["files"]) == 2, "what is known of other files stays"
    mezzo("check", str(path), "--opset", "12", "--write-baseline", str(known), code=GOOD)
    assert [*json.loads(known.read_text())["files"]] == [other.as_posix()]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "mezzo": "1", "files": {}}', "[" * 9999,
                                  '{"format": 1, "mezzo": "1", "files": {"a": [["x"]]}}'])  # fmt: skip
def test_a_file_that_is_no_baseline(tmp_path: Path, text: str) -> None:
    (tmp_path / "known.json").write_text(text)
    with pytest.raises(InputError, match="no file of known problems"):
        Baseline.read(tmp_path / "known.json")
    mezzo("check", "x.onnx", "--baseline", str(tmp_path / "known.json"), code=BAD_CALL)


def test_the_action_calls_options_that_there_are() -> None:
    from mezzo.tools.cli_check import check

    text = (Path(__file__).parents[1] / ".github/actions/check/action.yml").read_text()
    options = {option for parameter in check.params for option in parameter.opts}
    used = {word.strip('"{}') for word in text.split() if word.startswith("--")}
    assert used >= {"--sarif", "--junit", "--markdown"}
    assert used - {"--write-baseline).", "--baseline"} <= options
