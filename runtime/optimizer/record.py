"""The base class of optimizers: settings, states and the update rule. Training programs, the servers of a store, files
and exports need nothing else.

>>> from mezzo.runtime import optimizer
>>> @optimizer.register
... class Halfway(optimizer.Optimizer):
...     share: float = 0.5
...     slots = ("before",)
...     def update(self, e, W, dW, rate, before):
...         mixed = before * self.share + self.decayed(W, dW) * (1 - self.share)
...         return W - rate * mixed, mixed
>>> Halfway(rate=0.1).rule()
'mul s0 0.5; mul dW 0.5; add #0 #1; mul rate #2; sub W #3 -> #4 #2'
>>> optimizer.create("halfway", share=0.25) == optimizer.from_dict(Halfway(share=0.25).to_dict())
True
>>> del optimizer.KINDS["Halfway"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import numpy as np

from ...ops import DType
from ...ops.core.expr import E, Expr, Expressions, inputs
from ...ops.dataclasses import asdict, dataclass, fields, replace
from ...ops.errors import InputError
from ...ops.op import Builder, Value, as_standard
from ...ops.training.update import names_of, read, still, text_of
from ...ops.types import Array
from . import schedule
from .names import check_names
from .schedule import Schedule

COMMON = ("rate", "weight_decay", "groups", "lazy_update")


def matches(name: str, *patterns: str) -> bool:
    """True if a pattern is this very name, which may have brackets, or a shell wildcard for it."""
    return any(name == p or fnmatchcase(name, p) for p in patterns)


NOT_BELOW_0 = "weight_decay momentum dampening epsilon beta1 beta2 rho alpha".split()


def check_settings(kind: str, **settings: float) -> None:
    """Raise InputError for settings below 0 or without an end, and for shares of a running mean that are 1 or more."""
    for name, value in settings.items():
        if not 0 <= value < (1 if name in ("beta1", "beta2") else np.inf):
            hint = "a number from 0 on" + " to below 1" * (name in ("beta1", "beta2"))
            raise InputError(f"{name}={value!r}", where=kind, hint=hint)


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters whose names match one of `patterns` (shell wildcards): their rate is multiplied by `scale`, and they
    have a weight decay of their own, if one is given."""

    patterns: tuple[str, ...]
    scale: float = 1.0
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str):  # whose letters would be patterns, `*` that of all names
            object.__setattr__(self, "patterns", (self.patterns,))
        check_settings("Group", scale=self.scale, weight_decay=self.weight_decay or 0.0)

    def holds(self, name: str) -> bool:
        return matches(name, *self.patterns)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Base of all optimizers: a rate (a number or a schedule), weight decay, and groups of parameters; the first group
    that matches a parameter's name counts. With `lazy_update` a table whose gradient is rows is stepped at these rows
    alone, states and decay included, as MXNet's lazy updates and PyTorch's SparseAdam do; without it a step is always
    that of the whole table.

    A subclass under `register` is an optimizer of its own. Its fields are settings: numbers. `slots` are the names of
    its states, which have the shape of the tensor and begin as `first`. It says one of two:

    - `update(e, W, dW, rate, *numbers, *draws, *states)`: the scalar expressions of the new tensor and the new states
      (`e` is the builder of ops/core/expr.py). `numbers(e, t)` are expressions of the number of the update (float64,
      from 0), computed once for all tensors; `draws` counts tensors of standard normal numbers. Such a rule steps any
      part of a tensor, on any server, which needs not know the class.
    - `whole(g, W, dW, rate, *numbers, *draws, *states)`: values that `g` builds from operators, where a rule measures
      whole tensors.

    Weight decay is the rule's own matter: `self.weight_decay` is that of the tensor's group.
    """

    rate: Schedule | float = 0.01
    weight_decay: float = 0.0
    groups: tuple[Group, ...] = ()
    lazy_update: bool = False
    draws: ClassVar[int] = 0

    def __new__(cls, *given: Any, **settings: Any) -> Self:
        if given:
            hint = f"{cls.__name__}(rate={given[0]!r})" if isinstance(given[0], int | float) else "rate="
            raise InputError("settings have names", where=cls.__name__, hint=hint)
        check_names(cls.__name__, settings, [f.name for f in fields(cls)], "optimizer")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if isinstance(self.rate, np.number) and not isinstance(self.rate, float):
            object.__setattr__(self, "rate", self.rate.item())
        if isinstance(self.groups, Group):
            object.__setattr__(self, "groups", (self.groups,))
        if isinstance(self.rate, int | float):
            check_settings(self.kind, rate=self.rate)
        elif not hasattr(self.rate, "rate"):
            hint = "a number from 0 on, or a schedule of mz.schedule"
            raise InputError(f"rate={self.rate!r}", where=self.kind, hint=hint)
        check_settings(self.kind, **{n: getattr(self, n) for n in NOT_BELOW_0 if hasattr(self, n)})

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the states that each parameter has."""
        return ()

    @property
    def first(self) -> float:
        """The first value of the states."""
        return 0.0

    def numbers(self, e: Expressions, t: Expr) -> Sequence[Expr]:
        """Return the rule's numbers after the rate, for update `t` (float64, counted from 0)."""
        return ()

    def update(self, *operands: Any) -> tuple[Expr, ...]:
        """The rule of an optimizer that steps each element by itself."""
        raise InputError(
            f"{type(self).__name__} has no rule",
            where=type(self).__name__,
            hint="write update(self, e, W, dW, rate, *states)",
        )

    def whole(self, *operands: Any) -> tuple[Value, ...]:
        """The rule of an optimizer that looks at whole tensors."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """The name under which it is registered."""
        return type(self).__name__

    @property
    def elementwise(self) -> bool:
        """True if any part of a tensor can be stepped by itself."""
        return type(self).whole is Optimizer.whole

    @property
    def still(self) -> bool:
        """True if an element with a zero gradient stays unchanged, with its states, so that a step of the others is the
        whole step. Derived from the rule.

        >>> from mezzo.runtime.optimizer import SGD, Adagrad, Adam
        >>> SGD().still, Adagrad().still, SGD(weight_decay=0.1).still, Adam().still
        (True, True, False, False)
        """
        return self.elementwise and still(self.rule(), len(self._numbers()), self.draws, len(self.slots))

    def decayed(self, W: Expr, dW: Expr) -> Expr:
        """The gradient with that of weight_decay / 2 times the squared norm."""
        return dW + W * self.weight_decay if self.weight_decay else dW

    # -- what runs it -------------------------------------------------------------------------------------------------

    def rule(self) -> str:
        """The rule as the operator Update has it (ops/training/update.py). Raises InputError where it is none."""
        count = len(self._numbers())
        names = names_of(count, self.draws, len(self.slots))
        leaves = inputs([DType.DOUBLE] * len(names))
        results = self.update(E, *leaves)
        if len(results) != 1 + len(self.slots):
            raise InputError(
                f"the rule of {self.kind} gives {len(results)} results for the tensor and {len(self.slots)} states",
                where=self.kind,
                hint="return the new tensor, then each new state",
            )
        return text_of(results, names)

    def _numbers(self) -> tuple[Expr, ...]:
        return tuple(self.numbers(E, Expr("input", (), DType.DOUBLE, 0)))

    def numbers_at(self, g: Builder, t: Value) -> list[Value]:
        """The rate and the other numbers of update `t`, float64 of rank 0."""
        more = as_standard(g, self._numbers(), [t])
        assert more is not None  # their text was checked
        return [schedule.of(self.rate).rate(g, t), *more]

    def add(
        self,
        g: Any,
        W: Value,
        dW: Value,
        numbers: Sequence[Value],
        draws: Sequence[Value],
        states: Sequence[Value],
        ids: Value | None = None,
    ) -> tuple[Value, ...]:
        """Add a step of one tensor to a graph: its next value, and those of its states. With `ids`, the gradient and
        the draws are of these rows, and no other one is stepped."""
        operands = (W, dW, *numbers, *draws, *states)
        if not self.elementwise:
            return tuple(self.whole(g, *operands))
        counts = {"states": len(states), "draws": len(draws)}
        attrs = {"rule": self.rule(), **{n: count for n, count in counts.items() if count}}
        name, operands = ("Update", operands) if ids is None else ("UpdateRows", (W, ids, *operands[1:]))
        results = g.op(name, *operands, domain="mezzo", outputs=1 + len(states), **attrs)
        return (results,) if isinstance(results, str) else tuple(results)

    # -- groups -------------------------------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """The group of a parameter."""
        return next((group for group in self.groups if group.holds(name)), Group(("*",)))

    def decay(self, name: str) -> float:
        """The weight decay of a parameter."""
        own = self.group(name).weight_decay
        return self.weight_decay if own is None else own

    def of(self, name: str) -> Optimizer:
        """The optimizer as a parameter has it: with the weight decay of its group."""
        decay = self.decay(name)
        return self if decay == self.weight_decay else replace(self, weight_decay=decay)

    # -- as data ------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The optimizer as plain data; see `from_dict`. One that is not of Mezzo tells its rules too, so that a server
        that has no such class steps by them."""
        rate: Any = {"kind": type(r).__name__, **_plain(r)} if not isinstance(r := self.rate, int | float) else r
        settings = {**asdict(self), "kind": self.kind, "rate": rate}
        if not self.lazy_update:  # what was written before there was such a thing says the same
            del settings["lazy_update"]
        if self.kind not in OURS and self.elementwise:
            settings["rules"] = self.rules().to_dict()
        return settings

    def rules(self) -> Rules:
        """Return everything that a step needs besides the rate."""
        decays = dict.fromkeys(
            [self.weight_decay, *(g.weight_decay for g in self.groups if g.weight_decay is not None)]
        )
        texts = tuple((decay, replace(self, weight_decay=decay).rule()) for decay in decays)
        return Rules(texts, text_of(self._numbers(), ("t",)), self.slots, self.first, self.draws)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of an optimizer by weight decay, its numbers as a rule over `t`, its states with their first value, and
    the number of tensors that it draws."""

    texts: tuple[tuple[float, str], ...]
    numbers: str
    slots: tuple[str, ...]
    first: float
    draws: int

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "texts": [list(pair) for pair in self.texts], "slots": list(self.slots)}


def _plain(rate: Any) -> dict[str, Any]:
    settings = {f.name: getattr(rate, f.name) for f in fields(rate)} if type(rate) in schedule.KINDS.values() else {}
    return {n: {"kind": type(v).__name__, **_plain(v)} if type(v) in schedule.KINDS.values() else v
            for n, v in settings.items()}  # fmt: skip


KINDS: dict[str, type[Optimizer]] = {}  # by name
OURS: set[str] = set()  # those that every process of Mezzo knows

Kind = TypeVar("Kind", bound=Optimizer)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def register(cls: type[Kind]) -> type[Kind]:
    """Make a subclass of Optimizer a data class, and enter it under its name, which is compared without regard to
    capitals: whoever has a list of optimizers has it too. A class of yours may be registered again (a cell of a
    notebook runs twice). Raises InputError for names of Mezzo, and where neither `update` nor `whole` is written."""
    if not issubclass(cls, Optimizer):
        raise InputError(f"{cls!r} is no subclass of Optimizer", where="optimizer.register")
    for name in KINDS:
        if name.lower() == cls.__name__.lower() and (name in OURS or name != cls.__name__):
            raise InputError(f"there is an optimizer {name!r} already", where="optimizer.register", hint="rename yours")
    if cls.update is Optimizer.update and cls.whole is Optimizer.whole:
        raise InputError(
            f"{cls.__name__} has no rule",
            where="optimizer.register",
            hint="write update(self, e, W, dW, rate, *states)",
        )
    if "__dataclass_fields__" not in vars(cls):
        cls = dataclass(frozen=True, kw_only=True)(cls)
    KINDS[cls.__name__] = cls
    return cls


def named(name: str) -> type[Optimizer]:
    """The optimizer of this name, whatever its capitals. Raises InputError that lists all names."""
    for kind, cls in KINDS.items():
        if kind.lower() == str(name).lower():
            return cls
    known = sorted(kind.lower() for kind in KINDS)
    near = get_close_matches(str(name).lower(), known, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(f"there is no optimizer {name!r}", where="optimizer", hint=f"{meant}One of {', '.join(known)}")


def create(given: str | Optimizer, **settings: Any) -> Optimizer:
    """The optimizer of this name with these settings. Raises InputError for other names and settings.

    >>> create("sgd", rate=0.1, momentum=0.9)  # doctest: +ELLIPSIS
    SGD(rate=0.1, weight_decay=0.0, groups=(), lazy_update=False, momentum=0.9, dampening=0.0, nesterov=False)
    """
    if isinstance(given, Optimizer):
        return replace(given, **settings) if settings else given
    return named(given)(**settings)


@dataclass(frozen=True, kw_only=True)
class CarriedOptimizer(Optimizer):
    """An optimizer without a class in this process: its data, and the rules that came with it."""

    data: Mapping[str, Any]
    known: Rules

    @property
    def kind(self) -> str:
        return str(self.data["kind"])

    @property
    def slots(self) -> tuple[str, ...]:
        return self.known.slots

    @property
    def first(self) -> float:
        return self.known.first

    @property
    def draws(self) -> int:  # type: ignore[override]
        return self.known.draws

    def numbers(self, e: Expressions, t: Expr) -> Sequence[Expr]:
        return read(self.known.numbers, {"t": t})

    def rule(self) -> str:
        return dict(self.known.texts)[self.weight_decay]

    def to_dict(self) -> dict[str, Any]:
        return {**self.data}


def from_dict(data: Mapping[str, Any]) -> Optimizer:
    """The optimizer that `to_dict` described; InputError for anything else.

    >>> from mezzo.runtime.optimizer import Adam
    >>> from_dict(Adam(rate=schedule.Cosine(0.1, 10)).to_dict()) == Adam(rate=schedule.Cosine(0.1, 10))
    True
    """
    try:
        settings = dict(data)
        kind, rules = settings.pop("kind"), settings.pop("rules", None)
        settings["rate"] = _schedule(settings["rate"])
        settings["groups"] = tuple(
            Group(**{**group, "patterns": tuple(group["patterns"])}) for group in settings["groups"]
        )
        if kind not in KINDS and rules is not None:
            return _carried(data, settings, rules)
        if kind not in KINDS:
            raise InputError(
                f"this describes no optimizer: {kind!r} is not known here",
                where="optimizer.from_dict",
                hint="import the module that registers it (mz.optimizer.register)",
            )
        if strange := settings.keys() - {f.name for f in fields(KINDS[kind])}:
            raise ValueError(f"{kind} has no {', '.join(sorted(strange))}")
        optimizer = KINDS[kind](**settings)
        if rules is not None and optimizer.rules() != _rules(rules):
            raise InputError(
                f"{kind!r} has another rule here than where this was written",
                where="optimizer.from_dict",
                hint="have the same class in all processes; give another rule another name",
            )
        return optimizer
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"this describes no optimizer: {error}", where="optimizer.from_dict") from error


def _rules(rules: Mapping[str, Any]) -> Rules:
    texts = tuple((float(decay), str(text)) for decay, text in rules["texts"])
    slots = tuple(str(slot) for slot in rules["slots"])
    known = Rules(texts, str(rules["numbers"]), slots, float(rules["first"]), int(rules["draws"]))
    if not 0 <= known.draws <= 8 or len(slots) > 64:
        raise InputError(f"{known.draws} draws and {len(slots)} states", where="optimizer.from_dict")
    return known


def _carried(data: Mapping[str, Any], settings: Mapping[str, Any], rules: Mapping[str, Any]) -> CarriedOptimizer:
    """Rules of another process, which are looked at before they are believed."""
    known = _rules(rules)
    texts, slots = known.texts, known.slots
    optimizer = CarriedOptimizer(**{n: settings[n] for n in COMMON if n in settings}, data=dict(data), known=known)
    names = names_of(len(optimizer._numbers()), known.draws, len(slots))
    leaves = dict(zip(names, inputs([DType.DOUBLE] * len(names)), strict=True))
    for _, text in texts:
        if len(read(text, {n: leaf for n, leaf in leaves.items() if leaf})) != 1 + len(slots):
            raise InputError("a rule with other results than the tensor and its states", where="optimizer.from_dict")
    for decay in (optimizer.weight_decay, *(g.weight_decay for g in optimizer.groups if g.weight_decay is not None)):
        if decay not in dict(texts):
            raise InputError(f"there is no rule for a weight decay of {decay}", where="optimizer.from_dict")
    return optimizer


def _schedule(data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    settings = {n: tuple(v) if isinstance(v, list) else _schedule(v) for n, v in data.items() if n != "kind"}
    return schedule.KINDS[data["kind"]](**settings)


def states_of(optimizer: Optimizer, value: Array) -> dict[str, Array]:
    """The states of a tensor, or of a part of it, before its first step."""
    return {slot: np.full_like(value, optimizer.first) for slot in optimizer.slots}
