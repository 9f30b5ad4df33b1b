"""The cells of one operator: its samples at every opset, in every element type that the schemas allow."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx.checker
import onnx.defs
import onnx.numpy_helper
import onnx.shape_inference

from ..ops import Body, Op, Sample
from ..ops.dataclasses import dataclass, field, replace
from ..ops.errors import MezzoError
from ..ops.types import type_of
from ..ops.upgrade import UpgradeDeclined
from .attributes import Tries, gaps, pairs, shown, with_pair
from .compare_node import NOT_OURS, Known, Trial, quiet, tried
from .coverage_cells import KINDS_OF_DEVICES, Cell, Mark, OperatorCoverage, available
from .one_node import OneNode, any_schema, model_of, one_node, records, versions
from .retype import (
    BODIES,
    BY_NAME,
    LEAF,
    alike,
    allowed,
    branches,
    formals_of,
    spelled,
    turn,
    value_of,
    with_result_type,
)
from .samples import arrays

REFUSALS = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, TypeError, OverflowError)
Place = tuple[str, str]  # a type parameter and a type

HANDING_ON = {"If", "Loop", "Scan", "Identity", "OptionalGetElement"}
# Types that gradients are computed in.
TRAINED = {form.format(f"tensor({t})") for form in ("{}", "seq({})", "optional({})", "optional(seq({}))")
           for t in ("float", "double", "float16", "bfloat16")}  # fmt: skip


@dataclass(slots=True)
class _Filled:
    """Results for one cell so far: the trials that ran, and the errors of others."""

    trials: list[Trial] = field(default_factory=list[Trial])
    wrong: list[str] = field(default_factory=list[str])

    def cell(self, device: str, opset: int, place: Place) -> Cell:
        """The cell as it ends."""
        marks = {"run": Mark.YES if self.trials and not self.wrong else Mark.NO}
        for what in ("train", "export"):
            outcomes = {getattr(t, what) for t in self.trials} - {None}
            if what == "train" and place[1] not in TRAINED:
                outcomes = set()
            marks[what] = (
                Mark.NONE if not outcomes and marks["run"] is Mark.YES else Mark.YES if outcomes == {""} else Mark.NO
            )
            self.wrong += [f"{what}: {text}" for text in sorted(outcomes - {""})]
        kernels = frozenset[str]().union(*(t.kernels for t in self.trials))
        judges = frozenset[str]().union(*(t.judges for t in self.trials))
        return Cell(
            device, opset, place[0], LEAF.sub(r"\1", place[1]), **marks,
            kernels=tuple(sorted(kernels)), judges=tuple(sorted(judges)), why=tuple(dict.fromkeys(self.wrong)),
        )  # fmt: skip


def cells_of(key: tuple[str, str]) -> OperatorCoverage:
    """Return the coverage of one operator of a domain."""
    with quiet():
        return _cells_of(*key)


def _cells_of(domain: str, op: str) -> OperatorCoverage:
    own = [(o, s) for o in records(domain, op) for s in o.samples]
    cells, opsets = list[Cell](), versions(domain, op)
    missing, counted = tuple[str, ...](), (0, 0)
    for kind in KINDS_OF_DEVICES:
        device = available(kind)
        if not device:
            continue
        known = Known()
        for opset in opsets:
            at = [(o, s) for o in records(domain, op, opset) for s in o.samples]
            cells += _Opset(domain, op, opset, device, known).filled(at)
        missing, counted = _attributes(own, domain, op, opsets[-1], device)
    return OperatorCoverage(domain, op, tuple(opsets), len(own), digest((domain, op)), tuple(cells), missing, counted)


def died(domain: str, op: str) -> OperatorCoverage:
    """An operator whose process ended without an answer."""
    why = ("the process that tried it ended without an answer",)
    return OperatorCoverage(domain, op, tuple(versions(domain, op)), 0, digest((domain, op)), (), why)


@dataclass(slots=True)
class _Opset:
    """The cells of an operator at one opset."""

    domain: str
    op: str
    opset: int
    device: str
    known: Known

    def filled(self, own: Sequence[tuple[Op, Sample]]) -> Iterator[Cell]:
        """Yield the cells of this opset: first from the samples as they are, then converted to the types that none of
        them has."""
        schema = any_schema(self.domain, self.op, self.opset)
        places = [(p, t) for p, listed in allowed(schema).items() for t in listed]
        by_place = {place: _Filled() for place in places}
        refused = dict[str, None]()
        for o, sample in own:
            trial_model = self.made(o, sample)
            if isinstance(trial_model, str):
                refused[trial_model] = None
            else:
                self._note(by_place, trial_model, schema)
        for place, filled in by_place.items():
            if not filled.trials:
                refused |= self._turned(by_place, place, own, schema)
            cell = filled.cell(self.device, self.opset, place)
            if cell.why or cell.run is Mark.YES:
                yield cell
            elif _can_be_made(place[1], self.domain, self.opset):
                yield replace(cell, why=(next(iter(refused), "no sample has this type"),))
            else:
                yield replace(cell, run=Mark.NONE, train=Mark.NONE, export=Mark.NONE)

    def made(self, o: Op, sample: Sample) -> OneNode | str:
        """A sample as a model, or why this opset cannot express it."""
        return _possibly(lambda: one_node(o, sample, self.domain, self.op, self.opset))

    def _note(
        self, by_place: dict[Place, _Filled], trial_model: OneNode, schema: Any, target: Place | None = None
    ) -> bool:
        """Try a model; it counts for every type of its operands. What is wrong stands against what it was made for."""
        trial = tried(trial_model, self.device, self.known)
        shown = _places(trial_model, schema)
        if trial.run:
            blamed = target or next(iter(shown))
            if blamed in by_place:
                by_place[blamed].wrong.append(trial.run)
            return False
        for place in shown:
            if place in by_place and (target in (None, place) or not (trial.train or trial.export)):
                by_place[place].trials.append(trial)
        return target is None or target in shown

    def _turned(
        self, by_place: dict[Place, _Filled], place: Place, own: Iterable[tuple[Op, Sample]], schema: Any
    ) -> dict[str, None]:
        """Turn samples into a type until one runs; returns why some could not be written."""
        refused = dict[str, None]()
        for trial_model in self._models(place, own, schema):
            if isinstance(trial_model, str):
                refused[trial_model] = None
            elif self._note(by_place, trial_model, schema, place):
                # numbers that have no form in this type may trouble a referee, never a kernel
                by_place[place].wrong[:] = [w for w in by_place[place].wrong if w.startswith(NOT_OURS)]
                break
        return refused

    def _models(self, place: Place, own: Iterable[tuple[Op, Sample]], schema: Any) -> Iterator[OneNode | str]:
        """Models in the type of a place."""
        if self.op == "If" and LEAF.search(place[1]):
            graph, feeds = branches(value_of(place[1]))
            yield _possibly(lambda: model_of(graph, feeds, (), self.domain, self.op, self.opset))
        for o, sample in own:
            for other in _in_type(o, sample, place, schema):
                yield self.made(o, other)


def _possibly(make: Callable[[], OneNode]) -> OneNode | str:
    """The model, or why there is none."""
    try:
        trial_model = make()
        onnx.checker.check_model(trial_model.model)
        onnx.shape_inference.infer_shapes(trial_model.model, check_type=True)
    except MezzoError as error:
        return error.message
    except (UpgradeDeclined, *REFUSALS) as error:
        return str(error).partition("\n")[0]
    return trial_model


@cache
def _makers(domain: str, opset: int) -> frozenset[str]:
    """The types that operators of an opset make, others than those that hand values on."""
    newest = dict[str, Any]()
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain != domain or schema.since_version > opset or schema.name in HANDING_ON:
            continue
        if schema.name not in newest or newest[schema.name].since_version < schema.since_version:
            newest[schema.name] = schema
    return frozenset(t for s in newest.values() for f in s.outputs for t in f.types)


def _can_be_made(kind: str, domain: str, opset: int) -> bool:
    """True if a model of this opset can produce a value of this type by itself, not only take it as an input."""
    return domain != "" or kind in _makers(domain, opset)


def _in_type(o: Op, sample: Sample, place: Place, schema: Any) -> Iterator[Sample]:
    """The sample with the type of a place, in the ways that there are."""
    parameter, target = place
    if o.name in BODIES:
        yield BODIES[o.name](value_of(target))
        return
    if any(isinstance(v, Body) for v in sample.attrs.values()) or not LEAF.search(target):
        return
    xs = arrays(sample)
    formals = formals_of(schema.inputs, xs)
    which = [i for i, (f, x) in enumerate(zip(formals, xs, strict=False)) if f.type_str == parameter and x is not None]
    if not which:
        yield from with_result_type(sample, BY_NAME[LEAF.findall(target)[0]], target)
        return
    try:
        turned = turn(xs, which, target)
        if turned is None:
            return
        yield replace(sample, inputs=turned)
        other, _ = alike(xs, turned, which, [allowed(schema)[f.type_str] for f in formals])
        yield replace(sample, inputs=other)
    except (ValueError, TypeError, OverflowError, IndexError):  # these numbers have no form in this type
        return


def _places(trial_model: OneNode, schema: Any) -> list[Place]:
    """The type parameters and types of all operands of a model, those of its first input first."""
    stored = {t.name: t for t in trial_model.model.graph.initializer}
    places: dict[Place, None] = {}
    for formals, given in ((schema.inputs, trial_model.node.input), (schema.outputs, trial_model.node.output)):
        for formal, name in zip(formals_of(formals, given), given, strict=False):
            kind = trial_model.graph.types.get(name)
            if kind is None and name in stored:
                kind = type_of(onnx.numpy_helper.to_array(stored[name]))
            if kind is not None:
                places[formal.type_str, spelled(kind)] = None
    return list(places)


def _attributes(
    own: list[tuple[Op, Sample]], domain: str, op: str, opset: int, device: str
) -> tuple[tuple[str, ...], tuple[int, int]]:
    """Values and pairs of values of attributes that no sample has, after trying those that samples can be given."""
    at, schema = _Opset(domain, op, opset, device, Known()), any_schema(domain, op, opset)
    samples = [s for _, s in own]

    def refused(tries: Tries) -> str:
        """Empty if some sample runs with what is tried, else why none does."""
        reasons = dict[str, None]()
        for o, sample in own:
            for attrs in tries(sample):
                trial_model = at.made(o, replace(sample, attrs=attrs))
                wrong = trial_model if isinstance(trial_model, str) else tried(trial_model, device, None).run
                if not wrong:
                    return ""
                reasons[wrong] = None
        return next(iter(reasons), "no sample has it")

    asked = pairs(op, schema)
    lacking = {text: refused(tries) for text, tries in gaps(op, schema, samples).items()}
    paired = {pair: "" if shown(pair, schema, samples) else refused(with_pair(pair)) for pair in asked}
    lacking |= {" with ".join(f"{a}={v}" for a, v in pair): reason for pair, reason in paired.items()}
    ran = sum(not reason for reason in paired.values())
    return tuple(f"{text} ({reason})" for text, reason in lacking.items() if reason), (ran, len(asked))


def digest(key: tuple[str, str]) -> str:
    """Return a digest that changes when the samples or the schemas of an operator change."""
    domain, op = key
    digest = hashlib.blake2b(digest_size=4)
    for opset in versions(domain, op):
        schema = any_schema(domain, op, opset)
        digest.update(f"{opset} {sorted(allowed(schema).items())} {sorted(schema.attributes)}".encode())
    for o in records(domain, op):
        for sample in o.samples:
            digest.update(_described([sample.inputs, sorted(sample.attrs.items()), sample.outputs]).encode())
    return digest.hexdigest()


def _described(value: Any) -> str:
    """A value of a sample as text that is the same in every process."""
    match value:
        case np.ndarray() | np.generic():
            return f"{value.dtype}{value.shape}{np.asarray(value).tolist()}"
        case list() | tuple():
            return f"[{', '.join(map(_described, value))}]"
        case dict():
            return _described(sorted(value.items()))
        case Body():
            return f"body of {_described(value.inputs)}"
    return str(value)
