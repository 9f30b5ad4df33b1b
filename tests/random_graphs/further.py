"""Moves into the rest of the vocabulary: recurrent layers, quantised ones, bodies, com.microsoft, and any operator at
all by the samples of its record."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from mezzo.ops import OPS, Body, DType, Held, Op, Sample, Tensor
from mezzo.tools.samples import arrays

from .maker import Maker, Unfit
from .moves import move

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@move(4, "recurrent")
def recurrent(m: Maker) -> str:
    """A layer, and what tidies up behind it."""
    x = m.ranked(3)
    length, batch, width = m.shape(x)
    op = m.one(("LSTM", "GRU", "RNN"))
    way = m.one(("forward", "forward", "reverse", "bidirectional"))
    ways, hidden = 1 + (way == "bidirectional"), int(m.one((1, 2, 4, 5, 8, 16)))
    rows = GATES[op] * hidden
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": way}
    if op == "GRU" and m.chance(0.6):
        attrs["linear_before_reset"] = 1
    w, r = m.weight(ways, rows, width, fan=width), m.weight(ways, rows, hidden, fan=hidden)
    bias = m.weight(ways, 2 * rows) if m.chance(0.7) else None
    lengths = m.const(m.rng.integers(1, length + 1, batch), DType.INT32) if length and m.chance(0.15) else None
    first = [m.weight(ways, batch, hidden) if m.chance(0.3) else None]
    if op == "LSTM":
        first.append(m.weight(ways, batch, hidden) if m.chance(0.3) else None)
    wanted = m.one(((True,), (True,), (True, True), (False, True)))
    made = m.several(op, x, w, r, bias, lengths, *first, outputs=wanted, **attrs)
    y = made[0] or made[1]
    if made[0] and m.chance(0.8):
        if ways == 1:
            return m.add("Squeeze", y, m.ints([1]))
        y = m.add("Transpose", y, perm=[0, 2, 1, 3])
        return m.add("Reshape", y, m.ints([0, 0, ways * hidden]))
    return y


@move(2, "quantised")
def quantised(m: Maker) -> str:
    """Rounded to 8 bits and back: a linear scale, of the tensor or of each channel."""
    x = m.pick(lambda n: m.rank(n) > 0 and 0 not in m.shape(n))
    kind = m.one((DType.UINT8, DType.INT8))
    zero = int(m.rng.integers(100, 150)) if kind is DType.UINT8 else 0
    scale = m.const(float(np.abs(m.exact(x)).max()) / m.one((60, 100, 127)) + 0.01)
    q = m.add("QuantizeLinear", x, scale, m.const(zero, kind))
    if m.chance(0.4):
        q = m.one((turned, clipped))(m, q, kind)
    return m.add("DequantizeLinear", q, scale, m.const(zero, kind))


def turned(m: Maker, q: str, kind: DType) -> str:
    return m.add("Transpose", q, perm=m.rng.permutation(m.rank(q)).tolist())


def clipped(m: Maker, q: str, kind: DType) -> str:
    return m.add("Max", q, m.const(m.one((0, 3, 100)), kind))


def quantised_weight(m: Maker, *shape: int) -> tuple[str, str, str]:
    w = m.const(m.rng.integers(-50, 50, shape), DType.INT8)
    return w, m.const(0.01 * max(1.0, float(np.prod(shape[1:]))) ** -0.5 + 0.001), m.const(0, DType.INT8)


def as_bytes(m: Maker, x: str, kind: DType = DType.UINT8) -> tuple[str, str, str]:
    scale = m.const(float(np.abs(m.exact(x)).max(initial=0.0)) / 100 + 0.01)
    zero = m.const(128 if kind is DType.UINT8 else 0, kind)
    return m.add("QuantizeLinear", x, scale, zero), scale, zero


@move(2.5, "quantised")
def quantised_product(m: Maker) -> str:
    """QLinearMatMul, QLinearConv, products of whole numbers, and quantised weights before an ordinary product."""
    op = m.one(("QLinearMatMul", "QLinearConv", "MatMulInteger", "ConvInteger", "weights", "DynamicQuantizeLinear"))
    x = m.ranked(4) if "Conv" in op else m.pick(lambda n: m.rank(n) > 1 and 0 not in m.shape(n))
    depth = m.shape(x)[1 if "Conv" in op else -1]
    wide = int(m.one((1, 3, 4, 8, 16, 17)))
    if op == "weights":
        w = m.add("DequantizeLinear", *quantised_weight(m, depth, wide))
        return m.add("MatMul", x, w)
    if op == "DynamicQuantizeLinear":
        q, scale, zero = m.several(op, x, outputs=3)
        w, ws, wz = quantised_weight(m, depth, wide)
        y = m.add("Cast", m.add("MatMulInteger", q, w, zero, wz), to=DType.FLOAT.onnx)
        return m.add("Mul", y, m.add("Mul", scale, ws))
    q, scale, zero = as_bytes(m, x, m.one((DType.UINT8, DType.INT8)))
    if "Conv" in op:
        k = min(3, *m.shape(x)[2:])
        w, ws, wz = quantised_weight(m, wide, depth, k, k)
        pads = [k // 2] * 4
        if op == "ConvInteger":
            y = m.add(op, q, w, zero, wz, pads=pads)
        else:
            bias = m.const(m.rng.integers(-500, 500, wide), DType.INT32) if m.chance(0.5) else None
            y = m.add(op, q, scale, zero, w, ws, wz, m.const(0.03), m.const(128, DType.UINT8), bias, pads=pads)
    else:
        w, ws, wz = quantised_weight(m, depth, wide)
        if op == "MatMulInteger":
            y = m.add(op, q, w, zero, wz)
        else:
            y = m.add(op, q, scale, zero, w, ws, wz, m.const(0.03), m.const(128, DType.UINT8))
    if "Integer" in op:
        return m.add("Mul", m.add("Cast", y, to=DType.FLOAT.onnx), m.const(0.001))
    return m.add("DequantizeLinear", y, m.const(0.03), m.const(128, DType.UINT8))


@move(2, "control")
def branch(m: Maker) -> str:
    """If, by a truth that is fed, constant, or worked out; both branches read values from outside."""
    x = m.pick(lambda n: 0 not in m.shape(n))
    kind = m.rng.random()
    truth = np.bool_(m.chance(0.5))
    if kind < 0.4:
        condition = m.input(truth)
    elif kind < 0.6:
        condition = m.const(truth, DType.BOOL)
    else:
        condition = m.add("Greater", m.add("ReduceSum", x, keepdims=0), m.const(m.rng.uniform(-1, 1)))
    first, second = m.one(("Relu", "Tanh", "Neg")), m.one(("Sigmoid", "Abs", "Neg"))
    w = m.weight(*m.shape(x)[-1:])
    perm = m.rng.permutation(m.rank(x)).tolist() if m.chance(0.3) else list(range(m.rank(x)))

    def then(g: Any) -> list[str]:
        return [g.Transpose(g.op(first, x), perm=perm) if m.rank(x) > 1 else g.op(first, x)]

    def otherwise(g: Any) -> list[str]:
        y = g.Add(g.op(second, x), w)
        return [g.Transpose(y, perm=perm) if m.rank(x) > 1 else y]

    return m.add("If", condition, then_branch=Body([], then), else_branch=Body([], otherwise))


@move(1.5, "control")
def loop(m: Maker) -> object:
    """Loop with a carried value, and what it collects."""
    x = m.pick(lambda n: 0 not in m.shape(n) and m.rank(n) < 4)
    count = int(m.rng.integers(0, 4))
    trips = m.input(np.int64(count)) if m.chance(0.3) else m.const(count, DType.INT64)
    w, scans = m.weight(*m.shape(x)[-1:]), m.chance(0.5)
    kind, here = m.one(("Tanh", "Relu", "Sigmoid")), Tensor(DType.FLOAT, m.shape(x))

    def body(g: Any, i: str, going: str, carried: str) -> list[str]:
        y = g.op(kind, g.Add(g.Mul(carried, g.const(0.5, DType.FLOAT)), w))
        return [g.Identity(going), y, *([g.Neg(y)] if scans else [])]

    types = [Tensor(DType.INT64, ()), Tensor(DType.BOOL, ()), here]
    return m.several("Loop", trips, m.const(True, DType.BOOL), x, body=Body(types, body), outputs=1 + scans)


@move(1.5, "control")
def scan(m: Maker) -> object:
    x = m.pick(lambda n: m.rank(n) in (2, 3) and 0 not in m.shape(n))
    shape = m.shape(x)[1:]
    state, w = m.weight(*shape), m.weight(*shape[-1:])

    def body(g: Any, carried: str, row: str) -> list[str]:
        y = g.Tanh(g.Add(g.Mul(carried, w), row))
        return [y, g.Relu(y)]

    here = Tensor(DType.FLOAT, shape)
    way: dict[str, Any] = {"scan_input_directions": [1]} if m.chance(0.3) else {}
    return m.several("Scan", state, x, body=Body([here, here], body), num_scan_inputs=1, outputs=2, **way)


@move(2.5, "microsoft")
def microsoft(m: Maker) -> object:
    """What ONNX Runtime's optimiser writes."""
    ms = "com.microsoft"
    op = m.one(("Gelu", "FastGelu", "BiasGelu", "QuickGelu", "SkipLayerNormalization", "FusedMatMul", "FusedConv"))
    if op == "FusedConv":
        x = m.ranked(4)
        c, out = m.shape(x)[1], int(m.one((1, 4, 8, 16)))
        k = min(3, *m.shape(x)[2:])
        w, how = m.weight(out, c, k, k, fan=c * k * k), m.one(("Relu", "Sigmoid", "Tanh"))
        return m.add(op, x, w, m.weight(out), activation=how, pads=[k // 2] * 4, domain=ms)
    if op == "SkipLayerNormalization":
        x = m.ranked(3)
        c = m.shape(x)[-1]
        skip = m.pick(lambda n: m.shape(n) == m.shape(x))
        return m.add(op, x, skip, m.weight(c), m.weight(c), m.weight(c) if m.chance(0.5) else None, epsilon=1e-3,
                     domain=ms)  # fmt: skip
    x = m.pick(lambda n: m.rank(n) > 1 and 0 not in m.shape(n))
    c = m.shape(x)[-1]
    if op == "FusedMatMul":
        turned = int(m.chance(0.5))
        w = m.weight(*((7, c) if turned else (c, 7)), fan=c)
        return m.add(op, x, w, transB=turned, alpha=m.one((1.0, 0.5)), domain=ms)
    return m.add(op, x, *([m.weight(c)] if op == "BiasGelu" else []), domain=ms)


@cache
def sampled() -> list[tuple[Op, list[Sample]]]:
    """The operators whose samples may stand in a graph: they draw no random numbers. In an order of their own, so that
    a seed makes the same graph whatever was imported before."""
    found = []
    for _, op in sorted(OPS.items()):
        if op.deterministic and op.domain not in ("mezzo", "ai.onnx.preview.training"):
            fitting = [s for s in op.samples if not any(isinstance(v, Body) for v in s.attrs.values())
                       and sum(np.size(x) for x in s.inputs if isinstance(x, np.ndarray)) < 4096]  # fmt: skip
            if fitting:
                found.append((op, fitting))
    return found


@move(7, "samples")
def sample(m: Maker) -> object:
    """Any operator as a sample of its record has it; a value that is there takes the place of an input that fits."""
    op, samples = m.one(sampled())
    chosen = m.one(samples)
    given: list[str | None] = []
    for wanted, x in zip(chosen.inputs, arrays(chosen, int(m.rng.integers(1 << 30))), strict=True):
        if x is None:
            given.append(None)
        elif isinstance(wanted, Held) or not isinstance(x, np.ndarray):
            raise Unfit("a host object")
        else:
            given.append(operand(m, wanted, x))
    return m.several(op.name, *given, domain=op.domain, outputs=chosen.outputs, **chosen.attrs)


def operand(m: Maker, wanted: Any, x: Any) -> str:
    """A value of the graph of this type, or the sample's own array, stored or fed."""
    dtype = DType.of(x.dtype)
    if isinstance(wanted, Tensor) and dtype is DType.FLOAT and m.chance(0.6):
        try:
            return m.pick(lambda n: m.shape(n) == x.shape)
        except Unfit:
            pass
    return m.input(x) if isinstance(wanted, Tensor) and m.chance(0.5) else m.const(x, dtype)


@move(1, "samples")
def sequences(m: Maker) -> str:
    """Through a list of tensors and back."""
    x = m.pick(lambda n: m.rank(n) > 0 and 0 not in m.shape(n))
    axis = int(m.rng.integers(m.rank(x)))
    if m.chance(0.5):
        parts = m.add(
            "SplitToSequence", x, m.const(int(m.rng.integers(1, m.shape(x)[axis] + 1)), DType.INT64), axis=axis
        )
        return m.add("ConcatFromSequence", parts, axis=axis)
    held = m.add("SequenceConstruct", x, m.pick(lambda n: m.shape(n) == m.shape(x)))
    return m.add("SequenceAt", held, m.const(m.one((0, 1, -1)), DType.INT64))
