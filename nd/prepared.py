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
from ..ops.core.expr import EXACT, Expr, Lowered, Register, lower
from ..ops.errors import InputError, ShapeError, UnsupportedModel
from ..runtime.caches import bounded
from ..runtime.ir.graph import RESULT, Graph, Node
from ..runtime.ir.interpreter import node_key
from ..runtime.memory.allocate import LEAST, counted, fresh
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
        code = lower(tree)
        call, into = _pointwise(code, template, outs[0], name), _alone(code, template, outs[0])
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


def _pointwise(code: Lowered, template: Template, out: TensorSpec, name: str) -> Call:
    """The instructions of a lowered expression, results and temporaries fresh."""
    present = [i for i, t in enumerate(template) if t is not None]
    steps, temps, constants = _steps(code, {i: place for place, i in enumerate(present)})
    shape, dtype = out.shape, out.dtype
    function: Any = _alone(code, template, out)
    if function is not None:
        if out.tensor.nbytes < LEAST:
            return function  # type: ignore[no-any-return]
        return lambda *xs: function(*xs, out=fresh(shape, dtype, name))

    def call(*xs: Any) -> Any:
        out_array = fresh(shape, dtype, name)
        registers = (*xs, out_array, *[fresh(shape, t, name) for t in temps], *constants)
        for function, srcs, dst in steps:
            function(*[registers[s] for s in srcs], out=registers[dst], casting="unsafe")
        return out_array

    return call


def _alone(code: Lowered, template: Template, out: TensorSpec) -> Call | None:
    """The function of NumPy that a lowered expression is, if it is a single one. It sees itself to operands of which
    its result overwrites a part."""
    present = {i: place for place, i in enumerate(i for i, t in enumerate(template) if t is not None)}
    steps, _, _ = _steps(code, present)
    single = len(steps) == 1 and steps[0][1] == (*range(len(present)),) and _plain(code, out)
    return steps[0][0] if single else None


PIECE = 1 << 16  # elements at a time: intermediate results stay in the cache, and calls are few


class Pieces:
    """The instructions over operands of these shapes, block by block, so that intermediate results stay in the cache.

    Where an operand has to be repeated, or does not lie in one piece, all is one piece.
    """

    def __init__(self, code: Lowered, shapes: Sequence[tuple[int, ...]], out: TensorSpec) -> None:
        self._steps, self._temps, self._constants = _steps(code, {i: i for i in range(len(shapes))})
        self._whole = _quietly(_pointwise(code, (out,) * len(shapes), out, "fused"))
        self._out, self._full = out, [s == out.shape for s in shapes]
        self._even = all(s == out.shape or math.prod(s) == 1 for s in shapes)

    def __call__(self, *xs: Any) -> Any:
        contiguous = all(x.flags.c_contiguous for x, f in zip(xs, self._full, strict=True) if f)
        if not self._even or self._out.size <= PIECE or not contiguous:
            return self._whole(*xs)
        result = fresh(self._out.shape, self._out.dtype, "fused")
        rows = [x.reshape(-1) if f else x.reshape(()) for x, f in zip(xs, self._full, strict=True)]
        _quiet.run(self._pieces, rows, result.reshape(-1))
        return result

    def into(self, xs: Sequence[Any], out: Any) -> None:
        """Write the result into an array, which may be one of the operands."""
        contiguous = out.flags.c_contiguous and all(
            x.flags.c_contiguous for x, f in zip(xs, self._full, strict=True) if f
        )
        if not self._even or self._out.size <= PIECE or not contiguous:
            np.copyto(out, self._whole(*xs))
            return
        rows = [x.reshape(-1) if f else x.reshape(()) for x, f in zip(xs, self._full, strict=True)]
        _quiet.run(self._pieces, rows, out.reshape(-1), np.empty(PIECE, out.dtype))

    def _pieces(self, rows: list[Any], result: Any, apart: Any = None) -> None:
        """`apart` is where a piece is made before it is copied, if its steps may read what they have overwritten."""
        scratch = [np.empty(PIECE, t) for t in self._temps]
        for low in range(0, result.size, PIECE):
            high = min(low + PIECE, result.size)
            registers = (
                *[r[low:high] if f else r for r, f in zip(rows, self._full, strict=True)],
                result[low:high] if apart is None else apart[: high - low],
                *[t[: high - low] for t in scratch],
                *self._constants,
            )
            for function, srcs, dst in self._steps:
                function(*[registers[s] for s in srcs], out=registers[dst], casting="unsafe")
            if apart is not None:
                result[low:high] = apart[: high - low]


Steps = list[tuple[Call, tuple[int, ...], int]]


def _steps(code: Lowered, numbers: Mapping[int, int]) -> tuple[Steps, list[Any], list[Any]]:
    """Functions with the numbers of what they read and write, counted through operands, result, temporaries and
    constants; the element types of temporaries, and the constants."""
    count = len(numbers)
    temps = [d.numpy for d in code.temps]
    constants: list[Any] = []

    def place(register: Register) -> int:
        if register.space == "input":
            return numbers[register.index]
        if register.space == "out":
            return count
        if register.space == "temp":
            return count + 1 + register.index
        constants.append(np.asarray(register.value, register.dtype.numpy))
        return count + len(temps) + len(constants)

    steps = [(_function(c.ufunc), tuple(map(place, c.srcs)), place(c.dst)) for c in code.code]
    return steps, temps, constants


def _plain(code: Lowered, out: TensorSpec) -> bool:
    """True if the single ufunc returns an array of the right element type by itself."""
    (step,) = code.code
    if step.ufunc in ("copy", "put") or not out.shape:
        return False
    try:
        function: Any = getattr(np, step.ufunc)
        return bool(function.resolve_dtypes((*(s.dtype.numpy for s in step.srcs), None))[-1] == out.dtype)
    except TypeError:
        return False


def _copy(x: Any, *, out: Any, casting: Any) -> None:
    np.copyto(out, x, casting=casting)


def _put(x: Any, where: Any, *, out: Any, casting: Any) -> None:
    np.copyto(out, x, where=where)


def _function(name: str) -> Call:
    if name in ("copy", "put"):
        return _copy if name == "copy" else _put
    ufunc: Call = getattr(np, name)
    return ufunc
