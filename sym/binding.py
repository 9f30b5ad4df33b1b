"""Binding of symbols to arrays: matches arrays and variables, and reports all errors at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..nd import Place, cpu
from ..nd.array import Array
from ..nd.place import place_of
from ..nd.running import adopt, as_array
from ..ops import DType, Tensor
from ..ops.errors import InputError
from .executor import Executor
from .expression import variables
from .names import check_names
from .shapes import closed
from .symbol import Symbol
from .typed import Typed

REQUESTS = ("write", "add", "null")
FIRST = {"ones": 1.0}  # what arrays begin with, by initialiser; zeros for the others


def requests(grad_req: Any, names: Sequence[str]) -> dict[str, str]:
    """Return the gradient request of each argument. Raises InputError for an unknown one."""
    if isinstance(grad_req, str):
        by_name = dict.fromkeys(names, grad_req)
    elif isinstance(grad_req, Mapping):
        check_names(grad_req, names, "grad_req", "an executor", complete=False)
        by_name = {n: grad_req.get(n, "null") for n in names}
    else:
        by_name = dict(zip(names, grad_req, strict=True))
    for name, request in by_name.items():
        if request not in REQUESTS:
            raise InputError(f"grad_req {request!r} of {name!r} is none of {', '.join(REQUESTS)}", where="bind")
    return by_name


def places_of_groups(group2ctx: Any) -> dict[str, Place]:
    """The places of groups. Raises InputError for what is no mapping of names to devices."""
    if not isinstance(group2ctx or {}, Mapping):
        raise InputError(f"group2ctx={group2ctx!r} maps no groups to devices", where="bind",
                         hint="{'stage1': mx.cpu(0), 'stage2': mx.cpu(1)}")  # fmt: skip
    return {str(name): place_of(ctx) for name, ctx in (group2ctx or {}).items()}


def arrays(given: Any, names: Sequence[str], what: str, where: str, places: Mapping[str, Place]) -> dict[str, Array]:
    """Arrays by name. A list stands in the order of the names."""
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        if len(given) != len(names):
            raise InputError(f"{len(given)} arrays for {len(names)} names", where=where, hint=f"{', '.join(names)}")
        given = dict(zip(names, given, strict=True))
    check_names(given, names, what, where, complete=True)
    return {n: given[n] if isinstance(given[n], Array) else as_array(given[n], places[n]) for n in names}


def bind(
    symbol: Symbol, ctx: Any, args: Any, args_grad: Any, grad_req: Any, aux_states: Any, group2ctx: Any = None
) -> Executor:
    """Bind arrays to a symbol; see `Symbol.bind`."""
    place, groups = cpu() if ctx is None else place_of(ctx), places_of_groups(group2ctx)
    places = {v.name: groups.get(v.group, place) for v in variables(symbol.entries)}
    names = symbol.list_arguments()
    held = arrays(args, names, "bind", symbol.name, places)
    states = arrays(aux_states, symbol.list_auxiliary_states(), "bind (aux_states)", symbol.name, places)
    wanted = requests(grad_req, names)
    if args_grad is not None:
        if not isinstance(args_grad, Mapping):
            args_grad = {n: g for n, g in zip(names, args_grad, strict=True) if g is not None}
        check_names(args_grad, names, "bind (args_grad)", symbol.name, complete=False)
        wanted = {n: r if n in args_grad else "null" for n, r in wanted.items()}
    inferred = closed(symbol, {n: a.shape for n, a in {**held, **states}.items()})
    _check_types(symbol, inferred, {**held, **states})
    wanted = learnt(symbol, wanted)
    grads = {
        n: _gradient(n, held[n], (args_grad or {}).get(n), held[n].device) for n, r in wanted.items() if r != "null"
    }
    return Executor(symbol, inferred, held, grads, wanted, states, place, groups)


def simple_bind(
    symbol: Symbol, ctx: Any, grad_req: Any, shapes: Mapping[str, Sequence[int]], group2ctx: Any = None
) -> Executor:
    """Allocate arrays and bind them to a symbol; see `Symbol.simple_bind`."""
    place, groups = cpu() if ctx is None else place_of(ctx), places_of_groups(group2ctx)
    inferred = closed(symbol, shapes)
    values: dict[str, Array] = {}
    for v in variables(symbol.entries):
        known = inferred.entries[v, 0]
        assert isinstance(known, Tensor)
        first = FIRST.get(v.init, 0.0) if v.auxiliary or v.fixed else 0.0
        values[v.name] = adopt(np.full(known.sizes, first, known.dtype.numpy), groups.get(v.group, place))
    args = {n: values[n] for n in symbol.list_arguments()}
    wanted = learnt(symbol, requests(grad_req, list(args)))
    grads = {n: _gradient(n, args[n], None, args[n].device) for n, r in wanted.items() if r != "null"}
    states = {n: values[n] for n in symbol.list_auxiliary_states()}
    return Executor(symbol, inferred, args, grads, wanted, states, place, groups)


def learnt(symbol: Symbol, wanted: Mapping[str, str]) -> dict[str, str]:
    """Without gradients of what is fixed, or no floating tensor."""
    fixed = {v.name for v in variables(symbol.entries) if v.fixed or not v.dtype.floating}
    return {n: "null" if n in fixed else r for n, r in wanted.items()}


def _gradient(name: str, of: Array, given: Any, place: Place) -> Array:
    if given is None:
        return adopt(np.zeros(of.shape, of.dtype), place)
    if not isinstance(given, Array) or (given.shape, given.dtype) != (of.shape, of.dtype):
        raise InputError(f"the gradient of {name!r} needs an array {of.dtype}{list(of.shape)}", where="bind")
    return given


def _check_types(symbol: Symbol, inferred: Typed, given: Mapping[str, Array]) -> None:
    other = [v for v in variables(symbol.entries) if DType.of(given[v.name].dtype) is not v.dtype]
    told = [f"{v.name!r} is {v.dtype}, the array is {given[v.name].dtype}" for v in other]
    if told:
        raise InputError("; ".join(told), where=f"bind of {symbol.name}", hint="Variable(NAME, dtype=…), or astype")
