"""Mixed precision: products in 16 bits, sensitive operators in 32, parameters in 32 (Micikevicius et al. 2017)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..ops import OPS, DType, Op, Tensor
from ..ops.errors import InputError
from ..runtime.ir.autodiff import unused_name
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.infer import infer

KINDS = {"bf16": DType.BFLOAT16, "fp16": DType.FLOAT16}
PRODUCTS = ("auto", "fp32", "tf32")  # of float32, by `precision`


def _computing(*precisions: str) -> frozenset[str]:
    """The operators whose records say that they compute so."""
    return frozenset(map(_name, (op for op in OPS.values() if op.mixed_precision in precisions)))


def _name(record: Op) -> str:
    """The name of an operator in a policy: those of other domains than ONNX's own are `domain::name`."""
    return f"{record.domain}::{record.name}" if record.domain else record.name


if TYPE_CHECKING:
    LOW: frozenset[str]
    RECURRENT: frozenset[str]
    WIDE: frozenset[str]


def __getattr__(name: str) -> frozenset[str]:
    """LOW and WIDE: operators that compute in 16 bits and in float32. RECURRENT: those of WIDE that are low in
    bfloat16, with all between their products in 32 bits; no kernel has them in float16."""
    precisions = {"LOW": ("low",), "RECURRENT": ("bf16",), "WIDE": ("wide", "bf16")}.get(name)
    if precisions is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _computing(*precisions)


@dataclass(frozen=True, slots=True)
class Policy:
    """Operators that compute in `dtype`, and those that compute in float32, by default as their records say. All others
    follow their inputs, in float32 where those differ; of domains other than ONNX's own only those do whose records say
    so (`follows`, or `mixed="first"`)."""

    dtype: DType
    low: AbstractSet[str] = field(default_factory=lambda: _computing("low"))
    wide: AbstractSet[str] = field(default_factory=lambda: _computing("wide", "bf16"))

    def __str__(self) -> str:
        """In an order that is the same in all processes, which compare it."""
        return f"{self.dtype.name} in {' '.join(sorted(self.low))}, float32 in {' '.join(sorted(self.wide))}"


def policy_named(amp: str | Policy) -> Policy:
    """The usual policy of a precision: `bf16` or `fp16`.

    >>> policy_named("bf16").dtype
    DType.BFLOAT16
    """
    if isinstance(amp, Policy):
        return amp
    if amp not in KINDS:
        raise InputError(f"precision {amp!r}", where="amp", hint=f"one of {', '.join(KINDS)}, or a Policy")
    dtype = KINDS[amp]
    return Policy(dtype, _computing("low", "bf16"), _computing("wide")) if amp == "bf16" else Policy(dtype)


def mixed(graph: Graph, policy: Policy, weights: AbstractSet[str] = frozenset()) -> Graph:
    """The graph with casts where the precision changes. Initialisers, inputs and outputs keep their types. `weights`
    are inputs that decide of no precision, as initialisers do not."""
    graph = infer(graph)
    still = {*graph.initializers, *weights}
    taken = set(graph.types)
    nodes: list[Node] = []
    low: set[str] = set()  # values that are in 16 bits now
    casts: dict[tuple[str, DType], str] = {}

    def is_float(name: str) -> bool:
        known = graph.types.get(name)
        return isinstance(known, Tensor) and known.dtype is DType.FLOAT

    def cast(name: str, dtype: DType) -> str:
        if not name or not is_float(name) or (name in low) == (dtype is policy.dtype):
            return name
        if (name, dtype) not in casts:
            copy = unused_name(f"{name}:{dtype}", taken)
            nodes.append(Node("Cast", (name,), (copy,), {"to": dtype.onnx}, name=copy))
            casts[name, dtype] = copy
        return casts[name, dtype]

    def wide(name: str) -> str:
        return cast(name, DType.FLOAT)

    for node in graph.nodes:
        floats = [i for i in node.inputs if i and is_float(i)]
        record, moving = node.record, [i for i in floats if i not in still]
        name, mixes = _name(record), record.mixed_precision == "first"
        follows = not record.domain or record.follows or mixes
        if name in policy.low and floats and not node.bodies:
            narrow = True
        elif node.bodies or not follows or name in policy.wide or name in ("Cast", "CastLike"):
            narrow = False
        else:
            narrow = bool(moving) and all(i in low for i in (node.inputs[:1] if mixes else moving))
        if narrow:
            touched = node.inputs[:1] if mixes else node.inputs
            inputs = (*(cast(i, policy.dtype) for i in touched), *node.inputs[len(touched) :])
            low |= {o for o in (node.outputs[:1] if mixes else node.outputs) if o and is_float(o)}
        else:
            inputs = tuple(map(wide, node.inputs))
            if node.bodies:
                inner = {n: wide(n) for body in node.bodies.values() for n in body.captures()}
                node = replace(
                    node, attrs={a: v.rename(inner) if isinstance(v, Graph) else v for a, v in node.attrs.items()}
                )
        nodes.append(replace(node, inputs=inputs))
    return _with_outputs(graph, nodes, low, taken)


def _with_outputs(graph: Graph, nodes: list[Node], low: set[str], taken: set[str]) -> Graph:
    """Outputs in float32 under their own names: what made them in 16 bits has another."""
    narrow = {o: unused_name(f"{o}:narrow", taken) for o in dict.fromkeys(graph.outputs) if o in low}
    body = graph.but(nodes=tuple(nodes)).rename(narrow)
    moved = [replace(n, outputs=tuple(narrow.get(o, o) for o in n.outputs)) for n in body.nodes]
    moved += [Node("Cast", (inner,), (o,), {"to": DType.FLOAT.onnx}, name=o) for o, inner in narrow.items()]
    inputs = {n: graph.types[n] for n in graph.inputs}
    return infer(graph.but(nodes=tuple(moved), outputs=graph.outputs, types=inputs)).verify()


def check_products(precision: str) -> None:
    """Raise InputError for what is no way to take products of float32, whose tensors stay what they are."""
    if precision not in PRODUCTS:
        raise InputError(
            f"precision {precision!r} is none of {', '.join(PRODUCTS)}", where="Trainer",
            hint='mixed precision is amp="bf16" or amp="fp16"',
        )  # fmt: skip
