"""The tape: the recorded operations on arrays, for the backward pass.

An array that was computed while recording knows the entry that made it; an entry knows what it read. There is no list
of all entries: what no array leads to is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...ops import OPS, Type
from ...ops.dataclasses import dataclass, field
from ...ops.errors import InputError
from ...ops.types import differentiable
from ...runtime.caches import bounded
from ...runtime.ir.graph import Node
from .. import recording, running
from ..array import Array
from ..place import Place
from ..prepared import Call, Prepared, prepared
from ..recording import RECORDING
from ..sparse import RowSparse
from ..specs import Constant, TensorSpec

_SCOPES = 0


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """A piece of a graph with its own names: the computation of one entry. Equal operations share one."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, Type]
    constants: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, "np.ndarray[Any, Any]"])


class Leaf:
    """An array that requires a gradient: the target of the gradient, an array or rows, and the request (`write`,
    `add`)."""

    __slots__ = ("__weakref__", "grad", "request")

    def __init__(self, grad: Array | RowSparse, request: str) -> None:
        self.grad, self.request = grad, request

    @property
    def rows(self) -> bool:
        """True if only rows of its gradient are requested."""
        return isinstance(self.grad, RowSparse)


class Entry:
    """One operation: its fragment, its operands (with their origins), and its results. `fragment` is None for a
    Function of the user's, whose `back` computes the gradient."""

    __slots__ = ("__weakref__", "back", "editions", "fragment", "inputs", "name", "origins", "outputs", "scope")

    def __init__(
        self,
        name: str,
        fragment: Fragment | None,
        inputs: Sequence[Any],
        origins: Sequence[Origin | None],
        outputs: Sequence[Array],
        back: Any = None,
    ) -> None:
        self.name, self.fragment, self.back = name, fragment, back
        self.inputs: tuple[Any, ...] | None = tuple(inputs)
        self.origins, self.outputs = tuple(origins), tuple(outputs)
        self.editions = tuple(x._var.edition if isinstance(x, Array) else 0 for x in inputs)
        self.scope = RECORDING.scope

    def check(self) -> None:
        """Raise InputError if the entry has been let go of, or what it read has changed."""
        if self.inputs is None:
            raise InputError(
                f"the way back through {self.name} was let go of by an earlier backward",
                where="autograd",
                hint="backward(retain_graph=True) before",
            )
        for x, edition in zip(self.inputs, self.editions, strict=True):
            if isinstance(x, Array) and x._var.edition != edition:
                raise InputError(
                    f"{x.where} was changed in place after {self.name} had read it",
                    where="autograd",
                    hint="change it after backward, or let the operation read a copy",
                )

    def release(self) -> None:
        """Let go of what was kept for the way back."""
        self.inputs, self.origins, self.outputs, self.back = None, (), (), None


Origin = Leaf | tuple[Entry, int]


# -- scopes -----------------------------------------------------------------------------------------------------------


@contextmanager
def mode(on: bool | None, training: bool | None) -> Iterator[None]:
    """Record or not, train or not, inside; None leaves it as it is."""
    global _SCOPES
    before = (RECORDING.on, RECORDING.training, RECORDING.scope, RECORDING.inside, RECORDING.noted)
    if on is not None:
        RECORDING.on = RECORDING.inside = on
        RECORDING.noted = on or RECORDING.trace is not None
        if on and not before[0]:
            _SCOPES += 1
            RECORDING.scope = _SCOPES
            _look(_SCOPES)
    if training is not None:
        RECORDING.training = training
    try:
        yield
    finally:
        RECORDING.on, RECORDING.training, RECORDING.scope, RECORDING.inside, RECORDING.noted = before


# -- recording --------------------------------------------------------------------------------------------------------

MOST = 1 << 12
_FRAGMENTS: dict[Prepared, Fragment] = bounded("autograd: fragments of operators", MOST, {})


def fragment_of(operator: Prepared) -> Fragment:
    """The fragment of an operator for operands of known kinds."""
    fragment = _FRAGMENTS.get(operator)
    if fragment is None:
        if len(_FRAGMENTS) >= MOST:
            _FRAGMENTS.clear()
        fragment = _FRAGMENTS[operator] = _fragment(operator)
    return fragment


def _fragment(operator: Prepared) -> Fragment:
    names: list[str] = []
    types: dict[str, Type] = {}
    constants: dict[str, np.ndarray[Any, Any]] = {}
    for i, t in enumerate(operator.template):
        name = "" if t is None else f"i{i}"
        if isinstance(t, Constant):
            constants[name] = t.value
        if isinstance(t, TensorSpec | Constant):
            types[name] = t.tensor
        names.append(name)
    outputs = tuple(f"o{i}" for i in range(len(operator.outs)))
    for name, kind in zip(outputs, operator.outs, strict=True):
        if kind is not None:
            types[name] = kind.tensor
    node = Node(operator.name, tuple(names), outputs, operator.attrs, operator.record.domain, name=operator.name)
    given = tuple(n for n, t in zip(names, operator.template, strict=True) if isinstance(t, TensorSpec))
    return Fragment((node,), given, outputs, types, constants)


def tracked(given: Sequence[Any]) -> bool:
    """True if a gradient may be requested through any of these."""
    return any(isinstance(x, Array) and x._origin is not None for x in given)


def run(operator: Prepared, given: tuple[Any, ...], place: Place | None = None, call: Call | None = None) -> Any:
    """`running.run` while somebody looks: the operator, or (on a tape) the twin of it that keeps what its gradient
    reads."""
    trace = RECORDING.trace
    compute = running.run_unseen if trace is None else trace.run
    if not (RECORDING.on and tracked(given)):
        return compute(operator, given, place, call)
    kept, call = _twin(operator), call if _twin(operator) is operator else None
    results = compute(kept, given, place, call)
    outs = [results] if isinstance(results, Array) else list(results)
    note(operator.name, fragment_of(kept), given, outs)
    return outs[0] if len(operator.outs) == 1 else tuple(outs[: len(operator.outs)])


recording.run = run
_TWINS: dict[Prepared, Prepared] = bounded("autograd: twins of operators", MOST, {})


def _twin(operator: Prepared) -> Prepared:
    """Return the twin that replaces an operator when gradients are recorded."""
    chosen = _TWINS.get(operator)
    if chosen is None:
        if len(_TWINS) >= MOST:
            _TWINS.clear()
        OPS.load()  # rules may stand in modules of their own
        types = [None if t is None else t.tensor for t in operator.template]
        wanted = (True,) * len(operator.outs)
        rule = operator.record.twin_rule
        twin = rule(types, wanted, **operator.record.bind(operator.attrs)) if rule else None
        if twin is None or twin.outputs == len(operator.outs):
            chosen = operator
        else:
            attrs = tuple((a, tuple(v) if isinstance(v, list) else v) for a, v in twin.attrs.items())
            chosen = prepared(twin.op, operator.template, attrs, twin.domain, twin.outputs)
        _TWINS[operator] = chosen
    return chosen


def note(name: str, fragment: Fragment | None, given: Sequence[Any], outs: Sequence[Array], back: Any = None) -> None:
    """Remember how these arrays were made. `back` must not hold `outs`, which know their entry: a circle would keep
    their memory until Python looks for circles."""
    inputs = [plain(x) if isinstance(x, Array) else x for x in given]
    origins = [x._origin if isinstance(x, Array) else None for x in given]
    entry = Entry(name, fragment, inputs, origins, [plain(o) for o in outs], back)
    for i, out in enumerate(outs):
        if differentiable(out._spec.tensor):
            out._origin = (entry, i)
    _ALIVE.add(entry)


def plain(x: Array) -> Array:
    """The same numbers, of which nobody knows how they came to be."""
    out = Array(x._var, x._spec, x._place, x._view)
    out._code, out._at = x._code, x._at
    return out


# -- what stays alive -------------------------------------------------------------------------------------------------

_ALIVE: weakref.WeakSet[Entry] = weakref.WeakSet()
PATIENCE = 100  # so many `record()` later, an entry that is still there is held by somebody who forgot it
_TOLD: set[int] = set()


def _look(now: int) -> None:
    """Report entries that outlive their time, every so often."""
    if now % PATIENCE:
        return
    from .leaks import tell

    late = [e for e in _ALIVE if e.scope and e.inputs is not None and now - e.scope >= PATIENCE]
    fresh = [e for e in late if e.scope not in _TOLD]
    if fresh:
        _TOLD.update(e.scope for e in fresh)
        tell(fresh, now)
