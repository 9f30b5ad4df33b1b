"""Functions of arrays or of symbols, written into a graph under construction."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..nd import zeros
from ..nd.array import Array
from ..nd.autograd.gradients import placed
from ..nd.autograd.tape import Fragment
from ..nd.opened import Opened, names_of
from ..nd.place import cpu
from ..nd.recorder import READ, ForSymbols, GraphBreak, Recorder
from ..ops import DType, Tensor
from ..ops.errors import InputError, MezzoError
from ..ops.op import Value
from ..runtime.engine.work import OURS
from ..runtime.ir.autodiff import unused_name
from ..runtime.ir.graph import Graph
from ..runtime.ir.interpreter import Eager, evaluate
from ..runtime.ir.prune import prune
from ..runtime.ir.typed import TypedBuilder
from ..sym.expression import Body, Constant, Entry, Variable, makers
from ..sym.symbol import Symbol

MOST = 6  # open sizes: each doubles the number of traces
SIZE = 2  # of an open axis, in the first of them


def written(
    g: TypedBuilder | Eager,
    function: Callable[..., Any],
    values: Sequence[Any],
    known: dict[Any, Graph] | None = None,
) -> Value:
    """Add what a function makes of these values, or compute it; returns the value that it returns. `known` are graphs
    that were traced before, by the types of their inputs.

    It is given arrays, and traced at several sizes; or symbols, if it computes with functions of `mz.sym` or with
    methods that only symbols have, or a rank is not known. Raises InputError where it fails, returns something else
    than one array or symbol, or branches on numbers.
    """
    name = getattr(function, "__name__", type(function).__name__)
    kinds = [g.type_of(v) for v in values]
    tensors = [k for k in kinds if isinstance(k, Tensor) and k.dims is not None]
    opened = {
        i: {axis: d or f"axis {axis}" for axis, d in enumerate(k.shape) if not isinstance(d, int)}
        for i, k in enumerate(tensors)
    }
    if len(tensors) < len(kinds) or len(names_of(opened)) > MOST:
        why = "a rank is not known" if len(tensors) < len(kinds) else f"there are more than {MOST} open sizes"
        return _of_symbols(g, function, name, values, f"it is given symbols, since {why}: declare the model's shapes")
    known, key = {} if known is None else known, tuple(map(str, tensors))
    try:
        graph = known[key] = known.get(key) or _traced(function, name, tensors, opened)
    except ForSymbols:
        return _of_symbols(g, function, name, values)
    except AttributeError as error:
        return _of_symbols(g, function, name, values, f"arrays do not have it either: {error}")
    if isinstance(g, Eager):
        (value,) = evaluate(graph, {n: values[int(n[1:])] for n in graph.inputs}).values()
        return value
    return _placed(g, graph, unused_name(f"{name}/", {*g.types}), values)


# -- arrays -----------------------------------------------------------------------------------------------------------


def _traced(
    function: Callable[..., Any], name: str, kinds: Sequence[Tensor], opened: dict[int, dict[int, str]]
) -> Graph:
    """The graph of a function of arrays, whose inputs are `x0`, ..."""
    shapes = [tuple(d if isinstance(d, int) else SIZE for d in k.shape) for k in kinds]
    inputs = [zeros(shape, dtype=k.dtype.numpy) for shape, k in zip(shapes, kinds, strict=True)]
    traced = partial(_at, function, name)
    opened = {i: axes for i, axes in opened.items() if axes}
    return Opened(traced, inputs, opened, name, "loss").graph() if opened else traced(inputs)


def _at(function: Callable[..., Any], name: str, inputs: Sequence[Array]) -> Graph:
    """The graph of a function of arrays of these sizes."""
    recorder = Recorder({}, cpu(), cuts=False)
    names = tuple(recorder.fresh(f"x{i}") for i in range(len(inputs)))
    given = [recorder.stand_in(x, n) for x, n in zip(inputs, names, strict=True)]
    try:
        with recorder.alone(), recorder.going():
            result = function(*given)
            output = recorder.output(result) if isinstance(result, Array) else ""
    except ForSymbols:
        raise
    except GraphBreak as error:
        hint = "mz.nd.where makes a choice in it" if error.remedy == READ else error.remedy.partition(", or keep")[0]
        raise InputError(f"{name}: {error.reason}", where=error.where, hint=f"a loss is one graph: {hint}") from None
    except Exception as error:
        if isinstance(error, AttributeError) and isinstance(error.obj, Array):
            raise
        text = f"{error}" if isinstance(error, MezzoError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{name} fails: {text}", where=_line(error)) from error
    if not output:
        raise InputError(f"{name} returns {type(result).__name__}", where="loss", hint="return one array: the loss")
    constants = {**recorder.constants, **{n: x.asnumpy() for n, x in recorder.outside.items()}}
    return prune(Graph(names, (output,), tuple(recorder.parts[0].nodes), constants, recorder.types, name=name))


def _line(error: Exception) -> str:
    """The line of the user's program that an error comes from."""
    lines = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(OURS)]
    return f"{lines[-1].filename}:{lines[-1].lineno}" if lines else "loss"


def _placed(g: TypedBuilder, graph: Graph, prefix: str, values: Sequence[str]) -> Value:
    """Add a graph whose inputs `x0`, ... are these values; what it draws is drawn by the run's own key."""
    given = {n: values[int(n[1:])] for n in graph.inputs}
    drawn = [n.outputs[0] for n in graph.nodes if not n.record.deterministic]
    given |= {n: f"{prefix}noise{i}" for i, n in enumerate(drawn)}
    part = placed(Fragment(graph.nodes, graph.inputs, graph.outputs, graph.types, graph.initializers), prefix, given)
    for name, array in part.initializers.items():
        g.hold(name, array)
    for node in part.nodes:
        g.add(node)
    (output,) = graph.outputs
    return given.get(output, prefix + output)


# -- symbols ----------------------------------------------------------------------------------------------------------


def _of_symbols(
    g: TypedBuilder | Eager, function: Callable[..., Any], name: str, values: Sequence[Any], remedy: str = ""
) -> Value:
    """Add what a function makes of symbols."""
    leaves = [Variable(f"operand{i}", dtype=g.type_of(v).dtype) for i, v in enumerate(values)]  # type: ignore[union-attr]
    try:
        result = function(*(Symbol([(leaf, 0)]) for leaf in leaves))
    except Exception as error:
        raise InputError(
            f"{name} fails on symbols: {type(error).__name__}: {error}",
            where=_line(error),
            hint=remedy or "write it with arithmetic and functions of mz.nd alone, or of mz.sym alone",
        ) from error
    if not isinstance(result, Symbol) or len(result) != 1:
        raise InputError(f"{name} returns {type(result).__name__}", where="loss", hint="return one symbol: the loss")
    known: dict[Entry, str] = {(leaf, 0): v for leaf, v in zip(leaves, values, strict=True)}
    for maker in makers(result.entries):
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
        outputs = g.op(maker.op, *inputs, domain=maker.domain, outputs=maker.outputs, **maker.attrs)
        for i, value in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
            known[maker, i] = value
    return known[result.entry]


def _number(g: TypedBuilder | Eager, maker: Any, like: str | None) -> str:
    """A number of Python, in the element type of what it stands beside."""
    kind = None if like is None else g.type_of(like)
    dtype = getattr(kind, "dtype", None)
    fits = dtype is not None and (dtype.floating or maker.value.dtype.kind in "iu") and maker.value.dtype.kind != "b"
    return g.const(maker.value, dtype) if fits else g.const(maker.value)
