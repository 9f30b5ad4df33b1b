"""Models that parse, and are damaged: an error of ours, or a session that stays within its budgets."""

from __future__ import annotations

import functools
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest

from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx
from mezzo.ops import OPS, DType, MezzoError, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node

from .damage import damaged
from .graphs import sample_graph
from .test_bad_input import WHOLE
from .test_fuzz import BUDGET, graph

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of a process as Linux has them")
SECONDS = 20  # far beyond what one damaged model takes
ROOM = 2 << 30  # bytes beyond what the process has: far beyond what a budget of a few MiB allows


@functools.cache
def sources() -> list[bytes]:
    """Models of one node for every sample of an operator that ONNX can say, and those of many kinds at once."""
    made = [WHOLE, to_onnx(graph()).SerializeToString()]
    for record in OPS.values():
        if record.domain == "mezzo":
            continue
        for i, sample in enumerate(record.samples):
            for fed in ("all", "types") if i < 4 else ("types",):
                try:
                    made.append(to_onnx(sample_graph(record, sample, fed=fed)[0]).SerializeToString())
                except MezzoError:  # a type that files of ONNX cannot say
                    continue
    return made


class TooLong(BaseException):
    """A model took longer than any should; no handler of ours takes it for an error of the model."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Stop what takes longer."""

    def ring(number: int, frame: object) -> None:
        raise TooLong(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def below(room: int) -> Iterator[None]:
    """A ceiling on the memory of the process: what is taken beyond it is a MemoryError, which fails the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def attempt(data: bytes) -> bool:
    """Load and run twice; whether it went well. Anything but an error of ours fails the test."""
    try:
        session = Session(load_onnx(data, budget=BUDGET), budget=BUDGET, max_memory=1 << 22, instances=1)
        for size in (1, 3):
            session.run(feeds(session, size))
    except MezzoError as error:
        if isinstance(error.__cause__, MemoryError):  # `below` met what no budget had refused
            raise error.__cause__ from None
        return not str(error)
    stats = session.stats()
    assert stats.arena_bytes + stats.pool.reserved <= 1 << 22
    return True


def feeds(session: Session, size: int) -> dict[str, object]:
    """Zeros for every tensor that is not too large, with open dims of this size."""
    made: dict[str, object] = {}
    for name, type in session.signature.inputs.items():
        if isinstance(type, Tensor) and name not in session.signature.defaults:
            dims = tuple(d if isinstance(d, int) else size for d in type.dims or ())
            if all(d < 1 << 16 for d in dims) and np.prod(dims) < 1 << 16:
                made[name] = np.full(dims, "" if type.dtype is DType.STRING else 0, type.dtype.numpy)
    return made


def fuzz(numbers: range, seed: int) -> int:
    """Damage a model for each number; returns how many were harmless. The failing one is named by its number."""
    good, base = 0, sources()
    with below(ROOM):
        for i in numbers:
            rng = Random(seed * 1_000_003 + i)
            which = rng.randrange(len(base))
            try:
                with within(SECONDS):
                    good += attempt(damaged(base[which], rng))
            except (Exception, TooLong) as error:
                told = f"{type(error).__name__}: {error}"
                raise AssertionError(f"model {which}, damage {i} of seed {seed}: {told}") from error
    return good


def test_the_models_themselves() -> None:
    assert sum(map(attempt, sources())) > 0.9 * len(sources())


@pytest.mark.parametrize("seed", range(2))
def test_damaged_models(seed: int) -> None:
    assert 20 < fuzz(range(150), seed) < 140


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_damaged_models(seed: int) -> None:
    fuzz(range(5_000), seed)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("LRN", {"size": 2**63 - 1}),
        ("TfIdfVectorizer", {"max_skip_count": 2**62}),
        ("TfIdfVectorizer", {"max_gram_length": 2**62}),
        ("RoiAlign", {"sampling_ratio": 2**31 - 1}),
        ("GatherND", {"batch_dims": -(2**40)}),
        ("Attention", {"qk_matmul_output_mode": 4}),
        ("Scan", {"num_scan_inputs": 2**62}),
        ("Scan", {"num_scan_inputs": -1}),
        ("Scan", {"num_scan_inputs": 0}),
    ],
)
def test_numbers_that_loops_counted_to(op: str, attrs: dict[str, object]) -> None:
    """Found by damage: each took for ever, or more memory than there is."""
    sample = OPS["", op].samples[0]
    changed, given = sample_graph(OPS["", op], sample)
    (node,) = changed.nodes
    with below(ROOM), within(SECONDS), suppress(MezzoError):
        Session(changed.but(nodes=(replace(node, attrs={**node.attrs, **attrs}),)), budget=BUDGET).run(given)


def test_bodies_that_do_not_fit_their_loop() -> None:
    """Found by damage: unread results were dropped before anybody had counted them."""
    for op in ("If", "Loop", "Scan"):
        changed, given = sample_graph(OPS["", op], OPS["", op].samples[0])
        (node,) = changed.nodes
        for name, body in node.bodies.items():
            for short in (body.but(outputs=body.outputs[:-1]), body.but(inputs=body.inputs[:-1])):
                attrs = {**node.attrs, name: short}
                broken = changed.but(nodes=(replace(node, attrs=attrs),), outputs=changed.outputs[:1])
                with suppress(MezzoError):
                    Session(broken, budget=BUDGET).run(given)


def test_sizes_of_arrays_without_elements() -> None:
    """Found by damage: numpy makes no array of no elements where the other sizes are beyond its own."""
    dims = (0, 1 << 62)
    with pytest.raises(MezzoError, match="no array"):
        Session(Graph(("x",), ("y",), (Node("Neg", ("x",), ("y",)),), types={"x": Tensor(DType.FLOAT, dims)}))
    proto = onnx.load_model_from_string(WHOLE)
    proto.graph.initializer.append(onnx.TensorProto(name="z", dims=dims, data_type=onnx.TensorProto.FLOAT))
    with pytest.raises(MezzoError, match="no array"):
        load_onnx(proto.SerializeToString())


def test_a_region_far_beyond_its_image() -> None:
    """Found by damage: the number of samples was the data's choice."""
    g = GraphBuilder()
    x, boxes = g.input("x", f32(1, 1, 4, 4)), g.const(np.array([[0, 0, 1e9, 1e9]], np.float32))
    with pytest.raises(MezzoError, match="a region of"):
        Session(g.graph([g.RoiAlign(x, boxes, g.const([0]))])).run({"x": np.zeros((1, 1, 4, 4), np.float32)})


def test_an_opset_beyond_all() -> None:
    """Found by damage: onnx was asked for a schema of an opset that is no number of 32 bits."""
    proto = onnx.load_model_from_string(to_onnx(sample_graph(OPS["", "GroupNormalization"],
                                                            OPS["", "GroupNormalization"].samples[0])[0])
                                        .SerializeToString())  # fmt: skip
    proto.opset_import[0].version = -(1 << 40)
    with pytest.raises(MezzoError):
        load_onnx(proto.SerializeToString())
