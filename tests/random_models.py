"""One-node models at random: a sample of the operator in other sizes, element types and attributes.

The schema says which types and attributes there are; samples say what fits together. Sizes are renamed alike
everywhere, so that what fitted still does, most of the time: models that fit nothing are wanted too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from hypothesis import strategies as st

from mezzo import ops
from mezzo.exporters import to_onnx
from mezzo.exporters.proto import type_proto
from mezzo.ops import OPS, OPSETS, Body, DType, Held, MezzoError, Op, Sample, Tensor

from .graphs import sample_graph

NEWEST = {"": 26, "ai.onnx.ml": 5, "com.microsoft": 1}  # of ONNX Runtime
OWN = ("mezzo",)  # no operators of ONNX
BUILT_IN = {"bool", "object"} | {f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)} | {
    "float16", "float32", "float64", "complex64", "complex128",
}  # fmt: skip
# Attributes whose useful values no sample shows them all.
VALUES: dict[str, list[Any]] = {
    "axis": [*range(-4, 4)],
    "batch_dims": [0, 1, 2],
    "keepdims": [0, 1],
    "exclusive": [0, 1],
    "reverse": [0, 1],
    "sorted": [0, 1],
    "largest": [0, 1],
    "upper": [0, 1],
    "ceil_mode": [0, 1],
    "count_include_pad": [0, 1],
    "select_last_index": [0, 1],
    "allowzero": [0, 1],
    "noop_with_empty_axes": [0, 1],
    "center_point_box": [0, 1],
    "align_corners": [0, 1],
    "onesided": [0, 1],
    "inverse": [0, 1],
    "k": [-2, -1, 0, 1, 2],
    "auto_pad": ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"],
    "approximate": ["none", "tanh"],
    "post_transform": ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"],
    "norm": ["MAX", "L1", "L2"],
}


@dataclass(frozen=True, repr=False)
class Case:
    """A model, what it is fed, and the element types of its operator's results (they may be cast behind it)."""

    op: Op
    sample: Sample
    model: bytes
    feeds: Mapping[str, Any]
    dtypes: tuple[DType | None, ...]
    valid: bool  # for the checker and the inference of onnx, where they know the operator

    @property
    def xs(self) -> list[Any]:
        """The operator's inputs, fed or stored; None where absent."""
        return list(self.sample.inputs)

    def __str__(self) -> str:
        def short(x: Any) -> str:
            if not isinstance(x, np.ndarray):
                return str(x)
            return f"{x.dtype}{list(x.shape)}" + (f"={x.tolist()}" if x.size <= 12 else "")

        attrs = {a: v for a, v in self.sample.attrs.items() if not isinstance(v, Body)}
        fed = ["fed" if f"x{i}" in self.feeds else "" for i in range(len(self.sample.inputs))]
        inputs = ", ".join(f"{short(x)} {f}".strip() for x, f in zip(self.sample.inputs, fed, strict=True))
        return f"{self.op.name}({inputs}; {attrs}) -> {self.sample.outputs}"


@cache
def modules() -> dict[str, list[Op]]:
    """The operators of ONNX and of com.microsoft, by the module that defines them."""
    found: dict[str, list[Op]] = {}
    for o in OPS.values():
        if o.domain not in OWN and o.samples:
            found.setdefault(OPS.index[o.domain, o.name], []).append(o)
    return found


def schema_of(op: Op) -> tuple[Any, int]:
    """The operator's schema at the newest opset that the runtime knows, or at our own, and that opset."""
    for opset in (NEWEST.get(op.domain, OPSETS[op.domain]), OPSETS[op.domain], op.since, op.since - 1):
        if onnx.defs.has(op.name, opset, op.domain):
            schema = onnx.defs.get_schema(op.name, opset, op.domain)
            if (
                not schema.deprecated
                and len(schema.inputs) == len(op.inputs)
                and set(schema.attributes) == set(op.attrs)
            ):
                return schema, opset
    return None, OPSETS[op.domain]


@st.composite
def cases(draw: st.DrawFn, module: str) -> Case:
    """A one-node model of some operator of a module."""
    op = draw(st.sampled_from(modules()[module]))
    sample = draw(st.sampled_from(list(op.samples)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sample = resized(draw, op, sample)
    schema, opset = schema_of(op)
    dtypes = chosen_types(draw, schema, sample)
    sample = replace(sample, attrs=chosen_attrs(draw, op, sample))
    wild = draw(st.integers(0, 4)) == 0 and op.tree is not None
    xs = [filled(x, dtypes.get(i), rng, wild) for i, x in enumerate(sample.inputs)]
    sample = replace(sample, inputs=xs)
    stored = {i for i in range(len(xs)) if draw(st.integers(0, 3)) == 0}
    return finished(op, sample, schema, opset, stored)


def resized(draw: st.DrawFn, op: Op, sample: Sample) -> Sample:
    """The sample with its sizes renamed alike, or broadcast anew where the operator is pointwise."""
    if op.tree is not None and not any(x is None or isinstance(x, Held) for x in sample.inputs):
        inputs = list(sample.inputs)
        if op.inputs[-1].variadic:
            inputs = [inputs[0]] * draw(st.integers(1, 4))
        full = draw(st.lists(st.sampled_from([0, 1, 2, 2, 3, 3, 4]), max_size=4))
        return replace(sample, inputs=[with_dims(x, part_of(draw, full)) for x in inputs])
    known = sorted({n for t in typed(sample) for n in t})
    if draw(st.integers(0, 2)) == 0 or not known:
        return sample
    renamed = {n: draw(st.sampled_from([n, n, n, n + 1, max(n - 1, 0), 2 * n, 1, 0])) for n in known}
    if draw(st.booleans()):
        renamed[1] = 1

    def one(x: Any) -> Any:
        if not isinstance(x, (Tensor, np.ndarray, np.generic)):
            return x
        dims = x.sizes if isinstance(x, Tensor) else x.shape
        return with_dims(x, [renamed[n] for n in dims])

    def in_body(v: Any) -> Any:
        return Body([one(t) if isinstance(t, Tensor) and t.static else t for t in v.inputs], v.build) if isinstance(
            v, Body
        ) else v  # fmt: skip

    return Sample([one(x) for x in sample.inputs], {a: in_body(v) for a, v in sample.attrs.items()}, sample.outputs)


def typed(sample: Sample) -> Iterator[tuple[int, ...]]:
    """The dims of a sample's inputs."""
    for x in sample.inputs:
        if isinstance(x, Tensor):
            yield x.sizes
        elif isinstance(x, (np.ndarray, np.generic)):
            yield x.shape
    for v in sample.attrs.values():
        if isinstance(v, Body):
            yield from (t.sizes for t in v.inputs if isinstance(t, Tensor) and t.static)


def part_of(draw: st.DrawFn, full: list[int]) -> list[int]:
    """Dims that broadcast to these, mostly."""
    dims = full[draw(st.sampled_from([0, 0, 0, 1, len(full)])) :]
    return [draw(st.sampled_from([n, n, n, n, n, 1])) for n in dims] if draw(st.integers(0, 15)) else [*dims, 2]


def with_dims(x: Any, dims: list[int]) -> Any:
    """A type, or an array whose elements repeat, of these dims."""
    if isinstance(x, Tensor):
        return x.of(dims)
    if not np.size(x):
        return np.zeros(dims, np.asarray(x).dtype) if 0 in dims else x
    return np.resize(np.asarray(x), dims)


def chosen_types(draw: st.DrawFn, schema: Any, sample: Sample) -> dict[int, DType]:
    """For some inputs, by their index, another element type: the same for all that share a type parameter."""
    if schema is None or draw(st.booleans()):
        return {}
    formals = [*schema.inputs, *schema.inputs[-1:] * len(sample.inputs)]
    found: dict[int, DType] = {}
    for constraint in schema.type_constraints:
        allowed = [d for d in DType if f"tensor({d.name.lower()})" in constraint.allowed_type_strs]
        which = [i for i, _ in enumerate(sample.inputs) if formals[i].type_str == constraint.type_param_str]
        if allowed and which and draw(st.integers(0, 3)):
            dtype = draw(st.sampled_from(allowed))
            found |= dict.fromkeys(which, dtype)
    return found


def chosen_attrs(draw: st.DrawFn, op: Op, sample: Sample) -> dict[str, Any]:
    """The sample's attributes, one or two of them left out, or with a value that another sample or the table has."""
    attrs = dict(sample.attrs)
    for _ in range(draw(st.integers(0, 2)) if op.attrs else 0):
        name = draw(st.sampled_from(sorted(op.attrs)))
        pool = [s.attrs[name] for s in op.samples if name in s.attrs and not isinstance(s.attrs[name], Body)]
        pool += VALUES.get(name, [])
        value = attrs.get(name)
        if isinstance(value, Body):
            continue
        if name in attrs and draw(st.integers(0, 3)) == 0:
            del attrs[name]
        elif pool:
            known = pool[0]
            fitting = [v for v in pool if isinstance(v, type(known))]
            attrs[name] = draw(st.sampled_from(fitting))
    return attrs


def filled(x: Any, dtype: DType | None, rng: np.random.Generator, wild: bool) -> Any:
    """An input as an array: a type at random, an array as it is or in another element type."""
    if x is None or isinstance(x, Held):
        return x
    if isinstance(x, Tensor):
        own = dtype or x.dtype
        made = rng.uniform(-2, 2, x.sizes) if own.floating else np.floor(rng.uniform(-3, 4, x.sizes))
        if wild and own.floating and made.size:
            made.reshape(-1)[rng.integers(0, made.size, 2)] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e4], 2)
        return np.asarray(turned(np.asarray(made), own))
    array = np.asarray(x)
    return array if dtype is None else np.asarray(turned(array, dtype))


def turned(x: Any, dtype: DType) -> Any:
    """The numbers in another element type; texts where they are asked for."""
    if dtype is DType.STRING:
        with np.errstate(all="ignore"):
            return x if x.dtype == object else np.array(x.astype(int).astype(str), object)
    if x.dtype.kind in "OUST":
        x = np.array([float(len(str(v))) for v in x.reshape(-1)]).reshape(x.shape)
    with np.errstate(all="ignore"):
        if dtype.integer and not dtype.signed:
            x = np.abs(x)
        return x.astype(dtype.numpy)


def finished(op: Op, sample: Sample, schema: Any, opset: int, stored: set[int]) -> Case:
    """The model of a sample whose inputs are arrays; those of `stored` are initialisers."""
    if any(isinstance(v, Body) for v in sample.attrs.values()):
        made: Case = of_bodies(op, sample) or of_bodies(op, op.samples[-1])
        return made
    names, feeds, tensors, inputs, types = list[str](), dict[str, Any](), [], [], {}
    for i, x in enumerate(sample.inputs):
        names.append("" if x is None else f"x{i}")
        if isinstance(x, Held):
            feeds[f"x{i}"] = x.value
            types[f"x{i}"] = type_proto(x.type)
        elif x is not None:
            types[f"x{i}"] = onnx.helper.make_tensor_type_proto(DType.of(x.dtype).onnx, x.shape)
            if i in stored or x.dtype.name not in BUILT_IN:
                tensors.append(onnx.numpy_helper.from_array(np.asarray(x), f"x{i}"))
            else:
                feeds[f"x{i}"] = x
        if names[-1] in feeds:
            inputs.append(onnx.helper.make_value_info(names[-1], types[names[-1]]))
    attrs = {a: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else type_proto(v) if isinstance(
        v, (Tensor, ops.Sequence, ops.Optional)) else v for a, v in sample.attrs.items()}  # fmt: skip
    outs = [f"y{i}" for i in range(sample.outputs)]
    node = onnx.helper.make_node(op.name, names, outs, domain=op.domain)
    for name, v in attrs.items():
        kind = int(schema.attributes[name].type.value) if schema is not None and not v else None
        node.attribute.append(onnx.helper.make_attribute(name, v, attr_type=kind))
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in {"": NEWEST[""], op.domain: opset}.items()]
    ir = 14 if opset > NEWEST.get(op.domain, 0) else 13
    known, valid = output_types(op, sample, schema, node, types, tensors, opsets, ir)
    nodes, outputs, dtypes = [node], [], []
    for name in outs:
        kind = known.get(name)
        dtype = DType.from_onnx(kind.tensor_type.elem_type) if kind is not None and kind.tensor_type.elem_type else None
        dtypes.append(dtype)
        if dtype is not None and dtype.numpy.name not in BUILT_IN:  # the runtime hands no such arrays to Python
            nodes.append(onnx.helper.make_node("Cast", [name], [f"{name}f"], to=DType.FLOAT.onnx))
            name, kind = f"{name}f", onnx.helper.make_tensor_type_proto(DType.FLOAT.onnx, None)
        outputs.append(onnx.helper.make_value_info(name, kind or onnx.helper.make_tensor_type_proto(1, None)))
    graph = onnx.helper.make_graph(nodes, "one", inputs, outputs, tensors)
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=ir)
    if valid and schema is not None:
        try:
            onnx.checker.check_model(model, full_check=True)
        except Exception:  # what the checker raises has no class of its own
            valid = False
    return Case(op, sample, model.SerializeToString(), feeds, tuple(dtypes), valid)


def output_types(op: Op, sample: Sample, schema: Any, node: Any, types: Any, tensors: Any, opsets: Any, ir: int) -> Any:
    """The types of the results, as onnx infers them, or as we do where it has no schema; and whether that went well."""
    if schema is None:
        try:
            found = op.infer_types(
                [x.type if isinstance(x, Held) else None if x is None else ops.types.type_of(x, known=True)
                 for x in sample.inputs], sample.attrs, (True,) * sample.outputs)  # fmt: skip
        except MezzoError:
            return {}, True
        return {f"y{i}": type_proto(t) for i, t in enumerate(found)}, True
    data = {t.name: t for t in tensors}
    try:
        return onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=opsets, ir_version=ir
        ), True  # fmt: skip
    except Exception:  # it refuses
        return {}, False


def of_bodies(op: Op, sample: Sample) -> Any:
    """The model of an operator with subgraphs, which our own exporter writes; None if nothing fits in it."""
    try:
        graph, feeds = sample_graph(op, sample)
        made: bytes = to_onnx(graph, opset=21).SerializeToString()
    except MezzoError:
        return None
    return Case(op, sample, made, feeds, (None,) * sample.outputs, valid=True)
