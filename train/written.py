"""Functions of symbols, written into a graph under construction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..ops import DType
from ..ops.errors import InputError
from ..ops.op import Value
from ..runtime.ir.typed import TypedBuilder
from ..sym.expression import Body, Constant, Entry, Variable, makers
from ..sym.symbol import Symbol


def written(g: TypedBuilder, function: Callable[..., Any], values: Sequence[str]) -> Value:
    """Add what a function makes of these values; returns the value that it returns. Raises InputError where it makes
    something else than one symbol, or fails."""
    leaves = [Variable(f"operand{i}", dtype=g.type_of(v).dtype) for i, v in enumerate(values)]  # type: ignore[union-attr]
    name = getattr(function, "__name__", "function")
    try:
        made = function(*(Symbol([(leaf, 0)]) for leaf in leaves))
    except Exception as error:
        raise InputError(
            f"{name} fails on symbols: {type(error).__name__}: {error}",
            where="loss",
            hint="write it with arithmetic and the functions of mz.sym, which take symbols",
        ) from error
    if not isinstance(made, Symbol) or len(made) != 1:
        raise InputError(f"{name} returns {type(made).__name__}", where="loss", hint="return one symbol: the loss")
    known: dict[Entry, str] = {(leaf, 0): v for leaf, v in zip(leaves, values, strict=True)}
    for maker in makers(made.entries):
        if isinstance(maker, Constant):
            if not maker.weak:
                known[maker, 0] = g.const(maker.value)
            continue
        if isinstance(maker, Variable):
            if (maker, 0) not in known:
                raise InputError(f"{name} reads a variable {maker.name!r} of its own", where=maker.where or "loss")
            continue
        if any(isinstance(v, Body) for v in maker.attrs.values()):
            raise InputError(f"{name} loops over symbols", where=maker.where, hint="use operators over whole arrays")
        given = [known[e] for e in maker.inputs if e is not None and e in known]
        like = next((v for v in given if getattr(g.type_of(v), "dtype", None) is not DType.BOOL), None)
        inputs = ["" if e is None else known[e] if e in known else _number(g, e[0], like) for e in maker.inputs]
        found = g.op(maker.op, *inputs, domain=maker.domain, outputs=maker.outputs, **maker.attrs)
        for i, value in enumerate(found if isinstance(found, tuple) else (found,)):
            known[maker, i] = value
    return known[made.entry]


def _number(g: TypedBuilder, maker: Any, like: str | None) -> str:
    """A number of Python, in the element type of what it stands beside."""
    kind = None if like is None else g.type_of(like)
    dtype = getattr(kind, "dtype", None)
    fits = dtype is not None and (dtype.floating or maker.value.dtype.kind in "iu") and maker.value.dtype.kind != "b"
    return g.const(maker.value, dtype) if fits else g.const(maker.value)
