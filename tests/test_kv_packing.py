"""Values that travel packed: what a scheme loses is sent later, all get the same bits, and trainings converge."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mezzo.kvstore.packed_values import Answered, PackedValues
from mezzo.kvstore.packing import RUN, SCHEMES, Packer, Packings, parse, unpacked
from mezzo.kvstore.protocol import messages as m
from mezzo.kvstore.protocol import serving as s
from mezzo.kvstore.protocol.keys import Keys
from mezzo.kvstore.shards import Budget, Shards
from mezzo.kvstore.wire import FRAME
from mezzo.models.digits import held_out
from mezzo.ops.errors import BudgetError, InputError, PeerError, WireError
from mezzo.ops.types import Array
from mezzo.tools.launch import launch, members
from mezzo.train import checkpoint

from .kv_packing import ROUNDS, SIZE
from .kv_packing import SCHEMES as OF_JOB

TEXTS = ("fp16", "bf16", "2bit", "1bit", "topk 0.01", "topk 0.25", "powersgd 1", "powersgd 4")
COUNTS = (1, 2, 7, 8, 9, 63, RUN - 1, RUN, RUN + 1, 3 * RUN + 17)


def numbers(kind: str, count: int) -> Array:
    rng = np.random.default_rng(count)
    made = rng.standard_normal(count).astype(np.float32)
    if kind == "sparse":
        made *= rng.random(count) < 0.01
    elif kind == "heavy":
        made = (made**5 * 1e3).astype(np.float32)
    elif kind == "zeros":
        made[:] = 0
    elif kind == "equal":
        made[:] = -3.5
    return made


def lost(text: str, given: Array) -> float:
    """The part of the squares of some numbers that a scheme loses."""
    scheme = parse(text)
    data = scheme.pack(given.copy())
    assert len(data) == scheme.size(given.size)
    found = np.frombuffer(unpacked(text, data, given.nbytes), np.float32)
    assert found.shape == given.shape
    whole = float((given.astype(np.float64) ** 2).sum())
    return float(((given.astype(np.float64) - found) ** 2).sum()) / whole if whole else float(np.abs(found).max())


@pytest.mark.parametrize("kind", ["normal", "sparse", "heavy", "zeros", "equal"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_scheme_loses_less_than_it_is_given(text: str, kind: str) -> None:
    """Which is what keeps the sum of all that was lost bounded."""
    for count in COUNTS:
        assert lost(text, numbers(kind, count)) <= (1 + 1e-6 if kind != "zeros" else 0)
    assert lost("2bit", numbers("sparse", 3 * RUN)) < 0.5
    assert lost("2bit", numbers("normal", 3 * RUN)) < 0.25
    assert lost("1bit", numbers("normal", 3 * RUN)) < 0.4
    assert lost("fp16", numbers("normal", 3 * RUN)) < 1e-6


def test_every_scheme_is_tried() -> None:
    assert {text.partition(" ")[0] for text in TEXTS} == {*SCHEMES}
    assert all(parse(parse(text).text).text == parse(text).text for text in TEXTS)


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_lost_is_added_to_what_comes_next(text: str) -> None:
    packer, count = Packer(parse(text), 4 * 5000), 5000
    sent, given = np.zeros(count), np.zeros(count)
    for step in range(1, 40):
        x = np.random.default_rng(step).standard_normal(count).astype(np.float32)
        packet = packer.packet(step, 0, x.view(np.uint8).data)
        assert packet == packer.packet(step, 0, x.view(np.uint8).data)  # a frame that is said again
        sent += np.frombuffer(unpacked(text, packet, 4 * count), np.float32)
        given += x
    assert np.abs(given - sent - packer.kept).max() < 1e-3
    least = 0.3 if text != "topk 0.01" and not text.startswith("powersgd") else 1.5  # of so few steps
    assert np.sqrt((packer.kept**2).mean()) < max(least, 1.0) * 6


@pytest.mark.parametrize("text", TEXTS)
def test_numbers_that_are_not_finite_arrive_and_are_not_kept(text: str) -> None:
    packer = Packer(parse(text), 4 * RUN * 2)
    for step, value in enumerate((np.nan, np.inf), 1):
        given = numbers("normal", 2 * RUN)
        given[5] = value
        packet = packer.packet(step, 0, given.view(np.uint8).data)
        found = np.frombuffer(unpacked(text, packet, given.nbytes), np.float32)
        assert not np.isfinite(found).all()
        assert np.isfinite(packer.kept).all()
    most = np.full(3, np.finfo(np.float32).max)
    assert np.isfinite(np.frombuffer(unpacked("bf16", parse("bf16").pack(most), most.nbytes), np.float32)).all()
    huge = np.full(2 * RUN, 1e6, np.float32)
    found = np.frombuffer(unpacked("fp16", parse("fp16").pack(huge), huge.nbytes), np.float32)
    assert (found == 65504).all()


@pytest.mark.parametrize("text", ["", "3bit", "topk x", "topk 0", "topk 0.9", "powersgd 0", "powersgd 2.5", "fp16 3"])
def test_texts_that_are_no_scheme(text: str) -> None:
    with pytest.raises(InputError, match="compression"):
        parse(text)
    with pytest.raises(WireError):
        unpacked(text, bytes(8), 16)


@pytest.mark.parametrize(
    ("text", "data", "nbytes"),
    [
        ("fp16", bytes(7), 16),
        ("fp16", bytes(8), 15),
        ("2bit", b"", 0),
        ("topk 0.5", np.array([3, 3, 0, 0], np.uint32).tobytes(), 16),
        ("topk 0.5", np.array([1, 4, 0, 0], np.uint32).tobytes(), 16),
    ],
)
def test_bytes_that_are_nothing_packed(text: str, data: bytes, nbytes: int) -> None:
    with pytest.raises(WireError):
        unpacked(text, data, nbytes)


def test_schemes_by_size() -> None:
    chosen = Packings.of({"2bit": 1000, "topk": 10_000})
    assert [chosen.scheme("float32", n) for n in (999, 1000, 9999, 10_000)] == ["", "2bit", "2bit", "topk 0.01"]
    assert chosen.scheme("float64", 10_000) == Packings.of(None).scheme("float32", 1 << 30) == ""
    with pytest.raises(InputError, match="no number of bytes"):
        Packings.of({"2bit": -1})


def test_all_get_the_frames_that_were_packed_once() -> None:
    """In whatever ranges a sum is answered; a server that was started again has not what was lost, and says so."""
    keys, size = Keys(1 << 30), 2 * FRAME + 4000
    key = keys.admit(m.Init("w", "float32", (size // 4,), 0, size))
    shards = Shards(keys, Budget(1 << 30))
    shards.declare(key)
    values = PackedValues(shards, again=False)
    shards[key].value.array[:] = numbers("normal", size // 4)
    for step in (1, 2):
        made = []
        for edges in ([0, size], [0, 64, FRAME, FRAME + 64, size], [0, 2 * FRAME + 64, size]):
            answered: Answered = {key: (step - 1, 64)}
            ranges = pairwise(edges)
            sends = [s.Send(0, key, step, lo, hi) for lo, hi in ranges]
            made.append([frame for i in sends for frame in values.frames(i, "2bit", answered)])
        assert made[0] == made[1] == made[2]
        assert [(f.offset, f.nbytes) for f, _ in made[0]] == [(0, FRAME), (FRAME, FRAME), (2 * FRAME, 4000)]
    with pytest.raises(PeerError, match="started again"):
        PackedValues(shards, again=True).check()
    shards.budget.most = shards.budget.taken
    with pytest.raises(BudgetError, match="packed answers"):
        [*values.frames(s.Send(0, key, 3, 0, size), "1bit", {})]


@pytest.mark.parametrize("text", ["", "fp16", "bf16", "2bit", "1bit", "topk 0.05", "powersgd 2"])
def test_trainings_converge(text: str) -> None:
    """Digits by regression, two workers: gradients go up packed, and their sum comes back packed."""
    data = held_out()
    x = data.inputs.reshape(len(data.labels), -1).astype(np.float32)
    x = (x - x.mean(0)) / (x.std() + 1e-6)
    labels = data.labels.astype(np.int64)
    w = np.zeros((x.shape[1], 10), np.float32)
    packers = [Packer(parse(text), w.nbytes) for _ in range(3)] if text else []
    for step in range(1, 41):
        total = np.zeros_like(w)
        for rank in range(2):
            mine, wanted = x[rank::2], labels[rank::2]
            scores = np.exp(mine @ w - (mine @ w).max(1, keepdims=True))
            scores /= scores.sum(1, keepdims=True)
            scores[np.arange(len(wanted)), wanted] -= 1
            total += through(packers[rank] if text else None, step, mine.T @ scores / len(x))
        w -= 0.5 * through(packers[2] if text else None, step, total)
    assert (np.argmax(x @ w, 1) == labels).mean() > 0.9


def through(packer: Packer | None, step: int, given: Array) -> Array:
    if packer is None:
        return given
    flat = np.ascontiguousarray(given, np.float32).reshape(-1)
    packet = packer.packet(step, 0, flat.view(np.uint8).data)
    found: Array = np.frombuffer(unpacked(packer.scheme.text, packet, flat.nbytes), np.float32).reshape(given.shape)
    return found


def test_a_job_whose_values_travel_packed(tmp_path: Path) -> None:
    """Two hosts, two servers, one of them beside a host: all ranks have the same bits (the host beside the server had
    exact sums), and the wire carries what the schemes say."""
    command = (sys.executable, "-m", "tests.kv_packing", str(tmp_path))
    job = members(command, 2, 2, 2)
    host = {"MEZZO_HOST": next(one.environment["MEZZO_HOST"] for one in job if one.role == "worker")}
    beside = [one.role == "server" and not one.rank for one in job]
    job = tuple(
        replace(one, environment={**one.environment, **host}) if at else one
        for one, at in zip(job, beside, strict=True)
    )
    assert launch(job) == 0
    one, other = (json.loads((tmp_path / f"rank {rank}").read_text()) for rank in range(2))
    assert [one[key][0] for key in one] == [other[key][0] for key in one]
    plain, two, one_bit, low = (other[str(scheme)] for scheme in OF_JOB)  # nothing of whose values lies beside it
    assert plain[2] < 1e-4
    assert plain[1] > 8 * SIZE * ROUNDS
    exact = 8 * SIZE * ROUNDS  # without initial values and the pull
    assert 1 / 17 < (two[1] - 4 * SIZE) / exact < 1 / 13
    assert 1 / 40 < (one_bit[1] - 4 * SIZE) / exact < 1 / 20
    assert (low[1] - 4 * SIZE) / exact < 1 / 30
    assert max(two[2], one_bit[2]) < 60


def test_a_training_that_resumes_goes_on_with_what_compression_had_lost(tmp_path: Path) -> None:
    """To the bits of the one that went on; a checkpoint has the sum of what all had lost, so any number of ranks and
    servers takes it. Until then it was dropped."""
    for name, workers, servers in (("went on", 2, 1), ("again", 2, 2), ("by three", 3, 1)):
        command = (sys.executable, "-m", "tests.kv_packing", str(tmp_path), name)
        assert launch(members(command, workers, servers, workers)) == 0
    lost = {n: a for n, a in checkpoint.load(tmp_path / "kept").arrays.items() if n.startswith("lost/")}
    assert lost
    assert all(np.abs(a).max() > 0 for a in lost.values())
    one = dict(np.load(tmp_path / "went on 0.npz"))
    for rank in range(2):
        again = np.load(tmp_path / f"again {rank}.npz")
        assert all(again[name].tobytes() == array.tobytes() for name, array in one.items())
    three = [dict(np.load(tmp_path / f"by three {rank}.npz")) for rank in range(3)]
    assert all(three[0][name].tobytes() == three[2][name].tobytes() != one[name].tobytes() for name in one)
