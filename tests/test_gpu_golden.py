"""What whole networks become on a GPU, as tables: steps, launches, graphs, bytes. No GPU takes part: the step list is
run through the stand-ins, which record and refuse; a table that changes is looked at, and then stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.exporters import save_onnx
from mezzo.models.training import LESSONS
from mezzo.models.workloads import WORKLOADS
from mezzo.ops.types import f32
from mezzo.runtime import devices
from mezzo.runtime.backends.cuda.kernels import GPU_KERNELS
from mezzo.runtime.ir.graph import GraphBuilder, Node
from mezzo.tools.check import check
from mezzo.tools.check_options import Options
from mezzo.tools.explain import explain

from . import cublaslt_standin, cudnn_standin
from .cublaslt_standin import LtStandin
from .cudnn_standin import CudnnStandin
from .cupy_standin import Standin
from .networks import batch_for, lenet

GOLDEN = Path(__file__).parent / "gpu_golden"
MIB = 1 << 20


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    """A GPU that only records."""
    monkeypatch.setenv("MEZZO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cudnn_standin.Graph, "_compute", lambda self, pointers: None)
    made = Standin(memory=4 << 30)
    made.install(monkeypatch)
    yield made
    cudnn_standin.forget()
    cublaslt_standin.forget()


def table(standin: Standin, session: mz.Session, feeds: dict[str, Any]) -> str:
    """The program and what its third run asks of the device."""
    session.run(feeds)
    session.run(feeds)
    standin.log.clear()
    session.run(feeds)
    (arena,) = session._arenas._free
    instance: Any
    (instance,) = arena.instances.values()
    program, made = session.program, Counter(e.what for e in standin.log)
    refused = [f"{program.steps[r.index].node.op}: {r.reason}" for r in instance.refused]
    facts = {
        "steps": len(program.steps),
        "launches": made["launch"],
        "graphs": len(instance.graphs),
        "not captured": ", ".join(refused) or "none",
        "copies": made["copy"],
        "waits of the host": made["sync"],
        "allocations": made["alloc"] + made["pinned"],
        "arena MiB": round(program.arena_bytes / MIB, 2),
        "weights MiB": round(sum(session.executable.constants[n].nbytes for n in program.weights) / MIB, 2),
    }
    kernels = Counter(s.choice.kernel for s in program.steps)
    rows = [*facts.items(), *((f"kernel {name}", count) for name, count in sorted(kernels.items()))]
    return "".join(f"{name:24} {value}\n" for name, value in rows)


def inferring(name: str) -> tuple[Callable[[], mz.Session], dict[str, Any]]:
    work = WORKLOADS[name]
    graph = work.build(1)
    return lambda: mz.Session(graph, device="gpu:0"), work.feeds(1)


def learning(name: str) -> tuple[Callable[[], mz.Session], dict[str, Any]]:
    """One step of training with Adam: forward, loss, metrics, backward, update."""
    if name == "lenet":
        graph, feeds = lenet(), batch_for(lenet(), 0, 32)
    else:
        graph, feeds = LESSONS[name].build(32, small=True), LESSONS[name].feeds(32, small=True)
    return lambda: mz.Trainer(graph, optimizer=mz.optimizer.Adam(), device="gpu:0")._update, feeds


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, inferring) for name in ("resnet50", "bert")),
        *((name, learning) for name in ("mlp", "lenet", "resnet18")),
    ],
)
def test_a_network(
    name: str, make: Callable[[str], Any], standin: Standin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With our own kernels alone, and with those of cuDNN and cuBLASLt."""
    tables = list[str]()
    made, feeds = make(name)
    for what in ("own kernels", "with libraries"):
        if what == "with libraries":
            CudnnStandin(standin).install(monkeypatch)
            LtStandin(standin).install(monkeypatch)
            devices.DEVICES.pop("gpu:0")  # which remembers what it was told
        found = table(standin, made(), feeds)
        assert "not captured             none" in found
        tables.append(f"{what}\n{found}")
    assert standin.races == []
    file = f"{name}.txt" if make is inferring else f"{name}_step.txt"
    golden, seen = GOLDEN / file, tmp_path / file
    seen.write_text("\n".join(tables), "utf8")
    assert seen.read_text("utf8") == golden.read_text("utf8"), f"if this is meant: cp {seen} {golden}"


class Without:
    """A kernel of the GPU as if it did not serve an operator."""

    def __init__(self, kernel: Any, op: str) -> None:
        self._kernel, self._op = kernel, op

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def serves(self, node: Node) -> bool:
        return node.op != self._op and self._kernel.serves(node)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Takes an operator from all kernels of GPUs."""

    def take(op: str) -> None:
        monkeypatch.setattr(
            "mezzo.runtime.backends.cuda.executor.GPU_KERNELS", tuple(Without(k, op) for k in GPU_KERNELS)
        )
        monkeypatch.setattr(devices, "DEVICES", {"cpu": devices.DEVICES["cpu"]})

    return take


def test_a_kernel_that_is_missing_is_named_with_its_copy(without: Callable[[str], None], tmp_path: Path) -> None:
    without("Softmax")
    g = GraphBuilder()
    graph = g.graph([g.Neg(g.Softmax(g.Exp(g.input("x", f32(3, 5)))))])
    session = mz.Session(graph, device="gpu:0@sm_90")
    report = explain(session, {"x": np.zeros((3, 5), np.float32)}, ("kernels",))
    assert (report.facts["host_steps"], report.facts["copied_bytes"]) == (1, 120)
    (host,) = (t for t in report.tables if t.title == "On the host")
    ((_, op, _, why, down, up),) = host.rows
    assert op == "Softmax"
    assert "no kernel" in why
    assert down.endswith("(60 B)")
    assert up.endswith("(60 B)")
    assert "splits the capture" in str(session.program)
    save_onnx(graph, tmp_path / "m.onnx")
    verdict = check(tmp_path / "m.onnx", Options(device="gpu:0"))
    assert verdict.facts["host_steps"] == 1
    assert any("Softmax" in str(row) for t in verdict.tables if t.title == "On the host" for row in t.rows)
    assert "1 of 3 steps on the host" in verdict.parts["device"]


def test_explain_plans_for_a_gpu_that_is_not_there() -> None:
    work = WORKLOADS["mlp"]
    session = mz.Session(work.build(1), device="gpu:0@sm_80", precision="tf32")
    report = explain(session, work.feeds(1))
    assert report.facts["device"] == "gpu:0@sm_80, sm_80"
    assert report.facts["host_steps"] == 0
    with pytest.raises(mz.InputError, match="fp32, tf32, bf16, fp16"):
        mz.Session(work.build(1), device="gpu:0@sm_80", precision="bf16-math")


@pytest.mark.parametrize(
    ("device", "auto"), [("cpu", "strict"), ("gpu:0@sm_75", "strict"), ("gpu:0@sm_80", "tf32"), ("gpu:0@sm_90", "tf32")]
)
def test_the_usual_precision(device: str, auto: str) -> None:
    """TF32 where there is any; fp32 stays what it says, in training too."""
    graph = WORKLOADS["mlp"].build(1)
    session = mz.Session(graph, device=device)
    assert session._options.spec.math == auto
    assert mz.Session(graph, device=device, precision="fp32")._options.spec.math == "strict"
    for precision, math in (("auto", auto), ("fp32", "strict")):
        trainer = mz.Trainer(LESSONS["mlp"].build(8, small=True), device=device, precision=precision)
        assert trainer._update._options.spec.math == math
    with pytest.raises(mz.InputError, match="amp="):
        mz.Trainer(LESSONS["mlp"].build(8, small=True), device=device, precision="bf16")


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_narrow_precisions(precision: str, dtype: str) -> None:
    work = WORKLOADS["mlp"]
    program = mz.Session(work.build(1), device="gpu:0@sm_90", precision=precision).program
    made = [str(program.types[o].dtype) for s in program.steps for o in s.node.outputs]  # type: ignore[union-attr]
    assert made.count(dtype) >= 3
    assert [str(p.type.dtype) for p in (*program.inputs, *program.outputs)] == ["float32"] * 2  # type: ignore[union-attr]


def test_float16_leaves_constants_alone_that_it_cannot_hold() -> None:
    g = GraphBuilder()
    x, w = g.input("x", f32(4, 8)), np.full((8, 8), 1e5, np.float32)
    program = mz.Session(g.graph([g.MatMul(x, g.const(w))]), device="gpu:0@sm_90", precision="fp16").program
    assert "float16" not in str(program)
