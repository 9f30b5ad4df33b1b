"""Operators prepared for operands of known types and shapes: the types of their results, and one call that computes
them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np

from ..ops import OPS, OPSETS, Body, Context, Op, Tensor
from ..ops.core.evaluate import Blocks, Steps
from ..ops.core.expr import EXACT, PRIMITIVES, Expr
from ..ops.core.lowered import Lowered, lower
from ..ops.errors import InputError, ShapeError, UnsupportedModel
from ..runtime.caches import bounded
from ..runtime.ir.graph import RESULT, Graph, Node
from ..runtime.ir.interpreter import node_key
from ..runtime.memory.allocate import LEAST, counted, new_array
from .moving import moves
from .place import Place
from .planned import Planned, pays
from .specs import MOST, Constant, TensorSpec, spec_of

Template = tuple["TensorSpec | Constant | None", ...]
Call = Callable[..., Any]


class Prepared:
    """One operator for one signature of operands.

    `template` has the kind of each operand that is given at a call, the others themselves. `call(*arrays)` computes
    fresh arrays: one, or a tuple where `outs` has several entries; an entry of None is a kind that depends on the
    elements. `tree` is the expression of a pointwise operator. `into(*arrays, out)`, where there is one, writes the
    result into an array of its kind, which may be any part of the operands.
    """

    __slots__ = ("attrs", "call", "into", "name", "outs", "record", "template", "tree")

    def __init__(
        self,
        record: Op,
        template: Template,
        attrs: Mapping[str, Any],
        outs: tuple[TensorSpec | None, ...],
        call: Call,
        tree: Expr | None = None,
        into: Call | None = None,
    ) -> None:
        self.tree, self.into = tree, into
        self.record, self.template, self.attrs, self.outs, self.call = record, template, attrs, outs, call
        self.name = record.name

    def on(self, place: Place, draw: tuple[int, ...] | None = None) -> Call:
        """The call for arrays at a place; operators that draw do so by the key `draw`: the same numbers everywhere."""
        if place.name != "cpu":
            attrs = tuple(self.attrs.items())
            return Planned(self.record.domain, self.name, self.template, attrs, len(self.outs), place, draw)
        if draw is None:
            return self.call
        key = node_key(Node(self.name, (), (RESULT,), domain=self.record.domain), draw)
        return _reference(self.record, self.template, self.record.bind(self.attrs), len(self.outs), key)


class Quiet(threading.local):
    """A context of each thread in which NumPy does not warn of expected cases (a division by zero): entering it takes
    half as long as `np.errstate`."""

    def __init__(self) -> None:
        context = copy_context()
        context.run(partial(np.seterr, all="ignore"))
        self.run = context.run


_quiet = Quiet()


_PREPARED: dict[object, Prepared] = bounded("arrays: prepared operators", MOST, {})


def prepared(
    name: str, template: Template, attrs: tuple[tuple[str, Any], ...] = (), domain: str = "", outputs: int = 1
) -> Prepared:
    """Return the prepared operator for these operands; cached. Raises ShapeError if they do not fit it, and
    InputError for an operator with bodies."""
    key = name, domain, template, attrs, outputs
    try:
        operator = _PREPARED.get(key)
    except TypeError:  # an attribute is a list or an array, as that of ConstantOfShape: prepared anew each time
        return _prepare(name, domain, template, dict(attrs), outputs)
    if operator is None:
        if len(_PREPARED) >= MOST:
            _PREPARED.clear()
        operator = _PREPARED[key] = _prepare(name, domain, template, dict(attrs), outputs)
    return operator


def _prepare(name: str, domain: str, template: Template, attrs: dict[str, Any], outputs: int) -> Prepared:
    record = OPS.get((domain, name))
    if record is None:
        raise UnsupportedModel(f"operator {domain or 'ai.onnx'}::{name} is not carried")
    bodies = [a for a, v in attrs.items() if isinstance(v, (Graph, Body))]
    if bodies:
        raise InputError(
            f"{name}'s {bodies[0]} is a graph, and arrays run one operator at a time",
            hint="run a graph that holds the node with mz.Session, or write the branch in Python",
        )
    types = [None if t is None else t.tensor for t in template]
    bound = record.bind(attrs)
    outs = []
    for result in record.infer_types(types, attrs, (True,) * outputs):
        if not isinstance(result, Tensor):
            raise ShapeError(f"{name} gives {result}, which is no array")
        outs.append(spec_of(result.dtype.numpy, result.sizes) if result.static else None)
    if None not in outs and pays(domain, name, tuple(types)):
        planned = Planned(domain, name, template, tuple(attrs.items()), outputs)
        return Prepared(record, template, attrs, tuple(outs), planned)
    if (
        record.tree is not None
        and all(isinstance(t, TensorSpec) or t is None for t in template)
        and outs[0] is not None
    ):
        tree = record.tree([None if t is None else t.dtype for t in types], **bound)
        code, given = lower([tree], len(template)), [i for i, t in enumerate(template) if t is not None]
        into = _alone(code, given, outs[0])
        call = _fresh_result(into, outs[0], name) if into else _pointwise(Steps(code, given), outs[0], name)
        if tree.kind not in EXACT or any(a.args for a in tree.args):
            call, into = _quietly(call), into and _quietly(into)
        return Prepared(record, template, attrs, tuple(outs), call, tree, into)
    moved = moves(domain, name, template, attrs, tuple(outs))
    return Prepared(record, template, attrs, tuple(outs), moved or _reference(record, template, bound, outputs))


def _reference(
    record: Op, template: Template, attrs: dict[str, Any], outputs: int, key: tuple[int, ...] = (0,)
) -> Call:
    """The operator's own reference over NumPy, with the operands that are known beforehand in their places."""
    reference, k, name = record.reference, Context(np, (True,) * outputs, key=key), record.name
    fixed = [None if t is None else t.value if isinstance(t, Constant) else ... for t in template]
    places = [i for i, f in enumerate(fixed) if f is ...]
    last, usual = fixed[len(places) :], places == [*range(len(places))]  # usually those that are given come first

    def call(*xs: Any) -> Any:
        if usual:
            result = reference(k, *xs, *last, **attrs)
        else:
            given = iter(xs)
            result = reference(k, *[next(given) if f is ... else f for f in fixed], **attrs)
        if outputs > 1:
            return tuple([counted(np.asarray(r), name) for r in result[:outputs]])
        one = result[0] if isinstance(result, tuple) else result
        return counted(np.asarray(one), name)

    return _quietly(call) if record.domain in OPSETS else _within_errstate(call)


def _quietly(call: Call) -> Call:
    return lambda *xs: _quiet.run(call, *xs)


def _within_errstate(call: Call) -> Call:
    """The same for operators that users define: they may run others, and a context is not entered twice."""

    def quiet(*xs: Any) -> Any:
        with np.errstate(all="ignore"):
            return call(*xs)

    return quiet


def _pointwise(steps: Steps, out: TensorSpec, name: str) -> Call:
    """The instructions of a lowered expression, results and temporaries fresh."""
    shape, dtype = out.shape, out.dtype
    temps = [d.numpy for d in steps.code.temps]

    def call(*xs: Any) -> Any:
        result = new_array(shape, dtype, name)
        steps.run(xs, (result,), [new_array(shape, t, name) for t in temps])
        return result

    return call


def _fresh_result(function: Any, out: TensorSpec, name: str) -> Call:
    """The call of a single function of NumPy, with a result that is counted where it is large."""
    if out.tensor.nbytes < LEAST:
        return function  # type: ignore[no-any-return]
    shape, dtype = out.shape, out.dtype
    return lambda *xs: function(*xs, out=new_array(shape, dtype, name))


def _alone(code: Lowered, given: Sequence[int], out: TensorSpec) -> Call | None:
    """The function of NumPy that a lowered expression is, if it is a single one that returns arrays of the right
    element type by itself. It sees itself to operands of which its result overwrites a part."""
    if len(code.code) != 1 or not out.shape:
        return None
    (one,) = code.code
    if one.kind not in PRIMITIVES or one.args != (*given,):
        return None
    function: Any = getattr(np, PRIMITIVES[one.kind][0])
    try:
        dtypes = function.resolve_dtypes((*[code.dtype(a).numpy for a in one.args], None))
    except TypeError:
        return None
    return function if dtypes[-1] == out.dtype else None


PIECE = 1 << 16  # elements at a time: intermediate results stay in the cache, and calls are few


class Pieces:
    """An expression over operands of these shapes, block by block, so that intermediate results stay in the cache.

    Where an operand has to be repeated, or does not lie in one piece, all is one piece. With `renews`, the result
    may lie in the memory of the last operand.
    """

    def __init__(self, tree: Expr, shapes: Sequence[tuple[int, ...]], out: TensorSpec, renews: bool = False) -> None:
        self._out, self._full = out, [s == out.shape for s in shapes]
        self._even = all(s == out.shape or math.prod(s) == 1 for s in shapes)
        numbers = [i for i, full in enumerate(self._full) if not full] if self._even else ()
        self._steps = Steps(lower([tree], len(shapes), numbers, [len(shapes) - 1] if renews else ()))

    def __call__(self, *xs: Any) -> Any:
        result = new_array(self._out.shape, self._out.dtype, "fused")
        self.into(xs, result)
        return result

    def into(self, xs: Sequence[Any], out: Any) -> None:
        """Write the result into an array, which is the last operand or none of them."""
        _quiet.run(self._into, xs, out)

    def _into(self, xs: Sequence[Any], out: Any) -> None:
        full, temps = self._full, self._steps.code.temps
        contiguous = out.flags.c_contiguous and all(x.flags.c_contiguous for x, f in zip(xs, full, strict=True) if f)
        if not self._even or self._out.size <= PIECE or not contiguous:
            self._steps.run(xs, (out,), [new_array(self._out.shape, t.numpy, "fused") for t in temps])
            return
        rows = [x.reshape(-1 if f else ()) for x, f in zip(xs, full, strict=True)]
        scratch = [np.empty(PIECE, t.numpy) for t in temps]
        Blocks(self._steps, rows, [out.reshape(-1)], scratch, PIECE).run()
