"""Rules of padding: where the padding of operands comes to lie in results, and what is overwritten before.

A rule is called with the graph so far and a node, and adds what computes the same for all elements that count. It
raises NotPadded with the reason where nothing does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from ...ops import Context, Tensor, Type
from ...ops.core.rules import bounds
from ...ops.symbolic import Terms
from ...ops.types import DType
from ..ir.graph import Graph, Node
from .padding import Axis, CacheSizes, NotPadded, PaddedGraph, PaddedValue
from .sizes import NormalSizes, Size, as_terms, minus, over, times
from .template import Traced

Rule = Callable[[PaddedGraph, Node], None]
INPUT_PADDING: float | None = 0.0  # what inputs are padded with; None: anything, for tests
OWN_RULES: dict[str, Rule] = {}  # of operators of ONNX that no trait tells apart


def rule_for(*ops: str) -> Callable[[Rule], Rule]:
    """Enter a rule for operators of ONNX."""

    def enter(rule: Rule) -> Rule:
        OWN_RULES.update(dict.fromkeys(ops, rule))
        return rule

    return enter


def rule_of(node: Node) -> Rule:
    """The rule of a node: its operator's own, that of what it does, or the one for operands without padding."""
    record = node.record
    own = OWN_RULES.get(node.op) if node.domain in ("", "com.microsoft") else None
    if own is not None:
        return own
    if record.elementwise and record.deterministic:
        return elementwise
    if record.moves == "view":
        return view
    if record.rowwise:
        return rowwise
    return reduction if record.neutral is not None else unpadded


def refused(node: Node, why: str) -> NotPadded:
    return NotPadded(f"{node.op}: {why}")


def dtypes(g: PaddedGraph, node: Node) -> list[DType]:
    """Element types of the outputs."""
    types = [g.traced.graph.types[o] if o else None for o in node.outputs]
    if not all(t is None or isinstance(t, Tensor) for t in types):
        raise refused(node, "a result is no tensor")
    return [t.dtype if isinstance(t, Tensor) else DType.FLOAT for t in types]


def typed(g: PaddedGraph, node: Node) -> list[tuple[Size, ...]]:
    """The sizes of the outputs as inference has found them."""
    return [tuple(map(g.normal.of, g.dims_of(name))) for name in filter(None, node.outputs)]


def operands(g: PaddedGraph, node: Node) -> list[PaddedValue | None]:
    return [g.value(n) if n else None for n in node.inputs]


def unpadded(g: PaddedGraph, node: Node) -> None:
    """An operator whose operands have no padding stays as it is."""
    if node.bodies:
        raise refused(node, "it has subgraphs")
    for name, x in zip(node.inputs, operands(g, node), strict=True):
        if x is not None and (name in g.numbers or any(map(g.pads, x.axes))):
            raise refused(node, f"{name!r} follows a size that is rounded up")
    outputs = {}
    for name, dtype, sizes in zip(filter(None, node.outputs), dtypes(g, node), typed(g, node), strict=False):
        if any(map(g.padded, sizes)):
            raise refused(node, "its result follows a size that is rounded up")
        outputs[name] = PaddedValue(dtype, tuple(() if s == 1 else (s,) for s in sizes))
    if len(outputs) < sum(map(bool, node.outputs)):
        raise refused(node, "a result is no tensor")
    g.emit(node, node.inputs, outputs)


def broadcast(node: Node, *shapes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes of operands side by side."""
    rank = max(map(len, shapes))
    columns = zip(*([()] * (rank - len(s)) + list(s) for s in shapes), strict=True)
    result = list[Axis]()
    for column in columns:
        sizes = {axis for axis in column if axis}
        if len(sizes) > 1:
            raise refused(node, f"sizes {sizes} are equal, and not rounded up together")
        result.append(sizes.pop() if sizes else ())
    return tuple(result)


def zero_stays(node: Node, x: PaddedValue) -> bool:
    """True if an operator of one operand makes 0 of 0."""
    if not x.dtype.floating:
        return False
    with np.errstate(all="ignore"):
        (result,) = node.record.run(Context(), [np.zeros((), x.dtype.numpy)], node.attrs)
    return bool(np.asarray(result).astype(np.float64) == 0)


def elementwise(g: PaddedGraph, node: Node) -> None:
    """Operators on each element: the padding stays where it is, and holds anything."""
    xs = [x for x in operands(g, node) if x is not None]
    if node.record.partial and any(not x.dtype.floating and any(map(g.pads, x.axes)) for x in xs):
        raise refused(node, "padding could hold integers that it fails for")
    axes = broadcast(node, *(x.axes for x in xs))
    fills = {a: v for a, v in xs[0].fills.items() if v == 0} if len(xs) == 1 else {}
    fills = fills if fills and zero_stays(node, xs[0]) else {}
    results = zip(node.outputs, dtypes(g, node), strict=True)
    g.emit(node, node.inputs, {o: PaddedValue(dtype, axes, dict(fills)) for o, dtype in results})


@rule_for("Cast")
def cast(g: PaddedGraph, node: Node) -> None:
    x, (dtype,) = g.value(node.inputs[0]), dtypes(g, node)
    fills = {a: v for a, v in x.fills.items() if v == 0 and DType.STRING not in (x.dtype, dtype)}
    g.emit(node, node.inputs, {node.outputs[0]: PaddedValue(dtype, x.axes, fills)})


@rule_for("Transpose")
def transpose(g: PaddedGraph, node: Node) -> None:
    x = g.value(node.inputs[0])
    perm = node.attrs.get("perm") or tuple(reversed(range(len(x.axes))))
    fills = {perm.index(a): v for a, v in x.fills.items()}
    g.emit(node, node.inputs, {node.outputs[0]: PaddedValue(x.dtype, tuple(x.axes[p] for p in perm), fills)})


def view(g: PaddedGraph, node: Node) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze, Identity: the sizes of all axes in a row are divided anew."""
    x = g.value(node.inputs[0])
    (sizes,) = typed(g, node)
    axes = regrouped(g, node, [s for axis in x.axes for s in axis], sizes)
    whole = {axis: i for i, axis in enumerate(axes) if g.pads(axis)}
    fills = {whole[x.axes[a]]: v for a, v in x.fills.items() if axes.count(x.axes[a]) == 1 == x.axes.count(x.axes[a])}
    result = {node.outputs[0]: PaddedValue(x.dtype, axes, fills)}
    if node.op == "Identity":
        g.emit(node, node.inputs, result)
    else:
        shape = g.constant(np.array(g.sizes(axes), np.int64))
        g.emit(node, (node.inputs[0], shape), result, op="Reshape", attrs={})


def regrouped(g: PaddedGraph, node: Node, factors: Sequence[Size], sizes: Sequence[Size]) -> tuple[Axis, ...]:
    """The axes of these sizes that the factors make in their order."""
    if 0 in (*factors, *sizes):
        raise refused(node, "it has no elements")
    left, axes = list(_joined(g, factors)), list[Axis]()
    for size in sizes:
        axis = list[Size]()
        while size != 1:
            if not left:
                raise refused(node, "sizes do not divide")
            first = left[0]
            quotient = over(size, first)
            if quotient is not None:
                axis.append(left.pop(0))
                size = quotient
                continue
            quotient = None if g.padded(first) or g.padded(size) else over(first, size)
            if quotient is None:  # of two factors without padding, the outer one is split
                common = None if g.padded(first) else _common(g, first, size)
                if common is None:
                    raise refused(node, f"size {size} is not made of {left}")
                axis.append(common)
                left[0], size = over(first, common) or 1, over(size, common) or 1
                continue
            axis.append(size)
            left[0], size = quotient, 1
        axes.append(_joined(g, axis))
    if any(s != 1 for s in left):
        raise refused(node, f"sizes {left} are left")
    return tuple(axes)


def _common(g: PaddedGraph, first: Size, size: Size) -> Size | None:
    """A factor of both that is not 1: of numbers only."""
    a, b = (s if isinstance(s, int) else int(np.gcd.reduce([f for _, f in s])) for s in (first, size))
    common = int(np.gcd(a, b))
    return common if common > 1 and not g.padded(first) else None


def _joined(g: PaddedGraph, axis: Sequence[Size]) -> Axis:
    """The sizes of an axis, with those beside each other that have no padding as one."""
    result = list[Size]()
    for size in axis:
        if result and not g.padded(size) and not g.padded(result[-1]):
            product = times(as_terms(result.pop()), as_terms(size))
            size = product[0][1] if len(product) == 1 and not product[0][0] else product
        if size != 1:
            result.append(size)
    return tuple(result)


@rule_for("Expand")
def expand(g: PaddedGraph, node: Node) -> None:
    x = g.value(node.inputs[0])
    (sizes,) = typed(g, node)
    axes = broadcast(node, x.axes, _like(g, x.axes, sizes))
    shape = g.constant(np.array(g.sizes(axes), np.int64))
    fills = {a + len(axes) - len(x.axes): v for a, v in x.fills.items()}
    g.emit(node, (node.inputs[0], shape), {node.outputs[0]: PaddedValue(x.dtype, axes, fills)})


def _like(g: PaddedGraph, axes: Sequence[Axis], sizes: Sequence[Size]) -> tuple[Axis, ...]:
    """Axes of these sizes, as those of an operand where it has them."""
    own = [()] * (len(sizes) - len(axes)) + list(axes)
    return tuple(axis or (() if size == 1 else (size,)) for axis, size in zip(own, sizes, strict=True))


@rule_for("Gather")
def gather(g: PaddedGraph, node: Node) -> None:
    x, places = (g.value(n) for n in node.inputs)
    axis = int(node.attrs.get("axis", 0)) % len(x.axes)
    at = g.place(node.inputs[1], x.axes[axis : axis + 1]) if g.pads(x.axes[axis]) else node.inputs[1]
    for i in range(len(places.axes)):
        at = g.filled(node, at, i, 0.0)
    n = len(places.axes)
    fills = {a if a < axis else a + n - 1: v for a, v in x.fills.items() if a != axis}
    padded = PaddedValue(x.dtype, (*x.axes[:axis], *places.axes, *x.axes[axis + 1 :]), fills)
    g.emit(node, (node.inputs[0], at), {node.outputs[0]: padded}, attrs={**node.attrs, "axis": axis})


@rule_for("GatherND")
def gather_nd(g: PaddedGraph, node: Node) -> None:
    x, places = (g.value(n) for n in node.inputs)
    last = places.axes[-1]
    count = 1 if not last else last[0]
    if node.attrs.get("batch_dims", 0) or not isinstance(count, int) or len(last) > 1:
        raise refused(node, "batches, or tuples of an open length")
    at = node.inputs[1]
    if any(map(g.pads, x.axes[:count])):
        at = g.place(at, x.axes[:count], each=True)
    for i in range(len(places.axes) - 1):
        at = g.filled(node, at, i, 0.0)
    padded = PaddedValue(x.dtype, (*places.axes[:-1], *x.axes[count:]))
    g.emit(node, (node.inputs[0], at), {node.outputs[0]: padded})


@rule_for("GatherElements")
def gather_elements(g: PaddedGraph, node: Node) -> None:
    x, places = (g.value(n) for n in node.inputs)
    axis = int(node.attrs.get("axis", 0)) % len(x.axes)
    for a, pair in enumerate(zip(x.axes, places.axes, strict=True)):
        if a != axis and pair[0] != pair[1] and any(map(g.pads, pair)):
            raise refused(node, "operands are padded in other ways")
    at = g.place(node.inputs[1], x.axes[axis : axis + 1]) if g.pads(x.axes[axis]) else node.inputs[1]
    for i in range(len(places.axes)):
        at = g.filled(node, at, i, 0.0)
    g.emit(node, (node.inputs[0], at), {node.outputs[0]: PaddedValue(x.dtype, places.axes)})


@rule_for("Slice")
def sliced(g: PaddedGraph, node: Node) -> None:
    """Slices of axes with padding: whole, from the beginning to a size, or of a number of elements."""
    (sizes,) = typed(g, node)
    names = (*node.inputs[1:], "", "", "")[:4]
    starts, ends = (g.traced.graph.initializers.get(n) for n in names[:2])
    if starts is None or ends is None:
        raise refused(node, "its ends are not known")
    axes = g.ints(names[2]) if names[2] else list(range(len(starts)))
    steps = g.ints(names[3]) if names[3] else [1] * len(starts)
    if not axes or steps is None:
        raise refused(node, "its axes are not known")
    name, padded = node.inputs[0], g.value(node.inputs[0])
    dims = g.dims_of(name)
    axes = [a % len(dims) for a in axes]
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), axes, steps, strict=True):
        size, former = sizes[axis], padded.axes[axis]
        begin = bounds(dims[axis], start, end, step)[0]
        fills = {a: v for a, v in padded.fills.items() if a != axis}
        cut = PaddedValue(padded.dtype, replaced(padded.axes, axis, () if size == 1 else (size,)), fills)
        result = node.outputs[0] if axis == axes[-1] else f"{node.outputs[0]}@{axis}"
        if not g.pads(former):
            first, stop = g.normal.of(start), g.normal.of(end)
            if g.padded(first) or g.padded(stop):
                raise refused(node, "its ends follow a size that is rounded up")
            where = [g.planned(first), g.planned(stop), axis, step]
        elif step == 1 and g.normal.of(begin) == 0 and g.padded(size) and len(former) == 1:
            cut.fills = {**padded.fills} if former == (size,) else fills
            where = [0, g.planned(size), axis, step]
        elif step == 1 and isinstance(size, int) and len(former) == 1:
            places = g.place(g.array([g.normal.of(begin + i) for i in range(size)], (size,)), [former])
            g.emit(node, (name, places), {result: cut}, op="Gather", attrs={"axis": axis})
            name, padded = result, cut
            continue
        else:
            raise refused(node, f"a part of an axis with padding, {former} from {start} to {end} by {step}")
        ins = [g.constant(np.array([n], np.int64)) for n in where]
        g.emit(node, (name, *ins), {result: cut}, op="Slice", attrs={})
        name, padded = result, cut


def replaced(axes: tuple[Axis, ...], at: int, axis: Axis) -> tuple[Axis, ...]:
    return (*axes[:at], axis, *axes[at + 1 :])


@rule_for("Concat")
def concat(g: PaddedGraph, node: Node) -> None:
    xs = [g.value(n) for n in node.inputs]
    axis = int(node.attrs["axis"]) % len(xs[0].axes)
    (sizes,) = typed(g, node)
    others = broadcast(node, *(replaced(x.axes, axis, ()) for x in xs))
    if any(replaced(x.axes, axis, ()) != others for x in xs):
        raise refused(node, "operands are padded in other ways")
    if not any(g.pads(x.axes[axis]) for x in xs) and not g.padded(sizes[axis]):
        fills = {a: v for a, v in xs[0].fills.items() if a != axis and all(x.fills.get(a) == v for x in xs)}
        axes = replaced(others, axis, () if sizes[axis] == 1 else (sizes[axis],))
        g.emit(node, node.inputs, {node.outputs[0]: PaddedValue(xs[0].dtype, axes, fills)})
        return
    if any(len(x.axes[axis]) > 1 for x in xs):
        raise refused(node, "several sizes are one axis")
    rows = [x.axes[axis][0] if x.axes[axis] else 1 for x in xs]
    counts = g.array(rows, (len(rows),))
    axes = replaced(others, axis, (sizes[axis],))
    fills = {a: v for a, v in xs[0].fills.items() if a != axis and v == 0 and all(x.fills.get(a) == v for x in xs)}
    g.emit(
        node, (counts, *node.inputs), {node.outputs[0]: PaddedValue(xs[0].dtype, axes, {**fills, axis: 0.0})},
        op="ConcatHeads", domain="mezzo", attrs={"axis": axis, "size": g.planned(sizes[axis])},
    )  # fmt: skip


@rule_for("Split")
def split(g: PaddedGraph, node: Node) -> None:
    x = g.value(node.inputs[0])
    axis = int(node.attrs.get("axis", 0)) % len(x.axes)
    if g.pads(x.axes[axis]) or any(n in g.numbers for n in node.inputs[1:]):
        raise refused(node, "an axis with padding is divided")
    fills = {a: v for a, v in x.fills.items() if a != axis}
    g_outputs = {}
    for name, sizes in zip(filter(None, node.outputs), typed(g, node), strict=True):
        axes = replaced(x.axes, axis, () if sizes[axis] == 1 else (sizes[axis],))
        g_outputs[name] = PaddedValue(x.dtype, axes, dict(fills))
    operands(g, node)
    g.emit(node, node.inputs, g_outputs)


@rule_for("MatMul")
def matmul(g: PaddedGraph, node: Node) -> None:
    """Products: what is summed over has zeros as padding on both sides."""
    a, b = (g.value(n) for n in node.inputs)
    names = list(node.inputs)
    deep, along = len(a.axes) - 1, max(len(b.axes) - 2, 0)
    if a.axes[deep] != b.axes[along]:
        raise refused(node, f"{a.axes[deep]} and {b.axes[along]} are summed over")
    names = [g.filled(node, names[0], deep, 0.0), g.filled(node, names[1], along, 0.0)]
    batch = broadcast(node, a.axes[:-2], b.axes[:-2]) if len(a.axes) > 2 or len(b.axes) > 2 else ()
    axes = (*batch, *a.axes[-2:-1], *(b.axes[-1:] if len(b.axes) > 1 else ()))
    g.emit(node, names, {node.outputs[0]: PaddedValue(dtypes(g, node)[0], axes)})


@rule_for("Gemm")
def gemm(g: PaddedGraph, node: Node) -> None:
    a, b, *c = (g.value(n) for n in node.inputs if n)
    at, bt = bool(node.attrs.get("transA", 0)), bool(node.attrs.get("transB", 0))
    deep, along = int(not at), int(bt)
    if a.axes[deep] != b.axes[along]:
        raise refused(node, f"{a.axes[deep]} and {b.axes[along]} are summed over")
    names = [g.filled(node, node.inputs[0], deep, 0.0), g.filled(node, node.inputs[1], along, 0.0), *node.inputs[2:]]
    axes = (a.axes[1 - deep], b.axes[1 - along])
    if c and broadcast(node, axes, c[0].axes) != axes:
        raise refused(node, "what is added has other axes")
    g.emit(node, names, {node.outputs[0]: PaddedValue(dtypes(g, node)[0], axes)})


@rule_for("Softmax", "LogSoftmax")
def softmax(g: PaddedGraph, node: Node) -> None:
    x = g.value(node.inputs[0])
    axis = int(node.attrs.get("axis", -1)) % len(x.axes)
    name = g.filled(node, node.inputs[0], axis, -np.inf)
    fills = {axis: 0.0 if node.op == "Softmax" else -np.inf} if g.pads(x.axes[axis]) and len(x.axes[axis]) == 1 else {}
    g.emit(node, (name,), {node.outputs[0]: PaddedValue(x.dtype, x.axes, fills)})


def reduction(g: PaddedGraph, node: Node) -> None:
    x = g.value(node.inputs[0])
    rank = len(x.axes)
    named = g.ints(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else []
    if named is None:
        raise refused(node, "its axes are not known")
    if not named and node.attrs.get("noop_with_empty_axes", 0):
        raise refused(node, "it reduces nothing")
    over_axes = sorted({a % rank for a in named}) if named else list(range(rank))
    name = node.inputs[0]
    for axis in over_axes:
        name = g.filled(node, name, axis, node.record.neutral or 0.0)
    kept = bool(node.attrs.get("keepdims", 1))
    axes = tuple(() if a in over_axes else axis for a, axis in enumerate(x.axes) if kept or a not in over_axes)
    padded = PaddedValue(dtypes(g, node)[0], axes)
    inputs = (name, *node.inputs[1:])
    rounded = [s for a in over_axes for s in x.axes[a] if g.padded(s)]
    if node.op != "ReduceMean" or not rounded:
        g.emit(node, inputs, {node.outputs[0]: padded})
        return
    if not padded.dtype.floating:
        raise refused(node, "a mean of integers")
    averaged(g, node, inputs, padded, rounded)


def averaged(g: PaddedGraph, node: Node, inputs: Sequence[str], result: PaddedValue, sizes: Sequence[Size]) -> None:
    """The mean of a node over all with zeros as padding, times how many are planned, divided by how many count."""
    mean, factor, dtype = f"{node.outputs[0]}@mean", f"{node.outputs[0]}@share", result.dtype
    g.emit(node, inputs, {mean: result}, op=node.op)
    share = g.share([as_terms(s) for s in sizes])
    g.emit(node, (share,), {factor: PaddedValue(dtype, ())}, op="Cast", domain="", attrs={"to": dtype.onnx})
    g.emit(node, (mean, factor), {node.outputs[0]: result}, op="Mul", domain="", attrs={})


@rule_for("LayerNormalization", "RMSNormalization")
def normalization(g: PaddedGraph, node: Node) -> None:
    """LayerNormalization and RMSNormalization over axes without padding."""
    x, *others = operands(g, node)
    assert x is not None
    axis = int(node.attrs.get("axis", -1)) % len(x.axes)
    if any(map(g.pads, x.axes[axis:])) or any(o is not None and any(map(g.pads, o.axes)) for o in others):
        raise refused(node, "the axes that are normalised have padding")
    reduced = (*x.axes[:axis], *((),) * (len(x.axes) - axis))
    shapes = [x.axes, reduced, reduced]
    kept = zip(node.outputs, dtypes(g, node), shapes, strict=False)
    g.emit(node, node.inputs, {o: PaddedValue(d, axes) for o, d, axes in kept if o})


def rowwise(g: PaddedGraph, node: Node) -> None:
    """Operators on each row: padding of the leading axes stays where it is."""
    x, *others = operands(g, node)
    assert x is not None
    if g.pads(x.axes[-1]):
        raise refused(node, "rows have padding")
    for other in others:
        if other is not None and any(map(g.pads, other.axes)) and other.axes[:-1] != x.axes[:-1]:
            raise refused(node, "operands are padded in other ways")
    named = zip(node.outputs, dtypes(g, node), strict=True)
    axes = [(*x.axes[:-1], () if sizes[-1] == 1 else (sizes[-1],)) for sizes in typed(g, node)]
    results = zip([(o, d) for o, d in named if o], axes, strict=True)
    g.emit(node, node.inputs, {o: PaddedValue(d, one) for (o, d), one in results})


@rule_for("ArgMax", "ArgMin")
def places(g: PaddedGraph, node: Node) -> None:
    """ArgMax and ArgMin."""
    x = g.value(node.inputs[0])
    axis = int(node.attrs.get("axis", 0)) % len(x.axes)
    if g.pads(x.axes[axis]):
        raise refused(node, "the axis that is looked through has padding")
    kept = bool(node.attrs.get("keepdims", 1))
    axes = tuple(() if a == axis else n for a, n in enumerate(x.axes) if kept or a != axis)
    g.emit(node, node.inputs, {node.outputs[0]: PaddedValue(DType.INT64, axes)})


@rule_for("Trilu")
def triangle(g: PaddedGraph, node: Node) -> None:
    """Trilu, which looks at places: those of what counts are as they were."""
    x, *diagonal = operands(g, node)
    assert x is not None
    if any(len(axis) > 1 for axis in x.axes[-2:]) or any(d is not None and any(d.axes) for d in diagonal):
        raise refused(node, "several sizes are one axis")
    fills = {a: v for a, v in x.fills.items() if v == 0}
    g.emit(node, node.inputs, {node.outputs[0]: PaddedValue(x.dtype, x.axes, fills)})


def padded_graph(
    traced: Traced, normal: NormalSizes, open: Collection[int], values: Sequence[int], caches: CacheSizes
) -> tuple[Graph, PaddedGraph]:
    """The graph for these values of the symbols, rounded up, with types for its inputs; and what is to be fed to it.
    Raises NotPadded with the reason where there is none."""
    source = traced.graph
    state = PaddedGraph(traced, normal, open, values, caches)
    for name in source.inputs:
        known = source.types[name]
        assert isinstance(known, Tensor)
        axes = state.axes_of(name)
        fills = {} if INPUT_PADDING is None else {a: INPUT_PADDING for a, axis in enumerate(axes) if state.pads(axis)}
        state.known[name] = PaddedValue(known.dtype, axes, fills)
    for node in source.nodes:
        rule_of(node)(state, node)
    for name in source.outputs:
        state.value(name)
    extra = [*state.counts.values(), *state.numbers, *state.shares, *state.places]
    fed = (*source.inputs, *state.numbers, *state.shares, *state.places)
    types: dict[str, Type] = {n: Tensor(state.known[n].dtype, state.sizes(state.known[n].axes)) for n in fed}
    types |= {n: Tensor(DType.INT64, ()) for n in state.counts.values()}
    wanted = {n for node in state.nodes for n in node.inputs} | {*source.outputs}
    graph = Graph(
        (*(n for n in source.inputs if n in wanted), *(n for n in extra if n in wanted)),
        source.outputs,
        tuple(state.nodes),
        {n: a for n, a in state.constants.items() if n in wanted},
        types=types,
        name=source.name,
        opsets=source.opsets,
    )
    return graph, state


def caches_of(state: PaddedGraph) -> CacheSizes:
    """The sizes of inputs that results are with new rows behind them, and of masks over them."""
    source, grown, new = state.traced.graph, dict[Terms, Terms](), set[int]()
    pairs = [(node, node.inputs[i], node.outputs[o]) for node in state.nodes for i, o in node.record.appends]
    for node, past, present in pairs:
        if past not in source.inputs or present not in source.outputs:
            continue
        axes = [state.known[n].axes[node.attrs.get("axis", 2)] for n in (past, present)]
        if [len(axis) for axis in axes] != [1, 1]:
            continue
        (old,), (now,) = axes
        if isinstance(old, int) or isinstance(now, int):
            continue
        more = minus(now, old)
        if more != old:  # else it is joined with what was made of it
            grown[old] = now
            new |= state.normal.symbols(more)
    symbols: dict[bool, set[int]] = {True: new, False: set()}
    for name in source.inputs[: state.given]:
        padded = state.known[name]
        for size in (s for axis in padded.axes for s in axis if not isinstance(s, int)):
            symbols[padded.dtype.floating] |= state.normal.symbols(size)
    masks = symbols[False] - symbols[True] if grown else ()
    return CacheSizes(grown, frozenset(masks), frozenset({*grown, *grown.values()}))
