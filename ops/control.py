"""Control flow: If, Loop and Scan over subgraphs (https://onnx.ai/onnx/operators/onnx__Loop.html).

The references say what the operators mean; whoever provides `k.run` decides how a body runs (interpreted, or as a
planned program).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import BudgetError, MezzoError, ShapeError
from .op import Body, Builder, Context, Sample, Subgraph, op
from .types import Array, Dim, DType, Tensor, Type, f32, i64, join, type_of

BOOL = Tensor(DType.BOOL, ())


def _truth(condition: Array) -> bool:
    if condition.size != 1:
        raise ShapeError(f"a condition has one element, this one has {condition.size}")
    return bool(condition.reshape(-1)[0])


def _forget(type: Type) -> Type:
    return type.forget() if isinstance(type, Tensor) else type


def _fixpoint(body: Subgraph, before: tuple[Type, ...], carried: list[Type], after: tuple[Type, ...], skip: int) -> Any:
    """Widen the carried types until an iteration keeps them; returns them with the body's last result types.

    Ends because each dim can become unknown once, and each rank once.
    """
    while True:
        results = body.infer(*before, *carried, *after)
        wider = [join(c, _forget(r)) for c, r in zip(carried, results[skip:], strict=False)]
        if len(wider) < len(carried):
            raise ShapeError(f"the body returns {len(results)} values, and carries {len(carried)}")
        if wider == carried:
            return wider, results
        carried = wider


def _stack(k: Context, rows: list[Array], body: Subgraph, position: int, types: list[Type], axis: int) -> Array:
    if rows:
        return k.xp.stack(rows, axis)
    row = body.infer(*types)[position]
    if not isinstance(row, Tensor) or row.dims is None:
        raise ShapeError("no iteration ran, and the type of a scan output is unknown")
    dims = [d if isinstance(d, int) else 0 for d in row.dims]
    dims.insert(axis % (len(dims) + 1), 0)
    return k.xp.zeros(dims, row.dtype.numpy)


def _two(g: Builder) -> tuple[Any, ...]:
    return (g.const(2.0, DType.FLOAT),)


@op(
    "If",
    since=25,
    outputs=("outputs*",),
    samples=[
        Sample([np.array(v)], {"then_branch": Body([], _two), "else_branch": Body([], lambda g: (g.Neg(*_two(g)),))})
        for v in (True, False)
    ],
)
def if_(k: Context, cond: Array, *, else_branch: Subgraph, then_branch: Subgraph) -> tuple[Array, ...]:
    return tuple(k.run(then_branch if _truth(cond) else else_branch))


@if_.infer
def _(cond: Tensor, *, else_branch: Subgraph, then_branch: Subgraph) -> tuple[Type, ...]:
    if cond.value is not None:
        return then_branch.infer() if _truth(np.asarray(cond.value)) else else_branch.infer()
    yes, no = _attempt(then_branch), _attempt(else_branch)
    if isinstance(yes, MezzoError) and isinstance(no, MezzoError):
        raise yes
    if isinstance(yes, MezzoError):
        return no if not isinstance(no, MezzoError) else ()
    if isinstance(no, MezzoError):
        return yes
    if len(yes) != len(no):
        raise ShapeError(f"the branches return {len(yes)} and {len(no)} values")
    return tuple(join(a, b) for a, b in zip(yes, no, strict=True))


def _attempt(branch: Subgraph) -> tuple[Type, ...] | MezzoError:
    """The types of a branch, or why it cannot run: a branch for other sizes than these is common and no fault."""
    try:
        return tuple(_forget(t) for t in branch.infer())
    except (ShapeError, BudgetError) as error:
        branch.refuse(error)
        return error


@op("Raise", domain="mezzo", since=1, outputs=("outputs*",), deterministic=False, samples=())
def raise_(k: Context, *, message: str, place: str = "", hint: str = "") -> tuple[Array, ...]:
    """Stands in a branch that cannot run with the sizes at hand, and says so if it is taken all the same."""
    raise ShapeError(message, where=place, hint=hint)


@raise_.infer
def _(*, message: str, place: str = "", hint: str = "") -> Type:
    raise ShapeError(message, where=place, hint=hint)


def _count(g: Builder, i: Any, go: Any, x: Any) -> tuple[Any, ...]:
    y = g.Add(x, g.Cast(i, to=1))
    return go, y, y


def _grow(g: Builder, i: Any, go: Any, x: Any) -> tuple[Any, ...]:
    y = g.Concat(x, g.const([1.0], DType.FLOAT), axis=0)
    return g.Less(i, g.const(2)), y


@op(
    "Loop",
    since=25,
    outputs=("v_final_and_scan_outputs*",),
    samples=[
        Sample([np.array(3), None, f32(2)], {"body": Body([i64(), BOOL, f32(2)], _count)}, outputs=2),
        Sample([np.array(0), np.array(True), f32(2)], {"body": Body([i64(), BOOL, f32(2)], _count)}, outputs=2),
        Sample([None, np.array(True), f32(1)], {"body": Body([i64(), BOOL, f32(None)], _grow)}),
    ],
)
def loop(
    k: Context, M: Array | None = None, cond: Array | None = None, *v_initial: Array, body: Subgraph
) -> tuple[Array, ...]:
    carried, n = list(v_initial), len(v_initial)
    rows: list[list[Array]] = [[] for _ in body.outputs[n + 1 :]]
    most = None if M is None else int(M.reshape(-1)[0])
    go, i, true = cond is None or _truth(cond), 0, k.xp.asarray(True)
    while go and (most is None or i < most):
        again, *results = k.run(body, k.xp.asarray(i, dtype="int64"), true, *carried)
        carried = results[:n]
        for row, value in zip(rows, results[n:], strict=True):
            row.append(k.xp.array(value))
        go, i = _truth(again), i + 1
    types: list[Type] = [i64(), BOOL, *(type_of(v) for v in v_initial)]
    return (*carried, *(_stack(k, r, body, n + 1 + j, types, 0) for j, r in enumerate(rows)))


@loop.infer
def _(M: Tensor | None, cond: Tensor | None, *v_initial: Type, body: Subgraph) -> tuple[Type, ...]:
    inside = Tensor(DType.BOOL, (), np.asarray(True))  # while an iteration runs its condition holds
    carried, results = _fixpoint(body, (i64(), inside), [_forget(t) for t in v_initial], (), 1)
    always = all(c is None or (c.value is not None and _truth(np.asarray(c.value))) for c in (cond, results[0]))
    trips = None if M is None else M.ints()
    count: Dim = max(trips[0], 0) if always and trips else None
    scans = []
    for row in results[1 + len(carried) :]:
        if not isinstance(row, Tensor):
            raise ShapeError(f"a scan output is a tensor, not {row}")
        scans.append(row.of(None if row.dims is None else (count, *row.dims)))
    return (*carried, *scans)


def _running(g: Builder, total: Any, x: Any) -> tuple[Any, ...]:
    y = g.Add(total, x)
    return y, g.Mul(y, g.const(2.0, DType.FLOAT))  # not y twice: of that ONNX Runtime fills one copy


@op(
    "Scan",
    since=25,
    outputs=("final_state_and_scan_outputs*",),
    samples=[
        Sample([f32(2), f32(3, 2)], {"num_scan_inputs": 1, "body": Body([f32(2), f32(2)], _running)}, outputs=2),
        Sample([f32(), f32(3)], {"num_scan_inputs": 1, "body": Body([f32(), f32()], _running)}, outputs=2),
        Sample(
            [f32(2), f32(2, 3)],
            {
                "num_scan_inputs": 1,
                "body": Body([f32(2), f32(2)], _running),
                "scan_input_axes": (1,),
                "scan_input_directions": (1,),
                "scan_output_axes": (-1,),
                "scan_output_directions": (1,),
            },
            outputs=2,
        ),
    ],
)
def scan(
    k: Context,
    *initial_state_and_scan_inputs: Array,
    body: Subgraph,
    num_scan_inputs: int,
    scan_input_axes: tuple[int, ...] | None = None,
    scan_input_directions: tuple[int, ...] | None = None,
    scan_output_axes: tuple[int, ...] | None = None,
    scan_output_directions: tuple[int, ...] | None = None,
) -> tuple[Array, ...]:
    n = len(initial_state_and_scan_inputs) - num_scan_inputs
    carried = list(initial_state_and_scan_inputs[:n])
    axes = scan_input_axes or (0,) * num_scan_inputs
    backwards = scan_input_directions or (0,) * num_scan_inputs
    scanned = [k.xp.moveaxis(x, a, 0) for x, a in zip(initial_state_and_scan_inputs[n:], axes, strict=True)]
    length = _length([x.shape[0] for x in scanned])
    rows: list[list[Array]] = [[] for _ in body.outputs[n:]]
    for i in range(length):
        xs = [x[length - 1 - i if back else i, ...] for x, back in zip(scanned, backwards, strict=True)]
        results = k.run(body, *carried, *xs)
        carried = list(results[:n])
        for row, value in zip(rows, results[n:], strict=True):
            row.append(k.xp.array(value))
    slices = (Tensor(DType.of(x.dtype), x.shape[1:]) for x in scanned)
    types = [*(type_of(v) for v in initial_state_and_scan_inputs[:n]), *slices]
    out_axes = scan_output_axes or (0,) * len(rows)
    reverse = scan_output_directions or (0,) * len(rows)
    ordered = [r[::-1] if back else r for r, back in zip(rows, reverse, strict=True)]
    return (*carried, *(_stack(k, r, body, n + j, types, out_axes[j]) for j, r in enumerate(ordered)))


def _length(lengths: list[Any]) -> Any:
    known = {n for n in lengths if isinstance(n, int)}
    if len(known) > 1:
        raise ShapeError(f"scan inputs have {' and '.join(map(str, sorted(known)))} elements along their scan axes")
    return known.pop() if known else lengths[0] if lengths else None


@scan.infer
def _(
    *initial_state_and_scan_inputs: Tensor,
    body: Subgraph,
    num_scan_inputs: int,
    scan_input_axes: tuple[int, ...] | None = None,
    scan_input_directions: tuple[int, ...] | None = None,
    scan_output_axes: tuple[int, ...] | None = None,
    scan_output_directions: tuple[int, ...] | None = None,
) -> tuple[Type, ...]:
    n = len(initial_state_and_scan_inputs) - num_scan_inputs
    axes = scan_input_axes or (0,) * num_scan_inputs
    slices: list[Type] = []
    lengths: list[Dim] = []
    for x, axis in zip(initial_state_and_scan_inputs[n:], axes, strict=True):
        if x.dims is None:
            slices.append(Tensor(x.dtype, None))
            lengths.append(None)
            continue
        if not -len(x.dims) <= axis < len(x.dims):
            raise ShapeError(f"scan axis {axis} is outside {x}")
        at = axis % len(x.dims)
        slices.append(Tensor(x.dtype, x.dims[:at] + x.dims[at + 1 :]))
        lengths.append(x.dims[at])
    start = [_forget(t) for t in initial_state_and_scan_inputs[:n]]
    carried, results = _fixpoint(body, (), start, tuple(slices), 0)
    scans: list[Type] = []
    for j, row in enumerate(results[n:]):
        if row.dims is None:
            scans.append(Tensor(row.dtype, None))
            continue
        dims = list(row.dims)
        dims.insert((scan_output_axes[j] if scan_output_axes else 0) % (len(dims) + 1), _length(lengths))
        scans.append(row.of(dims))
    return (*carried, *scans)
