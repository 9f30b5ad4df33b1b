"""The model of a GPU's time: what it counts, what bounds it, and how `explain --time` shows it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import mezzo as mz
from mezzo.exporters import save_onnx
from mezzo.models.workloads import WORKLOADS
from mezzo.ops.types import f32
from mezzo.runtime.compile.program import Program
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.tools.cli import cli
from mezzo.tools.gpu_time import CARDS, GAP, KINDS, LEAST, SHARES, StepTime, card_for, filled, step_times


def program(graph: Graph, device: str = "gpu:0@sm_90", precision: str = "fp16") -> Program:
    return mz.Session(graph, device=device, precision=precision).program


def product(rows: int, inner: int, columns: int) -> Graph:
    g = GraphBuilder()
    return g.graph([g.MatMul(g.input("x", f32(rows, inner)), g.const(np.ones((inner, columns), np.float32)))])


def one(times: list[StepTime], kind: str) -> StepTime:
    (found,) = [t for t in times if t.kind == kind]
    return found


def test_a_large_product_is_bound_by_arithmetic() -> None:
    found = one(step_times(program(product(4096, 4096, 4096)), CARDS["H100"]), "product")
    assert (found.flops, found.bound, found.launches) == (2 * 4096**3, "arithmetic", 1)
    assert found.nbytes == 3 * 4096 * 4096 * 2
    least = found.flops / CARDS["H100"].rates["half"]
    assert least / SHARES["product"][0] <= found.seconds < 1.2 * least / SHARES["product"][0]


def test_precision_and_card_change_the_time() -> None:
    graph = product(2048, 2048, 2048)
    times = {
        p: one(step_times(program(graph, precision=p), CARDS["H100"]), "product").seconds
        for p in ("fp32", "tf32", "fp16")
    }
    assert times["fp32"] > 3 * times["tf32"] > 4 * times["fp16"]
    older = one(step_times(program(graph, "gpu:0@sm_80"), CARDS["A100"]), "product").seconds
    assert older > 2 * times["fp16"]
    assert (card_for(program(graph)).name, card_for(program(graph, "gpu:0@sm_80")).name) == ("H100", "A100")
    with pytest.raises(mz.InputError, match="A100, H100, H200"):
        card_for(program(graph), "V100")


def test_elements_are_bound_by_bytes_and_few_of_them_by_the_launch() -> None:
    def seconds(count: int) -> StepTime:
        g = GraphBuilder()
        return one(
            step_times(program(g.graph([g.Exp(g.input("x", f32(count)))]), precision="fp32"), CARDS["A100"]), "element"
        )

    many, few = seconds(1 << 28), seconds(1000)
    assert (many.bound, many.nbytes) == ("bytes", 2 << 30)
    assert many.seconds == pytest.approx(GAP + (2 << 30) / (0.9 * CARDS["A100"].bandwidth))
    assert (few.bound, few.seconds) == ("launches", LEAST)


def test_a_few_tiles_leave_processors_idle() -> None:
    found = one(step_times(program(product(128, 8192, 256)), CARDS["H100"]), "product")
    assert filled(128, 256, 64, 1, CARDS["H100"]) == pytest.approx(2 / 132)
    assert filled(128, 256, 8192, 1, CARDS["H100"]) == pytest.approx(32 / 132)  # cut into 16 parts
    assert found.bound in ("tiles", "bytes")


def test_views_take_no_launch_and_the_host_is_told() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(8, 6))
    y = g.Neg(g.Reshape(g.Exp(x), g.const(np.array([6, 8]))))
    times = step_times(program(g.graph([y]), precision="fp32"), CARDS["H100"])
    assert sum(t.launches for t in times) == 2
    assert [t.bound for t in times if not t.launches] == ["nothing to do"] * (len(times) - 2)
    g = GraphBuilder()
    hosted = g.graph([g.NonZero(g.input("x", f32(4, 4)))])
    assert [t.bound for t in step_times(program(hosted, precision="fp32"), CARDS["H100"])] == ["the host"]


def test_networks() -> None:
    """ResNet-50 at batch 64: near what products of that size allow, in 60 launches; at batch 1 the launches count."""
    for batch in (1, 64):
        times = step_times(program(WORKLOADS["resnet50"].build(batch)), CARDS["H200"])
        total, flops = sum(t.seconds for t in times), sum(t.flops for t in times)
        assert 55 <= sum(t.launches for t in times) <= 70
        assert flops == pytest.approx(8.2e9 * batch, rel=0.02)
        assert {t.kind for t in times} <= set(SHARES)
        if batch == 1:
            assert total > 60 * LEAST
        else:
            assert 0.9e-3 < total < 2e-3
    assert set(KINDS.values()) <= set(SHARES)
    assert all(0 < part <= 1 for share in SHARES.values() for part in share)


def test_the_command(tmp_path: Path) -> None:
    save_onnx(product(512, 512, 512), tmp_path / "m.onnx")
    asked = ["explain", str(tmp_path / "m.onnx"), "--device", "gpu:0@sm_90", "--time", "--json"]
    ran = CliRunner().invoke(cli, [*asked, "--card", "H200"])
    assert ran.exit_code == 0, ran.output
    said = json.loads(ran.output)
    assert said["expected_on"] == "H200, by a model: nothing was measured"
    (rows,) = [v for k, v in said.items() if k.startswith("expected_time")]
    assert math.isclose(sum(r["expected us"] for r in rows), said["expected_microseconds"], rel_tol=0.02)
    assert {r["bound by"] for r in rows} <= {"arithmetic", "bytes", "launches", "tiles"}
    wrong = CliRunner().invoke(cli, [*asked[:2], "--time"])
    assert isinstance(wrong.exception, mz.InputError)
    assert "gpu:0@sm_90" in str(wrong.exception.hint)
