"""One graph under many switches; and many graphs, with what they were refused for."""

from __future__ import annotations

import json
import os
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mezzo.ops.errors import BudgetError, ExecutionError, MezzoError, PlanError, UnsupportedModel
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.ir.infer import infer

from .drawing import Property, drawn
from .generate import generate
from .maker import Case
from .oracle import FLOAT32, Worlds
from .properties import Asked, NotHere, Wrong, repeated
from .switches import Switches, every, sample

# Refusals that a right answer of the references does not make wrong: patterns of their messages, and why.
LIMITS: dict[str, str] = {}


@dataclass(frozen=True)
class Failure:
    """What does not hold, of which graph, under which switches; `kind` is what a smaller graph must show as well."""

    case: Case
    switches: Switches
    property: Property | None
    kind: str
    said: str

    def __str__(self) -> str:
        what = f", {self.property.__name__}" if self.property else ""
        return f"seed {self.case.seed}, {dict(self.switches.given)}{what}: {self.kind}: {self.said}"


@dataclass
class Counts:
    """What a search has seen."""

    graphs: int = 0
    nodes: int = 0
    sessions: int = 0
    properties: Counter[str] = field(default_factory=Counter[str])
    refusals: Counter[str] = field(default_factory=Counter[str])
    failures: list[Failure] = field(default_factory=list[Failure])


def judge(
    case: Case,
    chosen: Sequence[tuple[Switches, Property | None]],
    counts: Counts,
    worlds: dict[float, Worlds] | None = None,
) -> Failure | None:
    """The first thing that does not hold of a graph, if any."""
    shared = {} if worlds is None else worlds
    for switches, wanted in chosen:
        asked = Asked(case, switches, np.random.default_rng((case.seed, 5)), shared)
        kind, said = _tried(asked, wanted, counts)
        if kind:
            return Failure(case, switches, wanted, kind, said)
    return None


def isolated(case: Case, chosen: Sequence[tuple[Switches, Property | None]]) -> Failure | None:
    """`judge` in a child, so that one that dies is a failure as others are. Nothing may have run in this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        found = judge(case, chosen, Counts())
        with os.fdopen(writing, "w") as out:
            row = None if found is None else chosen.index((found.switches, found.property))
            json.dump(None if found is None else [row, found.kind, found.said], out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        text = answers.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0 or not text:
        switches, wanted = chosen[0]
        return Failure(case, switches, wanted, "died", f"the process ended with {status}")
    told = json.loads(text)
    if told is None:
        return None
    switches, wanted = chosen[told[0]]
    return Failure(case, switches, wanted, told[1], told[2])


def _tried(asked: Asked, wanted: Property | None, counts: Counts) -> tuple[str, str]:
    """What is wrong in kind and in words; empty where all holds."""
    counts.sessions += 1
    try:
        session = asked.session()
        repeated(asked, session)
        if wanted is not None:
            wanted(asked, session)
            counts.properties[wanted.__name__] += 1
    except NotHere:
        return "", ""
    except Wrong as error:
        return "wrong", str(error)
    except MezzoError as error:
        reason = refused(error)
        if reason:
            counts.refusals[reason] += 1
            return "", ""
        return type(error).__name__, _told(error)
    except Exception as error:  # whatever it is, it is no answer
        return type(error).__name__, _told(error)
    return "", ""


def _told(error: BaseException) -> str:
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[:-6:-1])
    return f"{error} [{places}]"


def refused(error: MezzoError) -> str:
    """The reason of a refusal that may stand; empty where it is a failure of ours."""
    said = re.sub(r"\d+", "#", error.message)
    if isinstance(error, PlanError) or (isinstance(error, ExecutionError) and error.__cause__ is not None):
        return ""
    if isinstance(error, (UnsupportedModel, BudgetError)):
        return f"{type(error).__name__}: {said}"
    return next(
        (f"{type(error).__name__}: {said} ({why})" for text, why in LIMITS.items() if re.search(text, said)), ""
    )


FEWER = ((5, 8), (12, 4))  # graphs of so many nodes have so many combinations, where time is short; larger ones two


def combinations(case: Case, *, full: bool = False, most: int = 8) -> list[tuple[Switches, Property | None]]:
    """Switches and properties of a graph: at most eight that cover all pairs, or the full product. With `most` 0 large
    graphs have fewer, which cover pairs between them: most defects need few nodes."""
    rng = np.random.default_rng((case.seed, 9))
    count = most or next((n for nodes, n in FEWER if len(case.graph.nodes) <= nodes), 2)
    rows = every() if full else sample(rng)[:count]
    return list(zip(rows, drawn(rng, len(rows)), strict=True))


def examine(seed: int, counts: Counts, *, focus: str = "", full: bool = False, most: int = 8) -> Failure | None:
    """Make the graph of a seed and judge it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        case = generate(seed, focus)
        counts.graphs += 1
        counts.nodes += len(case.graph.nodes)
        try:
            infer(case.graph)
        except MezzoError as error:
            reason = refused(error)
            if reason:
                counts.refusals[reason] += 1
                return None
            failure: Failure | None = Failure(case, Switches(), None, type(error).__name__, _told(error))
        else:
            worlds = {FLOAT32: case.worlds} if case.worlds else {}
            failure = judge(case, combinations(case, full=full, most=most), counts, worlds)
    if failure is not None:
        counts.failures.append(failure)
    return failure


def search(seeds: Iterable[int], *, focus: str = "", full: bool = False, most: int = 8) -> Counts:
    counts = Counts()
    for seed in seeds:
        examine(seed, counts, focus=focus, full=full, most=most)
    return counts


def check(graph: Graph, feeds: Mapping[str, Any], *wanted: Property) -> None:
    """A named case: right under every combination of the switches, and with these properties."""
    batched = tuple(n for n in graph.inputs if np.ndim(feeds[n]))
    case = Case(0, graph, dict(feeds), batched)
    rows: list[tuple[Switches, Property | None]] = [(switches, None) for switches in every()]
    rows += [(switches, one) for one in wanted for switches in (Switches(), Switches(onednn=False))]
    counts = Counts()
    failure = judge(case, rows, counts)
    assert failure is None, f"{failure}\n{graph}"
    assert not counts.refusals, counts.refusals
