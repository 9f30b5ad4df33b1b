"""Expressions: variables, constants and uses of operators, and walks over what they are made of."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..ops import DType
from ..ops.errors import InputError
from ..runtime.engine.work import OURS


class _Scope(threading.local):
    group: str = ""


SCOPE = _Scope()


def group_around() -> str:
    """The group of what is made now."""
    return SCOPE.group


@contextmanager
def grouped(group: str) -> Iterator[None]:
    """Let what is made inside belong to a group, for which executors may have a device (`group2ctx`)."""
    before, SCOPE.group = SCOPE.group, group
    try:
        yield
    finally:
        SCOPE.group = before


Dims = tuple[int | None, ...]
Shapes = list[tuple[int, ...] | None]


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A leaf: an argument, or (`auxiliary`) a state that a run changes, such as running statistics.

    `dims` is what is known of its shape, None for an open size; `init` names the initialiser meant for it, empty for
    what is fed (data, labels). A `fixed` one keeps what that makes of it: it has no gradient. `attrs` are further
    attributes of MXNet's kind, such as `lr_mult`, for those who train; `group` is its `ctx_group`.
    """

    name: str
    dims: Dims | None = None
    dtype: DType = DType.FLOAT
    auxiliary: bool = False
    init: str = ""
    where: str = ""
    fixed: bool = False
    attrs: Mapping[str, str] = field(default_factory=dict[str, str])
    group: str = field(default_factory=group_around)


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A leaf with known numbers; a number of Python (`weak`) takes the element type of its sibling operand."""

    value: np.ndarray[Any, Any]
    weak: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A part of the expression that an operator runs repeatedly: its own variables, and its results. Nodes that do not
    depend on these variables belong to the surrounding expression."""

    inputs: tuple[Variable, ...]
    outputs: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One use of an operator of ONNX (or of another domain). `loss` is the scalar whose gradient replaces that of the
    output, in heads such as SoftmaxOutput. Executors may have a device for its `group`."""

    op: str
    name: str
    inputs: tuple[Entry | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    domain: str = ""
    outputs: int = 1
    where: str = ""
    loss: Entry | None = None
    group: str = field(default_factory=group_around)

    def reads(self) -> Iterator[Entry]:
        """Yield the operands, those of its bodies included."""
        yield from filter(None, self.inputs)
        for value in self.attrs.values():
            if isinstance(value, Body):
                yield from captured(value)


Leaf = Variable | Constant
Maker = Leaf | Use
Entry = tuple[Maker, int]  # an output of an expression: who makes it, and which of its outputs it is


class Names(threading.local):
    """Default names: the operator's, and a number."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def fresh(self, op: str) -> str:
        stem = op.lower()
        self.counts[stem] += 1
        return f"{stem}{self.counts[stem] - 1}"


NAMES = Names()


def line() -> str:
    """The line of the user's program that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS + os.sep):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def label(maker: Maker) -> str:
    """The name of what makes a value."""
    return "constant" if isinstance(maker, Constant) else maker.name


def output_name(entry: Entry) -> str:
    """The name of an output, as MXNet makes it."""
    maker, index = entry
    if not isinstance(maker, Use):
        return label(maker)
    return f"{maker.name}_output{index}" if maker.outputs > 1 else f"{maker.name}_output"


# -- walking ----------------------------------------------------------------------------------------------------------


def makers(entries: Iterable[Entry]) -> list[Maker]:
    """Return everything that the entries depend on, operands first, each once."""
    finished: dict[Maker, None] = {}
    todo: list[tuple[Maker, bool]] = [(m, False) for m, _ in reversed(list(entries))]
    while todo:
        maker, ready = todo.pop()
        if maker in finished:
            continue
        if ready or not isinstance(maker, Use):
            finished[maker] = None
            continue
        todo.append((maker, True))
        reads = [*maker.reads(), *([maker.loss] if maker.loss else [])]
        todo += [(m, False) for m, _ in reversed(reads) if m not in finished]
    return list(finished)


def variables(entries: Iterable[Entry]) -> list[Variable]:
    """The variables among them. Raises InputError where two of them, or two uses, have one name."""
    known: dict[str, Maker] = {}
    for maker in makers(entries):
        if isinstance(maker, Constant):
            continue
        other = known.setdefault(maker.name, maker)
        if other is not maker and not isinstance(other, Constant):
            raise InputError(
                f"two parts of the expression are named {maker.name!r}: made at {other.where} and at {maker.where}",
                hint="give one of them another name=",
            )
    return [m for m in known.values() if isinstance(m, Variable)]


def inside(body: Body) -> list[Maker]:
    """Return the nodes of a body, which depend on its variables, operands first."""
    mine: set[Maker] = set(body.inputs)
    uses: list[Maker] = []
    for maker in makers(body.outputs):
        if isinstance(maker, Use) and any(m in mine for m, _ in maker.reads()):
            mine.add(maker)
            uses.append(maker)
    return uses


def captured(body: Body) -> Iterator[Entry]:
    """Yield the entries of the surrounding expression that a body reads."""
    own = {*body.inputs, *inside(body)}
    for maker in own:
        if isinstance(maker, Use):
            yield from (e for e in maker.reads() if e[0] not in own)
    yield from (e for e in body.outputs if e[0] not in own)


def replaced(
    entries: Sequence[Entry], given: Mapping[str, Entry], done: dict[Maker, Entry | Use] | None = None
) -> tuple[Entry, ...]:
    """The entries with other values in the place of variables; `done` has what was replaced before."""
    done = {} if done is None else done

    def entry(old: Entry) -> Entry:
        new = done.get(old[0])
        return old if new is None else (new, old[1]) if isinstance(new, Use) else new

    def value(old: Any) -> Any:
        if not isinstance(old, Body):
            return old
        outputs = replaced(old.outputs, given, done)
        return old if outputs == old.outputs else replace(old, outputs=outputs)

    for maker in makers(entries):
        if isinstance(maker, Variable) and maker.name in given:
            done[maker] = given[maker.name]
        elif isinstance(maker, Use) and maker not in done:
            inputs = tuple(e and entry(e) for e in maker.inputs)
            attrs = {a: value(v) for a, v in maker.attrs.items()}
            loss = maker.loss and entry(maker.loss)
            if inputs != maker.inputs or loss != maker.loss or any(attrs[a] is not v for a, v in maker.attrs.items()):
                done[maker] = replace(maker, inputs=inputs, attrs=attrs, loss=loss)
    return tuple(map(entry, entries))
