"""Optimizers next to the values: plain data that travels, and steps by the operators that training uses.

An optimizer is what its `to_dict` says (runtime/optimizer.py): a registered name, numbers and texts. Over the wire it
goes as that name and a flat table (`flat`, `nested`); no code travels. Whoever owns a value, or a part of it, keeps
the states and steps them in place, with the expressions and blocks that a training program runs
(ops/training/update.py), so that the numbers are the same bit for bit.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ops import DType
from ..ops.errors import InputError, ShapeError
from ..ops.math.random import mix, normal_from
from ..ops.types import Array, Tensor, type_of
from ..runtime.backends.cpu.update import update_in_place
from ..runtime.execution.functions import FUNCTIONS, compiled
from ..runtime.execution.session import Session
from ..runtime.ir.graph import Graph, GraphBuilder
from ..runtime.ir.typed import TypedBuilder
from ..runtime.optimizer import Group, from_dict
from ..runtime.optimizer.record import states_of

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True, eq=False)
class ChangedRows:
    """Some rows of a table, and of its states by name, after a step: their places, and what is to stand there. The
    table is named ""."""

    at: Array
    parts: Mapping[str, Array]

    def write(self, tables: Mapping[str, Array]) -> None:
        """Write them into flat tables."""
        for slot, part in self.parts.items():
            tables[slot].reshape(-1, part.shape[1])[self.at] = part


class UpdateRule:
    """An optimizer that steps values by name. It holds no states: their owner does.

    >>> rule = UpdateRule({"kind": "SGD", "rate": 0.5, "weight_decay": 0.0, "groups": [], "momentum": 0.0,
    ...     "dampening": 0.0, "nesterov": False})
    >>> weights, gradient = np.ones(3, np.float32), np.full(3, 0.5, np.float32)
    >>> states = rule.states("w", weights)
    >>> rule.step("w", 0, weights, gradient, states)
    >>> weights
    array([0.75, 0.75, 0.75], dtype=float32)
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        """Raises InputError where the data describe no optimizer."""
        self.optimizer = from_dict(data)
        self.data = self.optimizer.to_dict()
        self.elementwise = self.optimizer.elementwise  # else it measures whole tensors, as LARS and LAMB do
        self._rules: dict[float, str] = {}  # by weight decay
        self._latest: dict[tuple[Group, DType, int], list[Array]] = {}
        self._key = ("update", type(self.optimizer), *flat(self.data).items())

    def check_rate(self, by_staleness: bool, where: str) -> None:
        """Raise InputError for an updater of the user, which has no rate, where that is to follow the staleness."""
        if by_staleness and self.optimizer.kind.startswith("rule "):
            raise InputError(
                f"{self.optimizer.kind!r} has no rate that by_staleness could divide",
                where=where,
                hint="use an optimizer (mz.optimizer.register makes one of a rule), or leave by_staleness out",
            )

    def states(self, name: str, value: Array) -> dict[str, Array]:
        """The states of a value, or of a part of it, before its first step. Raises ShapeError where it is no floating
        number."""
        if not DType.of(value.dtype).floating:
            raise ShapeError(f"{value.dtype} cannot learn", where=f"key {name!r}", hint="optimizers step floats")
        return states_of(self.optimizer, value)

    def step(
        self,
        name: str,
        update: int,
        value: Array,
        gradient: Array,
        states: Mapping[str, Array],
        begin: int = 0,
        staleness: int = 0,
    ) -> None:
        """Step number `update` (from 0) of a flat value in place or, where the optimizer is `elementwise`, of any
        contiguous part of it, from its element `begin` on, with the same part of its gradient and its states. The rate
        is divided by 1 + `staleness`."""
        optimizer = self.optimizer
        numbers = self._numbers_at(name, DType.of(value.dtype), update)
        if staleness:
            rate, *others = numbers
            numbers = [np.asarray(rate / rate.dtype.type(1 + staleness)), *others]
        slots = [states[slot] for slot in optimizer.slots]
        draws = [_drawn((name, update, i), begin, value) for i in range(optimizer.draws)]
        given, decay = [value, gradient, *numbers, *draws, *slots], optimizer.decay(name)
        if not self.elementwise:
            made = self._whole_step(given, name).run({f"i{i}": array for i, array in enumerate(given)})
            for target, found in zip((value, *slots), made.values(), strict=True):
                target[...] = found
            return
        if decay not in self._rules:
            self._rules[decay] = optimizer.of(name).rule()
        update_in_place(self._rules[decay], given, len(slots), len(draws))

    def rows_alone(self, name: str) -> bool:
        """True if of a gradient of rows these rows are stepped, and the others stay as they are: the optimizer is lazy,
        or leaves alone what has no gradient. Raises InputError where it is lazy, and measures whole tensors."""
        own = self.optimizer.of(name)
        if own.lazy_update and not own.elementwise:
            raise InputError(
                f"{own.kind} measures whole tensors, of which lazy_update steps some rows",
                where=f"key {name!r}",
                hint="leave out lazy_update",
            )
        return own.lazy_update or own.still

    def step_rows(
        self,
        name: str,
        update: int,
        tables: Mapping[str, Array],
        rows: tuple[Array, Array],
        begin: int = 0,
        first: int = 0,
        staleness: int = 0,
    ) -> ChangedRows:
        """Step number `update` of some rows of a table; what becomes of those elements that lie in a flat part of it
        from its element `begin` on. `tables` has that part as "", and its states by name. `rows` are their numbers,
        ascending, and their gradients; `first` tells how many rows of the same gradient come before them."""
        ids, gradient = rows
        value = tables[""]
        width = max(1, math.prod(gradient.shape[1:]))
        unit = 1 if begin % width or value.size % width else width  # a part may cut rows
        many = width // unit
        at = (ids[:, None] * many + np.arange(many)).reshape(-1) - begin // unit
        low, high = np.searchsorted(at, (0, value.size // unit)).tolist()
        at = at[low:high]
        parts = {slot: table.reshape(-1, unit)[at] for slot, table in tables.items()}
        taken = {slot: part.reshape(-1) for slot, part in parts.items()}
        flat_gradient = np.ascontiguousarray(gradient).reshape(-1)[low * unit : high * unit]
        self.step(name, update, taken.pop(""), flat_gradient, taken, first * width + low * unit, staleness)
        return ChangedRows(at, parts)

    def _whole_step(self, given: Sequence[Array], name: str) -> Session:
        """One whole tensor's step, as a program."""

        def program() -> Session:
            g = TypedBuilder(prefix="update/")
            inputs = [g.input(f"i{i}", type_of(array)) for i, array in enumerate(given)]
            count = len(inputs) - len(self.optimizer.slots)
            at = count - self.optimizer.draws
            made = self.optimizer.of(name).add(g, inputs[0], inputs[1], inputs[2:at], inputs[at:count], inputs[count:])
            return compiled(Graph(tuple(inputs), made, g.nodes(), g.constants(), g.types), instances=1)

        key = (self._key, DType.of(given[0].dtype), given[0].size, self.optimizer.decay(name))
        session: Session = FUNCTIONS.get(key, program)
        return session

    def _numbers_at(self, name: str, dtype: DType, update: int) -> Sequence[Array]:
        """The rate and the other numbers of an update, as a training program computes them."""
        group = self.optimizer.group(name)
        found = self._latest.get((group, dtype, update))
        if found is None:
            session: Session = FUNCTIONS.get((self._key, group, dtype), lambda: self._program(group, dtype))
            if len(self._latest) > 64:
                self._latest.clear()
            found = self._latest[group, dtype, update] = list(session.run({"t": np.int64(update)}).values())
        return found

    def _program(self, group: Group, dtype: DType) -> Session:
        g = GraphBuilder()
        t = g.Cast(g.input("t", Tensor(DType.INT64, ())), to=DType.DOUBLE.onnx)
        rate, *numbers = self.optimizer.numbers_at(g, t)
        if group.scale != 1.0:
            rate = g.Mul(rate, g.const(group.scale, DType.DOUBLE))
        return compiled(g.graph([g.Cast(v, to=dtype.onnx) for v in (rate, *numbers)]), instances=1)


def _drawn(key: tuple[str, int, int], begin: int, value: Array) -> Array:
    """Standard normal numbers for the elements of a value from `begin` on: the same however the value is cut, and other
    ones than a training program draws."""
    name, *rest = key
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
    return normal_from(np, mix((seed, *rest)), begin, value.size).astype(value.dtype)


def flat(data: Mapping[str, Any]) -> dict[str, Scalar]:
    """Nested maps and lists as one table of paths.

    >>> flat({"rate": {"kind": "Cosine", "value": 0.1}, "groups": [{"patterns": ["a*"], "scale": 2.0}]})
    {'rate.kind': 'Cosine', 'rate.value': 0.1, 'groups.[]': 1, 'groups.0.patterns.[]': 1, 'groups.0.patterns.0': 'a*', \
'groups.0.scale': 2.0}
    """
    made: dict[str, Scalar] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            made |= {f"{name}.{inner}": v for inner, v in flat(value).items()}
        elif isinstance(value, list | tuple):
            items = flat({str(i): v for i, v in enumerate(value)})
            made |= {f"{name}.{inner}": v for inner, v in {"[]": len(value), **items}.items()}
        elif value is not None:
            made[name] = value
    return made


def nested(table: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return the tree that `flat` flattened, without entries that were None. Raises InputError for a table that it
    cannot have made.

    >>> data = {"rate": 0.1, "groups": [{"patterns": ["a*", "b"], "scale": 2.0}]}
    >>> nested(flat(data)) == data
    True
    """
    tree: dict[str, Any] = {}
    for path, value in table.items():
        *inside, last = path.split(".")
        at: Any = tree
        for name in inside:
            at = at.setdefault(name, {})
            if not isinstance(at, dict):
                raise InputError(f"{path!r} lies below a number", where="the optimizer")
        if last in at:
            raise InputError(f"{path!r} is given twice", where="the optimizer")
        at[last] = value
    made = _lists(tree)
    if not isinstance(made, dict):
        raise InputError("a list is no optimizer", where="the optimizer")
    return made


def _lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    made = {name: _lists(value) for name, value in tree.items() if name != "[]"}
    if "[]" not in tree:
        return made
    if tree["[]"] != len(made) or any(str(i) not in made for i in range(len(made))):
        raise InputError("a list lacks some of its items", where="the optimizer")
    return [made[str(i)] for i in range(len(made))]
