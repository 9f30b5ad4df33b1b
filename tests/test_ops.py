"""Every operator record, from its own samples: no test is written per operator."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mezzo.ops import OPS, OPSETS, Body, Context, DType, Op, Sample, Tensor
from mezzo.ops.op import REQUIRED
from mezzo.ops.types import Type, f32, type_of
from mezzo.tools.differs import RUNTIME, differing
from mezzo.tools.retype import cast_to

from .graphs import hosted
from .peers import peer

STANDARD = [o for o in OPS.values() if o.domain not in ("mezzo", "com.microsoft")]  # those that onnx has a schema of
# Sizes that only the elements tell, however much is known of types.
BOUND_BY_DATA = set("NonZero NonMaxSuppression StringNormalizer StringSplit ImageDecoder Unique Tokenizer".split())


def plain(sample: Sample) -> bool:
    """Whether the sample needs no subgraph (control flow has tests of its own)."""
    return not any(isinstance(v, Body) for v in sample.attrs.values())


def cases(ops: list[Op]) -> list[Any]:
    return [
        pytest.param(o, s, id=f"{o.name}-{i}")
        for o in ops
        for i, s in enumerate(o.samples)
        if plain(s) and not hosted(o, s)
    ]


ALL = cases(list(OPS.values()))


def fill(sample: Sample, floats: type | None = None) -> list[Any]:
    """Arrays for a sample: types are filled at random, floats in another precision if asked."""
    rng = np.random.default_rng(0)

    def one(x: Any) -> Any:
        if isinstance(x, Tensor):
            low, high = (0, 2) if x.dtype is DType.BOOL else (-2, 2) if x.dtype.floating else (-3, 4)
            made = rng.uniform(low, high, x.sizes)
            x = (made if x.dtype.floating else np.floor(made)).astype(x.dtype.numpy)
        elif x is not None:
            x = np.array(x)
        return x.astype(floats) if floats and x is not None and x.dtype.kind == "f" else x

    return [one(x) for x in sample.inputs]


def run(o: Op, sample: Sample, xs: list[Any]) -> tuple[Any, ...]:
    return o.run(Context(np, wanted=(True,) * sample.outputs), xs, sample.attrs)


def compatible(t: Type, y: Any) -> str:
    """Empty if the type may describe the array; names `dN` stand for the size N."""
    assert isinstance(t, Tensor)
    if t.dtype is not DType.of(y.dtype):
        return f"{t} against {y.dtype}"
    if t.dims is not None and (
        len(t.dims) != y.ndim
        or any(d is not None and str(d).removeprefix("d") != str(n) for d, n in zip(t.dims, y.shape, strict=True))
    ):
        return f"{t} against {y.shape}"
    if t.value is not None and not np.array_equal(t.value, y):
        return f"{t.value} against {y}"
    return ""


def test_every_operator_has_samples() -> None:  # Raise only ever raises, Gradient needs a graph around it
    assert {o.name for o in OPS.values() if not o.samples} == {"Raise", "Gradient"}


@pytest.mark.parametrize(("o", "sample"), ALL)
def test_inference_says_what_the_reference_does(o: Op, sample: Sample) -> None:
    check_inference(o, sample)


def check_inference(o: Op, sample: Sample) -> None:
    xs = fill(sample)
    ys = run(o, sample, xs)
    wanted = (True,) * sample.outputs
    for known in (True, False):  # elements of array inputs known, or not
        types = [
            x if isinstance(x, Tensor) else x if x is None else type_of(x, known=known)
            for x in map(_typed, sample.inputs)
        ]
        for y, t in zip(ys, o.infer_types(types, sample.attrs, wanted), strict=False):
            assert not compatible(t, y), compatible(t, y)
            if known and o.name not in BOUND_BY_DATA:
                assert isinstance(t, Tensor)
                assert t.dims == y.shape


def _typed(x: Any) -> Any:
    return x if x is None or isinstance(x, Tensor) else np.asarray(x)


@pytest.mark.parametrize("lost", ["named", "dims", "ranks"])
@pytest.mark.parametrize("elements", ["known", "unknown"])
@pytest.mark.parametrize(("o", "sample"), ALL)
def test_inference_from_less_never_contradicts(o: Op, sample: Sample, lost: str, elements: str) -> None:
    def less(x: Any) -> Any:
        if x is None:
            return None
        if not isinstance(x, Tensor) and elements == "known":
            return type_of(x, known=True)
        t = x if isinstance(x, Tensor) else type_of(x)
        assert isinstance(t, Tensor)
        if lost == "ranks":
            return t.of(None)
        return t.of(f"d{n}" if lost == "named" and n not in (0, 1) else n if lost == "named" else None for n in t.shape)

    types = [less(_typed(x)) for x in sample.inputs]
    found = o.infer_types(types, sample.attrs, (True,) * sample.outputs)
    for y, t in zip(run(o, sample, fill(sample)), found, strict=False):
        assert not compatible(t, y), compatible(t, y)


@pytest.mark.parametrize(("o", "sample"), ALL)
def test_results_are_fresh(o: Op, sample: Sample) -> None:
    check_freshness(o, sample)


def check_freshness(o: Op, sample: Sample) -> None:
    xs = fill(sample)
    before = [None if x is None else x.copy() for x in xs]
    ys = run(o, sample, xs)
    held = [x for x in [*xs, *sample.attrs.values()] if isinstance(x, np.ndarray)]
    for i, y in enumerate(ys):
        assert isinstance(y, np.ndarray)
        assert y.flags.c_contiguous
        assert not any(np.shares_memory(y, x) for x in [*held, *ys[:i]])
    for x, old in zip(xs, before, strict=True):
        np.testing.assert_array_equal(x, old, "the reference wrote into its input")


@pytest.mark.parametrize("o", [pytest.param(o, id=o.name) for o in STANDARD])
def test_record_has_the_signature_of_the_schema(o: Op) -> None:
    onnx = pytest.importorskip("onnx")
    schema = onnx.defs.get_schema(o.name, OPSETS[o.domain], o.domain)
    assert o.since == schema.since_version

    def params(formals: Any) -> list[tuple[str, str]]:
        return [(p.name, p.option.name) for p in formals]

    def ours(named: Any) -> list[tuple[str, str]]:
        return [(p.name, "Variadic" if p.variadic else "Optional" if p.optional else "Single") for p in named]

    assert ours(o.inputs) == params(schema.inputs)
    assert ours(o.outputs) == params(schema.outputs)

    def default(attribute: Any) -> Any:
        if attribute.required:
            return REQUIRED
        value = onnx.helper.get_attribute_value(attribute.default_value) if attribute.default_value.type else None
        texts = [v.decode() if isinstance(v, bytes) else v for v in value] if isinstance(value, list) else value
        return texts.decode() if isinstance(texts, bytes) else texts

    theirs = {name: default(a) for name, a in schema.attributes.items()}
    assert {a: pytest.approx(v) if isinstance(v, float) else v for a, v in theirs.items()} == {
        a: list(v) if isinstance(v, tuple) else v for a, v in o.attrs.items()
    }
    rule = inspect.signature(o.infer_rule).parameters.values()
    named = {p.name: p.default for p in rule if p.kind is p.KEYWORD_ONLY and p.name != "wanted"}
    assert named.items() <= dict(o.attrs).items()  # a rule names the attributes that it reads, with their defaults


OTHER_FLOATS = {DType.FLOAT16: "float16", DType.BFLOAT16: "bfloat16", DType.DOUBLE: "double"}


@pytest.mark.parametrize("dtype", OTHER_FLOATS, ids=OTHER_FLOATS.values())
@pytest.mark.parametrize(("o", "sample"), cases(STANDARD))
def test_other_float_types_give_the_same_numbers(o: Op, sample: Sample, dtype: DType) -> None:
    onnx = pytest.importorskip("onnx")
    if o.name == "BitCast":
        pytest.skip("its attribute fixes the width of its input")
    schema = onnx.defs.get_schema(o.name, OPSETS[o.domain], o.domain)
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    formals = [*schema.inputs, *schema.inputs[-1:] * len(sample.inputs)]  # the last may be variadic
    xs = fill(sample)

    def turn(x: Any, formal: Any) -> Any:
        may = x is not None and f"tensor({OTHER_FLOATS[dtype]})" in allowed.get(formal.type_str, ())
        return x.astype(dtype.numpy) if may and x.dtype == np.float32 else x

    with np.errstate(over="ignore"):
        turned = [turn(x, f) for x, f in zip(xs, formals, strict=False)]
    rounded = [x if x is t else t.astype(np.float32) for x, t in zip(xs, turned, strict=True)]
    types = [None if x is None else type_of(x, known=True) for x in turned]
    found = o.infer_types(types, sample.attrs, (True,) * sample.outputs)
    rtol = {DType.FLOAT16: 4e-3, DType.BFLOAT16: 3e-2}.get(dtype, 1e-4)
    for y, t, like in zip(run(o, sample, turned), found, run(o, sample, rounded), strict=False):
        assert not compatible(t, y), compatible(t, y)
        if DType.of(y.dtype).floating:
            np.testing.assert_allclose(y.astype(np.float64), like.astype(np.float64), rtol=rtol, atol=rtol)


# Operators whose results depend on how wide an element is, or whose attributes name the element type of an input.
WIDTH_MATTERS = {"BitCast", "BitShift", "BitwiseNot"}


@pytest.mark.parametrize(("o", "sample"), cases([o for o in STANDARD if not o.domain and o.deterministic]))
def test_every_allowed_element_type(o: Op, sample: Sample) -> None:
    """The samples in each further type that the schema allows: small whole numbers, so that all types hold them."""
    onnx = pytest.importorskip("onnx")
    schema = onnx.defs.get_schema(o.name, OPSETS[o.domain], o.domain)
    formals = [*schema.inputs, *schema.inputs[-1:] * len(sample.inputs)]
    xs = fill(sample)
    for constraint in schema.type_constraints:
        which = [
            i
            for i, (x, f) in enumerate(zip(xs, formals, strict=False))
            if isinstance(x, np.ndarray) and f.type_str == constraint.type_param_str
        ]
        own = {DType.of(xs[i].dtype) for i in which}
        if len(own) != 1 or not own <= {DType.INT64, DType.FLOAT} or o.name in WIDTH_MATTERS:
            continue
        for dtype in DType:
            allowed = f"tensor({dtype.name.lower()})" in constraint.allowed_type_strs
            if dtype not in own and allowed and not (dtype is DType.STRING and reckons(o, sample)):
                check_element_type(o, sample, xs, which, dtype)


def reckons(o: Op, sample: Sample) -> bool:
    """Whether a sample computes with its elements, although the schema would take texts."""
    return o.name in ("Col2Im", "GridSample", "Resize") or "reduction" in sample.attrs


def check_element_type(o: Op, sample: Sample, xs: list[Any], which: list[int], dtype: DType) -> None:
    def small(x: Any) -> Any:
        whole = np.clip(np.rint(x), -100, 100).astype(x.dtype)
        return whole if dtype.signed else np.abs(whole)

    plain = [small(x) if i in which else x for i, x in enumerate(xs)]
    turned = [cast_to(x, dtype) if i in which else x for i, x in enumerate(plain)]
    types = [None if x is None else type_of(x) for x in turned]
    found = o.infer_types(types, sample.attrs, (True,) * sample.outputs)
    with np.errstate(all="ignore"):
        ys, exact = run(o, sample, turned), run(o, sample, plain)
    for y, t, like in zip(ys, found, exact, strict=False):
        assert not compatible(t, y), f"{dtype}: {compatible(t, y)}"
        if dtype.integer and xs[which[0]].dtype == np.int64 and DType.of(y.dtype) is dtype:
            np.testing.assert_array_equal(y, cast_to(like, dtype), str(dtype))


ORT_OPSETS = {"": 26, "ai.onnx.ml": 5}


@pytest.mark.parametrize(("o", "sample"), cases(STANDARD))
def test_onnx_runtime_agrees(o: Op, sample: Sample) -> None:
    check_runtime(o, sample)


def check_runtime(o: Op, sample: Sample) -> None:
    onnx = pytest.importorskip("onnx")
    ort = peer("onnxruntime")
    if not o.deterministic and (sample.attrs or o.name != "Dropout"):
        pytest.skip("random numbers are each runtime's own")
    reason = differing(o.name, sample).get(RUNTIME)
    if reason:
        pytest.xfail(reason)
    if o.domain not in ORT_OPSETS:
        pytest.xfail(f"ONNX Runtime has no kernels of {o.domain}")
    newest = min(ORT_OPSETS[o.domain], OPSETS[o.domain])
    xs = fill(sample)
    ys = run(o, sample, xs)
    for opset in dict.fromkeys((newest, min(newest, 21))):  # some kernels stopped at opset 21
        if onnx.defs.has(o.name, opset, o.domain) and onnx.defs.get_schema(o.name, opset, o.domain).deprecated:
            opset = o.since - 1
        newer = came_later(onnx, o, sample, xs, opset)
        if newer:
            pytest.xfail(f"the newest opset of ONNX Runtime lacks {newer}")
        model, feeds, results = one_node(onnx, o, sample, xs, ys, opset)
        session = ort_session(ort, model, strict=opset == newest)
        if session:
            break
    else:
        pytest.xfail("ONNX Runtime has no kernel for these element types")
    for theirs, y in zip(session.run(None, feeds), results, strict=True):
        assert theirs.shape == y.shape
        if y.dtype.kind == "f":
            finite = y[np.isfinite(y)]
            most = float(np.abs(finite).max(initial=0))
            np.testing.assert_allclose(y, theirs, rtol=0, atol=1e-5 * most)
        else:
            np.testing.assert_array_equal(y, theirs)


def ort_session(ort: Any, model: Any, *, strict: bool) -> Any:
    """A session of ONNX Runtime as plain as it comes; None where it has no kernel, or (not `strict`) no schema."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    try:
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return None
    except (ort.capi.onnxruntime_pybind11_state.Fail, ort.capi.onnxruntime_pybind11_state.InvalidGraph):
        if strict:
            raise
        return None


def came_later(onnx: Any, o: Op, sample: Sample, xs: list[Any], opset: int) -> str:
    """What of a sample the operator did not have yet at an opset; empty if it had all."""
    if not onnx.defs.has(o.name, opset, o.domain):
        return o.name
    schema = onnx.defs.get_schema(o.name, opset, o.domain)
    attrs = set(sample.attrs) - set(schema.attributes)
    formals = [*schema.inputs, *schema.inputs[-1:] * len(xs)]
    types = {DType.of(x.dtype) for x, f in zip(xs, formals, strict=False) if x is not None and not takes(schema, f, x)}
    return ", ".join([*attrs, *map(str, types)])


def takes(schema: Any, formal: Any, x: Any) -> bool:
    """Whether a schema allows the element type of an array for this input."""
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    name = DType.of(x.dtype).name.lower()
    return f"tensor({name})" in allowed.get(formal.type_str, [formal.type_str])


def one_node(
    onnx: Any, o: Op, sample: Sample, xs: list[Any], ys: Any, opset: int
) -> tuple[Any, dict[str, Any], list[Any]]:
    """A model of one node, its feeds, and the results in element types that ONNX Runtime hands to Python."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(xs)]
    present = {n: x for n, x in zip(names, xs, strict=True) if n}
    feeds = {n: x for n, x in present.items() if x.dtype.isbuiltin == 1}  # ml_dtypes: it takes no such arrays either
    stored = [onnx.numpy_helper.from_array(x, n) for n, x in present.items() if n not in feeds]
    attrs = dict(sample.attrs)
    for a, v in attrs.items():
        if isinstance(v, np.ndarray):
            attrs[a] = onnx.numpy_helper.from_array(v)
    nodes = [onnx.helper.make_node(o.name, names, [f"y{i}" for i in range(len(ys))], domain=o.domain, **attrs)]
    outputs, results = [], []
    for i, y in enumerate(ys):
        dtype, last = DType.of(y.dtype), f"y{i}"
        if y.dtype.isbuiltin != 1:  # ml_dtypes: ONNX Runtime has no such arrays in Python
            nodes.append(onnx.helper.make_node("Cast", [last], [f"z{i}"], to=DType.FLOAT.onnx))
            dtype, last, y = DType.FLOAT, f"z{i}", y.astype(np.float32)
        outputs.append(onnx.helper.make_tensor_value_info(last, dtype.onnx, y.shape))
        results.append(y)
    inputs = [onnx.helper.make_tensor_value_info(n, DType.of(x.dtype).onnx, x.shape) for n, x in feeds.items()]
    graph = onnx.helper.make_graph(nodes, "one", inputs, outputs, stored)
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in {"": ORT_OPSETS[""], o.domain: opset}.items()]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=13), feeds, results


@st.composite
def drawn(draw: st.DrawFn) -> tuple[str, Sample]:
    """The name of an operator with many attributes, and a sample of it with attributes at random."""

    def some(low: int, high: int, count: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    name = draw(st.sampled_from(["Conv", "ConvTranspose", "MaxPool", "AveragePool", "Slice", "Pad", "Resize"]))
    n = draw(st.integers(1, 3))
    if name == "Slice":
        count = draw(st.integers(1, n))
        steps = [s or 1 for s in some(-3, 3, count)]
        axes = draw(st.permutations(range(-n, 0)))[:count]
        return name, Sample(
            [f32(*some(0, 5, n)), *map(np.array, (some(-7, 7, count), some(-7, 7, count), axes, steps))]
        )
    if name == "Pad":
        mode = draw(st.sampled_from(["constant", "edge", "reflect", "wrap"]))
        low, high = (-1, 3) if mode == "constant" else (0, 2)
        return name, Sample([f32(*some(3, 5, n)), np.array(some(low, high, 2 * n))], {"mode": mode})
    if name == "Resize":
        mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
        attrs = {"mode": mode, "antialias": int(mode != "nearest" and draw(st.booleans()))}
        attrs["coordinate_transformation_mode"] = draw(st.sampled_from(["half_pixel", "asymmetric", "align_corners"]))
        return name, Sample([f32(1, 1, *some(1, 6, 2)), None, None, np.array([1, 1, *some(1, 9, 2)])], attrs)
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    kernel, strides, dilations = some(1, 3, n), some(1, 3, n), some(1, 2, n)
    if "SAME" in auto:  # ONNX Runtime dilates none of these, and shifts the windows where they leave gaps
        strides, dilations = [min(a, b) for a, b in zip(strides, kernel, strict=True)], [1] * n
    span = [(a - 1) * b + 1 for a, b in zip(kernel, dilations, strict=True)]
    sizes = [a + b for a, b in zip(span, some(0, 4, n), strict=True)]
    attrs = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    if auto == "NOTSET":
        attrs["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    else:
        attrs["auto_pad"] = auto
    if "Pool" in name:
        attrs["ceil_mode"] = int(draw(st.booleans()))
        if name == "AveragePool":
            attrs["count_include_pad"] = int(draw(st.booleans()))
        return name, Sample([f32(1, 2, *sizes)], attrs, 1 + (name == "MaxPool" and n > 1))
    group, c, m = some(1, 2, 3)
    if name == "Conv":
        return name, Sample([f32(2, group * c, *sizes), f32(group * m, c, *kernel)], {**attrs, "group": group})
    if auto == "NOTSET":
        attrs["output_padding"] = [draw(st.integers(0, s - 1)) for s in strides]
    return name, Sample([f32(2, group * c, *sizes), f32(group * c, m, *kernel)], {**attrs, "group": group})


@given(drawn())
def test_attributes_at_random(case: tuple[str, Sample]) -> None:
    name, sample = case
    o = OPS["", name]
    check_inference(o, sample)
    check_freshness(o, sample)
    check_runtime(o, sample)
