"""Programs on a GPU that is not there: through the stand-in for CuPy, which records and refuses (cupy_standin.py)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mezzo as mz
from mezzo.models.digits import digits_model, held_out
from mezzo.models.workloads import WORKLOADS
from mezzo.ops.types import DType, Tensor, f32
from mezzo.runtime import devices
from mezzo.runtime.backends.cuda import uploads
from mezzo.runtime.backends.cuda.faults import DeviceLost
from mezzo.runtime.backends.cuda.host import HostSteps, host_fallbacks
from mezzo.runtime.backends.cuda.instance import GpuInstance
from mezzo.runtime.backends.cuda.kernels import GPU_KERNELS
from mezzo.runtime.backends.cuda.memory import Resident
from mezzo.runtime.compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest
from mezzo.runtime.devices import device_named
from mezzo.runtime.execution.feeds import checked
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.tools.explain import explain

from .cupy_standin import Standin
from .gpu_checks import steady
from .networks import batch_for, mlp

Array = np.ndarray[Any, Any]


def close(got: dict[Any, Any], want: dict[Any, Any], tolerance: float = 1e-5) -> None:
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert np.abs(np.asarray(got[name]) - array).max() <= tolerance * np.abs(array).max()


def instance(session: mz.Session) -> Any:
    """The instance that ran last."""
    (arena,) = session._arenas._free
    return next(reversed(arena.instances.values()))


def pointwise(n: int = 3) -> Graph:
    """Several steps with kernels of ours: products of sums, softmax."""
    g = GraphBuilder()
    x, y = g.input("x", f32(n, 5)), g.input("y", f32(5))
    return g.graph([g.Softmax(g.Mul(g.Add(x, y), g.Exp(y))), g.Transpose(g.Sub(x, y))])


def feeds(seed: int = 0, n: int = 3) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(n, 5)).astype(np.float32), "y": rng.normal(size=5).astype(np.float32)}


def test_what_counts_on_a_device_counts(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of `make gpu-test` for steady runs, on a device that is not there."""
    check = dict(steady("gpu:0"))["mlp"]
    assert check() == "100 runs, one wait each"
    results = GpuInstance._results

    def twice(self: GpuInstance, outputs: Any) -> list[Any]:
        self.stream.synchronize()
        return results(self, outputs)

    monkeypatch.setattr(GpuInstance, "_results", twice)
    with pytest.raises(AssertionError, match="200 times"):
        check()

    def taking(self: GpuInstance, outputs: Any) -> list[Any]:
        standin.alloc(8)
        return results(self, outputs)

    monkeypatch.setattr(GpuInstance, "_results", taking)
    with pytest.raises(AssertionError, match="100 allocations"):
        check()


def test_an_mlp(standin: Standin) -> None:
    work = WORKLOADS["mlp"]
    graph, fed = work.build(1), work.feeds(1)
    session, want = mz.Session(graph, device="gpu:0"), mz.Session(graph).run(fed)
    for _ in range(3):
        close(session.run(fed), want)


def test_a_run_that_is_replayed(standin: Standin) -> None:
    """Two runs warm up and capture; from the third on a run is a copy, a graph, a copy and one wait: nothing else."""
    graph = pointwise()
    session, cpu = mz.Session(graph, device="gpu:0"), mz.Session(graph)
    for seed in range(2):
        close(session.run(feeds(seed)), cpu.run(feeds(seed)))
    assert instance(session).refused == ()
    assert standin.count("capture") == 1
    for seed in range(2, 5):
        standin.log.clear()
        close(session.run(feeds(seed)), cpu.run(feeds(seed)))
        assert [e.what for e in standin.log if e.what != "launch"] == ["copy", "graph", "copy", "sync"]
        assert {e.stream for e in standin.log} == {instance(session).stream.ptr}


def test_two_instances_have_two_streams(standin: Standin) -> None:
    graph = pointwise()
    sessions = [mz.Session(graph, device="gpu:0") for _ in range(2)]
    for session in sessions:
        session.run(feeds())
    first, second = map(instance, sessions)
    assert len({first.stream.ptr, second.stream.ptr, first._staging.copies.ptr, second._staging.copies.ptr, 0}) == 5


def test_arrays_of_the_device(standin: Standin) -> None:
    """Inputs of the device are taken from there, outputs written there, behind the stream that makes them."""
    cupy: Any = import_module("cupy")  # the stand-in

    graph = pointwise()
    session, want = mz.Session(graph, device="gpu:0"), mz.Session(graph).run(feeds())
    fed = feeds()
    made = cupy.cuda.Stream(non_blocking=True)
    there = cupy.asarray(fed["y"])
    name = session.outputs[0].name
    out = cupy.ndarray(want[name].shape, np.float32)
    for _ in range(3):
        with made:
            standin.touch(made, [], [(there.data.ptr, there.data.ptr + there.nbytes)])
            got = session.run({"x": fed["x"], "y": there}, outputs={name: out})
        assert got[name] is out
        close({**got, name: out.host}, want)
    with pytest.raises(mz.InputError, match="float32"):
        session.run({"x": fed["x"], "y": cupy.asarray(fed["y"].astype(np.float64))})


def test_runs_of_the_same_kind_go_straight(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is checked again for arrays of kinds that were there before; other arrays are."""
    cupy: Any = import_module("cupy")
    graph = pointwise()
    session, cpu = mz.Session(graph, device="gpu:0"), mz.Session(graph)
    buffers = {p.name: cupy.ndarray(p.type.sizes, np.float32) for p in session.outputs if isinstance(p.type, Tensor)}

    def run(seed: int) -> None:
        there = {n: cupy.asarray(a) for n, a in feeds(seed).items()}
        assert session.run(there, outputs=buffers) == buffers
        close({n: b.host for n, b in buffers.items()}, cpu.run(feeds(seed)))

    checks = []

    def counted(*given: Any) -> Any:
        checks.append(given)
        return checked(*given)

    monkeypatch.setattr("mezzo.runtime.execution.session.checked", counted)
    for seed in range(4):
        run(seed)
    assert len(checks) == 2  # the first of each session
    close(session.run({n: cupy.asarray(a) for n, a in feeds(4).items()}, deadline=100.0), cpu.run(feeds(4)))
    with pytest.raises(mz.DeadlineError):
        session.run({n: cupy.asarray(a) for n, a in feeds(4).items()}, deadline=-1.0)
    run(5)
    with pytest.raises(mz.InputError, match="float32"):
        session.run({"x": feeds()["x"].astype(np.float64), "y": cupy.asarray(feeds()["y"])}, outputs=buffers)
    with pytest.raises(mz.InputError, match="buffer"):
        session.run(feeds(), outputs={n: cupy.ndarray((1,), np.float32) for n in buffers})
    run(6)


def test_large_inputs_go_in_pieces(standin: Standin) -> None:
    g = GraphBuilder()
    x, y = g.input("x", f32(3 << 19)), g.input("y", f32(1))
    graph = g.graph([g.Add(x, y)])
    fed = {"x": np.arange(3 << 19, dtype=np.float32), "y": np.ones(1, np.float32)}
    session = mz.Session(graph, device="gpu:0")
    for _ in range(2):
        standin.log.clear()
        close(session.run(fed), mz.Session(graph).run(fed))
        ups = [e for e in standin.log if e.detail == "memcpyHostToDevice"]
        assert sum(e.nbytes for e in ups) == (6 << 20) + 4
        assert len({e.stream for e in ups}) == 2


class Without:
    """A kernel of the GPU, but for some operators: as if it were not there for them."""

    def __init__(self, kernel: Any, *ops: str) -> None:
        self._kernel, self._ops = kernel, ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def serves(self, node: Node) -> bool:
        return node.op not in self._ops and self._kernel.serves(node)


def without(monkeypatch: pytest.MonkeyPatch, *ops: str) -> None:
    """Take operators from all kernels of the GPU."""
    monkeypatch.setattr(
        "mezzo.runtime.backends.cuda.executor.GPU_KERNELS", tuple(Without(k, *ops) for k in GPU_KERNELS)
    )


def test_a_step_without_a_kernel(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host computes it between two graphs, on copies that are named with their bytes."""
    without(monkeypatch, "Softmax")
    g = GraphBuilder()
    x = g.input("x", f32(3, 5))
    graph = g.graph([g.Neg(g.Softmax(g.Exp(x)))])
    with pytest.warns(HostSteps, match="Softmax.*numpy|Softmax.*to the host"):
        session = mz.Session(graph, device="gpu:0")
    want = mz.Session(graph).run({"x": feeds()["x"]})
    for _ in range(3):
        close(session.run({"x": feeds()["x"]}), want)
    (found,) = host_fallbacks(session.program)
    assert [c.nbytes for c in (*found.copies.down, *found.copies.up)] == [60, 60]
    assert [r.index for r in instance(session).refused] == [found.index]
    assert len(instance(session).graphs) == 2


class Spoils:
    """A kernel that does while it is captured what cannot be captured."""

    remembers = True

    fault = ""

    def __init__(self, what: str, op: str = "Softmax") -> None:
        self.name, self._what, self._op = f"spoils by {what}", what, op

    def serves(self, node: Node) -> bool:
        return node.op == self._op

    def select(self, request: KernelRequest) -> Choice | Declined:
        return Choice(self.name)

    def prepare(self, args: KernelArgs) -> Call:
        cupy: Any = import_module("cupy")
        x: Any = args.inputs[0]
        y: Any = args.outputs[0]
        made: Standin = y.standin

        def run() -> None:
            match self._what:
                case "get":
                    x.get()
                case "synchronising":
                    cupy.cuda.get_current_stream().synchronize()
                case "allocating":
                    cupy.cuda.alloc(16)
                case "cuBLAS":
                    cupy.matmul(x, x)
                case "failing":
                    made.submit(cupy.cuda.get_current_stream(), lambda: setattr(made, "fault", self.fault), "a kernel")
                case "the default stream":
                    cupy.cuda.runtime.memcpyAsync(y.data.ptr, x.data.ptr, x.nbytes, 3, 0)
            stream = cupy.cuda.get_current_stream()
            cupy.cuda.runtime.memcpyAsync(y.data.ptr, x.data.ptr, x.nbytes, 3, stream.ptr)

        return run


SPOILT = ["get", "synchronising", "allocating", "cuBLAS", "the default stream"]


@pytest.mark.parametrize("what", SPOILT)
def test_what_cannot_be_captured_is_found_by_trying(
    standin: Standin, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("mezzo.runtime.backends.cuda.executor.GPU_KERNELS", (Spoils(what), *GPU_KERNELS))
    g = GraphBuilder()
    x = g.input("x", f32(3, 5))
    session = mz.Session(g.graph([g.Relu(g.Softmax(g.Neg(x)))]), device="gpu:0")
    fed = {"x": feeds()["x"]}
    for _ in range(3):
        (got,) = session.run(fed).values()
        np.testing.assert_array_equal(got, np.maximum(-fed["x"], 0))
    (refused,) = instance(session).refused
    assert session.program.steps[refused.index].node.op == "Softmax"
    assert session.uncaptured() == ((refused.index, refused.reason),)
    (told,) = (t for t in explain(session, fed, ("kernels",)).tables if t.title == "Not captured")
    assert [row[1] for row in told.rows] == ["Softmax"]
    assert len(instance(session).graphs) == 2
    standin.host_waits()
    standin.races.clear()  # of the default stream, which waits for nobody


def test_what_could_not_be_captured_once_is_tried_again(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal may be that of a moment: of the next runs two capture again, and no more."""
    spoils = Spoils("allocating")
    monkeypatch.setattr("mezzo.runtime.backends.cuda.executor.GPU_KERNELS", (spoils, *GPU_KERNELS))
    g = GraphBuilder()
    session = mz.Session(g.graph([g.Relu(g.Softmax(g.Neg(g.input("x", f32(3, 5)))))]), device="gpu:0")
    for refusals in (0, 1, 1):
        session.run({"x": feeds()["x"]})
        assert len(session.uncaptured()) == refusals
    spoils._what = "nothing any more"
    session.run({"x": feeds()["x"]})
    assert session.uncaptured() == ()
    assert len(instance(session).graphs) == 1
    standin.log.clear()
    session.run({"x": feeds()["x"]})
    assert standin.count("capture") == 0


@pytest.mark.parametrize("check", ["", "1"])
def test_a_fault_is_told_of_the_step_that_has_it(standin: Standin, monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    """CUDA tells of it later. Step by step it is known which one it was; without, that is what the hint says to do."""
    monkeypatch.setenv("MEZZO_GPU_CHECK", check)
    monkeypatch.setattr("mezzo.runtime.backends.cuda.executor.GPU_KERNELS", (Spoils("failing"), *GPU_KERNELS))
    g = GraphBuilder()
    session = mz.Session(g.graph([g.Relu(g.Softmax(g.Neg(g.input("x", f32(3, 5)))))]), device="gpu:0")
    for _ in range(3):
        session.run({"x": feeds()["x"]})
    assert (standin.count("graph") > 0) is (check == "")
    monkeypatch.setattr(Spoils, "fault", "cudaErrorIllegalAddress: an illegal memory access was encountered")
    with pytest.raises(DeviceLost, match="IllegalAddress") as raised:
        session.run({"x": feeds()["x"]})
    assert ("Softmax" in str(raised.value)) is (check == "1")
    assert ("MEZZO_GPU_CHECK=1" in raised.value.hint) is (check == "")
    standin.fault = ""


def test_sizes_that_data_decide_and_control_flow_are_the_hosts(standin: Standin) -> None:
    g = GraphBuilder()
    x = g.input("x", f32(4, 3))
    picked = g.NonZero(g.Exp(g.Neg(x)))
    graph = g.graph([g.Shape(picked), g.Sqrt(g.Abs(x)), picked])
    with pytest.warns(HostSteps, match="run time"):
        session = mz.Session(graph, device="gpu:0")
    for seed in range(3):
        fed = {"x": np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)}
        close(session.run(fed), mz.Session(graph).run(fed))
    assert {a.reason for a in host_fallbacks(session.program)} == {"its sizes are known only at run time"}


def test_states_stay_on_the_device(standin: Standin) -> None:
    g = GraphBuilder()
    x = g.input("x", f32(4))
    total = g.state("total", np.zeros(4, np.float32))
    g.update("total", g.Add(total, x))
    session = mz.Session(g.graph([g.Neg(total)]), device="gpu:0")
    fed = {"x": np.arange(4, dtype=np.float32)}
    for i in range(4):
        (got,) = session.run(fed).values()
        np.testing.assert_array_equal(got, -i * fed["x"])
    np.testing.assert_array_equal(np.asarray(session.states["total"]), 4 * fed["x"])
    session.states["total"][...] = 1
    (got,) = session.run(fed).values()
    np.testing.assert_array_equal(got, -np.ones(4, np.float32))


def test_arrays_of_others_are_waited_for(standin: Standin) -> None:
    """Inputs, buffers of results and states that another stream still writes or reads; and a copy of a state."""
    cupy: Any = import_module("cupy")
    g = GraphBuilder()
    x = g.input("x", f32(4))
    total = g.state("total", np.zeros(4, np.float32))
    g.update("total", g.Add(total, x))
    state, buffer, x_there, other = (cupy.asarray(np.zeros(4, np.float32)) for _ in range(4))
    session = mz.Session(g.graph([g.Neg(total)]), device="gpu:0", states={"total": state})
    (name,) = session.graph.outputs
    mine = cupy.cuda.Stream(non_blocking=True)
    with mine:
        for given in (x_there, np.ones(4, np.float32)):
            for _ in range(3):
                other[...] = buffer  # which is being read when a run writes to it
                state[...] = other
                x_there[...] = other
                session.run({"x": given}, outputs={name: buffer})
        state[...] = other
        np.asarray(session.states["total"])
    assert standin.races == []


def test_a_constant_is_uploaded_once(standin: Standin) -> None:
    table = np.arange(5000, dtype=np.float32)
    g = GraphBuilder()
    graph = g.graph([g.Add(g.input("x", f32(5000)), g.const(table))])
    fed = {"x": table}
    for _ in range(2):
        close(mz.Session(graph, device="gpu:0").run(fed), dict.fromkeys(graph.outputs, table * 2))
    sessions = [mz.Session(graph, device="gpu:0") for _ in range(3)]
    standin.log.clear()
    for session in sessions:
        session.run(fed)
    ups = [e for e in standin.log if e.detail == "memcpyHostToDevice" and e.nbytes == table.nbytes]
    assert len(ups) == 1 + 3  # the constant, and what each run is fed


def test_weights_go_up_in_one_pass(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through pinned memory, with one wait for all; of more than that holds, with a wait where it is used again.
    States of a training too."""

    def run() -> int:
        weights = [np.full((40, 40), 0.01 * i, np.float32) for i in range(6)]
        g = GraphBuilder()
        y = g.input("x", f32(3, 40))
        for w in weights:
            y = g.MatMul(y, g.const(w))
        session, fed = mz.Session(g.graph([y]), device="gpu:0"), {"x": np.ones((3, 40), np.float32)}
        standin.log.clear()
        close(session.run(fed), mz.Session(session.graph).run(fed))
        assert sum(e.nbytes for e in standin.log if e.detail == "memcpyHostToDevice") == 6 * 6400 + 480
        return standin.count("sync")

    assert run() == 2
    monkeypatch.setattr(uploads, "STAGED", 12000)  # each half takes less than a weight
    assert run() == 2 + 5
    standin.log.clear()
    trainer = mz.Trainer(mlp(), device="gpu:0")
    assert standin.count("sync") == 1
    assert standin.count("copy") == len(trainer.states)


def test_no_room(standin: Standin) -> None:
    g = GraphBuilder()
    x = g.input("x", f32("batch", 1 << 16))
    session = mz.Session(g.graph([g.Softmax(g.Exp(x))]), device="gpu:0")
    standin.memory = 4 << 20
    with pytest.raises(mz.BudgetError, match="free") as raised:
        session.run({"x": np.zeros((64, 1 << 16), np.float32)})
    assert "batch" in raised.value.hint
    session.run({"x": np.zeros((2, 1 << 16), np.float32)})
    info = mz.gpu_memory_info(0)
    assert 0 < info.in_use <= info.reserved <= info.total == 4 << 20


def test_deadlines_and_cancelling(standin: Standin) -> None:
    session = mz.Session(pointwise(), device="gpu:0")
    for _ in range(3):
        with pytest.raises(mz.DeadlineError):
            session.run(feeds(), deadline=-1.0)
        session.run(feeds(), deadline=100.0)


def test_observers_see_each_step(standin: Standin) -> None:
    session, seen = mz.Session(pointwise(), device="gpu:0"), list[tuple[str, int]]()
    cpu = mz.Session(pointwise()).run(feeds())

    def observe(phase: str, index: int, step: Any, instance: Any) -> None:
        seen.append((phase, index))
        if phase == "after":
            assert all(n in instance.arrays for n in step.writes())

    for _ in range(2):
        close(session.run(feeds(), observe=observe), cpu)
        close(session.run(feeds()), cpu)
    assert len(seen) == 4 * len(session.program.steps)


def test_without_cupy_and_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(mz.MissingPackage, match=r"CuPy|CUDA") as raised:
        device_named("gpu:0")
    assert "pip install" in raised.value.hint or "doctor" in raised.value.hint
    with pytest.raises(mz.InputError):
        device_named("gpu:first")
    session = mz.Session(pointwise(), device="gpu:0@sm_80")
    assert session.program.target.sm == 80
    with pytest.raises(mz.MissingPackage, match="plan") as raised:
        session.run(feeds())
    assert "gpu:0" in raised.value.hint
    assert devices.DEVICES["gpu:0@sm_80"].sm == 80


def test_no_device_at_all(standin: Standin) -> None:
    with pytest.raises(mz.MissingPackage, match="shows 1 GPU"):
        device_named("gpu:1")


def test_a_file_keeps_the_program(standin: Standin, tmp_path: Path) -> None:
    """A variant for a GPU, with a branch that runs on the host: read, confirmed and run."""
    g = GraphBuilder()
    x, go = g.input("x", f32(3, 5)), g.input("go", Tensor(DType.BOOL, ()))
    then = g.op("If", go, then_branch=branch(g, "Relu", x), else_branch=branch(g, "Neg", x))
    graph = g.graph([g.Exp(then), g.Softmax(x)])
    fed = {"x": feeds()["x"], "go": np.array(False)}
    with pytest.warns(HostSteps, match="control flow"):
        session = mz.Session(graph, device="gpu:0")
    want = mz.Session(graph).run(fed)
    close(session.run(fed), want)
    session.save(tmp_path / "m.mezzo")
    again = mz.load(tmp_path / "m.mezzo", device="gpu:0")
    with pytest.warns(HostSteps, match="control flow"):
        again.warmup({})
    assert again.bound_from == "variant"
    assert again.program.target.sm == 90
    for _ in range(3):
        close(again.run(fed), want)
    assert mz.load(tmp_path / "m.mezzo").bound_from.startswith("graph")


def branch(g: GraphBuilder, op: str, x: str) -> Graph:
    """One operator on a value of the scope around it."""
    inner = GraphBuilder(prefix=f"{op}/")
    return inner.graph([inner.op(op, x)])


def test_a_small_convolutional_network(standin: Standin) -> None:
    """Digits, by our own kernels throughout: convolutions, pooling, a product."""
    images = held_out().inputs[:3]
    session = mz.load(digits_model(), device="gpu:0")
    want = mz.load(digits_model()).run({"image": images})
    for _ in range(3):
        close(session.run({"image": images}), want)
    assert not host_fallbacks(session.program)
    assert instance(session).refused == ()


def test_commands_that_tell_of_a_gpu(standin: Standin) -> None:
    from mezzo.tools.coverage_cells import available
    from mezzo.tools.doctor import doctor

    (devices_of,) = (t for t in doctor().tables if t.title == "Devices")
    gpu = next(row for row in devices_of.rows if row[0] == "gpu:0")
    assert gpu[1] == "on"
    assert "sm_90" in gpu[2]
    assert "MiB free" in gpu[2]
    assert available("gpu") == "gpu:0"
    assert mz.onnx.Backend.supports_device("CUDA")
    assert mz.onnx.Backend.supports_device("CUDA:0")
    assert not mz.onnx.Backend.supports_device("CUDA:1")
    model = mz.onnx.Backend.prepare(onnx.load(digits_model()), "CUDA")
    images = held_out().inputs[:1]
    close(
        dict(enumerate(model.run([images]))), dict(enumerate(mz.load(digits_model()).run({"image": images}).values()))
    )


def test_training(standin: Standin, tmp_path: Path) -> None:
    """A Trainer keeps its states on the device, and all of its step runs there; a checkpoint goes to the CPU. The graph
    that was captured follows the schedule of rates: it counts the updates itself. Metrics are read when asked for.
    """
    digits = held_out()
    batch = {"image": digits.inputs[:4], "target": digits.labels[:4]}
    how: dict[str, Any] = {"optimizer": mz.optimizer.Adam(rate=mz.schedule.Cosine(0.002, 5))}
    here, there = mz.Trainer(digits_model(), **how), mz.Trainer(digits_model(), **how, device="gpu:0")
    losses = [there.step(batch) for _ in range(2)]
    for _ in range(2):
        standin.log.clear()
        losses.append(there.step(batch))
        assert [e.what for e in standin.log if e.what != "launch"] == ["copy", "graph", "copy", "sync"]
    np.testing.assert_allclose(losses, [here.step(batch) for _ in losses], rtol=1e-3)
    standin.log.clear()
    assert there.metrics().samples == 16
    assert there.metrics().loss == pytest.approx(here.metrics().loss, rel=1e-3)
    assert standin.count("copy") == 6
    assert not host_fallbacks(there._update.program)
    assert all(isinstance(s, Resident) for s in there.states.values())
    there.save(tmp_path)
    again = mz.Trainer(digits_model(), **how)
    again.resume(tmp_path)
    np.testing.assert_allclose(again.step(batch), here.step(batch), rtol=1e-3)


def test_a_loss_scale_moves_on_the_device(standin: Standin) -> None:
    """In float16 the scale halves when a gradient overflows: in the captured graph, as on the CPU."""
    graph, batch = mlp(), batch_for(mlp(), 0)
    trainers = [mz.Trainer(graph, amp="fp16", device=d) for d in ("cpu", "gpu:0")]
    for trainer in trainers:
        trainer.states["optimizer/scale"][...] = 2.0**21  # the first gradients overflow
    here, there = (np.array([(t.step(batch), t.loss_scale, t.updates) for _ in range(6)], np.float64) for t in trainers)
    np.testing.assert_allclose(there, here, rtol=2e-2)
    assert here[0, 1:].tolist() == [2.0**20, 0]
    assert here[-1, 2] > 1
    assert not host_fallbacks(trainers[1]._update.program)
