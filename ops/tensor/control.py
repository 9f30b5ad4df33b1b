"""Control flow: If, Loop and Scan over subgraphs (https://onnx.ai/onnx/operators/onnx__Loop.html).

The references say what the operators mean; whoever provides `k.run` decides how a body runs (interpreted, or as a
planned program).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.broadcast import zeros_like
from ..errors import BudgetError, MezzoError, ShapeError
from ..op import Body, Builder, Context, GraphBody, Sample, Subgraph, Twin, Value, op
from ..types import Array, Dim, DType, Tensor, Type, differentiable, f32, i64, join, type_of
from .loop_states import parted, saved, several

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


def _collect(k: Context, rows: list[list[Array]], values: Sequence[Array], held: int) -> int:
    """Append a row to each output; `held` is how many bytes they had, returned is how many they have."""
    for row, value in zip(rows, values, strict=True):
        held += value.nbytes
        if held > k.room:
            raise BudgetError(
                f"the rows of {len(row) + 1} iterations have {held} bytes, more than the limit of {k.room}",
                hint="is the loop endless? raise Budget(dynamic_bytes=...) if it is meant to collect more",
            )
        row.append(k.xp.array(value))
    return held


def _stack(k: Context, rows: list[Array], body: Subgraph, position: int, types: list[Type], axis: int) -> Array:
    if rows:
        return k.xp.stack(rows, axis)
    row = body.infer(*types)[position]
    if not isinstance(row, Tensor) or row.dims is None:
        raise ShapeError("no iteration ran, and the type of a scan output is unknown")
    dims = [d if isinstance(d, int) else 0 for d in row.dims]
    dims.insert(axis % (len(dims) + 1), 0)
    return k.xp.zeros(dims, row.dtype.numpy)


def _or_zeros(b: Builder, dx: Value | None, x: Value) -> Value:
    return zeros_like(b, x) if dx is None else dx


def _added(b: Builder, sums: Sequence[Value], parts: Sequence[Value | None]) -> list[Value]:
    """The sums of gradients of captured values, with what one more iteration adds."""
    return [s if part is None else b.total([s, part]) for s, part in zip(sums, parts, strict=True)]


def _held(g: Builder, values: Sequence[Value]) -> list[Type]:
    """The types of values without what is known of their elements."""
    return [_forget(g.type_of(v)) for v in values]


def _two(g: Builder) -> tuple[Any, ...]:
    return (g.const(2.0, DType.FLOAT),)


@op(
    "If",
    complex_numbers="unchecked",
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


@if_.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, else_branch: GraphBody, then_branch: GraphBody
) -> tuple[Value | None, ...]:
    """An If whose branches run the branches of the node again, and their derivatives."""
    (cond,) = xs
    known = g.type_of(cond)
    taken = None if not isinstance(known, Tensor) or known.value is None else _truth(np.asarray(known.value))

    def derivative(branch: GraphBody, runs: bool) -> Body:
        def build(b: Builder) -> list[Value]:
            dxs = b.grad_of(branch, [], dys) if runs else [None] * len(b.captured)
            return [_or_zeros(b, dx, x) for dx, x in zip(dxs, b.captured, strict=True)]

        return Body([], build)

    count = len(g.captured)
    results = g.If(
        cond,
        then_branch=derivative(then_branch, taken is not False),
        else_branch=derivative(else_branch, taken is not True),
        outputs=count,
    )
    return None, *several(results, count)


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
    complex_numbers="unchecked",
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
    go, i, true, held = cond is None or _truth(cond), 0, k.xp.asarray(True), 0
    while go and (most is None or i < most):
        again, *results = k.run(body, k.xp.asarray(i, dtype="int64"), true, *carried)
        carried = results[:n]
        held = _collect(k, rows, results[n:], held)
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


def _varies(type: Type) -> bool:
    """True if values of a type may change in size between iterations."""
    return not isinstance(type, Tensor) or type.dims is None or None in type.dims


@loop.twin
def _(types: Sequence[Type | None], wanted: Any, *, body: GraphBody) -> Twin:
    """The loop that also returns, of each iteration, its number and the carried values it starts from, those that
    keep their size."""
    carried = _carried(body, types[2:])
    needed = [body.inputs[0], *(v for v, t in zip(body.inputs[2:], carried, strict=True) if not _varies(t))]
    return _returning("Loop", body, needed, len(carried) + 1, {})


def _carried(body: Subgraph, types: Sequence[Type | None]) -> list[Type]:
    """The types of the carried values of a Loop in any iteration."""
    carried: list[Type] = _fixpoint(body, (i64(), BOOL), [_forget(t) for t in types if t is not None], (), 1)[0]
    return carried


def _returning(name: str, body: GraphBody, values: Sequence[str], rows: int, attrs: Mapping[str, Any]) -> Twin:
    """A Loop or Scan whose body returns some of its inputs too, behind output `rows`, where it does not yet."""
    b = body.extend()
    more = [b.Identity(v) for v in values if _row(body, v, rows) is None]
    outputs = [*body.outputs, *more]
    given = {a: (*v, *(0,) * len(more)) for a, v in attrs.items() if a.startswith("scan_output") and v}
    condition = int(name == "Loop")  # which the loop keeps to itself
    return Twin(name, {**attrs, **given, "body": b.graph(outputs)}, len(outputs) - condition)


def _moving(g: Builder, body: GraphBody, inputs: Sequence[str], types: Sequence[Type], skip: int) -> list[int]:
    """The numbers of the carried values that depend, after some iterations, on what needs a gradient.

    `inputs` are those of the body, first the carried values, of these `types`; the results of the body before them are
    to be skipped.
    """
    wants = g.wants[-len(inputs) :] if inputs else ()
    starts = {v for v, wanted in zip(inputs, wants, strict=True) if wanted} | set(g.captured)
    while True:
        more = {inputs[i] for i, t in enumerate(types) if differentiable(t) and i + skip in body.reached(starts)}
        if more <= starts:
            return [i for i in range(len(types)) if inputs[i] in starts]
        starts |= more


def _row(body: GraphBody, value: str, rows: int) -> int | None:
    """The number of the scan output, among all outputs of a body, that returns a value."""
    return next((i for i in body.returns(value) if i >= rows), None)


@loop.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, body: GraphBody) -> tuple[Value | None, ...]:
    """A loop over the iterations from the last to the first, each run again from the values it started from."""
    M, cond, *initial = xs
    n = len(initial)
    types = _carried(body, _held(g, initial))
    starts = [_row(body, v, n + 1) for v in body.inputs[2:]]
    lists = saved(g, body, M, cond, initial, types, [i for i, at in enumerate(starts) if at is None])
    counted = _row(body, body.inputs[0], n + 1)
    assert counted is not None  # the twin returns it
    trips = g.Squeeze(g.shape_of(ys[counted - 1]))
    moving = _moving(g, body, body.inputs[2:], types, 1)
    arriving = [j for j in range(n, len(dys)) if dys[j] is not None]
    captured = list(g.captured)

    def build(b: Builder, i: Value, go: Value, *inside: Value) -> list[Value]:
        dstates, sums = parted(inside, len(moving), len(captured))
        at = b.Sub(b.Sub(trips, i), b.const(1))
        states = [lists[k](b, at) if row is None else b.Gather(ys[row - 1], at) for k, row in enumerate(starts)]
        given = dict(zip(moving, dstates, strict=True)) | {j: b.Gather(dys[j], at) for j in arriving}
        gradients = b.grad_of(body, [at, go, *states], [None, *(given.get(j) for j in range(len(body.outputs) - 1))])
        return [go, *(_or_zeros(b, gradients[2 + k], states[k]) for k in moving), *_added(b, sums, gradients[2 + n :])]

    first = [_or_zeros(g, dys[k], ys[k]) for k in moving]
    inside = [i64(), BOOL, *(types[k] for k in moving), *_held(g, captured)]
    count = len(moving) + len(captured)
    results = g.Loop(
        trips, None, *first, *(zeros_like(g, c) for c in captured), body=Body(inside, build), outputs=count
    )
    dstates, sums = parted(several(results, count), len(moving), len(captured))
    dxs = dict(zip(moving, dstates, strict=True))
    return None, None, *(dxs.get(k) for k in range(n)), *sums


def _running(g: Builder, total: Any, x: Any) -> tuple[Any, ...]:
    y = g.Add(total, x)
    return y, g.Mul(y, g.const(2.0, DType.FLOAT))  # not y twice: of that ONNX Runtime fills one copy


@op(
    "Scan",
    complex_numbers="unchecked",
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
    held = 0
    for i in range(length):
        xs = [x[length - 1 - i if back else i, ...] for x, back in zip(scanned, backwards, strict=True)]
        results = k.run(body, *carried, *xs)
        carried = list(results[:n])
        held = _collect(k, rows, results[n:], held)
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
    scan_output_axes: tuple[int, ...] | None = None,
) -> tuple[Type, ...]:
    n = len(initial_state_and_scan_inputs) - num_scan_inputs
    if not 0 <= n <= len(initial_state_and_scan_inputs):
        raise ShapeError(f"{num_scan_inputs} of {len(initial_state_and_scan_inputs)} inputs are scanned")
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


@scan.twin
def _(types: Sequence[Type | None], wanted: Any, *, body: GraphBody, num_scan_inputs: int, **attrs: Any) -> Twin:
    """The scan that also returns the states that each iteration starts from."""
    n = len(types) - num_scan_inputs
    return _returning("Scan", body, body.inputs[:n], n, {"num_scan_inputs": num_scan_inputs, **attrs})


@scan.grad
def _(
    g: Builder,
    dys: Any,
    ys: Any,
    xs: Any,
    *,
    body: GraphBody,
    num_scan_inputs: int,
    scan_input_axes: tuple[int, ...] | None = None,
    scan_input_directions: tuple[int, ...] | None = None,
    scan_output_axes: tuple[int, ...] | None = None,
    scan_output_directions: tuple[int, ...] | None = None,
) -> tuple[Value | None, ...]:
    """A scan from the last iteration to the first, each run again from the states it started from."""
    n, outputs = len(xs) - num_scan_inputs, len(body.outputs)
    axes = [0] * n + list(scan_input_axes or [0] * num_scan_inputs)  # by number of the input, or of the output
    back = [0] * n + list(scan_input_directions or [0] * num_scan_inputs)
    out_axes = [0] * n + list(scan_output_axes or [0] * (outputs - n))
    out_back = [0] * n + list(scan_output_directions or [0] * (outputs - n))
    rows = [i for v in body.inputs[:n] if (i := _row(body, v, n)) is not None]  # the twin returns all
    moving = _moving(g, body, body.inputs, [g.type_of(y) for y in ys[:n]], 0)
    scanned = list(range(n, len(xs)))
    wanted = [j for j in scanned if g.wants[j]]
    arriving = [j for j in range(n, outputs) if dys[j] is not None]
    captured = list(g.captured)
    read = [*((ys[i], out_axes[i], out_back[i]) for i in rows), *((xs[j], axes[j], back[j]) for j in scanned),
            *((dys[j], out_axes[j], out_back[j]) for j in arriving)]  # fmt: skip

    def build(b: Builder, *inside: Value) -> list[Value]:
        dstates, sums, states, slices, given = parted(
            inside, len(moving), len(captured), n, len(scanned), len(arriving)
        )
        seeds = dict(zip([*moving, *arriving], [*dstates, *given], strict=True))
        given = [*states, *slices]
        gradients = b.grad_of(body, given, [seeds.get(i) for i in range(outputs)])
        dxs = [_or_zeros(b, gradients[i], given[i]) for i in (*moving, *wanted)]
        return [*dxs[: len(moving)], *_added(b, sums, gradients[len(xs) :]), *dxs[len(moving) :]]

    first = [*(_or_zeros(g, dys[i], ys[i]) for i in moving), *(zeros_like(g, c) for c in captured)]
    inside = [*_held(g, [ys[i] for i in moving]), *_held(g, captured), *(_slice(g.type_of(v), a) for v, a, _ in read)]
    count = len(first) + len(wanted)
    results = g.Scan(
        *first,
        *(v for v, _, _ in read),
        body=Body(inside, build),
        num_scan_inputs=len(read),
        scan_input_axes=[a for _, a, _ in read],
        scan_input_directions=[1 - back for _, _, back in read],
        scan_output_axes=[axes[j] for j in wanted],
        scan_output_directions=[1 - back[j] for j in wanted],
        outputs=count,
    )
    dstates, sums, slices = parted(several(results, count), len(moving), len(captured), len(wanted))
    dxs = dict(zip([*moving, *wanted], [*dstates, *slices], strict=True))
    return *(dxs.get(i) for i in range(len(xs))), *sums


def _slice(type: Type, axis: int) -> Type:
    """The type of one step of a scanned tensor."""
    if not isinstance(type, Tensor) or type.dims is None:
        return _forget(type)
    at = axis % len(type.dims)
    return type.of(type.dims[:at] + type.dims[at + 1 :])
