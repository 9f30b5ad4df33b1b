"""Operators of the domain com.microsoft: equal to ONNX Runtime, and to the standard operators they consist of."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper
import pytest

import mezzo as mz
from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx
from mezzo.ops import OPS, DType, Op, Sample
from mezzo.ops.types import f32, type_of
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.ir.interpreter import evaluate
from mezzo.runtime.passes.expand import expand

from .graphs import arrays, sample_graph
from .models import ort_run

Array = np.ndarray[Any, Any]
RECORDS = [o for o in OPS.values() if o.domain == "com.microsoft"]
WANTED = """FusedConv FusedMatMul Gelu FastGelu BiasGelu SkipLayerNormalization EmbedLayerNormalization Attention
MultiHeadAttention DynamicQuantizeLSTM QLinearAdd QLinearMul QLinearSigmoid QLinearAveragePool
QLinearGlobalAveragePool QLinearConcat QGemm MatMulNBits Tokenizer QuickGelu
DynamicQuantizeMatMul FusedGemm SkipSimplifiedLayerNormalization
QLinearLeakyRelu QLinearSoftmax QLinearWhere MatMulIntegerToFloat QuantizeLinear DequantizeLinear
QAttention QEmbedLayerNormalization NhwcMaxPool QLinearConv RotaryEmbedding GroupQueryAttention
MatMulBnb4 GatherBlockQuantized"""
# Those that only com.microsoft can say; all others have a body of standard operators.
WITHOUT_BODY = "DynamicQuantizeLSTM Tokenizer".split()


def cases(records: list[Op]) -> list[Any]:
    return [pytest.param(o, s, id=f"{o.name}-{i}") for o in records for i, s in enumerate(o.samples)]


CASES = cases(RECORDS)
# Outputs that ONNX Runtime declares and does not fill on the CPU.
NOT_MADE = {"SkipLayerNormalization": {1, 2}, "SkipSimplifiedLayerNormalization": {1, 2}}


def one_node(o: Op, sample: Sample) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, and its feeds."""
    xs = arrays(sample)
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(xs)]
    feeds = {n: x for n, x in zip(names, xs, strict=True) if n}
    results = o.run(mz.ops.Context(wanted=(True,) * sample.outputs), xs, sample.attrs)[: sample.outputs]
    skipped = NOT_MADE.get(o.name, set())
    outputs = ["" if i in skipped else f"y{i}" for i in range(len(results))]
    node = onnx.helper.make_node(o.name, names, outputs, name="it", domain=o.domain, **sample.attrs)
    listed = [onnx.helper.make_tensor_value_info(n, DType.of(x.dtype).onnx, x.shape) for n, x in feeds.items()]
    made = [
        onnx.helper.make_tensor_value_info(n, DType.of(y.dtype).onnx, [None] * y.ndim)
        for n, y in zip(outputs, results, strict=True)
        if n
    ]
    graph = onnx.helper.make_graph([node], "one", listed, made)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(o.domain, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds


def agree(ours: dict[str, Array], theirs: dict[str, Array], *, quantised: bool) -> None:
    """Equal up to float32 rounding; of whole numbers one in a thousand may be one step away."""
    assert ours.keys() == theirs.keys()
    for name, y in theirs.items():
        assert ours[name].dtype == y.dtype
        assert ours[name].shape == y.shape
        if y.dtype.kind in "iu" and quantised:
            apart = np.abs(ours[name].astype(int) - y.astype(int))
            assert apart.max(initial=0) <= 1
            assert (apart > 0).mean() <= 1e-3 if apart.size else True
        elif y.dtype.kind == "f":
            np.testing.assert_allclose(ours[name], y, rtol=1e-5, atol=2e-5)
        else:
            np.testing.assert_array_equal(ours[name], y)


def test_all_that_exports_contain_are_here_with_three_samples_each() -> None:
    assert {o.name for o in RECORDS} == set(WANTED.split())
    assert all(len(o.samples) >= 3 for o in RECORDS)


@pytest.mark.parametrize(("o", "sample"), CASES)
def test_onnx_runtime_agrees(o: Op, sample: Sample) -> None:
    model, feeds = one_node(o, sample)
    ours = mz.load(model.SerializeToString()).run(feeds)
    agree(ours, ort_run(model, feeds), quantised=o.name.startswith("Q"))


@pytest.mark.parametrize(("o", "sample"), CASES)
def test_export_gives_the_node_back(o: Op, sample: Sample) -> None:
    model, _ = one_node(o, sample)
    again = to_onnx(load_onnx(model))
    assert again.graph.node == model.graph.node
    assert {i.domain: i.version for i in again.opset_import} == {"": 7, "com.microsoft": 1}


def test_those_without_a_body_are_known() -> None:
    assert [o.name for o in RECORDS if o.body_rule is None] == [
        n for n in (o.name for o in RECORDS) if n in WITHOUT_BODY
    ]


@pytest.mark.parametrize(("o", "sample"), cases([o for o in RECORDS if o.name not in WITHOUT_BODY]))
def test_the_standard_form_says_the_same(o: Op, sample: Sample) -> None:
    model, feeds = one_node(o, sample)
    if o.name == "MatMulNBits":  # the exporter takes known bits apart
        weights = {n: feeds.pop(n) for n in ("x1", "x3") if n in feeds}
        model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
        for info in [i for i in model.graph.input if i.name in weights]:
            model.graph.input.remove(info)
    graph = load_onnx(model)
    standard = to_onnx(graph, standard=True)
    onnx.checker.check_model(standard, full_check=True)
    assert {n.domain for n in standard.graph.node} == {""}
    ours = mz.Session(graph).run(feeds)
    agree(ours, ort_run(standard, feeds), quantised=o.name.startswith("Q"))
    agree(ours, mz.Session(load_onnx(standard)).run(feeds), quantised=o.name.startswith("Q"))


@pytest.mark.parametrize(
    ("operands", "said"),
    [
        ([f32(2, 3, 8), f32(2, 4, 8)], "lacks its value"),
        ([f32(2, 3, 8), f32(2, 4, 2, 3, 4)], "does not hold what is packed"),
        ([f32(2, 3, 2, 2, 4)], "does not hold what is packed"),
        ([f32(2, 3, 8)], "lacks its key"),
    ],
)
def test_attention_without_all_of_its_operands(operands: list[Any], said: str) -> None:
    with pytest.raises(mz.ShapeError, match=said):
        OPS["com.microsoft", "MultiHeadAttention"].infer_types(operands, {"num_heads": 2})


def test_attention_of_what_is_packed() -> None:
    """In either way the same numbers as apart."""
    record, rng = OPS["com.microsoft", "MultiHeadAttention"], np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, 8), np.float32) for _ in range(3))
    heads = [x.reshape(2, 3, 2, 4) for x in (q, k, v)]
    ways = {"apart": [q, k, v], "with keys": [q, np.stack(heads[1:], 3)], "all": [np.stack(heads, 3)]}
    found = {}
    for how, operands in ways.items():
        graph, feeds = sample_graph(record, Sample(operands, {"num_heads": 2}), fed="all")
        graph = infer(graph)
        whole = expand(graph, lambda n: n.op == record.name, graph.types)
        assert record.name not in {n.op for n in whole.nodes}
        found[how] = [evaluate(g, feeds) for g in (graph, whole)]
    want = next(iter(found["apart"][0].values()))
    for how, runs in found.items():
        for run in runs:
            np.testing.assert_allclose(next(iter(run.values())), want, atol=1e-6, err_msg=how)


# -- what does not fit

HEADS = {"num_heads": 2, "kv_num_heads": 1}
NEW, CACHE = [f32(2, 1, 32), f32(2, 1, 16), f32(2, 1, 16)], [f32(2, 1, 5, 16), f32(2, 1, 5, 16)]
LENGTHS = [np.array([5, 3], np.int32), np.array([6], np.int32)]
STEP = [*NEW, *CACHE, *LENGTHS]
TURNS = [f32(9, 8), f32(9, 8)]
PLACES, TABLES = np.array([[0, 1, 2], [3, 1, 4]]), [f32(5, 2), f32(5, 2)]
PROJECTED, BYTES = [f32(2, 4, 8), f32(8, 24), f32(24)], [np.full((5, 16), 7, np.uint8), np.array([1, 0])]
TWO = {"num_heads": 2}
BLOCKS = {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
IDS = np.array([[1, 0, 4, 2], [3, 3, 0, 1]], np.int32)
EMBEDDED = [IDS, IDS % 2, f32(6, 8), f32(5, 8), f32(2, 8), f32(8), f32(8)]


def swapped(operands: list[Any], at: int, other: Any) -> list[Any]:
    """The operands with another one in a place, which may be behind them."""
    return [other if i == at else operands[i] if i < len(operands) else None for i in range(max(len(operands), at + 1))]


def quantised_attention(**other: Any) -> list[Any]:
    given = {"bias": f32(24), "mask": None, "scale": np.float32(0.004), **other}
    x, w = np.full((2, 4, 8), 3, np.uint8), np.full((8, 24), 5, np.int8)
    return [x, w, given["bias"], np.float32(0.02), given["scale"], given["mask"], np.uint8(128), np.int8(0)]


def quantised_embedding(at: int, other: Any) -> list[Any]:
    return swapped(list(OPS["com.microsoft", "QEmbedLayerNormalization"].samples[1].inputs), at, other)


# Both runtimes refuse these: the operator, its operands, its attributes, and what we say.
MISFITS: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("GroupQueryAttention", swapped(STEP, 5, np.array([-1, 3], np.int32)), HEADS, "seqlens_k"),
    ("GroupQueryAttention", swapped(STEP, 5, np.array([9, 3], np.int32)), HEADS, "seqlens_k"),
    ("GroupQueryAttention", swapped(STEP, 5, np.array([5], np.int32)), HEADS, "does not fit a batch of 2"),
    ("GroupQueryAttention", swapped(STEP, 6, np.array([6, 6], np.int32)), HEADS, "does not fit a batch of 2"),
    ("GroupQueryAttention", swapped(STEP, 4, None), HEADS, "come together"),
    ("GroupQueryAttention", swapped(STEP, 1, f32(2, 1, 32)), HEADS, "does not fit 1 heads"),
    ("GroupQueryAttention", swapped(STEP, 3, f32(2, 1, 5, 8)), HEADS, "does not fit a cache"),
    ("GroupQueryAttention", swapped(STEP, 4, f32(2, 1, 4, 16)), HEADS, "does not fit a cache"),
    ("GroupQueryAttention", swapped(STEP, 10, f32(2, 2, 1, 1)), HEADS, "does not fit 1 queries and 6 keys"),
    ("GroupQueryAttention", swapped(STEP, 11, f32(1)), HEADS, "2 heads"),
    ("GroupQueryAttention", [*STEP, TURNS[0], f32(9, 1)], {**HEADS, "do_rotary": 1}, "does not fit heads of 16"),
    ("GroupQueryAttention", [*STEP, *TURNS, np.array([[-1], [2]])], {**HEADS, "do_rotary": 1}, "count from 0"),
    ("GroupQueryAttention", STEP, {**HEADS, "kv_cache_bit_width": 8}, "not supported"),
    ("GroupQueryAttention", STEP, {**HEADS, "k_quant_type": "PER_TENSOR"}, "not supported"),
    ("GroupQueryAttention", STEP, {"num_heads": 2, "kv_num_heads": 0}, "do not share"),
    ("Attention", swapped(PROJECTED, 2, f32(1)), TWO, "does not fit the weights"),
    ("Attention", swapped(PROJECTED, 2, f32(1, 24)), TWO, "should have rank 1"),
    ("Attention", PROJECTED, {"num_heads": 0}, "at least 1"),
    ("Attention", PROJECTED, {"num_heads": 3}, "do not divide into 3 heads"),
    ("Attention", [f32(2, 4, 8), f32(8, 20), f32(20)], TWO, "not queries, keys and values"),
    ("Attention", PROJECTED, {**TWO, "qkv_hidden_sizes": [8, 4, 12]}, "queries and keys have one size"),
    ("Attention", swapped(PROJECTED, 3, np.ones((1, 4), np.int32)), TWO, "does not fit 4 queries"),
    ("Attention", swapped(PROJECTED, 3, np.array([3], np.int32)), TWO, "neither an end"),
    ("Attention", swapped(PROJECTED, 3, np.ones((2, 1, 4), np.int32)), TWO, "does not fit 4 queries"),
    ("Attention", swapped(PROJECTED, 5, f32(4, 4)), TWO, "should have rank 4"),
    ("Attention", swapped(PROJECTED, 5, f32(2, 2, 4, 1)), TWO, "does not fit 4 queries"),
    ("MultiHeadAttention", swapped([f32(2, 3, 8), f32(2, 4, 8), f32(2, 4, 8)], 5, f32(2, 2, 1, 4)), TWO, "3 queries"),
    ("MultiHeadAttention", swapped([f32(2, 3, 8), f32(2, 4, 8), f32(2, 4, 8)], 4, IDS[:1]), TWO, "3 queries"),
    ("QAttention", quantised_attention(bias=f32(1)), TWO, "does not fit the weights"),
    ("QAttention", quantised_attention(mask=np.array([3], np.int32)), TWO, "neither an end"),
    ("QAttention", quantised_attention(scale=np.full((24, 1), 0.004, np.float32)), TWO, "one entry for each column"),
    ("QAttention", quantised_attention(), {"num_heads": 0}, "at least 1"),
    ("EmbedLayerNormalization", swapped(EMBEDDED, 4, None), {}, "of no table"),
    ("EmbedLayerNormalization", swapped(EMBEDDED, 5, f32(1)), {}, "differ in width"),
    ("EmbedLayerNormalization", swapped(EMBEDDED, 3, f32(1, 8)), {}, "4 places, of which"),
    ("EmbedLayerNormalization", swapped(EMBEDDED, 7, np.ones((2, 1), np.int32)), {}, "does not fit"),
    ("EmbedLayerNormalization", swapped(EMBEDDED, 8, IDS[:, :1]), {}, "does not fit"),
    ("QEmbedLayerNormalization", quantised_embedding(1, None), {}, "come together"),
    ("QEmbedLayerNormalization", quantised_embedding(4, None), {}, "come together"),
    ("QEmbedLayerNormalization", quantised_embedding(10, None), {}, "come together"),
    ("QEmbedLayerNormalization", quantised_embedding(6, np.zeros(1, np.uint8)), {}, "differ in width"),
    ("QEmbedLayerNormalization", quantised_embedding(1, IDS[:, :1] % 2), {}, "does not fit"),
    ("RotaryEmbedding", [f32(2, 3, 8), PLACES[:1], *TABLES], {}, "does not fit"),
    ("RotaryEmbedding", [f32(2, 3, 8), PLACES[:, :1], *TABLES], {}, "does not fit"),
    ("RotaryEmbedding", [f32(2, 3, 8), np.arange(3), *TABLES], {}, "no first place"),
    ("RotaryEmbedding", [f32(2, 3, 8), PLACES, TABLES[0], f32(5, 1)], {}, "does not fit the cosines"),
    ("RotaryEmbedding", [f32(2, 3, 8), PLACES, f32(5, 1), f32(5, 1)], {"num_heads": 2}, "turns 2 elements"),
    ("RotaryEmbedding", [f32(2, 3, 12), PLACES, *TABLES], {"rotary_embedding_dim": 4}, "num_heads is missing"),
    ("RotaryEmbedding", [f32(2, 3, 8), PLACES, *TABLES], {"num_heads": 3}, "3 heads"),
    ("MatMulBnb4", [f32(2, 32), np.full(48, 7, np.uint8), f32(4)],
     {"K": 32, "N": 3, "block_size": 24, "quant_type": 1}, "block_size 24"),
    ("MatMulBnb4", [f32(2, 32), np.full(48, 7, np.int8), f32(6)],
     {"K": 32, "N": 3, "block_size": 16, "quant_type": 1}, "are not bytes"),
    ("GatherBlockQuantized", [*BYTES, f32(5, 3)], BLOCKS, "does not fit blocks of 16"),
    ("GatherBlockQuantized", [*BYTES, f32(4, 2)], BLOCKS, "does not fit blocks of 16"),
    ("GatherBlockQuantized", [*BYTES, f32(5, 2), np.full((5, 2), 7, np.uint8)], BLOCKS, "does not fit blocks of 16"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "attrs", "said"), MISFITS)
def test_what_does_not_fit(name: str, operands: list[Any], attrs: dict[str, Any], said: str) -> None:
    o = OPS["com.microsoft", name]
    count = sum(not p.optional for p in o.outputs)
    xs = arrays(Sample(operands))
    feeds = {f"x{i}": x for i, x in enumerate(xs) if x is not None}
    listed = [onnx.helper.make_tensor_value_info(n, DType.of(x.dtype).onnx, x.shape) for n, x in feeds.items()]
    made = [onnx.helper.make_tensor_value_info(f"y{i}", t, None) for i, t in enumerate((1, 6, 1)[:count])]
    names = ["" if x is None else f"x{i}" for i, x in enumerate(xs)]
    node = onnx.helper.make_node(name, names, [f"y{i}" for i in range(count)], domain=o.domain, **attrs)
    if name == "GroupQueryAttention":
        made[1].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph([node], "one", listed, made)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(o.domain, 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    with pytest.raises(mz.MezzoError, match=said):
        mz.load(model).run(feeds)
    with pytest.raises(Exception, match="ONNXRuntimeError"):  # has a class of its own for each cause
        ort_run(model, feeds)


def fours(kind: Any, *shape: int) -> Array:
    """Numbers of four bits."""
    return np.random.default_rng(0).integers(0, 8, shape).astype(kind.numpy)


@pytest.mark.parametrize("kind", [DType.INT4, DType.UINT4])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("shape", "gathered", "quantized", "indices"),
    [
        ((5, 32), 0, 1, [[1, 0], [4, -2]]),
        ((32, 3), 1, 0, [[1, 0], [2, -1]]),
        ((2, 40, 4), 2, 1, [[1, 3]]),
        ((5, 40), 1, 1, [1, 17, -1]),
        ((2, 32, 3), 1, 1, [[31], [16]]),
    ],
)
def test_rows_of_numbers_of_four_bits(
    kind: DType, zeros: bool, shape: tuple[int, ...], gathered: int, quantized: int, indices: Any
) -> None:
    """Rows are picked along any axis: before that of the blocks, behind it, or along it."""
    blocks = [-(-n // 16) if i == quantized else n for i, n in enumerate(shape)]
    scales = np.random.default_rng(1).random(blocks, np.float32)
    stored = {"data": fours(kind, *shape), "scales": scales} | ({"zeros": fours(kind, *blocks)} if zeros else {})
    node = onnx.helper.make_node(
        "GatherBlockQuantized", ["data", "at", "scales", *(["zeros"] if zeros else [])], ["y"], domain="com.microsoft",
        block_size=16, gather_axis=gathered, quantize_axis=quantized,
    )  # fmt: skip
    at = np.array(indices)
    graph = onnx.helper.make_graph(
        [node], "one", [onnx.helper.make_tensor_value_info("at", onnx.TensorProto.INT64, at.shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(a, n) for n, a in stored.items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    ours = mz.load(model.SerializeToString()).run({"at": at})
    agree(ours, ort_run(model, {"at": at}), quantised=False)


@pytest.mark.parametrize("attrs", [{"causal": 0}, {"sliding_window_cache": 1}, {"qk_output": 1}])
def test_what_is_not_supported_is_refused(attrs: dict[str, int]) -> None:
    """Attributes that newer runtimes know, which change the numbers."""
    types: list[Any] = [type_of(x, known=True) if isinstance(x, np.ndarray) else x for x in STEP]
    with pytest.raises(mz.ShapeError, match="not supported"):
        OPS["com.microsoft", "GroupQueryAttention"].infer_types(types, {**HEADS, **attrs}, (True,) * 3)


@pytest.mark.parametrize(("name", "opset"), [("SimplifiedLayerNormalization", 17), ("LayerNormalization", 13)])
def test_what_the_optimiser_writes_into_the_standard_domain(name: str, opset: int) -> None:
    """ONNX Runtime knows these at every opset, and the first under no other name."""
    operands = {"x": np.random.default_rng(0).standard_normal((2, 3, 8), np.float32), "w": np.full(8, 1.5, np.float32)}
    node = onnx.helper.make_node(name, ["x", "w"], ["y"], axis=-1, epsilon=0.01)
    listed = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape) for n, a in operands.items()]
    made = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3, 8])
    graph = onnx.helper.make_graph([node], "one", listed, [made])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    ours = mz.load(model.SerializeToString()).run(operands)
    x = operands["x"] - (operands["x"].mean(-1, keepdims=True) if name == "LayerNormalization" else 0)
    np.testing.assert_allclose(ours["y"], 1.5 * x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.01), rtol=1e-5)
    agree(ours, ort_run(model, operands), quantised=False)
    onnx.checker.check_model(to_onnx(load_onnx(model)), full_check=True)  # it leaves as the standard has it
