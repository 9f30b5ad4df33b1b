"""Programs for rounded sizes in a `.mezzo` file: every size of a range is served, and nothing is planned."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import mezzo as mz
from mezzo.exporters import save_onnx
from mezzo.models.convnets import random_weights
from mezzo.models.gpt2 import gpt2
from mezzo.models.transformer import encoder
from mezzo.ops.dataclasses import replace
from mezzo.ops.errors import InputError, ModelError, ShapeError
from mezzo.ops.types import Array, f32
from mezzo.runtime.compile import padded, specialize
from mezzo.runtime.compile.padded import PaddedPrograms
from mezzo.runtime.compile.padding import rounded_up
from mezzo.runtime.execution.cached_session import CachedSession
from mezzo.runtime.execution.executor import Executor
from mezzo.runtime.execution.saving import content
from mezzo.runtime.execution.session import Session
from mezzo.runtime.file import Opened, open_file, rounded
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.tools.compile import SizesToPlan, compile_model

from .test_rounded_sizes import SERVED, graph_of

RNG = np.random.default_rng(2)
LENGTHS = (1, 2, 7, 9, 11, 30)
TOO_SHORT = {"largest along": 1}  # of these models: up to this length they have no results (the largest two of one row)


@contextmanager
def nothing_planned() -> Iterator[None]:
    """A context in which no program is made, and no graph is rewritten."""
    refused = AssertionError("something is planned")
    with (
        patch.object(PaddedPrograms, "_made", side_effect=refused),
        patch.object(padded, "_pattern", side_effect=refused),
        patch.object(specialize, "compile_graph", side_effect=refused),
        patch.object(specialize, "specialise", side_effect=refused),
    ):
        yield


def stored(session: Session) -> Opened:
    """What a session writes, opened again."""
    return Opened(b"".join(content(session, portable=False, source="", producer="")))


def runs(session: Session, lengths: tuple[int, ...] = LENGTHS, width: int = 6) -> list[list[Array]]:
    arrays = [np.random.default_rng(n).standard_normal((1, n, width)).astype(np.float32) for n in lengths]
    return [[*session.run({"x": x}).values()] for x in arrays]


def same(ours: list[list[Array]], theirs: list[list[Array]]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", SERVED)
def test_a_file_serves_what_its_session_planned(name: str) -> None:
    planner = Session(graph_of(SERVED[name], "batch", "length", 6), buckets="auto")
    lengths = tuple(n for n in LENGTHS if n > TOO_SHORT.get(name, 0))
    planned = runs(planner, lengths)
    opened = stored(planner)
    with nothing_planned():
        session = Session(opened)
        same(runs(session, lengths), planned)
        assert session.outputs == planner.outputs
    assert session.stats().rounded == planner.stats().rounded > 0
    assert session.bound_from == "variant"
    again = Session(stored(session))  # written again, those that were not read too
    with nothing_planned():
        same(runs(again, lengths), planned)


@pytest.mark.parametrize(("count", "fits", "short"), [(2, 2, 1), (10, 10, 9), (12, 12, 11)])
def test_a_file_refuses_what_its_session_refuses(count: int, fits: int, short: int) -> None:
    """Fewer elements than are asked for, though what they are rounded up to would do: before the others and behind."""
    graph = graph_of(lambda g, x: g.TopK(x, g.const([count]), axis=1, outputs=2), "batch", "length", 6)
    for lengths in ((short, fits), (fits, short)):
        planner = Session(graph, buckets="auto")

        def answers(session: Session, lengths: tuple[int, ...] = lengths) -> list[list[Array]]:
            found = list[list[Array]]()
            for n in lengths:
                if n == fits:
                    found += runs(session, (n,))
                else:
                    with pytest.raises(ShapeError, match=f"largest {count} of {n}"):
                        runs(session, (n,))
            return found

        planned = answers(planner)
        session = Session(stored(planner))
        same(answers(session), planned)
        assert session.stats().rounded == planner.stats().rounded == 1


def test_lists_of_rounded_sizes_are_stored() -> None:
    """Types of lists hold sizes, too."""
    g = GraphBuilder()
    x = g.input("x", f32("length", 1))
    lists = Session(g.graph([g.SequenceAt(g.SequenceConstruct(x, x), g.const(1))]), buckets="auto")
    arrays = [np.random.default_rng(n).standard_normal((n, 1)).astype(np.float32) for n in LENGTHS]
    planned = [[*lists.run({"x": a}).values()] for a in arrays]
    again = Session(stored(lists), buckets="auto")
    same([[*again.run({"x": a}).values()] for a in arrays], planned)


def test_other_sizes_are_planned_as_ever() -> None:
    planner = Session(graph_of(SERVED["attention"], "batch", "length", 6), buckets="auto")
    runs(planner, (9,))
    session, exact = Session(stored(planner)), Session(planner.graph)
    for mine, other in zip(runs(session, (9, 200, 10)), runs(exact, (9, 200, 10)), strict=True):
        np.testing.assert_allclose(mine[0], other[0], rtol=1e-4, atol=1e-5)
    assert session.stats().rounded == 2
    plain = Session(stored(planner), buckets={})
    runs(plain, (9,))
    assert plain.stats().rounded == 0
    others = Session(stored(planner), strategy="none")  # another key: nothing of the file fits
    runs(others, (9,))
    assert others.bound_from == "graph"


@pytest.mark.parametrize("name", SERVED)
def test_programs_for_rounded_sizes_serve_any_number_of_threads(name: str) -> None:
    graph, lengths = graph_of(SERVED[name], "batch", "length", 6), (9, 40)
    planner = Session(graph, buckets="auto", threads=2)
    runs(planner, lengths)
    opened = stored(planner)
    for threads in (1, 5):
        here = runs(Session(graph, buckets="auto", threads=threads), lengths)
        with nothing_planned():
            session = Session(opened, threads=threads)
            same(runs(session, lengths), here)
        assert session.bound_from == "variant for 2 threads"


CHILD = """
import json, sys, time
import numpy as np
import mezzo as mz
session = mz.load(sys.argv[1])
answers = {}
for n in json.loads(sys.argv[2]):
    x = np.random.default_rng(n).standard_normal((1, n, 32)).astype(np.float32)
    answers[str(n)] = next(iter(session.run({"x": x}).values()))
np.savez(sys.argv[3], **answers)
stats = session.stats()
print(json.dumps([stats.planned, stats.programs, stats.rounded, len(session._compiled), session.bound_from]))
"""


def test_another_process_walks_all_lengths_of_a_compiled_file(tmp_path: Path) -> None:
    model, output, answers = (tmp_path / name for name in ("m.onnx", "m.mezzo", "y.npz"))
    save_onnx(encoder(1, 32, 2), model)
    command = [sys.executable, "-m", "mezzo", "compile", str(model), "-o", str(output), "--sizes", "length=1..64"]
    report = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout)
    assert report["rounded_programs"] == len({rounded_up(n) for n in range(2, 65)})
    assert len(open_file(output).variants) == 1  # of length 1, which is rounded to nothing
    lengths = [3, 64, 17, *range(20, 30)]
    command = [sys.executable, "-c", CHILD, str(output), json.dumps(lengths), str(answers)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    planned, variants, rounded_programs, compiled, origin = json.loads(done.stdout)
    assert (planned, compiled, origin) == (variants, 0, "variant")
    assert rounded_programs == len({rounded_up(n) for n in lengths})
    planner, found = mz.load(model, buckets="auto"), np.load(answers)
    expected = runs(planner, tuple(lengths), 32)
    for n, (y,) in zip(lengths, expected, strict=True):
        np.testing.assert_allclose(found[str(n)], y, rtol=1e-5, atol=1e-6)


def decoder() -> Graph:
    return gpt2("batch", random_weights(0), layers=1, width=32, heads=2, vocabulary=50, places=256)


def test_conversations_of_a_file_grow_through_their_rooms(tmp_path: Path) -> None:
    planner = CachedSession(decoder())
    programs = planner.warmup_conversations(140)
    opened = stored(planner)
    with nothing_planned():
        session = CachedSession(opened)
        ours = list(mz.generate(session, [5, 6, 7], 130))
        assert session.stats().rounded >= 3
    assert ours == list(mz.generate(CachedSession(decoder()), [5, 6, 7], 130))
    assert programs == planner.stats().programs + planner.stats().rounded
    model, output = tmp_path / "m.onnx", tmp_path / "m.mezzo"
    save_onnx(decoder(), model)
    facts = compile_model(model, output, SizesToPlan(("batch=2",), conversation=20)).facts
    with nothing_planned():
        conversation = mz.load(output, cache="auto").conversation(2)
        conversation.run({"input_ids": np.ones((2, 12), np.int64)})
        for _ in range(5):
            conversation.run({"input_ids": np.ones((2, 1), np.int64)})
    assert facts["rounded_programs"] > 1
    with pytest.raises(InputError, match="no programs"):
        compile_model(model, output, SizesToPlan(conversation=20), portable=True)
    other = graph_of(SERVED["elementwise"], "batch", "length", 6)
    with pytest.raises(InputError, match="cache"):
        CachedSession(other).warmup_conversations(3)


def test_programs_are_made_ready_before_the_first_run() -> None:
    planner = Session(graph_of(SERVED["attention"], "batch", "length", 6), buckets="auto")
    planned = runs(planner)
    session = Session(stored(planner))
    assert session.prepare() == planner.stats().rounded
    with nothing_planned(), patch.object(Executor, "instantiate", side_effect=AssertionError("an instance is made")):
        same(runs(session, LENGTHS[2:]), planned[2:])
    assert Session(planner.graph).prepare() == 0


def test_what_contradicts_itself_is_told_when_it_is_met() -> None:
    planner = Session(graph_of(SERVED["mean"], "batch", "length", 6), buckets="auto")
    runs(planner, (9,))
    (pattern,) = planner._fitting.made[planner.signature.outputs].patterns  # type: ignore[union-attr]
    ((key, program),) = pattern.programs.items()
    facts = program.facts  # type: ignore[union-attr]
    wrong = {
        "nothing makes": replace(facts, counts={t: f"other{n}" for t, n in facts.counts.items()}),
        "has no number": replace(facts, axes=dict.fromkeys(planner.signature.outputs, (((((0,), 5),),),))),
        "no symbol 9": replace(facts, shares={"pad@share0": (((((9,), 1),)),)}),
        "parts of the file": replace(
            facts, numbers=dict.fromkeys(facts.counts.values(), np.ones(2, np.int64)), counts={}
        ),
    }
    last = max(facts.planned)  # of the length
    wrong["ZeroDivisionError"] = replace(
        facts, shares={"pad@share0": ((((), 0),),)}, planned={**facts.planned, (((), 0),): 1}
    )
    huge = (((), 1 << 62), ((0,) * 40, 1 << 62))
    wrong["NotSymbolic"] = replace(facts, counts=dict(zip([huge], facts.counts.values(), strict=True)))
    wrong["do not fit: IndexError"] = replace(facts, axes=dict.fromkeys(planner.signature.outputs, ((last,),) * 3))
    wrong["do not fit: ValueError"] = replace(facts, axes=dict.fromkeys(planner.signature.outputs, ((last, 7), (6,))))
    for said, changed in wrong.items():
        pattern.programs[key] = replace(program, facts=changed)  # type: ignore[type-var]
        session = Session(stored(planner))
        with pytest.raises(ModelError, match=said):
            runs(session, (9,))


def test_a_reader_of_facts_takes_nothing_on_trust() -> None:
    for value in (1, "x", (1,), ((1, 2),), (((0,), "f"),), ((("s",), 1),), (((0,) * 65, 1),), (((True,), 1),)):
        facts = rounded._Facts.__new__(rounded._Facts)
        facts.symbols = 2
        with pytest.raises((ModelError, ValueError)):
            facts.terms(value)
