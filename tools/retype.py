"""Samples of operator records with their numbers in other element types that the schemas allow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.defs

from ..ops import OPSETS, Body, DType, Held, Map, Op, Optional, Sample, Sequence, Tensor
from ..ops.quantization.quantize import int_range
from ..ops.types import Type, i64, type_of
from ..runtime.ir.graph import Graph, GraphBuilder

LEAF = re.compile(r"tensor\((\w+)\)")
BY_NAME = {d.name.lower(): d for d in DType}
# Attributes that say the type of the result.
NAMES_TYPE = ("to", "dtype", "stash_type", "output_dtype", "output_datatype")


def schema_of(o: Op) -> Any:
    """The schema of an operator at our opset."""
    return onnx.defs.get_schema(o.name, OPSETS[o.domain], o.domain)


def allowed(schema: Any) -> dict[str, list[str]]:
    """The types that a schema allows, by type parameter; a type that no parameter names is its own."""
    types = {c.type_param_str: sorted(c.allowed_type_strs) for c in schema.type_constraints}
    formals = [*schema.inputs, *schema.outputs]
    return types | {f.type_str: [f.type_str] for f in formals if f.type_str not in types}


def spelled(t: Type) -> str:
    """A type as schemas write it."""
    if isinstance(t, Tensor):
        return f"tensor({t.dtype.name.lower()})"
    if isinstance(t, Map):
        return "map({}, {})".format(t.key.name.lower(), LEAF.sub(r"\1", spelled(t.element)))
    return f"{'seq' if isinstance(t, Sequence) else 'optional'}({spelled(t.element)})"


def type_in(x: Any) -> Any:
    return x if x is None else x.type if isinstance(x, Held) else type_of(x)


def formals_of(formals: Any, xs: Any) -> list[Any]:
    """One formal parameter for each value that has one; the last may be variadic."""
    last = [f for f in list(formals)[-1:] if f.option is onnx.defs.OpSchema.FormalParameterOption.Variadic]
    return [*formals, *last * (len(xs) - len(formals))][: len(xs)]


def turn(xs: list[Any], which: list[int], target: str) -> list[Any] | None:
    """The inputs with some in another element type, in lists or optionals where those are asked for; None where there
    is no way (a map)."""

    def one(x: Any) -> Any:
        dtype = BY_NAME[LEAF.findall(target)[0]]
        own = spelled(type_in(x))
        if LEAF.sub("", own) == LEAF.sub("", target):
            return Held(recast(x.value, dtype), retyped(x.type, dtype)) if isinstance(x, Held) else recast(x, dtype)
        leaf = leaf_of(x)
        return held(recast(leaf, dtype), target) if isinstance(leaf, np.ndarray) else None

    turned = [one(x) if i in which and LEAF.search(target) else x for i, x in enumerate(xs)]
    return turned if LEAF.search(target) and all(turned[i] is not None for i in which) else None


def leaf_of(x: Any) -> Any:
    """The first array of a value."""
    if isinstance(x, Held):
        return leaf_of(x.value)
    return leaf_of(x[0]) if isinstance(x, list) and x else x


def alike(xs: list[Any], turned: list[Any], which: list[int], may: list[list[str]]) -> tuple[list[Any], list[int]]:
    """The inputs with the other operands of the same element type turned too, where they may; and which are turned."""
    before, after = (LEAF.findall(spelled(type_in(of[which[0]])))[0] for of in (xs, turned))
    turned, which = list(turned), list(which)
    for i, x in enumerate(xs):
        own = "" if x is None else spelled(type_in(x))
        target = LEAF.sub(f"tensor({after})", own)
        if i not in which and LEAF.findall(own) == [before] and target in may[i]:
            turned[i] = (turn(xs, [i], target) or xs)[i]
            which.append(i)
    return turned, which


def held(leaf: Any, target: str) -> Any:
    """An array in as many lists and optionals as a type has."""
    kind, _, inner = target.partition("(")
    if kind == "tensor":
        return leaf
    x = held(leaf, inner.removesuffix(")"))
    value, t = (x.value, x.type) if isinstance(x, Held) else (x, type_of(x))
    return Held([value], Sequence(t)) if kind == "seq" else Held(value, Optional(t))


def value_of(target: str) -> Any:
    """Return an arbitrary value of a type."""
    return held(recast(np.array([1, 1]), BY_NAME[LEAF.findall(target)[0]]), target)


def retyped(t: Any, dtype: DType) -> Any:
    return t.to(dtype) if isinstance(t, Tensor) else replace(t, element=retyped(t.element, dtype))


def recast(x: Any, dtype: DType) -> Any:
    """The numbers in another element type: those that it holds, so that they stay what they are."""
    if isinstance(x, list):
        return [recast(item, dtype) for item in x]
    if x is None or DType.of(x.dtype) is dtype:
        return x
    if x.dtype == object:
        x = np.array([len(str(v)) for v in x.reshape(-1)]).reshape(x.shape)
    x = x if x.dtype.isbuiltin == 1 else x.astype(np.float32)
    if dtype.integer and x.dtype.kind in "iu":
        low, high = int_range(dtype)
        x = np.clip(x, max(low, np.iinfo(x.dtype).min), min(high, np.iinfo(x.dtype).max))
    return cast_to(x if dtype.signed or x.dtype == bool else np.abs(x), dtype)


def with_result_type(sample: Sample, dtype: DType, target: str) -> Iterator[Sample]:
    """The sample with an attribute that names another type of the result, or holds an array of it."""
    for name in NAMES_TYPE:
        yield replace(sample, attrs={**sample.attrs, name: dtype.onnx})
    for name, value in sample.attrs.items():
        if isinstance(value, np.ndarray):
            yield replace(sample, attrs={**sample.attrs, name: recast(value, dtype)})
        elif isinstance(value, Tensor | Sequence | Optional):
            whole = type_in(value_of(target.removeprefix("optional(")))
            yield replace(sample, attrs={**sample.attrs, name: whole})


def _passed(x: Any) -> Body:
    return Body([], lambda g: (built(g, x) if isinstance(x, Held) else g.Identity(g.const(x)),))


def built(g: Any, x: Any) -> Any:
    """A value made inside a graph."""
    if not isinstance(x, Held):
        return g.const(x)
    t: Any = x.type
    inner = x.value[0] if isinstance(t, Sequence) else x.value
    element = built(g, inner if isinstance(t.element, Tensor) else Held(inner, t.element))
    return g.SequenceConstruct(element) if isinstance(t, Sequence) else g.Optional(element)


def branches(x: Any) -> tuple[Graph, dict[str, Any]]:
    """An If that hands a value on which its branches take from around them, and the feeds."""
    g = GraphBuilder("If")
    go, value = g.input("go", _GO), g.input("value", type_in(x))
    handed = Body([], lambda b: (b.Identity(value),))
    return g.graph([g.If(go, then_branch=handed, else_branch=handed)]), {
        "go": np.array(True),
        "value": x.value if isinstance(x, Held) else x,
    }


_GO = Tensor(DType.BOOL, ())
# Samples of operators with bodies, around a value of any type.
BODIES: dict[str, Callable[[Any], Sample]] = {
    "If": lambda x: Sample([np.array(True)], {"then_branch": _passed(x), "else_branch": _passed(x)}),
    "Loop": lambda x: Sample([np.array(2), np.array(True), x], {"body": Body(
        [i64(), _GO, type_in(x)], lambda g, i, go, v: (go, v))}),
    "Scan": lambda x: Sample([x, x], {"num_scan_inputs": 1, "body": Body(
        [type_in(x), Tensor(type_in(x).dtype, ())], lambda g, a, b: (g.Identity(a), g.Identity(b)))}, 2),
    "ScanRows": lambda x: Sample([None, x, x.reshape(-1, 1)], {"num_scan_inputs": 1, "body": Body(
        [Tensor(type_in(x).dtype, ())] * 2, lambda g, a, b: (g.Identity(a), g.Identity(b)))}, 2),
    "SequenceMap": lambda x: Sample([x if isinstance(x, Held) else held(x, f"seq({spelled(type_in(x))})"), x], {
        "body": Body([row := Tensor(BY_NAME[LEAF.findall(spelled(type_in(x)))[0]], (2,)), row],
                     lambda g, a, b: (g.Identity(a),))}),
}  # fmt: skip


def cast_to(x: Any, dtype: DType) -> Any:
    """The numbers in another element type; strings too."""
    if dtype is DType.STRING:
        return np.array(x.astype(str), object)
    with np.errstate(all="ignore"):
        return x.astype(dtype.numpy)
