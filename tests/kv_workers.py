"""Workers of one host, for tests/test_kv_host.py: `python -m tests.kv_workers SCENARIO COUNT FOLDER` forks them from a
process that has imported everything, and prints what each of them says as a line of JSON (null for one that failed)."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mezzo.kvstore.create import create
from mezzo.kvstore.epochs import Epochs
from mezzo.kvstore.host.mesh import called, join
from mezzo.kvstore.host.opening import host_store
from mezzo.kvstore.protocol.consistency import parse
from mezzo.kvstore.rule import rule
from mezzo.kvstore.store import KVStore
from mezzo.ops.errors import MezzoError
from mezzo.runtime.optimizer import SGD, Adam

from .forked import print_answers

SCENARIOS: dict[str, Callable[[int, int], Any]] = {}
KEPT: dict[str, KVStore] = {}  # what ends with its process
JOB = f"mezzo-test/{os.getpid()}"


def scenario(run: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    SCENARIOS[run.__name__] = run
    return run


def store(me: int, count: int, deadline: float = 60.0, name: str = "", consistency: str = "sequential") -> KVStore:
    mesh = join(f"{JOB}/{name}", me, called(range(count)), deadline)
    return KVStore(host_store("level 1", mesh, range(count), deadline, parse(consistency)))


def patience(kv: KVStore, deadline: float) -> None:
    """From now on waits end after so many seconds."""
    kv._backend.group.deadline = deadline  # type: ignore[attr-defined]


def here(me: int) -> None:
    """Tell rank 1 that this worker has come so far."""
    (Path(sys.argv[3]) / f"here-{me}").touch()


def others_are_there(count: int) -> None:
    """What rank 1 does until all others have said `here`."""
    files = [Path(sys.argv[3]) / f"here-{rank}" for rank in range(count) if rank != 1]
    while not all(file.exists() for file in files):
        time.sleep(0.01)


def operand(rank: int, turn: int, size: int, dtype: str) -> Any:
    return (np.random.default_rng([rank, turn, size]).normal(size=size) * 100).astype(dtype)


def total(count: int, turn: int, size: int, dtype: str) -> Any:
    """The sum in the order of ranks."""
    made = operand(0, turn, size, dtype)
    for rank in range(1, count):
        made = made + operand(rank, turn, size, dtype)
    return made


def refusal(call: Callable[[], Any]) -> tuple[str, str, float]:
    """The error of a call: its kind, what it says, after how many seconds."""
    started = time.monotonic()
    try:
        call()
    except MezzoError as error:
        return type(error).__name__, str(error), time.monotonic() - started
    raise AssertionError("nothing was raised")


CASES = [
    (1, "float32"),
    (1000, "float64"),
    (16384, "int32"),
    (16385, "float32"),
    (100_003, "float16"),
    (70_001, "float64"),
]


@scenario
def sums(me: int, count: int) -> Any:
    """Every kind of array, in every way, against sums in the order of ranks, to the last bit."""
    with store(me, count) as kv:
        for size, dtype in CASES:
            key = f"{dtype}/{size}"
            kv.init(key, np.zeros(size, dtype))
            shared, out = kv.empty(size, dtype), np.empty(size, dtype)
            for turn in range(4):
                expected = total(count, turn, size, dtype).tobytes()
                given = operand(me, turn, size, dtype)
                shared[...] = given
                assert kv.pushpull(key, shared if turn % 2 else given).tobytes() == expected
                kv.push(key, shared if turn % 2 else given)
                given[...] = 0  # taken; a shared one is read in place
                kv.pull(key, out)
                assert out.tobytes() == expected
                kv.pushpull(key, shared, out=shared)
                assert shared.tobytes() == expected
                one, two = operand(me, turn, size, dtype), operand(me, turn + 9, size, dtype)
                kv.pushpull(key, [one, two], out=[out, shared])
                assert out.tobytes() == shared.tobytes() == kv.pull(key).tobytes()
        stats = kv.stats()
        assert stats.pushes == len(CASES) * 16
        assert stats.between == 0 < stats.inside
        for shape in ((), (0, 3)):
            kv.init(str(shape), np.ones(shape))
            assert (kv.pushpull(str(shape), np.full(shape, float(me))) == sum(range(count))).all()
    return "good"


@scenario
def cancelling(me: int, count: int) -> Any:
    """1e8 - 1e8 + 1 depends on the order: one value in 1,000 rounds, whoever comes first."""
    value = np.array([(1e8, -1e8, 1)[me]], np.float32)
    with store(me, count) as kv:
        kv.init(0, np.zeros(1, np.float32))
        return sorted({float(kv.pushpull(0, value)[0]) for _ in range(1000)})


@scenario
def orders(me: int, count: int) -> Any:
    """Workers push keys in different orders, with and without waiting; rounds of one key stay in order."""
    keys = [f"{size}/{i}" for i in range(6) for size in (10, 30_000)]
    mine = [keys[(i * (5, 7, 1, 11)[me] + me) % len(keys)] for i in range(len(keys))]
    assert sorted(mine) == sorted(keys)
    sizes = {key: int(key.split("/")[0]) for key in keys}
    with store(me, count) as kv:
        kv.init(mine if me else keys, [np.zeros(sizes[key]) for key in (mine if me else keys)])
        kv.barrier()
        for turn in range(5):
            values = [operand(me, turn, sizes[key], "float64") for key in mine]
            if turn % 2:
                for key, value in zip(mine, values, strict=True):
                    kv.push(key, value)
                answers = [kv.pull(key) for key in mine]
            else:
                pairs = list(zip(mine, values, strict=True))
                handles = [kv.pushpull(key, v, priority=i, wait=False) for i, (key, v) in enumerate(pairs)]
                later = kv.pull(mine[0], wait=False)  # comes after the push of its key
                answers = [handle.wait()[0] for handle in reversed(handles)][::-1]
                assert later.wait()[0].tobytes() == answers[0].tobytes()
            for key, answer in zip(mine, answers, strict=True):
                assert answer.tobytes() == total(count, turn, sizes[key], "float64").tobytes()
    return "good"


@scenario
def apart(me: int, count: int) -> Any:
    """Two rounds of one key under way: a member is one ahead while another looks at something else."""
    with store(me, count) as kv:
        kv.init(["a", "b"], [np.zeros(4), np.zeros(50_000)])
        for turn in range(20):
            for key in ("a", "b") if me else ("b", "a"):
                kv.push(key, np.full(kv.pull(key).shape, turn + me, float))
            if turn % 5 == me:
                time.sleep(0.01)
        return [float(kv.pull(key)[0]) for key in ("a", "b")]


@scenario
def optimizer(me: int, count: int) -> Any:
    """Steps of parts, here and in one process, give the same bits; states are saved and loaded."""
    file = Path(sys.argv[3]) / "states.safetensors"
    sizes = {"small": 33, "large": 100_001}
    rules = [SGD(rate=0.1, momentum=0.9), Adam(rate=0.01)]
    for i, each in enumerate(rules):
        with store(me, count, name=str(i)) as kv, create() as alone:
            for one in (kv, alone):
                one.init(list(sizes), [np.ones(size, np.float32) for size in sizes.values()])
                one.set_optimizer(each)
            for turn in range(4):
                if turn == 2:
                    kv.save_optimizer_states(file)
                    kv.set_optimizer(rules[1 - i])  # forgets the states
                    kv.load_optimizer_states(file)
                for key, size in sizes.items():
                    alone.push(key, total(count, turn, size, "float32"))
                    kv.push(key, operand(me, turn, size, "float32"))
            for key in sizes:
                assert kv.pull(key).tobytes() == alone.pull(key).tobytes(), (each, key)
            alone.load_optimizer_states(file)  # what N workers saved one can read
            kv.barrier()
    return "good"


@scenario
def killed(me: int, count: int) -> Any:
    with store(me, count) as kv:
        kv.init("w", np.zeros(50_000))
        kv.pushpull("w", np.ones(50_000))
        kv.barrier()
        if me == 1:
            others_are_there(count)
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        here(me)
        first = refusal(lambda: kv.pushpull("w", np.ones(50_000)))
        return [first, refusal(lambda: kv.pull("w"))]


@scenario
def leaving(me: int, count: int) -> Any:
    """One worker has fewer batches."""
    with store(me, count) as kv:
        kv.init(["small", "large"], [np.zeros(3), np.zeros(50_000)])
        for _ in range(3):
            kv.push(["small", "large"], [np.ones(3), np.ones(50_000)])
        if me == 1:
            return float(kv.pull("small")[0])
        found = [refusal(partial(_fourth, kv, "small", 3)), refusal(partial(_fourth, kv, "large", 50_000))]
        return [found, refusal(kv.barrier)]


def _fourth(kv: KVStore, key: str, size: int) -> None:
    kv.push(key, np.ones(size))  # the others may have left by now, or leave later
    kv.pull(key)


@scenario
def failing(me: int, count: int) -> Any:
    """One worker leaves with an error of its own."""
    kv = store(me, count)
    kv.init("w", np.zeros(3))
    if me == 1:
        others_are_there(count)
        try:
            with kv:
                raise ValueError("no such file")
        except ValueError:
            return "left"
    here(me)
    with kv:
        return refusal(lambda: kv.pushpull("w", np.ones(3)))


@scenario
def silent(me: int, count: int) -> Any:
    """One worker does not push in time."""
    with store(me, count) as kv:
        kv.init(["w", "v"], [np.zeros(3), np.zeros(50_000)])
        if me == 1:
            others_are_there(count)
            kv.push(["w", "v"], [np.ones(3), np.ones(50_000)])
            return kv.pushpull("w", np.ones(3)).tolist()
        patience(kv, 0.4)
        given = np.ones(50_000)
        found = [refusal(lambda: kv.pushpull("w", np.ones(3))), refusal(lambda: kv.pushpull("v", given))]
        given[...] = 7  # it is this worker's again
        here(me)
        patience(kv, 60)
        after = kv.pushpull("w", np.ones(3)).tolist()
        assert (kv.pull("v") == 3).all()
        return [*found, after]


@scenario
def ordinary(me: int, count: int) -> Any:
    """Arrays of NumPy in the place where they lie, as the others may read it or not; how many were copied to shared
    memory, and a step of an optimizer."""
    with store(me, count) as kv:
        group = kv._backend.group  # type: ignore[attr-defined]
        if "REFUSED" in os.environ and me == 1:
            group.probe.answered(0, False)
        sizes = {"float32": 300_007, "float64": 50_001, "float16": 1_000_003}
        kv.init(list(sizes), [np.zeros(size, dtype) for dtype, size in sizes.items()])
        kv.barrier()
        kv.barrier()  # what all have answered is here then
        assert group.probe.may is not ("REFUSED" in os.environ and me == 1)
        for turn in range(3):
            for dtype, size in sizes.items():
                given, out = operand(me, turn, size, dtype), np.empty(size, dtype)
                expected = total(count, turn, size, dtype).tobytes()
                assert kv.pushpull(dtype, given).tobytes() == expected
                kv.pushpull(dtype, given, out=out)
                assert out.tobytes() == expected
                assert given.tobytes() == operand(me, turn, size, dtype).tobytes()
                both = np.concatenate([given, given[:1]])  # arrays that overlap
                kv.pushpull(dtype, both[:-1], out=both[1:])
                assert both[1:].tobytes() == expected
                handle = kv.pushpull(dtype, given, out=given, wait=False)
                handle.wait()
                assert given.tobytes() == expected == kv.pull(dtype).tobytes()
        copied = sum(len(value.slots) for value in group._values.values())
        kv.set_optimizer(SGD(rate=0.5))
        before = kv.pull("float64").copy()
        given = operand(me, 5, sizes["float64"], "float64")
        kv.pushpull("float64", given, out=given)
        assert given.tobytes() == (before - 0.5 * total(count, 5, sizes["float64"], "float64")).tobytes()
        return copied


@scenario
def vanishing(me: int, count: int) -> Any:
    """One worker is killed when it has begun a round, before the others do: its array cannot be read any more. With
    LATE another comes when the first has left because of it. Nobody closes the store: it is not given back to the
    collector before the process ends either, whose warnings of open sockets would come at a moment of their own."""
    kv = KEPT[""] = store(me, count)
    kv.init("v", np.zeros(50_000))
    kv.barrier()
    kv.barrier()
    assert kv._backend.group.probe.may  # type: ignore[attr-defined]
    here = Path(sys.argv[3]) / "pid"
    if me == 1:
        kv.pushpull("v", np.ones(50_000), wait=False)
        here.with_suffix(".part").write_text(str(os.getpid()))
        here.with_suffix(".part").rename(here)
        os.kill(os.getpid(), signal.SIGKILL)
    ended(here)
    if me == 0:
        left = here.with_name("left")
        left.with_suffix(".part").write_text(str(os.getpid()))
        left.with_suffix(".part").rename(left)
    elif "LATE" in os.environ:
        ended(here.with_name("left"))
    return refusal(lambda: kv.pushpull("v", np.ones(50_000)))


def ended(file: Path) -> None:
    """Wait until the process whose number comes to lie in a file has ended."""
    while not file.exists():
        time.sleep(0.01)
    stat = Path(f"/proc/{file.read_text()}/stat")
    while stat.exists() and ") Z" not in stat.read_text():
        time.sleep(0.01)


@scenario
def disagreeing(me: int, count: int) -> Any:
    with store(me, count) as kv:
        kv.init("good", np.zeros(2))
        shape = (3, 2) if me == 1 else (2, 3)
        found = refusal(lambda: kv.init("w", np.zeros(shape, np.float32))) if me == 1 else None
        if me != 1:
            kv.init("w", np.zeros(shape, np.float32))
        kv.barrier()
        found = found or refusal(lambda: kv.push("w", np.ones((2, 3), np.float32)))
        other = refusal(lambda: kv.set_optimizer(SGD(rate=0.1 + me)))
        code = refusal(lambda: kv.set_updater(disagreeing))  # type: ignore[arg-type]
        return [found, other, code, kv.pushpull("good", np.ones(2))[0]]


@rule
def leaky(e: Any, stored: Any, received: Any, total: Any) -> Any:
    """An updater of a user, with a state."""
    total = total * 0.5 + e.abs(received)
    return stored - received / (1 + total), total


def leaked(value: np.ndarray[Any, Any], total: np.ndarray[Any, Any], received: np.ndarray[Any, Any]) -> None:
    """The same with NumPy, in place."""
    total[...] = total * 0.5 + np.abs(received)
    value -= received / (1 + total)


@scenario
def epochs(me: int, count: int) -> Any:
    """Workers with other numbers of steps, the last of whom has fewer; with an optimizer, too."""
    with store(me, count) as kv:
        made = Epochs(kv)
        kv.init("w", np.zeros(2))
        kv.set_optimizer(SGD(rate=0.1))
        steps = 5 - (me == count - 1)
        for _ in range(made.join(steps, uneven=True)):
            kv.push("w", np.ones(2))
        return [made.join(7), refusal(lambda: made.join(steps)), made.join(me, uneven=True)]


@scenario
def ruled(me: int, count: int) -> Any:
    """How far values are from what a user's updater makes of them."""
    with store(me, count) as kv:
        far = 0.0
        for size in (3, 70_000):
            value, total = np.linspace(-1, 1, size, dtype=np.float32), np.zeros(size, np.float32)
            kv.init(f"w{size}", value)
            kv.set_updater(leaky)
            for step in range(3):
                given = [np.sin(np.arange(size) + rank + step).astype(np.float32) for rank in range(count)]
                leaked(value, total, np.sum(given, 0))
                found = kv.pushpull(f"w{size}", given[me])
                far = max(far, float(np.abs(found - value).max()))
        return far


@scenario
def eventual(me: int, count: int) -> Any:
    """Every push counts once, whoever comes when; a pull is never torn."""
    with store(me, count, consistency="eventual") as kv:
        sizes = {"small": 5, "large": 60_000}
        kv.init(list(sizes), [np.zeros(size) for size in sizes.values()])
        shared, torn = kv.empty(60_000, float), 0
        for turn in range(60):
            kv.push("small", np.ones(5))
            shared[...] = turn + 1
            handle = kv.push("large", [shared, shared], wait=False)
            torn += len(np.unique(kv.pull("large"))) > 1
            assert handle is not None
            handle.wait()
        kv.barrier()
        first = [float(kv.pull(key).min()) for key in sizes] + [float(kv.pull(key).max()) for key in sizes]
        kv.barrier()
        kv.init("steps", np.zeros(1000, np.float32))
        kv.set_optimizer(SGD(rate=0.5))
        kv.init("more", np.zeros(3, np.float32))
        for _ in range(20):
            kv.push(["steps", "more"], [np.ones(1000, np.float32), np.ones(3, np.float32)])
        kv.barrier()
        kv.save_optimizer_states(Path(sys.argv[3]) / "states")
        kv.load_optimizer_states(Path(sys.argv[3]) / "states")
        steps = [float(kv.pull("steps")[7]), float(kv.pull("more")[0])]
        kv.barrier()
        kv._backend.group.rule = Slow()  # type: ignore[attr-defined]
        for _ in range(15):
            kv.push("more", np.ones(3, np.float32))
        kv.barrier()
        return [torn, first, *steps, float(kv.pull("more")[0]) - steps[1]]


class Slow:
    """An optimizer that loses what another worker writes at the same time."""

    def step(
        self, name: str, update: int, value: Any, gradient: Any, states: Any, begin: int = 0, staleness: int = 0
    ) -> None:
        before = value.copy()
        time.sleep(0.002)
        value[...] = before + gradient


@scenario
def bounded(me: int, count: int) -> Any:
    """Nobody is more than 2 pushes ahead of a slow worker; one that has left is waited for no more."""
    with store(me, count, consistency="bounded 2") as kv:
        kv.init("w", np.zeros(40_000))
        for _ in range(12 if me == 1 else 20):
            time.sleep(0.01 if me == 1 else 0)
            kv.push("w", np.ones(40_000))
            kv.pull("w")
        return [max(kv.stats().staleness), sum(kv.stats().staleness.values())]


@scenario
def behind(me: int, count: int) -> Any:
    """A worker that never pushes is named."""
    with store(me, count, consistency="bounded 2") as kv:
        kv.init("w", np.zeros(3))
        if me == 1:
            others_are_there(count)
            return None
        kv.push("w", np.ones(3))
        kv.push("w", np.ones(3))
        patience(kv, 0.4)
        found = refusal(lambda: kv.pushpull("w", np.ones(3)))
        here(me)
        patience(kv, 60)
        return found


@scenario
def killed_while_pushing(me: int, count: int) -> Any:
    with store(me, count, consistency="eventual") as kv:
        kv.init("w", np.zeros(200_000))

        def forever() -> None:
            while True:
                kv.push("w", np.ones(200_000))

        kv.barrier()
        here(me)
        if me == 1:
            others_are_there(count)
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        return refusal(forever)


@scenario
def lonely(me: int, count: int) -> Any:
    """A worker that does not start."""
    return "asleep" if me == 1 else refusal(lambda: store(me, count, deadline=4))


@scenario
def forgotten(me: int, count: int) -> Any:
    """Memory of arrays that nobody holds is given back, here and at the others."""

    def maps() -> int:
        return sum("memfd:mezzo" in line for line in Path("/proc/self/maps").read_text().splitlines())

    files = len(os.listdir("/proc/self/fd"))
    with store(me, count) as kv:
        kv.init("w", np.zeros(50_000))
        for turn in range(30):
            kv.pushpull("w", kv.empty(50_000, float))
            ordinary = np.full(50_000, turn, float)  # may lie where a shared one was
            assert (kv.pushpull("w", ordinary) == turn * count).all()
        kv.barrier()
        held = maps()
    del kv
    return [held, len(os.listdir("/proc/self/fd")) - files]


def main() -> int:
    name, count = sys.argv[1], int(sys.argv[2])
    return print_answers(count, lambda me: SCENARIOS[name](me, count))


if __name__ == "__main__":
    sys.exit(main())
