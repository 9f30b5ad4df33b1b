"""`mx.nd.contrib`: control flow over arrays, a step after the other; what is recorded or traced has its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ... import nd as ours
from ...nd.array import Array


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _stacked(rows: Sequence[Any], missing: int = 0) -> Any:
    """Results of the steps along a new first axis, 0 in `missing` rows behind them."""
    if not isinstance(rows[0], list | tuple):
        fill = [ours.zeros_like(rows[0])] * missing
        return ours.stack([*rows, *fill], axis=0)
    return [_stacked([row[i] for row in rows], missing) for i in range(len(rows[0]))]


def foreach(body: Callable[[Any, Any], Any], data: Any, init_states: Any, name: str = "foreach") -> Any:
    """`body(element, states)` for each element of the first axis: all its results, and the last states."""
    states, rows = init_states, list[Any]()
    count = (data if isinstance(data, Array) else data[0]).shape[0]
    for i in range(count):
        out, states = body(data[i] if isinstance(data, Array) else [d[i] for d in data], states)
        rows.append(out)
    return _stacked(rows), states


def while_loop(
    cond: Callable[..., Any], func: Callable[..., Any], loop_vars: Any, max_iterations: int, name: str = "while_loop"
) -> Any:
    """`func(*variables)` while `cond(*variables)` holds: results in `max_iterations` rows, and the variables then."""
    values, rows = _listed(loop_vars), list[Any]()
    while len(rows) < max_iterations and bool(cond(*values)):
        out, after = func(*values)
        values = _listed(after)
        rows.append(out)
    return (_stacked(rows, max_iterations - len(rows)) if rows else []), values


def cond(pred: Any, then_func: Callable[[], Any], else_func: Callable[[], Any], name: str = "cond") -> Any:
    """Return what one of two functions gives."""
    return then_func() if bool(pred) else else_func()
