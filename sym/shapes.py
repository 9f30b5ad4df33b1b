"""Shape inference over an expression, its variables included: from operands to results, and from operators to their
weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ops import OPS, Op, Tensor, Type
from ..ops.errors import InputError, MezzoError, ShapeError
from ..ops.types import type_of
from ..runtime.ir.infer import infer
from . import rules
from .expression import Body, Constant, Dims, Shapes, Use, Variable, label, makers, variables
from .graphs import lonely
from .names import check_names
from .symbol import Symbol
from .typed import Typed


def _keeps_dims(op: Op | None) -> bool:
    """True if the dims of the first input go through."""
    if op is None:
        return False
    as_it_is = op.moves == "view" and len(op.inputs) == 1 and not op.attrs  # Identity
    return op.unary or as_it_is or op.name in ("Cast", "Dropout")


def typed(symbol: Symbol, shapes: Mapping[str, Sequence[int]]) -> Typed:
    """Types of everything, from the shapes of some variables. Raises ShapeError with the chain up to the conflict."""
    inferred = Typed()
    for v in variables(symbol.entries):
        inferred.dims[v] = v.dims
        if v.name in shapes:
            _learn(inferred, v, tuple(int(d) or None for d in shapes[v.name]), "it is given")
    order = makers(symbol.entries)
    for _ in range(len(order) + 1):  # an operator may tell of a variable that others have read before
        before = dict(inferred.dims)
        for maker in order:
            _type(inferred, maker)
        if before == inferred.dims:
            break
    return inferred


def _type(inferred: Typed, maker: Any) -> None:
    if isinstance(maker, Variable):
        inferred.entries[maker, 0] = Tensor(maker.dtype, inferred.dims[maker])
    elif isinstance(maker, Constant):
        inferred.entries[maker, 0] = type_of(inferred.constants.setdefault(maker, _first(maker)), known=True)
    else:
        try:
            _ask(inferred, maker)
            _settle(inferred, maker)
            known = [None if e is None else inferred.entries[e] for e in maker.inputs]
            for i, t in enumerate(_results(inferred, maker, known)):
                inferred.entries[maker, i] = t
        except Exception as error:  # an attribute is of a kind that nobody foresees: as in runtime/ir/infer.py
            ours = error if isinstance(error, MezzoError) else ShapeError(f"{type(error).__name__}: {error}")
            chain = "\n    ".join(_chain(inferred, maker))
            told = f"{maker.name} ({maker.op}): {ours.message}\n  how it comes to this:\n    {chain}"
            raise ShapeError(told, where=ours.where or maker.where, hint=ours.hint) from None


def _ask(inferred: Typed, maker: Use) -> None:
    """Tell variables what the operator asks of them."""
    record = _record(maker)
    if record is not None and record.weights is None:
        return
    dims = [inferred.tensor(e) for e in maker.inputs]
    told = rules.asked(maker, dims) if record is None or record.weights is None else record.weights(dims, maker.attrs)
    for entry, asked in zip(maker.inputs, told, strict=False):
        if entry is None or asked is None:
            continue
        while isinstance(entry[0], Use) and _keeps_dims(_record(entry[0])) and entry[0].inputs[0] is not None:
            entry = entry[0].inputs[0]
        if isinstance(entry[0], Variable) and None in (inferred.dims[entry[0]] or (None,)):
            _learn(inferred, entry[0], tuple(asked), f"{maker.name} ({maker.op}) asks so")
            _type(inferred, entry[0])


def _learn(inferred: Typed, variable: Variable, dims: Dims, why: str) -> None:
    """Put together what is known of a variable's shape; ShapeError where it does not fit."""
    known = inferred.dims[variable]
    if known is None:
        inferred.dims[variable] = dims
        return
    if len(known) != len(dims) or any(
        a is not None and b is not None and a != b for a, b in zip(known, dims, strict=True)
    ):
        raise ShapeError(
            f"{variable.name!r} is {_shown(known)}, and {_shown(dims)} since {why}",
            where=variable.where or variable.name,
        )
    inferred.dims[variable] = tuple(b if a is None else a for a, b in zip(known, dims, strict=True))


def _settle(inferred: Typed, maker: Use) -> None:
    """Numbers of Python take the element type of the operand beside them."""
    beside = next(
        (t for e in maker.inputs if e and not _weak(e[0]) and isinstance(t := inferred.entries.get(e), Tensor)), None
    )
    for entry in maker.inputs:
        if entry and isinstance(entry[0], Constant) and entry[0].weak:
            dtype = beside.dtype.numpy if beside is not None else np.float32
            if beside is not None and not beside.dtype.floating and entry[0].value.dtype.kind == "f":
                raise ShapeError(f"{entry[0].value} beside {beside}", hint="cast the symbol first")
            inferred.constants[entry[0]] = entry[0].value.astype(dtype)
            _type(inferred, entry[0])


def _first(constant: Constant) -> np.ndarray[Any, Any]:
    """Return the initial value of a constant, before an operand beside it decides its type: a number of Python is
    float32."""
    number = constant.weak and constant.value.dtype.kind != "b"
    return constant.value.astype(np.float32) if number else constant.value


def _weak(maker: Any) -> bool:
    return isinstance(maker, Constant) and maker.weak


def _record(maker: Use) -> Op | None:
    """The record of an operator; None for one of MXNet's own."""
    return None if maker.domain == rules.DOMAIN else OPS[maker.domain, maker.op]


def _results(inferred: Typed, maker: Use, known: Sequence[Type | None]) -> Sequence[Type]:
    if any(isinstance(v, Body) for v in maker.attrs.values()):
        types = infer(lonely(maker, inferred)).types  # bodies are typed inside their scope
        return [types[n] for n in (f"out{i}" for i in range(maker.outputs))]
    record = _record(maker)
    if record is None:
        return rules.types(maker, inferred)
    return record.infer_types(known, maker.attrs, (True,) * maker.outputs)


def _chain(inferred: Typed, maker: Use, most: int = 12) -> list[str]:
    """Return the chain of operators that made the first operand, from the variable on, as text."""
    told: list[str] = []
    at: Any = maker
    while isinstance(at, Use) and len(told) < most:
        operands = [e for e in at.inputs if e is not None]
        shown = ", ".join(f"{label(m)} {inferred.entries.get((m, i), '?')}" for m, i in operands)
        told.append(f"{at.name} = {at.op}({shown})  [{at.where}]")
        at = next((m for m, _ in operands if isinstance(m, Use)), None)
    return told[::-1]


def _shown(dims: Dims | None) -> str:
    return "open" if dims is None else str(tuple("?" if d is None else d for d in dims)).replace("'", "")


def shapes_of(symbol: Symbol, shapes: Mapping[str, Sequence[int]], complete: bool) -> tuple[Shapes, Shapes, Shapes]:
    """Return the shapes of arguments, outputs and states; see `Symbol.infer_shape`."""
    check_names(shapes, symbol.list_inputs(), "infer_shape", symbol.name, complete=False)
    inferred = typed(symbol, shapes)
    every = variables(symbol.entries)

    def known(dims: Dims | None) -> tuple[int, ...] | None:
        return None if dims is None or None in dims else tuple(int(d) for d in dims if d is not None)

    arguments = [known(inferred.dims[v]) for v in every if not v.auxiliary]
    states = [known(inferred.dims[v]) for v in every if v.auxiliary]
    outputs = [known(inferred.tensor(e)) for e in symbol.entries]
    if complete:
        opened = [f"{v.name} {_shown(inferred.dims[v])}" for v in every if known(inferred.dims[v]) is None]
        if opened:
            raise InputError(
                f"the shapes of {', '.join(opened)} are not known", where=symbol.name,
                hint="give them: infer_shape(NAME=(…)), or Variable(NAME, shape=(…))",
            )  # fmt: skip
    return arguments, outputs, states


def closed(symbol: Symbol, shapes: Mapping[str, Sequence[int]]) -> Typed:
    """`typed`, and every variable's shape is known. Raises InputError naming those that are not."""
    shapes_of(symbol, shapes, complete=True)
    return typed(symbol, shapes)
