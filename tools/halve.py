"""Conversion of a model to 16 bits: weights and computation are cast, inputs and outputs keep their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import onnx.defs

from ..ops import OPS, OPSETS, DType, Tensor, Type
from ..ops.dataclasses import dataclass, replace
from ..ops.errors import InputError, UnsupportedModel
from ..ops.types import Array, type_of
from ..runtime.ir.autodiff import unused_name
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.infer import infer
from ..runtime.ir.prune import prune
from ..train.amp import KINDS, Policy, mixed
from ..train.prepare import hoisted

# Operators whose statistics have a type parameter of their own, and whose results have that of their first input.
BESIDE = frozenset({"BatchNormalization", "Pow"})
SHOWN = 5  # names in a message
MASKED = -1e6  # what is so low masks something out: float16's lowest does so too, and -inf makes NaN of it


@dataclass(frozen=True, slots=True)
class Halved:
    """A model in 16 bits, the number of its nodes that compute in them, and the nodes that do not."""

    graph: Graph
    narrow: int
    wide: tuple[str, ...]


def halved(graph: Graph, precision: str, *, keep_io: bool = True) -> Halved:
    """The float32 parts of a graph in `precision`, "fp16" or "bf16".

    Operators that ONNX does not define in 16 bits, and bodies of If, Loop and Scan, stay in float32 between casts.
    With `keep_io=False` inputs and outputs are 16 bits wide too. Raises InputError for another precision, and
    UnsupportedModel where a weight does not fit (float16 ends at 65504); what masks becomes float16's lowest number.
    """
    if precision not in KINDS:
        raise InputError(f"precision {precision!r}", where="convert", hint=f"one of {', '.join(KINDS)}")
    dtype = KINDS[precision]
    graph = infer(hoisted(graph))
    narrowed = _narrow_weights(mixed(graph, policy(dtype)), dtype)
    if not keep_io:
        narrowed = _narrow_ends(narrowed, dtype)
    narrowed = infer(prune(narrowed).but(types={n: narrowed.types[n] for n in narrowed.inputs}))
    floats = [n for n in narrowed.nodes if n.op != "Cast" and any(map(_is_float, map(narrowed.types.get, n.outputs)))]
    wide = [n for n in floats if not any(_is(narrowed.types.get(o), dtype) for o in n.outputs)]
    return Halved(narrowed, len(floats) - len(wide), tuple(n.place for n in wide))


@cache
def policy(dtype: DType) -> Policy:
    """Return the mixed-precision policy of a type: operators compute in it if their floating inputs and outputs share
    one type parameter that allows it. An operator without a floating output takes its inputs as they are; all others
    stay in float32."""
    low, wide = set[str](), set[str]()
    for op in (op for domain, op in OPS if not domain):
        try:
            schema = onnx.defs.get_schema(op, OPSETS[""])
        except onnx.defs.SchemaError:
            continue
        ins, outs = ([p for p in ports if "tensor(float)" in p.types] for ports in (schema.inputs, schema.outputs))
        one_type = len({p.type_str for p in (*ins, *outs)}) == 1 or op in BESIDE
        if not one_type or not all(f"tensor({dtype.name.lower()})" in p.types for p in (*ins, *outs)):
            wide.add(op)
        elif outs:
            low.add(op)
    return Policy(dtype, frozenset(low), frozenset(wide))


def _narrow_weights(graph: Graph, dtype: DType) -> Graph:
    """The casts of weights done once and for all."""
    constants: dict[str, Array] = dict(graph.initializers)
    types, nodes, lost = dict(graph.types), list[Node](), list[str]()
    for node in graph.nodes:
        source = node.inputs[0] if node.op == "Cast" and not node.domain else ""
        if source not in graph.initializers or source in graph.inputs or node.attrs["to"] != dtype.onnx:
            nodes.append(node)
            continue
        whole = np.asarray(graph.initializers[source])
        if dtype is DType.FLOAT16:
            whole = np.where(np.isfinite(whole) & (whole <= MASKED), np.finfo(np.float16).min, whole)
        with np.errstate(over="ignore"):
            narrow = whole.astype(dtype.numpy)
        if np.isinf(narrow).sum() > np.isinf(graph.initializers[source]).sum():
            lost.append(source)
        constants[node.outputs[0]] = narrow
        types[node.outputs[0]] = type_of(narrow)
    if lost:
        raise UnsupportedModel(
            f"{len(lost)} weights do not fit {dtype}: {', '.join(lost[:SHOWN])}{', ...' if len(lost) > SHOWN else ''}",
            where=graph.name,
            hint="convert with --precision bf16, which has the range of float32",
        )
    return _under_own_names(graph.but(nodes=tuple(nodes), initializers=constants, types=types), graph)


def _under_own_names(graph: Graph, before: Graph) -> Graph:
    """Weights that only their narrow forms are read of give them their names."""
    read = set(graph.reads())
    names = {
        n.outputs[0]: n.inputs[0]
        for n in before.nodes
        if n.op == "Cast" and n.outputs[0] in graph.initializers and n.inputs[0] not in read
    }
    constants = {names.get(n, n): a for n, a in graph.initializers.items() if n not in names.values()}
    constants = {n: constants[n] for n in (*before.initializers, *constants) if n in constants}  # in the old order
    types = {names.get(n, n): t for n, t in graph.types.items() if n not in names.values()}
    return graph.rename(names).but(initializers=constants, types=types)


def _narrow_ends(graph: Graph, dtype: DType) -> Graph:
    """Inputs and outputs in 16 bits: another cast at each end, and then none where two undo each other."""
    taken, produced = set(graph.types), {o for n in graph.nodes for o in n.outputs}
    ins = [n for n in graph.inputs if _is(graph.types[n], DType.FLOAT) and n not in graph.initializers]
    outs = [n for n in dict.fromkeys(graph.outputs) if _is(graph.types[n], DType.FLOAT) and n in produced]
    wide = {n: unused_name(f"{n}:float32", taken) for n in (*ins, *outs)}
    nodes = [
        *(Node("Cast", (n,), (wide[n],), {"to": DType.FLOAT.onnx}, name=wide[n]) for n in ins),
        *_renamed(graph, wide),
        *(Node("Cast", (wide[n],), (n,), {"to": dtype.onnx}, name=n) for n in outs),
    ]
    types = {n: Tensor(dtype, t.dims) if n in ins and isinstance(t, Tensor) else t for n, t in graph.types.items()}
    return _without_detours(graph.but(nodes=tuple(nodes), types=types), dtype)


def _without_detours(graph: Graph, dtype: DType) -> Graph:
    """Casts to float32 and back again fall away: 16 bits fit into 32."""
    narrow = {n for n, t in graph.types.items() if _is(t, dtype)}
    widened = {n.outputs[0]: n.inputs[0] for n in graph.nodes if _is_cast(n, DType.FLOAT) and n.inputs[0] in narrow}
    same = {n.outputs[0]: widened[n.inputs[0]] for n in graph.nodes if _is_cast(n, dtype) and n.inputs[0] in widened}
    produced = {o for n in graph.nodes for o in n.outputs}
    # what an output is the same as takes the output's name, once
    outputs = {v: n for n, v in same.items() if n in graph.outputs and v in produced and v not in graph.outputs}
    nodes: list[Node] = []
    for node in graph.nodes:
        name = node.outputs[0]
        if name not in same:
            nodes.append(node)
        elif name in graph.outputs and outputs.get(same[name]) != name:
            nodes.append(replace(node, op="Identity", inputs=(same[name],), attrs={}))
    inner = {n: v for n, v in same.items() if n not in graph.outputs}
    reduced = graph.but(nodes=tuple(nodes)).rename(inner)
    return reduced.but(nodes=_renamed(reduced, outputs))


def _renamed(graph: Graph, names: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes with other names for some values, where they are made and where they are read."""
    nodes: Sequence[Node] = graph.rename(names).nodes
    return tuple(replace(n, outputs=tuple(names.get(o, o) for o in n.outputs)) for n in nodes)


def _is_cast(node: Node, dtype: DType) -> bool:
    return (node.domain, node.op) == ("", "Cast") and node.attrs["to"] == dtype.onnx


def _is(kind: Type | None, dtype: DType) -> bool:
    return isinstance(kind, Tensor) and kind.dtype is dtype


def _is_float(kind: Type | None) -> bool:
    return isinstance(kind, Tensor) and kind.dtype.floating


def _to(kind: Type, dtype: DType) -> Type:
    return kind.to(dtype) if isinstance(kind, Tensor) else kind
