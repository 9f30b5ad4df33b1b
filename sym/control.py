"""Control flow over symbols: `cond`, `foreach` and `while_loop` become If, Scan and Loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ops import DType
from ..ops.errors import InputError
from .expression import NAMES, Body, Entry, Use, Variable, line
from .symbol import Symbol, use

Symbols = Symbol | Sequence[Symbol]
_SERIAL = itertools.count()


def _listed(symbols: Any) -> list[Symbol]:
    several = list(symbols) if isinstance(symbols, Symbol | list | tuple) else [symbols]
    if not all(isinstance(s, Symbol) for s in several):
        raise InputError(f"{symbols!r} is no symbol and no list of symbols", where=line())
    return [one for s in several for one in s]


def _variables(name: str, part: str, count: int, dtype: DType = DType.FLOAT) -> list[Variable]:
    serial = next(_SERIAL)  # a body's variables are nobody's arguments: their names only have to differ
    return [Variable(f"{name}/{part}{i}@{serial}", None, dtype, where=line()) for i in range(count)]


def _symbols(variables: Sequence[Variable]) -> list[Symbol]:
    return [Symbol([(v, 0)]) for v in variables]


def _like(given: Any, count: int, symbols: Sequence[Symbol]) -> Any:
    """One symbol where one was given, else a list."""
    return symbols[0] if isinstance(given, Symbol) and len(given) == 1 and count == 1 else list(symbols)


def _entries(symbols: Sequence[Symbol]) -> tuple[Entry, ...]:
    """Return the entries that a body returns; a value that is passed through gets an entry of its own."""
    entries: list[Entry] = []
    for s in symbols:
        entry = s.entry
        handed_on = not isinstance(entry[0], Use) or entry in entries
        entries.append(use("Identity", s).entry if handed_on else entry)
    return tuple(entries)


def cond(pred: Symbol, then_func: Callable[[], Symbols], else_func: Callable[[], Symbols], name: str = "") -> Any:
    """The symbols of one branch or of the other, whichever `pred` (one number; true if it is not zero) says.

    Raises InputError where the branches return different numbers of symbols.

    >>> from mezzo import sym
    >>> x = sym.Variable("x")
    >>> y = cond(sym.ReduceSum(x, keepdims=0) > 0, lambda: x * 2, lambda: -x)
    >>> y.eval(x=[1.0, 2.0])[0].asnumpy()
    array([2., 4.], dtype=float32)
    """
    name = name or NAMES.fresh("cond")
    branches = [then_func(), else_func()]
    one, other = map(_listed, branches)
    if len(one) != len(other):
        raise InputError(f"one branch returns {len(one)} symbols, the other {len(other)}", where=line())
    chosen = use("Cast", pred, to=DType.BOOL.onnx)
    bodies: dict[str, Any] = {
        "then_branch": Body((), tuple(use("Identity", s).entry for s in one)),
        "else_branch": Body((), tuple(use("Identity", s).entry for s in other)),
    }
    results = use("If", chosen, name=name, outputs=len(one), **bodies)
    return _like(branches[0], len(one), list(results))


def foreach(
    body: Callable[[Any, Any], tuple[Symbols, Symbols]], data: Symbols, init_states: Symbols, name: str = ""
) -> tuple[Any, Any]:
    """`body(slice, states) -> (outputs, states)` for each slice of `data` along the first axis: the outputs of all
    steps, stacked, and the states at the end.

    >>> from mezzo import sym
    >>> outs, total = foreach(lambda x, s: (x * s, s + x), sym.Variable("x"), sym.Variable("s"))
    >>> y, last = sym.Group([outs, total]).eval(x=[1.0, 2.0, 3.0], s=1.0)
    >>> y.asnumpy(), last.asnumpy()
    (array([ 1.,  4., 12.], dtype=float32), array(7., dtype=float32))
    """
    name = name or NAMES.fresh("foreach")
    rows, states = _listed(data), _listed(init_states)
    inside = [*_variables(name, "state", len(states)), *_variables(name, "slice", len(rows))]
    symbols = _symbols(inside)
    returned = body(
        _like(data, len(rows), symbols[len(states) :]), _like(init_states, len(states), symbols[: len(states)])
    )
    outputs, after = _listed(returned[0]), _listed(returned[1])
    if len(after) != len(states):
        raise InputError(f"the body returns {len(after)} states, and is given {len(states)}", where=line())
    part = Body(tuple(inside), _entries([*after, *outputs]))
    results = list(
        use("Scan", *states, *rows, name=name, outputs=len(part.outputs), body=part, num_scan_inputs=len(rows))
    )
    return _like(returned[0], len(outputs), results[len(states) :]), _like(
        init_states, len(states), results[: len(states)]
    )


def while_loop(
    cond: Callable[..., Symbol],
    func: Callable[..., tuple[Symbols, Symbols]],
    loop_vars: Symbols,
    max_iterations: int,
    name: str = "",
) -> tuple[Any, Any]:
    """Repeat `func(*loop_vars) -> (outputs, loop_vars)` while `cond(*loop_vars)` holds, at most `max_iterations` times.

    Returns the outputs of the steps that were made, stacked, and the variables at the end.

    >>> from mezzo import sym
    >>> outs, last = while_loop(lambda x: x < 20, lambda x: (x, x * 2), sym.Variable("x"), max_iterations=10)
    >>> y, x = sym.Group([outs, last]).eval(x=3.0)
    >>> y.asnumpy(), x.asnumpy()
    (array([ 3.,  6., 12.], dtype=float32), array(24., dtype=float32))
    """
    name = name or NAMES.fresh("while_loop")
    states = _listed(loop_vars)
    (number,) = _variables(name, "number", 1, DType.INT64)
    (before,) = _variables(name, "goes", 1, DType.BOOL)
    inside = _variables(name, "state", len(states))
    returned = func(*_symbols(inside))
    outputs, after = _listed(returned[0]), _listed(returned[1])
    if len(after) != len(states):
        raise InputError(f"the body returns {len(after)} variables, and is given {len(states)}", where=line())
    goes_on = use("Cast", cond(*after), to=DType.BOOL.onnx)
    first = use("Cast", cond(*states), to=DType.BOOL.onnx)
    part = Body((number, before, *inside), _entries([goes_on, *after, *outputs]))
    count = len(states) + len(outputs)
    limit = np.array(max_iterations, np.int64)
    results = list(use("Loop", limit, first, *states, name=name, outputs=count, body=part))
    return _like(returned[0], len(outputs), results[len(states) :]), _like(
        loop_vars, len(states), results[: len(states)]
    )
