"""Small decoders with random weights, as ONNX Runtime's GenAI builder and Optimum write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
VOCABULARY, PLACES, LAYERS, HIDDEN, INNER, HEADS, SIZE = 60, 64, 2, 64, 96, 4, 16


@dataclass(frozen=True)
class Decoder:
    """A file: `bits` of packed weights (0: floats), `zeros` whether these have zero points, `half` for float16,
    `kv` heads of keys, and what a family does."""

    name: str
    half: bool = False
    bits: int = 0
    block: int = 32
    zeros: bool = False
    kv: int = 2
    packed: bool = False  # queries, keys and values are one product
    bias: bool = False
    inside: bool = True  # positions are turned inside of GroupQueryAttention
    normed: bool = False  # queries and keys are normalised by head
    window: int = -1
    softcap: float = 0.0
    gelu: bool = False
    experts: int = 0
    standard: bool = False  # of standard operators alone, as Optimum writes them


DECODERS = (
    Decoder("llama"),
    Decoder("llama-fp16", half=True),
    Decoder("llama-4-bit", bits=4),
    Decoder("qwen2-4-bit", bits=4, zeros=True, bias=True, packed=True, kv=1),
    Decoder("qwen3", inside=False, normed=True),
    Decoder("phi3-4-bit-fp16", half=True, bits=4, packed=True, kv=4, block=16),
    Decoder("gemma2", softcap=5.0, gelu=True, kv=1),
    Decoder("mistral-8-bit", bits=8, window=6),
    Decoder("mixtral-4-bit", bits=4, experts=4),
    Decoder("llama-optimum", standard=True),
)


class _File:
    """The nodes and weights of a file that is being written."""

    def __init__(self, made: Decoder, seed: int) -> None:
        self.made, self.rng = made, np.random.default_rng(seed)
        self.float = np.float16 if made.half else np.float32
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def op(self, op: str, *inputs: str, domain: str = "", outputs: tuple[str, ...] = (), **attrs: Any) -> str:
        outputs = outputs or (f"v{len(self.nodes)}",)
        self.nodes.append(helper.make_node(op, inputs, outputs, f"n{len(self.nodes)}", domain=domain, **attrs))
        return outputs[0]

    def weight(self, array: Any, name: str = "") -> str:
        name = name or f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *numbers: int) -> str:
        return self.weight(np.array(numbers, np.int64))

    def drawn(self, *shape: int, scale: float = 1.0) -> Any:
        return (self.rng.standard_normal(shape) * scale / np.sqrt(shape[0])).astype(self.float)

    def linear(self, x: str, K: int, N: int, bias: bool = False, name: str = "") -> str:
        made = self.made
        if not made.bits:
            y = self.op("MatMul", x, self.weight(self.drawn(K, N), name and f"{name}.weight"))
        else:
            blocks = K // made.block
            data = self.rng.integers(0, 256, (N, blocks, made.block * made.bits // 8), dtype=np.uint8)
            step = 0.25 / 2**made.bits / np.sqrt(K) * 16
            scales = (self.rng.random((N, blocks)) * step + step).astype(self.float)
            given = [self.weight(data, name and f"{name}.weight_Q4"), self.weight(scales)]
            if made.zeros:
                zeros = self.rng.integers(0x66, 0x9A, (N, -(-blocks * made.bits // 8)), dtype=np.uint8)
                given.append(self.weight(zeros))
            attrs: Any = {"K": K, "N": N, "bits": made.bits, "block_size": made.block, "accuracy_level": 0}
            y = self.op("MatMulNBits", x, *given, domain=MICROSOFT, **attrs)
        return self.op("Add", y, self.weight(self.drawn(N) * 0)) if bias else y

    def norm(self, x: str, width: int = HIDDEN) -> str:
        scale = self.weight((self.rng.random(width) + 0.5).astype(self.float))
        if not self.made.standard:
            return self.op("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=1e-5, stash_type=1)
        mean = self.op("ReduceMean", self.op("Pow", x, self.weight(np.float32(2))), axes=[-1], keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.weight(np.float32(1e-5))))
        return self.op("Mul", scale, self.op("Mul", x, self.op("Div", self.weight(np.float32(1)), root)))

    def added(self, x: str, y: str) -> tuple[str, str]:
        """The sum of two, normalised and as it is."""
        if self.made.standard:
            total = self.op("Add", x, y)
            return self.norm(total), total
        scale = self.weight((self.rng.random(HIDDEN) + 0.5).astype(self.float))
        outputs = (f"v{len(self.nodes)}", "", "", f"v{len(self.nodes)}.sum")
        y = self.op("SkipSimplifiedLayerNormalization", x, y, scale, domain=MICROSOFT, outputs=outputs, epsilon=1e-5)
        return y, outputs[3]

    def mlp(self, x: str, name: str) -> str:
        up, gate = self.linear(x, HIDDEN, INNER, name=f"{name}.up_proj"), self.linear(x, HIDDEN, INNER)
        if self.made.gelu:
            act = self.op("FastGelu", gate, domain=MICROSOFT)
        else:
            act = self.op("Mul", gate, self.op("Sigmoid", gate))
        return self.linear(self.op("Mul", act, up), INNER, HIDDEN, name=f"{name}.down_proj")

    def mixed(self, x: str, name: str) -> str:
        """The two best of some experts, as a sum over all with weights of which most are 0."""
        count = self.made.experts
        router = self.op("MatMul", x, self.weight(self.drawn(HIDDEN, count)))
        values, places = f"{name}.values", f"{name}.places"
        self.op("TopK", router, self.ints(2), outputs=(values, places), axis=-1)
        hot = self.op("OneHot", places, self.ints(count), self.weight(np.array([0, 1], self.float)), axis=-1)
        share = self.op("Unsqueeze", self.op("Softmax", values, axis=-1), self.ints(-1))
        share = self.op("ReduceSum", self.op("Mul", hot, share), self.ints(-2), keepdims=0)
        total = ""
        for i in range(count):
            one = self.op("Gather", share, self.ints(i), axis=-1)
            part = self.op("Mul", self.mlp(x, f"{name}.{i}"), one)
            total = self.op("Add", total, part) if total else part
        return total


def _tables(float: Any) -> tuple[Any, Any]:
    angles = np.arange(PLACES)[:, None] / 100.0 ** (np.arange(SIZE // 2) / (SIZE // 2))
    return np.cos(angles).astype(float), np.sin(angles).astype(float)


def decoder(made: Decoder, seed: int = 0) -> onnx.ModelProto:
    """The file of a decoder."""
    f, kv = _File(made, seed), made.kv
    kind = TensorProto.FLOAT16 if made.half else TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
    ]
    if made.standard or not made.inside:
        inputs.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch", "length"]))
    outputs = [helper.make_tensor_value_info("logits", kind, ["batch", "length", VOCABULARY])]
    cos, sin = (f.weight(t, n) for t, n in zip(_tables(f.float), ("cos_cache", "sin_cache"), strict=True))
    if made.standard:
        place = _Standard(f, cos, sin)
    else:
        counted = f.op("ReduceSum", "attention_mask", f.ints(1), keepdims=1)
        held = f.op("Cast", f.op("Sub", counted, f.ints(1)), to=TensorProto.INT32)
        total = f.op("Gather", f.op("Shape", "attention_mask"), f.weight(np.int64(1)), axis=0)
        total = f.op("Cast", total, to=TensorProto.INT32)
    x = f.op("Gather", f.weight(f.drawn(VOCABULARY, HIDDEN, scale=4.0), "embed_tokens.weight"), "input_ids")
    y = f.norm(x)
    for layer in range(LAYERS):
        names = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        presents = [f"present.{layer}.{part}" for part in ("key", "value")]
        inputs += [helper.make_tensor_value_info(n, kind, ["batch", kv, "past", SIZE]) for n in names]
        outputs += [helper.make_tensor_value_info(n, kind, ["batch", kv, "grown", SIZE]) for n in presents]
        widths = (HEADS * SIZE, kv * SIZE, kv * SIZE)
        if made.packed:
            parts = [f.linear(y, HIDDEN, sum(widths), made.bias, f"layers.{layer}.qkv_proj"), "", ""]
        else:
            label = [f"layers.{layer}.{n}_proj" for n in "qkv"]
            parts = [f.linear(y, HIDDEN, n, made.bias, w) for n, w in zip(widths, label, strict=True)]
        if made.normed:
            for i, n in enumerate((HEADS, kv)):
                apart = f.op("Reshape", parts[i], f.ints(0, 0, n, SIZE))
                parts[i] = f.op("Reshape", f.norm(apart, SIZE), f.ints(0, 0, n * SIZE))
        if not made.inside:
            for i, n in enumerate((HEADS, kv)):
                parts[i] = f.op("RotaryEmbedding", parts[i], "position_ids", cos, sin, domain=MICROSOFT, num_heads=n)
        if made.standard:
            attended = place.attended(parts, names, presents, kv)
        else:
            attended = f.op(
                "GroupQueryAttention", *parts, *names, held, total, *((cos, sin) if made.inside else ("", "")),
                domain=MICROSOFT, outputs=(f"attended{layer}", *presents), num_heads=HEADS, kv_num_heads=kv,
                do_rotary=int(made.inside), local_window_size=made.window, softcap=made.softcap,
                scale=float(SIZE**-0.5),
            )  # fmt: skip
        y, x = f.added(x, f.linear(attended, HEADS * SIZE, HIDDEN, name=f"layers.{layer}.o_proj"))
        y, x = f.added(x, f.mixed(y, f"experts{layer}") if made.experts else f.mlp(y, f"layers.{layer}.mlp"))
    logits = f.linear(y, HIDDEN, VOCABULARY, name="lm_head")
    if made.softcap:
        cap = f.weight(np.asarray(30, f.float))
        logits = f.op("Mul", f.op("Tanh", f.op("Div", logits, cap)), cap)
    f.op("Identity", logits, outputs=("logits",))
    graph = helper.make_graph(f.nodes, made.name, inputs, outputs, f.weights)
    opsets = [helper.make_opsetid("", 17 if made.standard else 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if made.standard else 10)


class _Standard:
    """Attention in parts, as torch.onnx writes that of Llama."""

    def __init__(self, f: _File, cos: str, sin: str) -> None:
        self.f = f
        self.cos, self.sin = (
            f.op("Unsqueeze", f.op("Concat", t, t, axis=-1), f.ints(1))
            for t in (f.op("Gather", table, "position_ids") for table in (cos, sin))
        )
        shape = f.op("Shape", "attention_mask")
        total = f.op("Gather", shape, f.weight(np.int64(1)), axis=0)
        length = f.op("Gather", f.op("Shape", "input_ids"), f.weight(np.int64(1)), axis=0)
        columns = f.op("Range", f.weight(np.int64(0)), total, f.weight(np.int64(1)))
        first = f.op("Sub", total, length)
        rows = f.op("Unsqueeze", f.op("Range", first, total, f.weight(np.int64(1))), f.ints(1))
        seen = f.op("LessOrEqual", f.op("Unsqueeze", columns, f.ints(0)), rows)
        real = f.op("Cast", f.op("Unsqueeze", "attention_mask", f.ints(1, 2)), to=TensorProto.BOOL)
        both = f.op("And", f.op("Unsqueeze", seen, f.ints(0, 1)), real)
        self.mask = f.op("Where", both, f.weight(np.float32(0)), f.weight(np.float32(-1e9)))

    def turned(self, x: str) -> str:
        f, half = self.f, SIZE // 2
        left = f.op("Slice", x, f.ints(0), f.ints(half), f.ints(3))
        right = f.op("Slice", x, f.ints(half), f.ints(2**62), f.ints(3))
        around = f.op("Concat", f.op("Neg", right), left, axis=-1)
        return f.op("Add", f.op("Mul", x, self.cos), f.op("Mul", around, self.sin))

    def attended(self, parts: list[str], names: list[str], presents: list[str], kv: int) -> str:
        f = self.f
        q, k, v = (
            f.op("Transpose", f.op("Reshape", x, f.ints(0, 0, n, SIZE)), perm=[0, 2, 1, 3])
            for x, n in zip(parts, (HEADS, kv, kv), strict=True)
        )
        q, k = self.turned(q), self.turned(k)
        wide = []
        for past, new, present in zip(names, (k, v), presents, strict=True):
            f.op("Concat", past, new, axis=2, outputs=(present,))
            size = [f.op("Gather", f.op("Shape", present), f.ints(i)) for i in (0, 2)]
            shape = f.op("Concat", size[0], f.ints(kv, HEADS // kv), size[1], f.ints(SIZE), axis=0)
            whole = f.op("Expand", f.op("Unsqueeze", present, f.ints(2)), shape)
            wide.append(f.op("Reshape", whole, f.op("Concat", size[0], f.ints(HEADS), size[1], f.ints(SIZE), axis=0)))
        scores = f.op("MatMul", q, f.op("Transpose", wide[0], perm=[0, 1, 3, 2]))
        scores = f.op("Add", f.op("Mul", scores, f.weight(np.float32(SIZE**-0.5))), self.mask)
        y = f.op("MatMul", f.op("Softmax", scores, axis=-1), wide[1])
        return f.op("Reshape", f.op("Transpose", y, perm=[0, 2, 1, 3]), f.ints(0, 0, HEADS * SIZE))
