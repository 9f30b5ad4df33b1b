"""Adapters of low rank: what learns beside the weights of a model, which stay as they are, packed ones too.

Hu et al. 2021, arXiv 2106.09685 (LoRA); Dettmers et al. 2023, arXiv 2305.14314 (over weights of 4 bits).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from ..importers import load_graph
from ..ops import DType, Tensor
from ..ops.contrib.weights import dense_weights
from ..ops.dataclasses import dataclass, replace
from ..ops.errors import InputError
from ..ops.types import Array
from ..runtime.ir.autodiff import unused_name
from ..runtime.ir.graph import Graph, GraphBuilder, Node
from ..runtime.ir.infer import infer
from ..runtime.ir.interpreter import evaluate
from ..runtime.ir.prune import prune
from ..runtime.optimizer.record import matches
from .learning import ADAPTERS

DOWN, UP = "lora_A", "lora_B"  # ends of the names of adapters: (K, rank) and (rank, N)


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of activations (..., K) with a constant matrix: `weight` names it, `way` tells products that read it
    turned or in another shape from those that do not, `exact` if it is made of floats; `kind` is the type of the
    activations, `wide` that of adapters."""

    node: Node
    weight: str
    way: object
    exact: bool
    K: int
    N: int
    kind: DType
    wide: DType


def lora(
    model: Graph | str | os.PathLike[str] | bytes,
    rank: int = 8,
    targets: Sequence[str] | str = ("*",),
    *,
    alpha: float | None = None,
    seed: int = 0,
) -> Graph:
    """The graph with an adapter beside each product whose weight, or whose node, a pattern of `targets` names: it adds
    `x A B * (alpha / rank)` to the product, `alpha` being the rank unless it is given.

    Products are MatMul and Gemm with a constant matrix, and MatMulNBits, whose weights stay packed. A is drawn from
    `seed` as PyTorch's linear layers are, B is 0: the model says what it said before. A matrix that several products
    read has one adapter, and one more where it is read transposed. `Trainer` learns adapters and nothing else of such a
    graph, unless `train=` says more; of a file its weights stay there
    (docs/decisions/0023-weights-that-stay-in-the-file.md).

    Raises InputError for a pattern that fits nothing, a product that has an adapter, and a rank that is not positive.

    >>> from mezzo.models.digits import digits_model
    >>> graph = lora(digits_model(), rank=2, targets=["13.*"])
    >>> print({n: a.shape for n, a in graph.initializers.items() if "lora_" in n})
    {'13.weight.lora_A': (256, 2), '13.weight.lora_B': (2, 10)}
    """
    rank, factor = _checked(rank, alpha)
    graph = infer(model if isinstance(model, Graph) else load_graph(model, mapped=True))
    patterns = [targets] if isinstance(targets, str) else [*targets]
    products = [p for n in graph.nodes if (p := _product(graph, n)) is not None and not p.weight.endswith((DOWN, UP))]
    names = {p.weight for p in products} | {p.node.name for p in products}
    for pattern in patterns or [""]:
        if not any(matches(name, pattern) for name in names):
            shown = ", ".join(sorted({p.weight for p in products})[:8]) or "none"
            hint = f"weights of MatMul, Gemm and MatMulNBits are {shown}; others have no adapters"
            raise InputError(f"no product fits {pattern!r}", where="lora", hint=hint)
    chosen = {id(p.node): p for p in products if any(matches(n, *patterns) for n in (p.weight, p.node.name))}
    makers = graph.producers()
    for last in graph.nodes:
        if _adapter(makers, last) and (twice := chosen.get(id(makers[last.inputs[0]]))):
            hint = "train the graph as it is, or call mz.merge_lora first (with unpack=True, if weights are packed)"
            raise InputError(f"the product with {twice.weight} has an adapter", where="lora", hint=hint)
    taken = set(graph.types)
    nodes, weights, pairs = list[Node](), dict(graph.initializers), dict[tuple[str, object], tuple[str, str]]()
    for node in graph.nodes:
        product = chosen.get(id(node))
        if product is None:
            nodes.append(node)
            continue
        if (product.weight, product.way) not in pairs:
            pair = pairs[product.weight, product.way] = _names(product.weight, taken)
            weights |= zip(pair, _drawn(product, rank, (seed, len(pairs))), strict=True)
        y = unused_name(f"{node.outputs[0]}/without", taken)
        nodes.append(replace(node, outputs=(y,)))
        g = GraphBuilder(prefix=unused_name(f"{node.outputs[0]}/lora/", taken))
        part = _beside(g, product, pairs[product.weight, product.way], y, factor)
        *before, last = part.nodes
        nodes += [*before, replace(last, outputs=node.outputs)]
        weights |= part.initializers
    types = {n: graph.types[n] for n in graph.inputs}
    metadata = {**graph.metadata, ADAPTERS: "lora"}
    return infer(graph.but(nodes=tuple(nodes), initializers=weights, types=types, metadata=metadata)).verify()


def _checked(rank: object, alpha: object) -> tuple[int, float]:
    """The rank, and what adapters are multiplied by. Raises InputError where they are no numbers that do."""
    if not isinstance(rank, int | np.integer) or isinstance(rank, bool) or rank < 1:
        raise InputError(f"adapters of rank {rank!r}", where="lora", hint="give an integer of at least 1")
    if alpha is None:
        return int(rank), 1.0
    if not isinstance(alpha, int | float | np.integer | np.floating) or not np.isfinite(alpha):
        raise InputError(f"adapters times {alpha!r} / {rank}", where="lora", hint="alpha= is a number, or None")
    return int(rank), float(alpha) / int(rank)


def _product(graph: Graph, node: Node) -> _Product | None:
    """The node as a product with a constant matrix; None where it is none."""
    known = node.op == "MatMulNBits" or (not node.domain and node.record.kind == "matmul")
    if not known or node.attrs.get("transA", 0):
        return None
    x, w, attrs = graph.types[node.inputs[0]], graph.types[node.inputs[1]], node.attrs
    constant = _constant(graph, node.inputs[1])
    if constant is None or not isinstance(x, Tensor) or not isinstance(w, Tensor) or not x.dtype.floating:
        return None
    weight, way, exact = constant
    wide = DType.DOUBLE if x.dtype is DType.DOUBLE else DType.FLOAT
    if node.op == "MatMulNBits":
        return _Product(node, weight, way, exact, attrs["K"], attrs["N"], x.dtype, wide)
    if w.dims is None or len(w.dims) != 2 or x.dims is None or len(x.dims) < 2 or not w.static:
        return None
    turned = bool(attrs.get("transB", 0))
    K, N = reversed(w.sizes) if turned else w.sizes
    reading = way != turned if isinstance(way, bool) else (way, turned)
    return _Product(node, weight, reading, exact, K, N, x.dtype, wide)


def _constant(graph: Graph, name: str) -> tuple[str, bool | str, bool] | None:
    """The initialiser that a value is made of, through operators of one operand that learns nothing; if these transpose
    it, or the value's name, if they do something else to its shape; and if all of them are floats."""
    makers, way, exact, operand = graph.producers(), False, True, name
    shaped = False
    while name not in graph.initializers:
        maker = makers.get(name)
        if maker is None:
            return None
        moved = maker.record.rounds or maker.record.moves in ("view", "permute")
        if not moved and maker.op != "Cast":
            return None
        name = maker.inputs[0]
        way ^= maker.record.moves == "permute"
        shaped |= maker.record.moves == "view" or maker.attrs.get("perm", (1, 0)) not in ((1, 0), [1, 0])
        exact &= not maker.record.rounds
    return None if name in graph.inputs else (name, operand if shaped else way, exact and _floats(graph, name))


def _floats(graph: Graph, name: str) -> bool:
    type = graph.types[name]
    return isinstance(type, Tensor) and type.dtype.floating


def _names(weight: str, taken: set[str]) -> tuple[str, str]:
    """Names of a new adapter, which end as those of adapters do."""
    stem, count = weight, 1
    while taken & {f"{stem}.{DOWN}", f"{stem}.{UP}"}:
        count += 1
        stem = f"{weight}.{count}"
    taken |= {f"{stem}.{DOWN}", f"{stem}.{UP}"}
    return f"{stem}.{DOWN}", f"{stem}.{UP}"


def _drawn(product: _Product, rank: int, seed: tuple[int, int]) -> tuple[Array, Array]:
    """A and B of a new adapter."""
    bound = 1 / np.sqrt(max(product.K, 1))
    down = np.random.default_rng(seed).uniform(-bound, bound, (product.K, rank))
    return down.astype(product.wide.numpy), np.zeros((rank, product.N), product.wide.numpy)


def _beside(g: GraphBuilder, product: _Product, pair: tuple[str, str], y: str, factor: float) -> Graph:
    """The part that makes the output of a product from `y`, what it was before. Adapters of 16-bit models are float32,
    and so is what they add."""
    x, narrow = product.node.inputs[0], product.kind is not product.wide
    inner = g.MatMul(g.MatMul(g.Cast(x, to=product.wide.onnx) if narrow else x, pair[0]), pair[1])
    inner = g.Mul(inner, g.const(np.asarray(factor, product.wide.numpy)))
    return g.graph([g.Add(y, g.Cast(inner, to=product.kind.onnx) if narrow else inner)])


def merge_lora(model: Graph | str | os.PathLike[str] | bytes, *, unpack: bool = False) -> Graph:
    """The graph of `lora`, as it is after training, with adapters added to the float weights that they stand beside.

    Packed weights cannot take them without a loss, and keep their adapters beside them; with `unpack` they become
    float32, eight times as large, and take them too. A weight that others read as well stays for these. Raises
    InputError where there is no adapter.
    """
    graph = infer(model if isinstance(model, Graph) else load_graph(model, mapped=True))
    makers, weights = graph.producers(), dict(graph.initializers)
    placed: dict[int, tuple[Node, ...]] = {id(n): (n,) for n in graph.nodes}
    taken, merged, adapted = set(graph.types), dict[object, str](), False
    for last in graph.nodes:
        beside = _adapter(makers, last)
        if beside is None:
            continue
        adapted = True
        node, (down, up), factor = makers[last.inputs[0]], beside[:2], weights[beside[2]]
        product = _product(graph, node)
        if product is None or not (unpack if node.op == "MatMulNBits" else product.exact and _scale(node)):
            continue  # the weight is made of integers, or nothing of it is taken
        key = down, node.inputs[1], product.way, _scale(node)
        if key not in merged:
            delta = (weights[down].astype(np.float64) @ weights[up]) * float(factor)
            name = merged[key] = unused_name(f"{product.weight}.merged", taken)
            weights[name] = _sum(graph, node, delta, product.kind)
        at = merged[key]
        placed[id(node)], placed[id(last)] = _instead(node, at, last.outputs)
    if not adapted:
        raise InputError("there is no adapter", where="merge_lora", hint="make one: mz.lora(model, rank, targets)")
    merged_nodes = tuple(n for nodes in placed.values() for n in nodes)
    types = {n: graph.types[n] for n in graph.inputs}
    left = any(n.endswith((DOWN, UP)) for node in merged_nodes for n in node.inputs)
    metadata = {k: v for k, v in graph.metadata.items() if left or k != ADAPTERS}
    return prune(infer(graph.but(nodes=merged_nodes, initializers=weights, types=types, metadata=metadata))).verify()


def _adapter(makers: Mapping[str, Node], last: Node) -> tuple[str, str, str] | None:
    """The names of A, B and the factor where a node adds an adapter to a product; else None."""

    def maker(of: Node | None, op: str, at: int = 0) -> Node | None:
        producer = None if of is None else makers.get(of.inputs[at])
        return producer if producer is not None and (producer.domain, producer.op) == ("", op) else None

    if (last.domain, last.op) != ("", "Add"):
        return None
    scaled = maker(maker(last, "Cast", 1) or last, "Mul", 0 if maker(last, "Cast", 1) else 1)
    up = maker(scaled, "MatMul")
    down = maker(up, "MatMul")
    if scaled is None or up is None or down is None:
        return None
    ends = down.inputs[1].endswith(DOWN) and up.inputs[1].endswith(UP)
    return (down.inputs[1], up.inputs[1], scaled.inputs[1]) if ends and last.inputs[0] in makers else None


def _scale(node: Node) -> float:
    """The number that a product is multiplied by."""
    return float(node.attrs.get("alpha", 1.0))


def _sum(graph: Graph, node: Node, delta: Array, kind: DType) -> Array:
    """The weight of a product with an adapter's product (K, N) added to it."""
    weights = graph.initializers
    if node.op == "MatMulNBits":
        operands = [weights[n] if n else None for n in (*node.inputs[1:5], *[""] * 3)[:4]]
        attrs = {**node.record.attrs, **node.attrs}
        numbers = {name: attrs[name] for name in ("K", "N", "bits", "block_size")}
        packed, scales, *optional = operands
        assert packed is not None and scales is not None
        whole = dense_weights(packed, scales, *optional, **numbers).T + delta
        return np.ascontiguousarray(whole.astype(kind.numpy))
    (weight,) = evaluate(prune(graph.but(inputs=(), outputs=(node.inputs[1],), states=())), {}).values()
    change = delta.T if node.attrs.get("transB", 0) else delta
    total: Array = (weight.astype(np.float64) + change / _scale(node)).astype(weight.dtype)
    return total


def _instead(node: Node, weight: str, outputs: tuple[str, ...]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The nodes for a product with this weight, and those for the sum behind it: none."""
    if node.op != "MatMulNBits":
        return (replace(node, inputs=(node.inputs[0], weight, *node.inputs[2:]), outputs=outputs),), ()
    bias = node.inputs[5] if len(node.inputs) > 5 else ""
    product = Node("MatMul", (node.inputs[0], weight), node.outputs if bias else outputs, name=node.name)
    return (product, *([Node("Add", (node.outputs[0], bias), outputs)] if bias else [])), ()
