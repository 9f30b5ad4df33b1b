"""`mezzo check`: what is covered, where numbers begin to differ, and how it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import process_time
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from mezzo.exporters import save_onnx
from mezzo.models.digits import digits_model
from mezzo.ops import DType
from mezzo.ops.types import f32, i64
from mezzo.runtime.backends.cpu.matmul import MatMul
from mezzo.runtime.compile.target import Target
from mezzo.runtime.devices import DEVICES
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.infer import infer
from mezzo.tools import locate
from mezzo.tools.check import check
from mezzo.tools.check_files import check_files
from mezzo.tools.check_options import Options
from mezzo.tools.cli_check import BAD_CALL
from mezzo.tools.convert import convert
from mezzo.tools.exact import Exact
from mezzo.tools.gaps import Gap, Tolerance, gap
from mezzo.tools.report import text
from mezzo.tools.verdict import BAD_FILE, DIFFERENT, GOOD, MISSING, Verdict

from .models import LIGHT, OTHERS, model, node, referee, value
from .test_cli import mezzo

DIGITS = digits_model()
WIDTH, DEPTH = 8, 9


def tower(changed: int | None = None, *, name: str = "tower") -> Graph:
    """Products and activations beside a branch that joins late; one weight of one product may be changed."""
    rng, g = np.random.default_rng(0), GraphBuilder(name)
    x = g.input("x", f32("batch", WIDTH))
    side = g.Tanh(x)
    for layer in range(DEPTH):
        weight = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
        if layer == changed:
            weight[2, 3] += 0.5
        x = g.Add(g.MatMul(x, g.const(weight)), g.const(np.float32(0.1)))
        x = g.Sigmoid(x) if layer % 2 else g.Relu(x)
    return g.graph([g.Add(x, side)])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A sound model, and one whose fifth product has another weight."""
    sound, broken = tmp_path / "sound.onnx", tmp_path / "broken.onnx"
    save_onnx(tower(), sound)
    save_onnx(tower(4), broken)
    return sound, broken


def said(verdict: Verdict) -> str:
    return text(verdict.report(), 1000)


CULPRIT = "node 13 'MatMul_22' (MatMul)"


def test_where_the_changed_product_stands(files: tuple[Path, Path]) -> None:
    nodes = [n.name for n in onnx.load(str(files[1])).graph.node]
    products = [i for i, n in enumerate(nodes) if n.startswith("MatMul")]
    assert f"node {products[4]} {nodes[products[4]]!r} (MatMul)" == CULPRIT


def test_a_changed_weight_is_named_with_its_node(files: tuple[Path, Path]) -> None:
    sound, broken = files
    assert check(sound, Options(against=str(sound))).code == GOOD
    verdict = check(broken, Options(against=str(sound)))
    assert verdict.code == DIFFERENT
    weight, first = [p for p in verdict.problems if p.part == "numbers"]
    assert "the weight 'const_" in weight.message
    assert CULPRIT in weight.where
    assert CULPRIT in first.where
    assert "the first value that differs is 'MatMul_22'" in first.message


def test_bisection_finds_the_same_node(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "AT_ONCE", 0)
    sound, broken = files
    verdict = check(broken, Options(against=str(sound)))
    assert CULPRIT in verdict.problems[-1].where


@dataclass
class Told:
    """A side that answers from a table; it counts what it is asked for."""

    answers: dict[str, Any]
    asked: list[str] = field(default_factory=list)
    about: str = "told"

    @property
    def values(self) -> frozenset[str]:
        return frozenset(self.answers)

    def run(self, feeds: Any, names: Sequence[str]) -> dict[str, Any]:
        self.asked += names
        return {n: self.answers[n] for n in names}


def test_bisection_asks_for_few_values_and_is_not_misled_by_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "AT_ONCE", 0)
    g = GraphBuilder()
    a = b = g.input("x", f32(2))
    names = []
    for _ in range(500):  # two chains in turn: every second value is sound
        a, b = g.Neg(a), g.Abs(b)
        names += [a, b]
    end = g.Add(a, b)
    graph = infer(g.graph([end]))
    for fault in (0, 2, 412, 998, None):
        wrong = {*names[fault::2], end} if fault is not None else {end}
        sides = [Told({n: np.array([1.0 + (n in bad)]) for n in (*names, end)}) for bad in (wrong, set[str]())]
        probe = locate.Probe(sides[0], sides[1], {}, Tolerance())
        found = locate.locate(graph, [end], probe)
        assert found is not None
        assert found.value == (end if fault is None else names[fault])
        assert len(sides[0].asked) < 150, "of 1001 values"
    sound = Told({n: np.ones(2) for n in (*names, end)})
    assert locate.locate(graph, [end], locate.Probe(sound, sound, {}, Tolerance())) is None


def test_a_recording_names_the_node_too(files: tuple[Path, Path], tmp_path: Path) -> None:
    sound, broken = files
    recorded = str(tmp_path / "ref.npz")
    assert check(sound, Options(record=recorded)).code == GOOD
    with np.load(recorded, allow_pickle=False) as stored:
        assert len(stored.files) > DEPTH * 3
    assert check(sound, Options(against=recorded)).code == GOOD
    verdict = check(broken, Options(against=recorded))
    assert verdict.code == DIFFERENT
    assert [CULPRIT in p.where for p in verdict.problems] == [True, True]


def test_final_outputs_do_not_tell_where(files: tuple[Path, Path], tmp_path: Path) -> None:
    sound, broken = files
    x = np.ones((2, WIDTH), np.float32)
    np.savez(tmp_path / "outputs.npz", x=x, **_answers(sound, x))
    (problem,) = check(broken, Options(against=str(tmp_path / "outputs.npz"))).problems
    assert "cannot be told from final outputs" in problem.message
    assert "--record" in problem.hint
    assert problem.code == DIFFERENT


def _answers(path: Path, x: Any) -> dict[str, Any]:
    import mezzo as mz

    return mz.load(path).run({"x": x})


def test_a_recording_that_is_too_large_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    (problem,) = check(files[0], Options(record=str(tmp_path / "ref.npz"), record_limit=1000)).problems
    assert "--record-limit" in problem.hint
    assert not (tmp_path / "ref.npz").exists()


def test_types_that_npz_lacks_are_recorded(tmp_path: Path) -> None:
    g = GraphBuilder()
    narrow = g.Cast(g.input("x", f32(2, 3)), to=DType.BFLOAT16.onnx)
    save_onnx(g.graph([g.Cast(g.Add(narrow, narrow), to=DType.FLOAT.onnx)]), tmp_path / "m.onnx")
    recorded = str(tmp_path / "ref.npz")
    assert check(tmp_path / "m.onnx", Options(record=recorded)).code == GOOD
    verdict = check(tmp_path / "m.onnx", Options(against=recorded))
    assert verdict.code == GOOD, said(verdict)


def test_agreeing_with_the_referees() -> None:
    referee()
    for whom in ("onnxruntime", "reference"):
        verdict = check(DIGITS, Options(against=whom, sizes=("batch=3",)))
        assert verdict.code == GOOD, said(verdict)
        assert "same numbers" in verdict.parts["round trip"]
        assert "batch=" not in said(verdict)  # it was given, not filled in
    assert "CPUExecutionProvider" in said(check(DIGITS, Options(against="onnxruntime")))
    (missing,) = check(DIGITS, Options(against="onnxruntime-gpu", round_trip=False)).problems
    assert "CUDAExecutionProvider" in missing.message


def test_a_wrong_kernel_is_named(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    referee()
    wrong_sigmoid(monkeypatch)
    verdict = check(files[0], Options(against="onnxruntime", round_trip=False))
    (problem,) = verdict.problems
    assert "from float64 ours is 1.6e-02 away, theirs " in problem.message
    assert "(Sigmoid)" in problem.where
    assert problem.where.split()[2] == "6"  # "tower.onnx: node 6": the first of them
    assert problem.code == DIFFERENT


def test_where_rounding_decides_real_inputs_are_asked_for() -> None:
    assert Exact(3e-3, 4e-4, 1e-4).ill_conditioned
    assert not Exact(3e-3, 1e-7, 1e-4).ill_conditioned


def wrong_sigmoid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a wrong result behind whatever kernel computes Sigmoid."""
    from mezzo.runtime.execution import instance

    prepared = instance.Instance._prepared

    def wrong(self: Any, i: int) -> Any:
        call, step = prepared(self, i), self.program.steps[i]
        if "Sigmoid" not in str(step.node):
            return call

        def run() -> None:
            call()
            self.arrays[step.node.outputs[0]][...] *= np.float32(1.01)

        return run

    monkeypatch.setattr(instance.Instance, "_prepared", wrong)


def test_weights_beside_the_model_are_found_by_the_referees(files: tuple[Path, Path], tmp_path: Path) -> None:
    referee()
    save_onnx(tower(), tmp_path / "beside.onnx", external_data="always", threshold=64)
    assert list(tmp_path.glob("beside.onnx.*.data"))
    for whom in ("onnxruntime", "reference", str(files[0])):
        verdict = check(tmp_path / "beside.onnx", Options(against=whom))
        assert verdict.code == GOOD, said(verdict)


def test_a_newer_opset_is_compared_as_a_copy(tmp_path: Path) -> None:
    referee()
    path = tmp_path / "new.onnx"
    save_onnx(tower(), path, opset=28)
    verdict = check(path, Options(against="onnxruntime"))
    assert verdict.code == GOOD, said(verdict)
    assert "of a copy at opset 26" in verdict.facts["theirs"]


def unknown() -> onnx.ModelProto:
    nodes = [node("Relu", "x", "a", name="first"), node("Frobnicate", "a", "b", domain="acme")]
    return model(nodes, [value("x", 2)], [value("b", 2)], opset=99, domains={"acme": 1})


def test_all_that_is_not_covered_is_listed(tmp_path: Path) -> None:
    (tmp_path / "unknown.onnx").write_bytes(unknown().SerializeToString())
    verdict = check(tmp_path / "unknown.onnx")
    assert (verdict.code, verdict.status) == (MISSING, "not covered")
    opset, operator = verdict.problems
    assert "opset 99 is newer" in opset.message
    assert "node 0 'first' (Relu)" in opset.message
    assert "acme::Frobnicate of opset 1 is not carried" in operator.message


def test_what_cannot_be_exported_is_listed_with_places(tmp_path: Path) -> None:
    g, path = GraphBuilder("net"), tmp_path / "net.onnx"
    x = g.Bernoulli(g.input("x", f32(2, 3)))
    save_onnx(g.graph([g.ScatterElements(x, g.const([[0, 0, 0]] * 2), x, reduction="add"), x]), path)
    verdict = check(path, Options(opset=12, device="npu"))
    assert verdict.code == MISSING
    device, *export = verdict.problems
    assert "'npu' is not available" in device.message
    assert [(p.part, p.where.split()[-1]) for p in export] == [
        ("export", "(Bernoulli)"),
        ("export", "(ScatterElements)"),
    ]
    assert "Bernoulli came with opset 15" in export[0].message


def test_a_device_names_the_operators_that_it_lacks(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    products = replace(DEVICES["cpu"], target=Target("gpu", (MatMul(),)))
    monkeypatch.setitem(DEVICES, "gpu", products)
    verdict = check(files[0], Options(device="gpu"))
    assert verdict.code == MISSING
    assert {p.message.split()[0] for p in verdict.problems} == {"Add", "Relu", "Sigmoid", "Tanh"}
    assert {p.part for p in verdict.problems} == {"device"}


def test_training_names_the_operators_that_block(tmp_path: Path) -> None:
    g, path = GraphBuilder("net"), tmp_path / "net.onnx"
    x = g.MatMul(g.input("x", f32(2, 2)), g.const(np.eye(2, dtype=np.float32)))
    save_onnx(g.graph([g.Add(x, g.EyeLike(x))]), path)
    assert check(path).code == GOOD
    (problem,) = check(path, Options(train=True)).problems
    assert "ai.onnx::EyeLike has no derivative" in problem.message
    assert "node 1" in problem.where


def test_a_bad_file_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(DIGITS.read_bytes()[:1000])
    assert check(broken).code == check(tmp_path / "nowhere.onnx").code == BAD_FILE
    shapes = model([node("MatMul", "x y", "z")], [value("x", 2, 3), value("y", 4, 2)], [value("z", 2, 2)])
    broken.write_bytes(shapes.SerializeToString())
    (problem,) = check(broken).problems
    assert problem.code == BAD_FILE
    assert "(MatMul)" in problem.where


def test_sizes_that_do_not_run_are_told(tmp_path: Path) -> None:
    g = GraphBuilder()
    x = g.Reshape(g.input("x", f32("n")), g.const([11, -1]))
    save_onnx(g.graph([g.Relu(x)]), tmp_path / "m.onnx")
    (problem,) = check(tmp_path / "m.onnx", Options(round_trip=True)).problems
    assert "--dim" in problem.hint
    assert check(tmp_path / "m.onnx", Options(round_trip=True, sizes=("n=22",))).code == GOOD
    np.save(tmp_path / "x.npy", np.ones(33, np.float32))
    assert check(tmp_path / "m.onnx", Options(round_trip=True, inputs=(f"x={tmp_path}/x.npy",))).code == GOOD


def test_inputs_are_what_the_graph_tells(tmp_path: Path) -> None:
    """Places in a table, and a number that it is compared with; an open dim among fixed ones is the batch."""
    g = GraphBuilder()
    x, state = g.input("x", f32(None, None)), g.input("state", f32(2, None, 4))
    ids, rate = g.input("ids", i64("n", "n")), g.input("rate", i64())
    known = g.Equal(rate, g.const(np.int64(16000)))
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    wide = g.Where(known, g.ReduceMax(g.Gather(g.const(table), ids)), g.const(np.float32(-1)))
    save_onnx(g.graph([wide, g.ReduceSum(x), g.ReduceSum(state), g.Add(ids, rate)]), tmp_path / "m.onnx")
    recorded = tmp_path / "ref.npz"
    verdict = check(tmp_path / "m.onnx", Options(record=str(recorded), round_trip=True))
    assert verdict.code == GOOD, said(verdict)
    with np.load(recorded) as stored:
        assert stored["rate"] == 16000
        assert set(stored["ids"].reshape(-1)) <= set(range(10))
        assert stored["ids"].max() > 1
        assert (stored["x"].shape, stored["state"].shape) == ((2, 32), (2, 2, 4))


# How it is told


def test_many_files_and_every_form_of_report(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "zero.onnx").write_bytes(unknown().SerializeToString())
    where = {n: tmp_path / n for n in ("out.xml", "out.md", "out.json")}
    printed = mezzo(
        *("check", f"{tmp_path}/*.onnx", "--against", str(files[0]), "--jobs", "2", "--github"),
        *("--junit", str(where["out.xml"]), "--markdown", str(where["out.md"]), "--json", str(where["out.json"])),
        code=DIFFERENT,
    )
    assert "3 models: numbers differ" in printed
    assert "::error file=" in printed
    report = json.loads(where["out.json"].read_text())
    assert report["exit_code"] == DIFFERENT
    assert {Path(m["title"]).stem: m["exit_code"] for m in report["models"]} == {"broken": 2, "sound": 0, "zero": 1}
    suites = ElementTree.parse(where["out.xml"]).getroot()
    failed = {(c.get("classname", "").rpartition("/")[2], c.get("name")) for c in suites.iter("testcase")
              if c.find("failure") is not None}  # fmt: skip
    assert failed == {("broken.onnx", "numbers"), ("zero.onnx", "run")}
    assert [(Path(s.get("name", "")).stem, s.get("failures")) for s in suites] == [
        ("broken", "1"), ("sound", "0"), ("zero", "1"),
    ]  # fmt: skip
    told = where["out.md"].read_text()
    assert told.startswith("| model | status |")
    assert "acme::Frobnicate" in told
    assert "no file matches" in mezzo("check", f"{tmp_path}/*.pb", code=BAD_CALL)


def test_json_on_standard_output_is_json_alone(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    done = subprocess.run(
        [sys.executable, "-m", "mezzo", "check", "nowhere.onnx", "--json"], capture_output=True, text=True
    )
    assert json.loads(done.stdout)["status"] == "bad file"
    assert done.stderr.startswith("::error file=nowhere.onnx,title=mezzo check%3A file::")
    assert done.returncode == BAD_FILE


@pytest.mark.parametrize(
    "said",
    [
        ("--no-such-option",),
        ("--opset", "x"),
        ("--tolerance", "nan", "--against", "steps"),
        ("--tolerance", "-1", "--against", "steps"),
        ("--sarif", "nowhere/x.sarif"),
        ("--json", "."),
        ("--dim", "q=3"),
        ("--input", "image=nothing.npy"),
    ],
)
def test_calls_that_make_no_sense(said: tuple[str, ...]) -> None:
    """Not the code of numbers that differ, no traceback, and nothing that is said is passed over."""
    assert said[0] in (out := mezzo("check", str(DIGITS), *said, code=BAD_CALL)) or said[1] in out


def test_a_process_that_dies_is_a_problem_of_its_file(files: tuple[Path, Path]) -> None:
    verdicts = check_files(files, Deadly(), jobs=2)
    assert [v.code for v in verdicts] == [BAD_FILE, BAD_FILE]
    assert "ended without an answer" in verdicts[0].problems[0].message


class Deadly(Options):
    """Options that end the process which they are sent to."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (1,)


def test_mezzo_files_are_checked_too(tmp_path: Path) -> None:
    referee()
    convert(DIGITS, tmp_path / "m.mezzo")
    verdict = check(tmp_path / "m.mezzo", Options(against="onnxruntime", train=True, opset=17))
    assert verdict.code == GOOD, said(verdict)
    assert check(DIGITS, Options(against=str(tmp_path / "m.mezzo"))).code == GOOD


# Size and time


PROBE = """
import sys
from pathlib import Path
from mezzo.tools.check import check
from mezzo.tools.check_options import Options
verdict = check(Path(sys.argv[1]), Options(train=True, opset=17))
most = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print(verdict.status, int(most.split()[1]) >> 10)  # ru_maxrss would count the process that this one came from
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the memory on Linux")
def test_three_gigabytes_of_weights_are_checked_in_one(tmp_path: Path) -> None:
    names = [f"w{i}" for i in range(3)]
    nodes = [node("MatMul", f"{'x' if not i else f'y{i - 1}'} {n}", f"y{i}") for i, n in enumerate(names)]
    nodes[:1] = [node("Add", "w0 w0", "twice"), node("MatMul", "x twice", "y0")]  # a constant that nobody may compute
    made = model(nodes, [value("x", "n", 16384)], [value("y2", "n", 16384)])
    for i, name in enumerate(names):
        tensor = made.graph.initializer.add(name=name, data_type=1, dims=[16384, 16384])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, entry in (("location", "weights.bin"), ("offset", i << 30), ("length", 1 << 30)):
            tensor.external_data.add(key=key, value=str(entry))
    (tmp_path / "large.onnx").write_bytes(made.SerializeToString())
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(3 << 30)  # holes: nothing is on the disk
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path / "large.onnx")], capture_output=True, text=True, timeout=120
    )
    status, mebibytes = done.stdout.rsplit(maxsplit=1)
    assert status == "covered", done.stderr
    assert int(mebibytes) < 1024
    assert (tmp_path / "weights.bin").stat().st_blocks < 1024


def test_a_real_model_is_checked_soon() -> None:
    for real in (*(r for r in OTHERS if "det" in r.name), *(r for r in LIGHT if "resnet50" in r.name)):
        started = process_time()
        verdict = check(real.path(), Options(train=True, opset=17))
        assert process_time() - started < 10, "ten times the second that bench/check.py is held to"
        assert verdict.code == GOOD, said(verdict)


# Gaps


@pytest.mark.parametrize(
    ("found", "expected", "agrees"),
    [
        (np.array([1, np.nan, -np.inf], np.float32), np.array([1.00001, np.nan, -np.inf], np.float32), True),
        (np.array([1, np.nan], np.float32), np.array([1, 1], np.float32), False),
        (np.array([1, 2], np.float32), np.array([1, 2.001], np.float32), False),
        (np.array([1], np.float32), np.array([1], np.float64), False),
        (np.array([1], np.float32), np.array([[1]], np.float32), False),
        (np.array([255, 1], np.uint8), np.array([254, 1], np.uint8), False),
        (np.array(["a"], object), np.array(["a"]), True),
        (np.array([True, False]), np.array([True, True]), False),
        ([np.array([1], np.float32), None], [np.array([1], np.float32), None], True),
        ([np.array([1], np.float32)], [], False),
        (np.array([1j], np.complex64), np.array([1j], np.complex64), True),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), True),
    ],
)  # fmt: skip
def test_gaps(found: Any, expected: Any, agrees: bool) -> None:
    assert gap(found, expected, Tolerance()).agrees == agrees


def test_tolerances() -> None:
    wide = Tolerance.parse(["0.5", "int32=0.25"])
    assert gap(np.array([1.2], np.float32), np.array([1], np.float32), wide).agrees
    assert gap(np.array([5], np.int32), np.array([4], np.int32), wide).agrees
    assert "no tolerance" in mezzo("check", str(DIGITS), "--against", str(DIGITS), "--tolerance", "much", code=BAD_CALL)
    assert str(Gap(0.5, 0.1)) == "5.0e-01 apart, 1e-01 allowed"
