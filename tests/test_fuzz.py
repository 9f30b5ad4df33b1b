"""Files that were damaged, by chance or on purpose: an error of ours, or a session that stays within its budgets."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mezzo.importers import load_onnx
from mezzo.ops import Body, DType, MezzoError, Tensor
from mezzo.ops.budget import Budget
from mezzo.ops.types import f32
from mezzo.runtime.execution.saving import content
from mezzo.runtime.execution.session import Session
from mezzo.runtime.file import Opened, encode
from mezzo.runtime.file.store import BEGIN, PREAMBLE, _digest
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node

from .test_bad_input import WHOLE

# Small limits: a damaged size must not cost the machine that tests it.
BUDGET = Budget(
    file_bytes=1 << 20,
    tensor_elements=1 << 16,
    nodes=1 << 12,
    nesting=8,
    steps=1 << 10,
    fold_elements=1 << 16,
    dynamic_bytes=1 << 22,
)


def graph() -> Graph:
    """Something of everything: weights of both sizes, a body, a state, texts, several steps that share bytes."""
    g = GraphBuilder("small")
    x = g.input("x", f32(2, 8))
    wide = g.const(np.linspace(-1, 1, 8 * 40, dtype=np.float32).reshape(8, 40))
    h = g.Relu(g.MatMul(x, wide))
    h = g.Reshape(g.Exp(g.Sub(h, g.const(np.float32(1)))), g.const([4, 20]))
    body = Body([], lambda b: [b.Neg(b.Softmax(h, axis=-1))])
    other = Body([], lambda b: [b.Mul(h, h)])
    y = g.If(g.Greater(g.ReduceSum(x, keepdims=0), g.const(np.float32(0))), then_branch=body, else_branch=other)
    g.state("count", np.zeros(3, np.float32))
    g.update("count", g.Add("count", g.const(np.ones(3, np.float32))))
    words = g.const(np.array(["a", "b"], object))
    flags = g.NonZero(g.Cast(y, to=DType.BOOL.onnx))
    return g.graph([g.Concat(y, y, axis=1), g.Identity("count"), g.Equal(words, words), g.Transpose(flags)])


def small_file(*, portable: bool = False) -> bytes:
    session = Session(graph())
    return b"".join(encode(session.graph, [] if portable else session.variants()))


def rounded_file() -> bytes:
    """A file with a pattern: sizes that are rounded up, with counts, sizes, shares, places and nodes that make more."""
    g = GraphBuilder("rounded")
    x = g.input("x", f32("batch", "length", 4))
    mixed = g.MatMul(g.Softmax(g.MatMul(x, g.Transpose(x, perm=(0, 2, 1))), axis=-1), x)
    n = g.Gather(g.Shape(x), g.const(1))
    places = g.Range(g.const(-1), g.Neg(g.Add(n, g.const(1))), g.const(-1))
    back = g.GatherElements(x, g.Expand(g.Unsqueeze(places, g.const([0, 2])), g.Shape(x)), axis=1)
    ends = (
        g.ReduceMean(x, g.const([1])),
        g.Gather(x, g.const(-1), axis=1),
        g.Shape(x),
        g.Reshape(mixed, g.const([-1, 4])),
    )
    session = Session(g.graph([g.Add(mixed, back), *ends]), buckets="auto")
    for length in (6, 9):
        session.run({"x": np.ones((2, length, 4), np.float32)})
    assert session.stats().rounded == 2
    return b"".join(content(session, portable=False, source="", producer=""))


SMALL, PORTABLE, ROUNDED = small_file(), small_file(portable=True), rounded_file()
FEEDS = {"x": np.linspace(-1, 2, 16, dtype=np.float32).reshape(2, 8)}
COVERED = struct.unpack_from("<Q", SMALL, 24)[0]
COVERED_PORTABLE = struct.unpack_from("<Q", PORTABLE, 24)[0]
COVERED_ROUNDED = struct.unpack_from("<Q", ROUNDED, 24)[0]


def try_file(data: bytes) -> bool:
    """Load and run; whether it went well. Anything but an error of ours fails the test."""
    try:
        opened = Opened(data, budget=BUDGET)
        session = Session(opened, budget=BUDGET, max_memory=1 << 22, instances=1)
        feeds = {p.name: np.zeros(p.type.sizes, p.type.dtype.numpy) for p in session.inputs
                 if isinstance(p.type, Tensor) and p.type.static and p.type.nbytes < 1 << 20}  # fmt: skip
        session.run(FEEDS if feeds.keys() == FEEDS.keys() else feeds)
    except MezzoError as error:
        if not str(error):
            return True
    else:
        return _has_graph(opened)
    return False


def try_rounded(data: bytes) -> bool:
    """The same for sizes that are rounded up, written again too."""
    try:
        session = Session(Opened(data, budget=BUDGET), budget=BUDGET, max_memory=1 << 22, instances=1)
        for length in (6, 5, 9):
            x = np.full((2, length, 4), 0.5, np.float32)
            session.run({"x": x} if "x" in session.signature.inputs else dict.fromkeys(session.signature.inputs, x))
        if session.stats().rounded == 2:
            assert b"".join(content(session, portable=False, source="", producer=""))
    except MezzoError as error:
        return not str(error)
    return True


def _has_graph(opened: Opened) -> bool:
    """Whether the graph, which a session with a program does not look at, is well."""
    try:
        return bool(opened.graph.nodes and opened.stored)
    except MezzoError as error:
        return not str(error)


def try_onnx(data: bytes) -> bool:
    """The same for an ONNX file."""
    try:
        made = load_onnx(data, budget=BUDGET)
        session = Session(made, budget=BUDGET, max_memory=1 << 22, instances=1)
        session.run({"x": np.ones(2, np.float32), "c": np.array(True)})
    except MezzoError as error:
        return not str(error)
    return True


def sealed(data: bytes) -> bytes:
    """The file with a digest that fits what it holds now, so that the reader itself meets the damage."""
    covered = struct.unpack_from("<Q", data, 24)[0]
    preamble = data[: PREAMBLE.size]
    return preamble + _digest(preamble, data[BEGIN:covered]) + data[BEGIN:]


def mutated(data: bytes, rng: random.Random, begin: int, end: int) -> bytes:
    """One to four changes between two places: bits, bytes, numbers of 4 and 8 bytes, pieces copied or cut."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(begin, end)
        kind = rng.randrange(7)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
        elif kind in (2, 3):
            at = min(at - at % 4, end - 4)
            old = struct.unpack_from("<I", changed, at)[0]
            new = rng.choice(
                (0, 1, old + 1, old - 1, old + 4, 2**31, 2**32 - 1, rng.randrange(2**32), rng.randrange(300))
            )
            struct.pack_into("<I", changed, at, new % 2**32)
        elif kind == 4:
            at = min(at - at % 8, end - 8)
            new = rng.choice((2**63, 2**64 - 1, 2**62, 2**40, rng.randrange(2**64), rng.randrange(2000)))
            struct.pack_into("<Q", changed, at, new)
        else:
            length = min(rng.choice((4, 8, 16, 64)), end - at)
            source = rng.randrange(begin, end - length + 1)
            changed[at : at + length] = changed[source : source + length]
    return bytes(changed)


def test_the_small_file_itself() -> None:
    opened = Opened(SMALL, budget=BUDGET)
    session = Session(opened, budget=BUDGET)
    results = session.run(FEEDS)
    assert session.bound_from == "variant"
    assert all(
        np.array_equal(a, b) for a, b in zip(results.values(), Session(graph()).run(FEEDS).values(), strict=True)
    )
    assert try_file(sealed(SMALL))
    assert sealed(SMALL) == SMALL


def test_truncations_at_every_length() -> None:
    assert not any(try_file(SMALL[:n]) for n in range(0, len(SMALL), 7 if len(SMALL) > 4096 else 1))


def flips(step: int) -> None:
    """Every `step`-th byte outside the weights, each with one bit turned over."""
    data = bytearray(SMALL)
    for at in range(0, COVERED, step):
        bit = 1 << at % 8
        data[at] ^= bit
        with pytest.raises(MezzoError):
            Opened(bytes(data))
        data[at] ^= bit


def test_flipped_bytes() -> None:
    flips(11)


def fuzz(count: int, seed: int, begin: int, end: int, attempt: Callable[[bytes], bool], data: bytes) -> int:
    """Try so many mutations; returns how many were harmless. The failing one is named by its number."""
    good = 0
    for i in range(count):
        changed = mutated(data, random.Random(seed * 1_000_003 + i), begin, end)
        try:
            good += attempt(changed if attempt is try_onnx else sealed(changed))
        except Exception as error:
            raise AssertionError(f"mutation {i} of seed {seed}: {type(error).__name__}: {error}") from error
    return good


@pytest.mark.parametrize("seed", range(4))
def test_mutations_with_a_digest_that_fits(seed: int) -> None:
    assert fuzz(250, seed, BEGIN, COVERED, try_file, SMALL) < 250
    assert fuzz(200, seed, BEGIN, COVERED_PORTABLE, try_file, PORTABLE) < 200
    assert fuzz(200, seed, BEGIN, COVERED_ROUNDED, try_rounded, ROUNDED) < 200


def test_mutations_of_the_first_bytes() -> None:
    assert fuzz(200, 9, 8, PREAMBLE.size, try_file, SMALL) < 200


def test_mutations_of_an_onnx_file() -> None:
    assert fuzz(500, 5, 0, len(WHOLE), try_onnx, WHOLE) < 500


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(BEGIN, COVERED - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_any_bytes_with_a_digest_that_fits(changes: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL)
    for at, byte in changes:
        data[at] = byte
    try_file(sealed(bytes(data)))


@given(st.binary(max_size=300))
def test_any_description(data: bytes) -> None:
    """Random bytes where the description was."""
    flat = BEGIN + len(data)
    covered = -(-flat // 64) * 64
    head = data + b"\0" * (covered - flat)
    preamble = PREAMBLE.pack(SMALL[:8], 1, 0, flat, covered, covered, 0)
    with pytest.raises(MezzoError):
        Opened(preamble + _digest(preamble, head) + head, budget=BUDGET)


@pytest.mark.soak
def test_every_byte_flipped_and_every_length() -> None:
    flips(1)
    assert not any(try_file(SMALL[:n]) for n in range(len(SMALL)))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_mutations(seed: int) -> None:
    fuzz(5_000, seed, BEGIN, COVERED, try_file, SMALL)
    fuzz(3_000, seed, BEGIN, COVERED_PORTABLE, try_file, PORTABLE)
    fuzz(5_000, seed, BEGIN, COVERED_ROUNDED, try_rounded, ROUNDED)
    fuzz(4_000, seed, 0, len(WHOLE), try_onnx, WHOLE)


def test_the_onnx_model_itself() -> None:
    assert try_onnx(WHOLE)


def test_an_input_without_a_type() -> None:
    """Found by mutations: nothing reads it, so that inference never asked for its type."""
    nodes = (Node("Identity", ("w",), ("y",)),)
    with pytest.raises(MezzoError, match="'x' has no type"):
        Session(Graph(("x",), ("y",), nodes, {"w": np.ones(2, np.float32)}))


def test_an_attribute_of_a_strange_kind() -> None:
    """Found by mutations: a kernel met a number that cannot be an axis."""
    nodes = (Node("Concat", ("x", "x"), ("y",), {"axis": "0"}),)
    with pytest.raises(MezzoError, match="Concat"):
        Session(Graph(("x",), ("y",), nodes, types={"x": f32(2, 2)}))
