"""Numeric checks: outputs against another side, the origin of a difference, and the round trip through a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..exporters import to_onnx
from ..importers import load_onnx
from ..ops import Tensor
from ..ops.budget import Budget
from ..ops.dataclasses import dataclass, field, replace
from ..ops.errors import InputError, MezzoError
from ..ops.types import Array, Type, type_of
from ..runtime.file import is_mezzo, open_file
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.infer import infer
from . import feeds as inputs
from .check_options import FOLDED, Options
from .compare_models import REFEREES, referee
from .exact import Exact, exact
from .fills import fills, given_arrays
from .gaps import Gap, Tolerance, gap
from .locate import Changed, Probe, changed_weights, locate
from .report import Table, size
from .sides import Ours, Recorded, Side, check_recording, write_recording
from .steps import Wrong, check_steps
from .verdict import DIFFERENT, MISSING, Problem, problems_of

ENOUGH = 2  # ways to fill in open sizes that have to run
STEPS = "steps"  # compared with our own references, without another side
SHOWN = 5  # wrong steps
GIVE_SIZES = "give sizes with --dim name=4, or inputs with --input x=file.npy"
ONE_OF_OURS = "please report it, it is a bug of ours"
LOOK_AT = (
    "all that this node reads agrees: look at its weights, its attributes and its kernel; "
    "if it is rounding that grows, give real inputs with --input, or a --tolerance"
)
REAL_INPUTS = "rounding decides about this input in both runtimes: give real ones with --input"
HOW_TO_RECORD = "record them with `mezzo check SOUND.onnx --record REF.npz`, and compare with that"
COLUMNS = ("sizes", "output", "largest difference", "allowed", "agrees")


@dataclass(slots=True)
class Part:
    """Result of one part of the check."""

    name: str
    said: str = ""
    problems: list[Problem] = field(default_factory=list[Problem])
    tables: list[Table] = field(default_factory=list[Table])

    def add(self, message: str, *, code: int, where: str = "", hint: str = "") -> None:
        self.problems.append(Problem(self.name, message, where, hint, code))


class Numbers:
    """The numeric parts of a check of one model."""

    def __init__(self, path: Path, graph: Graph, options: Options, budget: Budget) -> None:
        self.path, self.graph, self.options, self.budget = path, graph, options, budget
        kinds = infer(graph, budget=replace(budget, fold_elements=min(FOLDED, budget.fold_elements))).types.values()
        self.tolerance = Tolerance.parse(options.tolerance).within({k.dtype for k in kinds if isinstance(k, Tensor)})
        self.facts: dict[str, Any] = {}
        self.random = [n.place for _, n in graph.walk() if draws(n)]
        self._refused: list[Problem] = []
        self._ran: list[tuple[str, dict[str, Any], dict[str, Any]]] = []  # what was filled in, feeds, our outputs

    def check(self, *, round_trip: bool) -> Iterator[Part]:
        """Yield each part in turn; errors of the model or of the other side are not raised, but are in the parts."""
        compare = self._by_steps if self.options.against == STEPS else self._against
        with_other = [("numbers", compare)] if self.options.against else []
        recording = [("record", self._record)] if self.options.record else []
        trip = [("round trip", self._round_trip)] if round_trip else []
        for name, do in (*with_other, *recording, *trip):
            part = Part(name)
            try:
                do(part)
            except MezzoError as error:
                part.problems += problems_of(error, name, MISSING)
            yield part

    # Ours

    @cached_property
    def ours(self) -> Ours:
        """Our side; planned when it is first asked for."""
        return Ours(self.graph, budget=self.budget)

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The inputs that were given as files."""
        return given_arrays(self.options.inputs)

    def _feeds(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Ways to fill in what is open, without those for which the model makes nothing."""
        given = inputs.parse_sizes(self.options.sizes)
        for shown, feeds in fills(self.ours.session, given, self.arrays, self.options.seed):
            try:
                if shown and any(map(_is_empty, self._looked_at(feeds))):
                    raise InputError("operators are left without elements", where=f"sizes {shown}")
            except MezzoError as error:
                self._refused.append(Problem("", error.message, error.where, GIVE_SIZES))
                continue
            yield shown, feeds

    def _looked_at(self, feeds: Mapping[str, Any]) -> Iterator[Type]:
        """The types of all values, or of the outputs alone where an input is empty, as a cache may be."""
        typed = self._typed(feeds).types
        empty = any(np.size(a) == 0 for a in feeds.values())
        return map(typed.__getitem__, self.graph.outputs if empty else typed)

    def _typed(self, feeds: Mapping[str, Any]) -> Graph:
        """The graph with the types of all values for these feeds."""
        types = {n: self.graph.types[n] if isinstance(a, list | dict) else type_of(a) for n, a in feeds.items()}
        return infer(self.graph, types, budget=self.budget)

    def _runs(self) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Ways to fill in open sizes that run, with our outputs. Raises the error of the last way if none does."""
        if not self._ran:
            for shown, feeds in self._feeds():
                mine, error = _attempt(self.ours, feeds, self.graph.outputs)
                if mine is not None:
                    self._ran.append((shown, feeds, mine))
                    break
                assert error is not None
                self._refused.append(Problem("", error.message, error.where, GIVE_SIZES))
            if not self._ran:
                last = self._refused[-1]
                text = f"it runs with none of the sizes that were tried: {last.message}"
                raise InputError(text, where=last.where, hint=last.hint)
        return self._ran

    # Against our own references

    def _by_steps(self, part: Part) -> None:
        """Compare each step of the program with the operators that it stands for."""
        shown, feeds, _ = self._runs()[0]
        checked = check_steps(self.ours.session, feeds, self.graph)
        self.facts |= {"ours": self.ours.about, "steps": checked.right + len(checked.left) + len(checked.wrong)}
        part.said = checked.said
        for wrong in checked.wrong[:SHOWN]:
            sizes = f" (sizes {shown})" if shown else ""
            part.add(f"{wrong}{sizes}", code=DIFFERENT, where=wrong.place, hint=ONE_OF_OURS)

    def _wrong_step(self, feeds: Mapping[str, Any]) -> Wrong | None:
        """The first step of our program that is wrong by itself."""
        try:
            return next(iter(check_steps(self.ours.session, feeds, self.graph).wrong), None)
        except MezzoError:  # it is the other side's word against ours then
            return None

    # Against another side

    def _against(self, part: Part) -> None:
        other = self._other()
        self.facts |= {"ours": self.ours.about, "theirs": other.about}
        if self.random and not isinstance(other, Ours | Recorded):
            part.add(
                "it draws random numbers, which others draw otherwise",
                code=MISSING,
                where=self.random[0],
                hint="compare with another model of ours, or with a recording",
            )
            return
        rows: list[tuple[Any, ...]] = []
        part.said = "agree"
        for shown, feeds in self._ways(other):
            mine, theirs = self._both(other, feeds, part, filled=bool(shown) and not isinstance(other, Recorded))
            if part.problems:
                break
            if mine is None or theirs is None:
                continue
            self._ran.append((shown, feeds, mine))
            gaps = {n: gap(mine[n], theirs[n], self.tolerance) for n in self._outputs(other)}
            rows += [
                (shown, n, f"{g.error:.1e}", f"{g.tolerance:.0e}", "yes" if g.agrees else "no") for n, g in gaps.items()
            ]
            wrong = {n: g for n, g in gaps.items() if not g.agrees}
            if wrong:
                self._differ(part, other, feeds, wrong, shown, exact=self._exact(other, feeds, mine, theirs))
            if wrong or len(self._ran) == ENOUGH:
                break
        if not self._ran and not part.problems and self._refused:
            last = self._refused[-1]
            text = f"none of the sizes that were tried runs on both sides: {last.message}"
            part.add(text, code=MISSING, where=last.where, hint=last.hint)
        if rows:
            part.tables.append(Table("Outputs", COLUMNS, rows))
        changed = self._changed(other) if not part.problems else []
        if changed:
            part.said = f"agree, though {changed[0]}"

    def _other(self) -> Side:
        against = str(self.options.against)
        if against in REFEREES:
            return referee(against, self.path, self.graph)
        path = Path(against)
        if path.suffix == ".npz":
            return Recorded(path, self.graph.inputs)
        graph = open_file(path, self.budget).graph if is_mezzo(path) else load_onnx(path, budget=self.budget)
        return Ours(graph, path.name, self.budget)

    def _ways(self, other: Side) -> Iterator[tuple[str, dict[str, Any]]]:
        if not isinstance(other, Recorded):
            yield from self._feeds()
            return
        feeds = {**other.feeds, **self.arrays}
        needed = [n for n in self.graph.inputs if n not in feeds and n not in self.graph.initializers]
        if needed:
            raise InputError(
                f"it holds no input {', '.join(needed)}",
                where=str(other.path),
                hint="give it with --input NAME=FILE.npy",
            )
        yield "as recorded", feeds

    def _outputs(self, other: Side) -> list[str]:
        """The outputs that both sides have."""
        if isinstance(other, Ours):
            theirs = set(other.graph.outputs)
        else:
            theirs = {*other.values} if isinstance(other, Recorded) else {*self.graph.outputs}
        shared = [o for o in self.graph.outputs if o in theirs]
        if not shared:
            raise InputError(
                f"the other side has none of the outputs {', '.join(self.graph.outputs)}",
                where=str(self.options.against),
                hint="outputs are matched by name: rename them, or record again",
            )
        return shared

    def _both(self, other: Side, feeds: Mapping[str, Any], part: Part, *, filled: bool) -> tuple[Any, Any]:
        """The outputs of both sides; None of a side that refuses. That is a problem where we refuse what the other
        side runs, and where nothing was filled in that could be to blame."""
        mine, refused = _attempt(self.ours, feeds, self.graph.outputs)
        theirs, declined = _attempt(other, feeds, self._outputs(other))
        if refused and not declined:
            text = f"it does not run here, and does there: {refused.message}"
            part.add(text, code=DIFFERENT, where=refused.where, hint=refused.hint)
        elif declined:
            text = declined.message if refused else f"it runs here, and not there: {declined.message}"
            if filled:
                self._refused.append(Problem("", text, declined.where, GIVE_SIZES))
            else:
                part.add(text, code=MISSING, where=declined.where, hint=declined.hint)
        return mine, theirs

    def _changed(self, other: Side) -> list[Changed]:
        weights = other.graph if isinstance(other, Ours) else other.weights if isinstance(other, Recorded) else {}
        return changed_weights(self.graph, weights, self.tolerance)

    def _exact(self, other: Side, feeds: Mapping[str, Any], mine: Any, theirs: Any) -> Exact | None:
        """Return the distances of two runtimes from float64; None where the other side is another model."""
        if isinstance(other, Ours | Recorded):
            return None
        return exact(self.graph, self._typed(feeds), feeds, mine, theirs, self.tolerance)

    def _differ(
        self, part: Part, other: Side, feeds: Mapping[str, Any], wrong: Mapping[str, Gap], shown: str,
        exact: Exact | None = None,
    ) -> None:  # fmt: skip
        """Tell that outputs differ, and where the difference begins."""
        changed = self._changed(other)
        for weight in changed:
            part.add(
                str(weight),
                code=DIFFERENT,
                where=weight.reader.place if weight.reader else "",
                hint="is it meant to be another weight? then compare with a model that has it",
            )
        outputs = "; ".join(f"output {n!r}: {g}" for n, g in wrong.items())
        sizes = f" (sizes {shown})" if shown and shown != "as recorded" else ""
        sizes += f"; {exact}" if exact else ""
        keeps, step = self._keeps_values(other), self._wrong_step(feeds)
        located = locate(self._typed(feeds), wrong, Probe(self.ours, other, feeds, self.tolerance)) if keeps else None
        if step is not None:  # of the nodes that it stands for one may be named
            where = located.node.place if located is not None and located.node.place in step.origin else step.place
            part.add(f"{outputs}{sizes}; {step}", code=DIFFERENT, where=where, hint=ONE_OF_OURS)
        elif located is not None:
            between = (
                f" (the values {', '.join(located.unseen)} before it are not there to compare)"
                if located.unseen
                else ""
            )
            part.add(
                f"{outputs}{sizes}; the first value that differs is {located.value!r}: {located.gap}{between}",
                code=DIFFERENT,
                where=located.node.place,
                hint=REAL_INPUTS if exact and exact.ill_conditioned else LOOK_AT,
            )
        elif keeps:
            part.add(
                f"{outputs}{sizes}, but no value that is kept for comparison differs, and every step here agrees with "
                "its operators",
                code=DIFFERENT,
                hint="if it is rounding that grows, give real inputs with --input, or a --tolerance",
            )
        else:
            part.add(
                f"{outputs}{sizes}; where it begins cannot be told from final outputs",
                code=DIFFERENT,
                hint=HOW_TO_RECORD,
            )

    def _keeps_values(self, other: Side) -> bool:
        """True if the other side has intermediate values."""
        between = {o for n in self.graph.nodes for o in n.outputs if o} - set(self.graph.outputs)
        return not between or not between.isdisjoint(other.values)

    # Recording and the round trip

    def _record(self, part: Part) -> None:
        shown, feeds, _ = self._runs()[0]
        typed = self._typed(feeds)
        names = [o for n in typed.nodes for o in n.outputs if o and isinstance(typed.types[o], Tensor)]
        names = list(dict.fromkeys([*names, *self.graph.outputs]))
        limit, path = self.options.record_limit, Path(str(self.options.record))
        tensors = [t for n in names if isinstance(t := typed.types[n], Tensor) and t.static]
        check_recording(sum(t.nbytes for t in tensors), limit, str(path))
        total = write_recording(path, feeds, self.ours.run(feeds, names), self.graph, limit=limit)
        part.said = f"{len(names)} values, {size(total)}, in {path}" + (f" (sizes {shown})" if shown else "")

    def _round_trip(self, part: Part) -> None:
        model = to_onnx(self.graph)
        opset = next(int(o.version) for o in model.opset_import if not o.domain)
        again = Ours(load_onnx(model, budget=self.budget), f"opset {opset}", self.budget)
        shown, feeds, before = self._runs()[0]
        after = again.run(feeds, again.graph.outputs)
        if self.random:  # the numbers of a run depend on how many there were before
            before = Ours(self.graph, budget=self.budget).run(feeds, self.graph.outputs)
        for name, value in before.items():
            apart = gap(after[name], value, self.tolerance)
            if not apart.agrees:
                text = f"output {name!r} is another one after export and import: {apart}"
                part.add(text, code=DIFFERENT, where=f"opset {opset}, sizes {shown or 'as declared'}", hint=ONE_OF_OURS)
        part.said = f"same numbers at opset {opset}"


def _attempt(side: Side, feeds: Mapping[str, Any], names: Any) -> tuple[dict[str, Any] | None, MezzoError | None]:
    try:
        return side.run(feeds, names), None
    except MezzoError as error:
        return None, error


def _is_empty(kind: Type) -> bool:
    """True if a tensor of rank 2 or more has no elements. (An empty vector is how operators are told: no shape.)"""
    return isinstance(kind, Tensor) and len(kind.dims or ()) > 1 and kind.elements == 0


def draws(node: Node) -> bool:
    """True if a node draws random numbers; a Dropout does so only in training mode."""
    return not node.record.deterministic and not (node.op == "Dropout" and not any(node.inputs[2:]))
