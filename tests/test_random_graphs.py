"""Random graphs as planned, under every switch and instruction set: what their operators answer one by one, and the
same again each time they are asked. How graphs are made and looked at is told in tests/random_graphs/."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mezzo.exporters import save_onnx
from mezzo.tools.check import check
from mezzo.tools.check_options import Options
from mezzo.tools.verdict import GOOD

from .random_graphs.children import ISAS, Part, Report, parts, run
from .random_graphs.generate import FOCI, generate
from .random_graphs.moves import MOVES
from .random_graphs.switches import every, sample

Record = Callable[[str, object], None]
GRAPHS, PARTS = 3000, 12  # of a suite run, half of them at AVX2
SOAKED, WHOLE = 100_000, 2000  # graphs of the soak: with a sample of the switches, and with their full product
SOAK_PARTS = range(*map(int, os.environ.get("SOAK_PARTS", "0:100").split(":")))  # which hundredths of them


def told(report: Report, record: Record) -> None:
    record("counts", f"{report}")
    assert not report.failures, "\n\n".join([*report.failures[:10], str(report)])


@pytest.mark.parametrize("isa", ["", "AVX2"], ids=lambda isa: isa or "best")
@pytest.mark.parametrize("part", range(PARTS // 2))
def test_random_graphs(part: int, isa: str, record_property: Record) -> None:
    """3,000 graphs of a suite run, half of them at the best instruction set of this machine."""
    count = GRAPHS // PARTS
    first = (part + (PARTS // 2 if isa else 0)) * count
    told(run([Part(first, count, most=0)], isa=isa), record_property)


@pytest.mark.soak
@pytest.mark.parametrize("part", SOAK_PARTS)
def test_many_random_graphs(part: int, record_property: Record) -> None:
    """A hundredth of 100,000 graphs, at one of the instruction sets and with one of the foci in turn."""
    count = SOAKED // 100
    chosen = parts(1_000_000 + part * count, count, focus=FOCI[part // len(ISAS) % len(FOCI)])
    told(run(chosen, isa=ISAS[part % len(ISAS)]), record_property)


@pytest.mark.soak
@pytest.mark.parametrize("part", SOAK_PARTS)
def test_the_full_product(part: int, record_property: Record) -> None:
    """Each of 2,000 graphs under every combination of the switches."""
    count = WHOLE // 100
    told(run(parts(2_000_000 + part * count, count, full=True), isa=ISAS[part % len(ISAS)]), record_property)


def checked(seeds: range, at: Path) -> None:
    """`mezzo check` of exported graphs: no step differs from its operators, and nothing else is wrong."""
    path = at / "model.onnx"
    for seed in seeds:
        case = generate(seed, most=12)
        save_onnx(case.graph, path)
        for name, x in case.feeds.items():
            np.save(at / f"{name}.npy", x)
        fed = tuple(f"{name}={at / name}.npy" for name in case.feeds)
        verdict = check(path, Options(against="steps", inputs=fed, round_trip=True))
        assert verdict.code == GOOD, f"seed {seed}: {verdict.problems}\n{case.graph}"


def test_mezzo_check_blames_nothing(tmp_path: Path) -> None:
    checked(range(400, 425), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_mezzo_check_blames_nothing_of_many(part: int, tmp_path: Path) -> None:
    checked(range(4000 + 100 * part, 4100 + 100 * part), tmp_path)


def test_a_seed_makes_the_same_graph() -> None:
    for seed in range(12):
        a, b = generate(seed), generate(seed)
        assert str(a.graph) == str(b.graph)
        assert all(np.array_equal(x, b.feeds[n]) for n, x in a.feeds.items())


def test_graphs_cover_the_vocabulary() -> None:
    """Between them, graphs have every move's operators, up to 60 nodes, and ranks from 0 to 5."""
    cases = [generate(seed) for seed in range(150)]
    assert max(len(c.graph.nodes) for c in cases) > 40
    assert {np.ndim(x) for c in cases for x in c.feeds.values()} >= set(range(6))
    assert len({n.op for c in cases for n in c.graph.nodes}) > 100
    assert {m.focus for m in MOVES} == set(FOCI) - {""}


def test_combinations_cover_all_pairs() -> None:
    rng = np.random.default_rng(0)
    names = ("onednn", "strategy", "fuse", "threads", "bf16")
    for _ in range(20):
        rows = sample(rng)
        assert len(rows) == 8
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                found = {(getattr(r, a), getattr(r, b)) for r in rows}
                assert found == {(getattr(r, a), getattr(r, b)) for r in every()}
