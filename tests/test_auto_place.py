"""Placements that are found: they fit the rooms of devices, as these are planned, few bytes travel, and what fits
nowhere is refused with the numbers."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise
from math import ceil
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.models.digits import digits_model, held_out
from mezzo.ops.errors import BudgetError, InputError
from mezzo.ops.types import f32
from mezzo.runtime.compile.auto_place import AutoPlace, Cuts, DeviceNeed, needs_of, proposed
from mezzo.runtime.compile.parts import copies
from mezzo.runtime.devices import SPARED, rooms_of
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.infer import infer

from .cupy_standin import Standin
from .test_cli import DIGITS, as_json, mezzo

digits = held_out()
BATCH = {"image": digits.inputs[:24], "target": digits.labels[:24]}
KB = 1024


def tower(layers: int = 12, width: int = 64, rows: int = 8) -> Graph:
    """Products of a width, between which a narrow value goes from layer 4 to 5, and from 8 to 9."""
    rng, g = np.random.default_rng(0), GraphBuilder("tower")
    x = g.input("x", f32(rows, width))
    for i in range(1, layers + 1):
        narrow = 4 if i in (4, 8) else width
        before = 4 if i in (5, 9) else width
        x = g.Relu(g.MatMul(x, g.const((rng.normal(size=(before, narrow)) / 8).astype(np.float32))))
    return g.graph([x])


def planned(session: mz.Session) -> dict[str, DeviceNeed]:
    return needs_of(session.program, session.executable.constants, session.device.name)


def need_of_one(graph: Graph, device: str, **shapes: tuple[int, ...]) -> DeviceNeed:
    """What a model takes on one device."""
    session = mz.Session(graph, device=device)
    session.warmup(shapes or {"x": (8, 64)})
    return planned(session)[device]


def fits(session: mz.Session, room: dict[str, int]) -> bool:
    return all(need.total <= room[d] for d, need in planned(session).items())


@pytest.mark.parametrize("count", [2, 3])
def test_cuts_are_where_few_bytes_travel(count: int) -> None:
    graph, x = tower(), np.ones((8, 64), np.float32)
    need = need_of_one(graph, "cpu").total
    room = {f"cpu:{i}": int(need * (0.75 if count == 2 else 0.5)) for i in range(count)}
    session = mz.Session(graph, place=AutoPlace(room))
    np.testing.assert_array_equal(session(x), mz.Session(graph)(x))
    assert fits(session, room)
    assert len(session.program.parts) == count
    assert [c.type.sizes for c in copies(session.program)] == [(8, 4)] * (count - 1), "where the narrow values are"


def test_estimates_are_corrected_by_plans() -> None:
    """The weights of narrow layers are packed to eight times their bytes and more, which no estimate knows."""
    graph = tower()
    need = need_of_one(graph, "cpu").total
    for share in (0.36, 0.4, 0.45, 0.55, 0.65, 0.9):
        room = {f"cpu:{i}": int(need * share) for i in range(4)}
        session = mz.Session(graph, place=AutoPlace(room))
        assert fits(session, room), share
        assert len(session.program.parts) <= ceil(1 / share) + 1, share


def chain(rng: np.random.Generator) -> Graph:
    """Products of widths at random."""
    g, width = GraphBuilder("chain"), int(rng.integers(4, 64))
    x = g.input("x", f32(4, width))
    for wide in rng.integers(4, 64, int(rng.integers(4, 9))).tolist():
        x, width = g.Relu(g.MatMul(x, g.const(np.zeros((width, wide), np.float32)))), wide
    return infer(g.graph([x]))


def test_what_fits_is_found_whatever_plans_add_to_estimates() -> None:
    """Beside all cuts there are: one is found where one fits, a cheap one, and after few plans."""
    ratios, plans, refused = list[float](), list[int](), list[int]()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        graph, count = chain(rng), int(rng.integers(2, 5))
        own = [sum(graph.initializers[i].nbytes for i in n.inputs if i in graph.initializers) for n in graph.nodes]
        sizes, work = (np.array(own) * rng.uniform(1, 4, len(own))).astype(int), int(rng.integers(20000))
        room = int(sizes.sum() / count * rng.uniform(1, 2)) + work
        cuts, asked = Cuts(graph, False), AutoPlace({f"cpu:{i}": room for i in range(count)})
        fitting = [
            sum(cuts.across[begin] for begin, end in pairwise(at) if begin and end > begin)
            for at in ((0, *c, len(own)) for c in combinations_with_replacement(range(0, len(own) + 1, 2), count - 1))
            if all(begin == end or sizes[begin:end].sum() + work <= room for begin, end in pairwise(at))
        ]
        asked_of: list[Graph] = []

        def needs(placed: Graph, sizes: Any = sizes, work: int = work, seen: Any = asked_of) -> dict[str, DeviceNeed]:
            seen.append(placed)
            on = [n.device for n in placed.nodes]
            return {d: DeviceNeed(int(sizes[[o == d for o in on]].sum()), 0, work) for d in placed.devices}

        if not fitting:
            with pytest.raises(BudgetError, match="no placement fits"):
                proposed(graph, asked, needs)
            refused.append(len(asked_of))
            continue
        placed = proposed(graph, asked, needs)
        cost = sum(cuts.across[i] for i, (a, b) in enumerate(pairwise(placed.nodes), 1) if a.device != b.device)
        ratios += [cost / min(fitting)] if min(fitting) else []
        plans.append(len(asked_of))
    assert len(plans) > 30
    assert len(refused) > 10
    assert np.mean(ratios) < 1.15
    assert np.mean(plans) < 4
    assert np.mean(refused) < 8, "what holds a stretch that is too large is not tried"


def test_what_fits_one_device_is_not_cut() -> None:
    session = mz.Session(tower(), place=AutoPlace({"cpu:0": KB << 10, "cpu:1": KB << 10}))
    assert not session.program.parts
    assert session.device.name == "cpu"


def test_what_fits_nowhere_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        BudgetError, match=r"no placement fits: about \d+ bytes .* room for 4096 \(cpu:0 2048, cpu:1 2048"
    ):
        mz.Session(tower(), place=AutoPlace({"cpu:0": 2 * KB, "cpu:1": 2 * KB}))
    with pytest.raises(InputError, match=r"the sizes of image: .* are not known"):
        mz.load(digits_model(), place=AutoPlace({"cpu:0": KB, "cpu:1": KB}))
    with pytest.raises(InputError, match="has no bytes by device"):
        AutoPlace({"cpu:0": "much"})  # type: ignore[dict-item]


def test_devices_are_ordered_by_number() -> None:
    whole = need_of_one(
        tower(width=1024), "gpu:0@sm_90", x=(8, 1024)
    )  # products have workspaces, which each device needs
    room = {f"gpu:{i}@sm_90": whole.arena + whole.weights * 3 // 10 for i in (10, 2, 0, 1)}
    session = mz.Session(tower(width=1024), place=AutoPlace(room))
    assert [*session.program.parts] == [f"gpu:{i}@sm_90" for i in (0, 1, 2, 10)]
    assert [c.device for c in copies(session.program)] == [f"gpu:{i}@sm_90" for i in (1, 2, 10)], (
        "from each to the next"
    )
    assert fits(session, room)


def test_rooms_are_those_of_the_gpus(standin: Standin) -> None:
    graph, x = tower(width=1024), np.ones((8, 1024), np.float32)
    whole = need_of_one(graph, "gpu:0", x=x.shape)
    expected = mz.Session(graph, device="gpu:0")(x)
    room = whole.arena + whole.weights * 3 // 4
    standin.devices, standin.memory = 2, room * SPARED // (SPARED - 1)
    assert all(0 <= room - own < 16 for own in rooms_of("auto").room.values())
    session = mz.Session(graph, place="auto")
    assert [*session.program.parts] == ["gpu:0", "gpu:1"]
    standin.memory *= 2  # that of both together
    np.testing.assert_array_equal(session(x), expected)


def test_without_gpus_all_is_on_the_processor() -> None:
    assert mz.load(digits_model(), place="auto").device.name == "cpu"


def test_a_training_fits_with_its_states() -> None:
    alone = mz.Trainer(digits_model(), optimizer="adamw")
    losses = [alone.step(BATCH) for _ in range(2)]
    need = planned(alone._update)["cpu"]
    room = {d: int(need.total * 0.8) for d in ("cpu:0", "cpu:1")}
    place = AutoPlace(room, {"image": (24, 1, 8, 8)})
    apart = mz.Trainer(digits_model(), optimizer="adamw", place=place)
    assert [apart.step(BATCH) for _ in range(2)] == losses
    assert fits(apart._update, room)
    assert len(apart._update.program.parts) == 2
    with pytest.raises(BudgetError, match="no placement fits"):
        mz.Trainer(digits_model(), place=AutoPlace(dict.fromkeys(room, need.total // 4), place.shapes))
    with pytest.raises(InputError, match="place= beside kvstore="):
        mz.Trainer(digits_model(), place=place, kvstore="local")


def test_explain_proposes_a_placement() -> None:
    whole = need_of_one(mz.load(digits_model()).graph, "gpu:0@sm_90", image=(64, 1, 8, 8))
    room = whole.arena + whole.weights * 3 // 4
    asked: list[Any] = ["explain", DIGITS, "--dim", "batch=64", "--place", "auto", "--kernels"]
    report = as_json(*asked, "--room", f"gpu:0@sm_90={room}", "--room", f"gpu:1@sm_90={room}")
    devices = [(row["device"], row["room"]) for row in report["devices"]]
    assert devices == [("gpu:0@sm_90", room), ("gpu:1@sm_90", room)]
    assert all(0 < row["bytes"] <= row["room"] for row in report["devices"])
    assert report["between_devices"]
    assert "no placement fits" in mezzo(*asked, "--room", "cpu:0=2kB", "--room", "cpu:1=2kB", code=2)
    assert "--room without --place auto" in mezzo("explain", DIGITS, "--room", "cpu:0=1MB", code=2)


def test_a_device_without_a_number_is_the_first_one() -> None:
    assert mz.AutoPlace({"cpu": 5}).devices == ("cpu:0",)
    with pytest.raises(InputError, match="shapes="):
        mz.AutoPlace({"cpu:0": 5}, {"x": 32})
