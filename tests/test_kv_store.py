"""The verbs of a store against a model of them; what is refused, and how that is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import mezzo as mz
from mezzo import nd
from mezzo.kvstore.create import KINDS, create
from mezzo.kvstore.states import read_states
from mezzo.kvstore.store import KVStore
from mezzo.ops.errors import InputError, ModelError, ShapeError
from mezzo.runtime.optimizer import SGD, Adam

from .array_modes import Using

KEYS: list[str | int] = ["w", "3", 3, 7]
SHAPES = {"w": (2, 3), "3": (4,), 3: (), 7: (0, 2)}


def array(key: str | int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(-9, 9, SHAPES[key]).astype(np.float32)


class Verbs(RuleBasedStateMachine):
    """A local store and a dict: the same values after any sequence of verbs."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = create("device")
        self.model: dict[str | int, Any] = {}

    @initialize()
    def declare(self) -> None:
        for key in KEYS:
            self.model[key] = array(key, 0)
        self.kv.init(KEYS, [self.model[key].copy() for key in KEYS])

    @rule(key=st.sampled_from(KEYS), seeds=st.lists(st.integers(1, 99), min_size=1, max_size=4), wait=st.booleans())
    def push(self, key: str | int, seeds: list[int], wait: bool) -> None:
        values = [array(key, seed) for seed in seeds]
        handle = self.kv.push(key, values if len(values) > 1 else values[0], wait=wait)
        if handle is not None:
            handle.wait()
        self.model[key] = sum(values[1:], values[0].copy())
        for value in values:
            value[...] = -77  # the store has no part in the caller's arrays

    @rule(key=st.sampled_from(KEYS), seed=st.integers(1, 99), in_place=st.booleans(), wait=st.booleans())
    def pushpull(self, key: str | int, seed: int, in_place: bool, wait: bool) -> None:
        value = array(key, seed)
        outs = [value] if in_place else [np.empty_like(value), np.empty_like(value)]
        handle = self.kv.pushpull(key, value, outs, wait=wait)
        if not wait:
            handle.wait()
        self.model[key] = array(key, seed)
        for out in outs:
            np.testing.assert_array_equal(out, self.model[key])

    @rule(key=st.sampled_from(KEYS), seed=st.integers(1, 99), both=st.booleans(), wait=st.sampled_from([None, True]))
    def arrays_of_the_engine(self, key: str | int, seed: int, both: bool, wait: bool | None) -> None:
        start = nd.asarray(array(key, seed))
        value, later = start + 1, nd.zeros(SHAPES[key])
        seen = later + 0  # reads what `later` is before it is filled
        if both:
            assert self.kv.pushpull(key, value, later, wait=wait) is None
        else:
            self.kv.push(key, value, wait=wait)
            self.kv.pull(key, later, wait=wait)
        value *= 0  # the store has read it before
        self.model[key] = array(key, seed) + 1
        np.testing.assert_array_equal(later.asnumpy(), self.model[key])
        assert not seen.asnumpy().any()

    @rule(seed=st.integers(1, 99), ours=st.booleans())
    def mappings(self, seed: int, ours: bool) -> None:
        made: Any = {key: array(key, seed) for key in KEYS}
        self.model |= {key: value.copy() for key, value in made.items()}
        given = {key: nd.asarray(value) for key, value in made.items()} if ours else made
        self.kv.push(given)
        filled = {key: nd.zeros(SHAPES[key]) for key in KEYS}
        self.kv.pull(filled)
        for key in KEYS:
            np.testing.assert_array_equal(filled[key].asnumpy(), self.model[key])

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, unique=True), seed=st.integers(1, 99))
    def several(self, keys: list[str | int], seed: int) -> None:
        values = [array(key, seed) for key in keys]
        self.kv.push(keys, values, priority=seed)
        self.model |= dict(zip(keys, values, strict=True))

    @rule(seed=st.integers(0, 99))
    def rows(self, seed: int) -> None:
        rows = np.random.default_rng(seed).integers(0, 2, seed % 5)
        out = np.empty((len(rows), 3), np.float32)
        self.kv.row_sparse_pull("w", out, rows)
        np.testing.assert_array_equal(out, self.model["w"][rows])

    @invariant()
    def same_values(self) -> None:
        for key in self.model:
            out = np.empty(SHAPES[key], np.float32)
            self.kv.pull(key, out=out)
            np.testing.assert_array_equal(out, self.model[key])
            np.testing.assert_array_equal(self.kv.pull(key), self.model[key])

    def teardown(self) -> None:
        self.kv.close()


TestVerbs = Verbs.TestCase
TestVerbs.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


@pytest.fixture
def kv() -> Any:
    with create("local") as store:
        store.init(["w", 3], [np.zeros((2, 3), np.float32), np.zeros(4)])
        yield store


def test_push_never_aliases(kv: KVStore) -> None:
    value = np.ones((2, 3), np.float32)
    kv.push("w", value)
    value[...] = 5
    assert (kv.pull("w") == 1).all()
    stored = kv.pull("w")
    kv.push("w", [value, value, stored])  # what was pulled may be pushed
    assert (kv.pull("w") == 11).all()
    with pytest.raises(ValueError, match="read-only"):
        kv.pull("w")[...] = 0


def test_values_of_devices_are_summed_in_their_order() -> None:
    with create("device") as kv:
        kv.init("w", np.zeros(1, np.float32))
        kv.push("w", [np.array([x], np.float32) for x in (1e8, -1e8, 1)])
        assert kv.pull("w") == [1]
        kv.push("w", [np.array([x], np.float32) for x in (1e8, 1, -1e8)])
        assert kv.pull("w") == [0]


@pytest.mark.parametrize("mode", ["threaded", "naive"])
def test_arrays_are_read_and_written_in_the_order_of_the_engine(mode: str) -> None:
    with Using(mode), create("local") as kv:
        w = {"a": nd.zeros((300, 300)), "b": nd.ones((2,))}
        kv.init(w)
        kv.set_optimizer(SGD(rate=0.5))
        for _ in range(20):
            kv.pull(w)
            kv.push({name: x * 0 + 1 for name, x in w.items()})
        kv.pull(w)
        rows = nd.zeros((4, 2))
        kv.pull("b", rows[1])  # a view
        assert (w["a"].asnumpy() == -10).all()
        assert rows.tolist() == [[0, 0], [-9, -9], [0, 0], [0, 0]]
        bad = nd.take(nd.ones((2,)), nd.asarray([7]))  # fails when it is computed
        with pytest.raises(ShapeError, match="'b' was declared"):
            kv.push("b", bad)
        with pytest.raises(InputError, match="'b' was given no array"):
            kv.push("b")


REFUSED: list[tuple[str, Any, type[Exception], list[str]]] = [
    ("a key twice", lambda kv: kv.init("w", np.zeros(1)), InputError, ["'w'", "declared already", "rank 0"]),
    ("True", lambda kv: kv.init(True, np.zeros(1)), InputError, ["True is no key"]),
    ("no key", lambda kv: kv.init(1.5, np.zeros(1)), InputError, ["1.5 is no key"]),
    ("#3", lambda kv: kv.init("#3", np.zeros(1)), InputError, ["'#3'", "confused with 3"]),
    ("objects", lambda kv: kv.init("o", np.array([None])), InputError, ["'o'", "object"]),
    ("unknown", lambda kv: kv.push("v", np.zeros(1)), InputError, ["'v' is not declared", "init"]),
    ("text for number", lambda kv: kv.pull("3"), InputError, ["'3' is not declared", "declared is 3"]),
    ("shape", lambda kv: kv.push("w", np.zeros((3, 2), np.float32)), ShapeError, ["'w'", "[2, 3]", "[3, 2]", "rank 0"]),
    ("type", lambda kv: kv.push("w", np.zeros((2, 3))), ShapeError, ["float32[2, 3]", "float64[2, 3]"]),
    (
        "the second device",
        lambda kv: kv.push(3, [np.zeros(4), np.zeros(5)]),
        ShapeError,
        ["key 3", "value 1 of 2", "[5]"],
    ),
    ("out", lambda kv: kv.pull("w", np.zeros((2, 2), np.float32)), ShapeError, ["[2, 3]", "[2, 2]"]),
    ("a list", lambda kv: kv.push(3, [1.0, 2.0]), InputError, ["float", "not an array"]),
    ("read-only", lambda kv: kv.pull(3, kv.pull(3)), InputError, ["key 3", "read-only"]),
    ("keys and values", lambda kv: kv.push(["w", 3], [np.zeros(4)]), InputError, ["2 keys, but 1"]),
    ("keys and a value", lambda kv: kv.push(["w", 3], np.zeros(4)), InputError, ["2 keys, but one value"]),
    ("rows too high", lambda kv: kv.row_sparse_pull(3, np.zeros(1), [4]), InputError, ["4 to 4", "4 rows"]),
    ("rows below", lambda kv: kv.row_sparse_pull(3, np.zeros(1), [-1]), InputError, ["-1 to -1"]),
    ("rows of floats", lambda kv: kv.row_sparse_pull(3, np.zeros(1), [0.5]), InputError, ["float64", "integers"]),
    ("rows into", lambda kv: kv.row_sparse_pull("w", np.zeros((2, 3), np.float32), [1]), ShapeError, ["[1, 3]"]),
    ("empty", lambda kv: kv.empty((-1, 2)), InputError, ["(-1, 2)"]),
    ("no states", lambda kv: kv.save_optimizer_states("x"), InputError, ["no optimizer", "set_optimizer"]),
]


@pytest.mark.parametrize(("wrong", "kind", "said"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_is_refused(kv: KVStore, wrong: Any, kind: type[Exception], said: list[str]) -> None:
    with pytest.raises(kind) as caught:
        wrong(kv)
    for word in said:
        assert word in str(caught.value)
    assert (kv.pull("w") == 0).all(), "nothing has changed"


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "dist_sinc"}, "did you mean 'dist_sync'"),
    ({"kind": "horovod"}, "There are local, device"),
    ({"kind": "local", "consistency": "eventual"}, "'local' has one"),
    ({"kind": "dist_sync", "consistency": "eventuall"}, "did you mean 'eventual'"),
    ({"kind": "dist_sync", "consistency": "bounded"}, "needs a staleness"),
    ({"kind": "dist_sync", "consistency": "sequential", "staleness": 2}, "nothing else has one"),
    ({"kind": "dist_async", "staleness": -1}, "0 or more"),
    ({"kind": "dist_async", "consistency": ("eventual",)}, "or a pair"),
    ({"kind": "dist_sync", "deadline": 0}, "above 0"),
    ({"kind": "dist_sync", "by_staleness": True}, "in which nothing is stale"),
    ({"kind": "local", "by_staleness": True}, "in which nothing is stale"),
    ({"kind": "dist_sync"}, "DMLC_ROLE is missing"),
]


@pytest.mark.parametrize(("arguments", "said"), ARGUMENTS, ids=[str(a) for a, _ in ARGUMENTS])
def test_what_create_refuses(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], said: str) -> None:
    for name in [n for n in os.environ if n.startswith("DMLC_")]:
        monkeypatch.delenv(name)
    with pytest.raises(InputError) as caught:
        create(**arguments)
    assert said in str(caught.value)


def test_every_local_kind_is_a_store() -> None:
    assert set(KINDS) == {"local", "device", "dist_sync", "dist_async", "dist_device_sync", "nccl"}
    for kind in ("local", "device"):
        with mz.kv.create(kind) as kv:
            assert (kv.kind, kv.rank, kv.num_workers) == (kind, 0, 1)
            kv.barrier()
            kv.init(np.int64(5), np.zeros(1))
            assert kv.pull(5) == 0
            kv.broadcast("a", np.arange(3), out := np.zeros(3, int))
            assert out.tolist() == [0, 1, 2]
            assert kv.stats().pulls == 2
        with pytest.raises(InputError, match="closed"):
            kv.pull("a")


def test_an_updater_of_the_user(kv: KVStore) -> None:
    seen = []

    def average(key: str | int, received: Any, stored: Any) -> None:
        seen.append(key)
        stored += 0.5 * (received - stored)
        received[...] = 99  # its own

    kv.set_updater(average)
    value = np.full(4, 4.0)
    kv.push(3, [value, value])
    kv.push(3, value)
    assert kv.pull(3).tolist() == [4, 4, 4, 4]
    assert seen == [3, 3]
    assert value.tolist() == [4] * 4


def test_an_updater_as_expressions(kv: KVStore, tmp_path: Path) -> None:
    @mz.kv.rule  # type: ignore[untyped-decorator]
    def clipped(e: Any, stored: Any, received: Any, count: Any) -> Any:
        return stored + e.min(received, 1.0), count + 1

    kv.set_updater(clipped)
    kv.push(3, [np.full(4, 0.25), np.full(4, 0.25)])
    kv.push(3, np.full(4, 9.0))
    assert kv.pull(3).tolist() == [1.5] * 4
    kv.save_optimizer_states(tmp_path / "states")
    assert read_states(tmp_path / "states").states["#3"]["count"].tolist() == [2] * 4


def test_updaters_that_are_no_expressions() -> None:
    for function, why in (
        (lambda e, stored: stored, "it does not take"),
        (lambda e, stored, received: np.sqrt(stored), "loop of ufunc|no expression|sqrt"),
        (lambda e, stored, received: (stored, received), "it returns 2 expressions"),
        (lambda e, stored, received: 1.0, "float is no expression"),
        (lambda e, stored, received: stored if stored > received else received, "."),
    ):
        with pytest.raises(InputError, match=why) as raised:
            mz.kv.rule(function)
        assert "compute with e and the operators of Python alone" in str(raised.value)


def test_states_go_on_in_another_store(tmp_path: Path) -> None:
    gradient, path = np.array([1, -2, 3], np.float32), tmp_path / "states.safetensors"
    with create() as first:
        first.init("w", np.ones(3, np.float32))
        first.set_optimizer(Adam(rate=0.1))
        first.push("w", gradient)
        first.save_optimizer_states(path)
        after_one = first.pull("w").copy()
        first.push("w", gradient)
        with create() as second:
            second.init("w", after_one)
            second.load_optimizer_states(path)
            second.push("w", gradient)
            assert second.pull("w").tobytes() == first.pull("w").tobytes()
        with create() as other:
            other.init("w", np.ones(4, np.float32))
            with pytest.raises(ModelError, match="another shape"):
                other.load_optimizer_states(path)
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 7):
        broken = bytearray(data)
        broken[at] ^= 0x55
        path.write_bytes(broken)
        with create() as third:
            third.init("w", after_one)
            with pytest.raises(ModelError, match="no states"):
                third.load_optimizer_states(path)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.states"
    path.write_bytes(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.")
    with create() as kv, pytest.raises(ModelError, match="pickle is never read"):
        kv.load_optimizer_states(path)


def test_the_front_door_imports_it_when_it_is_used() -> None:
    code = "import sys, mezzo; assert 'mezzo.kvstore' not in sys.modules; print(mezzo.kv.create().kind)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "local\n"
