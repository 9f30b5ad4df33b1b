"""Weights of few bits stay packed: in plans, in memory, and in every form that files have them in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.ops import DType, Type
from mezzo.ops.contrib.weights import ROOM, dense_weights
from mezzo.ops.types import f32, type_of
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder

Array = np.ndarray[Any, Any]


def packed(N: int, K: int, bits: int, block: int, zeros: str = "", scales: DType = DType.FLOAT) -> list[Any]:
    """Bytes, scales and zero points ("", "packed" or "float") of weights."""
    rng, blocks = np.random.default_rng(N + K + bits), -(-K // block)
    data = rng.integers(0, 256, (N, blocks, block * bits // 8), dtype=np.uint8)
    steps = (rng.random((N, blocks)) * 0.1 + 0.01).astype(scales.numpy)
    if not zeros:
        return [data, steps]
    if zeros == "float":
        return [data, steps, (rng.random((N, blocks)) * 2**bits).astype(scales.numpy)]
    return [data, steps, rng.integers(0, 256, (N, -(-blocks * bits // 8)), dtype=np.uint8)]


def product(x: Type, constants: list[Any], **attrs: Any) -> Graph:
    g = GraphBuilder()
    names = [g.const(c) if c is not None else None for c in constants]
    return g.graph([g.op("MatMulNBits", g.input("x", x), *names, domain="com.microsoft", **attrs)])


@pytest.mark.parametrize("zeros", ["", "packed", "float"])
@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_every_form_is_the_product_with_its_numbers(bits: int, block: int, zeros: str) -> None:
    """Rows that are no multiple of a block; the weights apart by another way."""
    N, K, rng = 7, 5 * block // 2 + 3, np.random.default_rng(1)
    data, scales, *rest = packed(N, K, bits, block, zeros)
    x = rng.standard_normal((3, K)).astype(np.float32)
    apart = np.unpackbits(data.reshape(N, -1), axis=1, bitorder="little").reshape(N, -1, bits)
    steps = (apart * (1 << np.arange(bits))).sum(-1)[:, :K].astype(np.float64)
    zero = np.full(scales.shape, 2 ** (bits - 1), np.float64)
    if zeros == "float":
        zero = rest[0].astype(np.float64)
    elif zeros:
        codes = np.unpackbits(rest[0], axis=1, bitorder="little").reshape(N, -1, bits)
        zero = (codes * (1 << np.arange(bits))).sum(-1)[:, : scales.shape[1]].astype(np.float64)
    block_of = np.arange(K) // block
    want = x @ ((steps - zero[:, block_of]) * scales[:, block_of]).T
    graph = product(type_of(x), [data, scales, *rest], K=K, N=N, bits=bits, block_size=block)
    session = Session(graph)
    (ours,) = session.run({"x": x}).values()
    assert [s.choice.kernel for s in session.program.steps][-1].endswith("matmul_n_bits")
    np.testing.assert_allclose(ours, want, rtol=0, atol=2e-6 * np.abs(want).max())


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.DOUBLE], ids=str)
@pytest.mark.parametrize("zeros", ["", "packed", "float"])
def test_activations_of_other_types(dtype: DType, zeros: str) -> None:
    """The sums are those of float32, rounded once; of float64 they are float64's."""
    kept = DType.FLOAT if dtype is DType.DOUBLE else dtype
    constants = packed(9, 64, 4, 32, zeros, kept)
    bias = np.random.default_rng(2).standard_normal(9).astype(dtype.numpy)
    x = np.random.default_rng(1).standard_normal((2, 3, 64)).astype(dtype.numpy)
    operands = [*constants, *[None] * (4 - len(constants)), bias]
    graph = product(type_of(x), operands, K=64, N=9, bits=4, block_size=32)
    (ours,) = Session(graph).run({"x": x}).values()
    dense = dense_weights(*constants, *[None] * (4 - len(constants)), K=64, N=9, bits=4, block_size=32)
    wide = np.float64 if dtype is DType.DOUBLE else np.float32
    want = (x.astype(wide) @ dense.T.astype(wide) + bias.astype(wide)).astype(dtype.numpy)
    assert ours.dtype == want.dtype
    far = np.abs(ours.astype(np.float64) - want.astype(np.float64)).max() / np.abs(want.astype(np.float64)).max()
    assert far <= {DType.DOUBLE: 1e-14, DType.FLOAT16: 1e-3, DType.BFLOAT16: 8e-3}[dtype]


def test_a_plan_holds_the_packed_bytes_and_a_bounded_workspace() -> None:
    """Twelve products of 3 million weights: what the session keeps is what the file has."""
    rng, g, size = np.random.default_rng(0), GraphBuilder(), 0
    x = g.input("x", f32("rows", 1024))
    for i in range(12):
        data, scales = packed(3072 if i % 2 == 0 else 1024, 1024 if i % 2 == 0 else 3072, 4, 32)
        data = rng.integers(0, 256, data.shape, dtype=np.uint8)  # layers of their own
        size += data.nbytes + scales.nbytes
        N, K = len(data), data.shape[1] * 32
        attrs: dict[str, Any] = {"K": K, "N": N, "bits": 4, "block_size": 32}
        x = g.op("MatMulNBits", x, g.const(data), g.const(scales), domain="com.microsoft", **attrs)
    session = Session(g.graph([x]))
    program = session.warmup({"x": (4, 1024)})
    kept = {id(a): a.nbytes for a in session.executable.constants.values()}
    assert sum(kept.values()) <= 1.02 * size
    assert program.plan.size <= 4 * 2 * 4 * 3072 + 8 * ROOM
    assert all(not s.choice.allocates for s in program.steps)


def test_the_gradient_stays_packed_too() -> None:
    data, scales = packed(300, 2048, 4, 32)
    g = GraphBuilder()
    dy = g.input("dy", f32(5, 300))
    attrs: dict[str, Any] = {"K": 2048, "N": 300, "bits": 4, "block_size": 32}
    session = Session(g.graph([g.op("MatMulNBitsGrad", dy, g.const(data), g.const(scales), domain="mezzo", **attrs)]))
    dY = np.random.default_rng(0).standard_normal((5, 300)).astype(np.float32)
    want = dY.astype(np.float64) @ dense_weights(data, scales, None, None, **attrs)
    np.testing.assert_allclose(session(dY), want, rtol=0, atol=3e-6 * np.abs(want).max())
    (step,) = session.program.steps
    assert step.choice.kernel.endswith("matmul_n_bits")
    assert step.choice.workspace <= 8 * ROOM


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bits": 3}, "3 bits"),
        ({"block_size": 24}, "blocks of 24"),
        ({"K": 96}, "take 432"),
        ({"N": 8}, "bytes"),
        ({"scales": np.ones((9, 3), np.float32)}, "scales"),
        ({"zeros": np.ones((9, 2), np.uint8)}, "zero points"),
    ],
)
def test_what_does_not_fit(change: dict[str, Any], said: str) -> None:
    data, scales = packed(9, 64, 4, 32)
    operands = [data, change.pop("scales", scales), change.pop("zeros", None)]
    with pytest.raises(Exception, match=said) as error:
        Session(product(f32(2, 64), operands, **{"K": 64, "N": 9, "bits": 4, "block_size": 32, **change}))
    assert error.type.__name__ in ("ShapeError", "ModelError")
