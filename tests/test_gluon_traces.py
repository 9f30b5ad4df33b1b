"""What a trace holds: values of every type, stops of gradients, numbers drawn anew; nothing of the first batch."""

from __future__ import annotations

import cProfile
import random as python_random
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo import nd
from mezzo.gluon import loss, nn
from mezzo.gluon.hybrid import GraphBroken, HybridBlock
from mezzo.gluon.parameter import Parameter
from mezzo.nd import autograd, random
from mezzo.nd.array import Array
from mezzo.ops.errors import InputError
from mezzo.tools.load import load

from .models import ort_run, referee

RNG = np.random.default_rng(5)
OWN = random.Generator(3)
MASK = nd.asarray(np.array([1, 0, 1], np.float32))


def numbers(*shape: int) -> Array:
    return nd.asarray(RNG.standard_normal(shape).astype(np.float32))


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    if a.dtype.kind in "biu":
        assert np.array_equal(a, b)
        return
    assert np.abs(a - b).max(initial=0) <= tolerance * max(np.abs(b).max(initial=0), 1e-12)


class Of(HybridBlock):
    """A function as a block."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *xs: Any) -> Any:
        return self.function(*xs)


def with_gradients(net: Callable[..., Any], xs: tuple[Array, ...]) -> tuple[Any, list[Any]]:
    """The result, and the gradients of a weighed sum of it to all floating inputs."""
    given = [nd.asarray(x.asnumpy()) for x in xs]
    for x in given:
        if x.dtype.kind == "f":
            x.attach_grad()
    with autograd.record():
        y = net(*given)
        if y.dtype.kind != "f" or y._origin is None:
            return y.asnumpy(), []
        total = (y * (nd.arange(y.size).reshape(y.shape) + 1)).sum()
    total.backward()
    return y.asnumpy(), [x.grad.asnumpy() for x in given if x.grad is not None]


def same(function: Callable[..., Any], *sets: tuple[Array, ...], tolerance: float = 1e-5) -> Of:
    """Eager and hybridized are one for each of these inputs, in two rounds, with gradients; returns the block."""
    net = Of(function).hybridize(fullgraph=True)
    for _ in range(2):
        for xs in sets:
            close(net(*xs).asnumpy(), function(*xs).asnumpy(), tolerance)
            y, gradients = with_gradients(net, xs)
            expected, wanted = with_gradients(function, xs)
            close(y, expected, tolerance)
            assert len(gradients) == len(wanted)
            for g, w in zip(gradients, wanted, strict=True):
                close(g, w, tolerance)
    assert net.report() == "everything is traced"
    return net


FUNCTIONS: dict[str, Callable[[Array], Any]] = {
    "where": lambda x: nd.where(x > 0, x, 0.1 * x),
    "cast to whole": lambda x: x * (x * 3).astype("int32").astype("float32"),
    "argmax": lambda x: nd.take(x, nd.argmax(x), axis=0),
    "not equal": lambda x: x * (nd.round(x) != 0).astype("float32"),
    "order": lambda x: nd.take(x, nd.argsort(x), axis=0),
    "one hot": lambda x: nd.OneHot(nd.argmax(x, axis=0), 3, nd.asarray([0.0, 1.0])) * x,
    "detach": lambda x: x * x.detach(),
    "detached part": lambda x: x * x.detach()[0] + x[1:2],
    "logic": lambda x: nd.logical_and(x > 0, x < 1).astype("float32") * x,
    "only booleans": lambda x: x > 0,
    "only whole": lambda x: nd.argmax(x),
    "signs": lambda x: nd.copysign(x * x, x),
    "input itself": lambda x: x,
    "whole shape": lambda x: x * x.size + len(x),
    "iteration": lambda x: nd.stack([row * i for i, row in enumerate(x)]),
    "unpacked": lambda x: (lambda a, b, c: a * b + c)(*x),
    "outside": lambda x: x * MASK,
    "made inside": lambda x: x * nd.arange(3, dtype="float32") + nd.linspace(0, 1, 3),
    "stop": lambda x: nd.exp(x - nd.max(x).detach()) / nd.sum(nd.exp(x - nd.max(x).detach())),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_of_every_type_are_traced(name: str) -> None:
    same(FUNCTIONS[name], *((numbers(3),) for _ in range(3)))


def paused(x: Array) -> Array:
    with autograd.pause():
        factor = x * x
        flags = factor > 0.5
    return x * factor + nd.where(flags, x, -x)


def in_place(x: Array) -> Array:
    made = nd.zeros((3, 2))
    made[0] = x[:2]
    made[1:, 1] += x[0]
    row = made[0]
    made *= 2
    row += 1
    return made.sum(axis=1) + row[0]


def scattered(x: Array) -> Array:
    made = x * 2
    made[nd.asarray([0, 2])] = x[1]
    made[made > 1] = 1.0
    return made


def squared(x: Array) -> Array:
    y = x * 1
    y.attach_grad()
    with autograd.record():
        total = (y * y * y).sum()
    total.backward()
    made: Array = x + y.grad
    return made


@pytest.mark.parametrize("function", [paused, in_place, squared])
def test_scopes_and_writes_are_traced(function: Callable[[Array], Array]) -> None:
    net = Of(function).hybridize(fullgraph=True)
    for x in (numbers(3), numbers(3), numbers(3)):
        close(net(x).asnumpy(), function(x).asnumpy())
    if function is paused:
        same(function, (numbers(3),), (numbers(3),))


def test_writes_by_arrays_of_places() -> None:
    net = Of(scattered).hybridize(fullgraph=True)
    for x in (numbers(3), numbers(3), numbers(3)):
        close(net(x).asnumpy(), scattered(x).asnumpy())


def test_labels_are_those_of_the_batch() -> None:
    measure = loss.SoftmaxCrossEntropyLoss()
    pred = numbers(6, 4)
    sets = [(pred, nd.asarray(RNG.integers(0, 4, 6))) for _ in range(3)]
    expected = [with_gradients(measure, s) for s in sets]
    measure.hybridize(fullgraph=True)
    for _ in range(2):
        for s, (y, gradients) in zip(sets, expected, strict=True):
            found, others = with_gradients(measure, s)
            close(found, y)
            close(others[0], gradients[0])


def test_embedding_of_what_was_computed() -> None:
    net = nn.Embedding(7, 3).initialize("xavier")

    class Shifted(HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.table = net

        def forward(self, ids: Array) -> Array:
            kept = (ids != 0).astype("float32")
            made: Array = self.table(ids + 1) * nd.expand_dims(kept, axis=-1)
            return made

    block = Shifted()
    sets = [nd.asarray(RNG.integers(0, 6, (2, 4))) for _ in range(3)]
    expected = []
    for ids in sets:
        with autograd.record():
            y = (block(ids) * 2).sum()
        y.backward()
        expected.append((block(ids).asnumpy(), net.weight.grad().asnumpy()))
    block.hybridize(fullgraph=True)
    for ids, (y, gradient) in zip(sets, expected, strict=True):
        with autograd.record():
            total = (block(ids) * 2).sum()
        total.backward()
        close(block(ids).asnumpy(), y)
        close(net.weight.grad().asnumpy(), gradient)


def test_an_export_has_no_mask_of_the_first_batch(tmp_path: Path) -> None:
    net = Of(lambda x: nd.where(x > 0, x, 0.1 * x) * x.detach())
    xs = [numbers(2, 3) for _ in range(3)]
    net.export(tmp_path / "w.onnx", xs[0])
    net.export(tmp_path / "w.mezzo", xs[0])
    run = load(tmp_path / "w.mezzo"), load(tmp_path / "w.onnx")
    for x in xs:
        for session in run:
            close(session(x.asnumpy()), net(x).asnumpy())
    referee()
    for x in xs:
        (found,) = ort_run(tmp_path / "w.onnx", {"x0": x.asnumpy()}).values()
        close(found, net(x).asnumpy())


# -- random numbers ---------------------------------------------------------------------------------------------------


def noisy(x: Array) -> Array:
    kept = random.bernoulli(0.5, x.shape).astype("float32")
    order = random.permutation(3)
    return nd.take(x + random.normal(x.shape) * kept, order, axis=0) * random.randint(1, 9, (3,)).astype("float32")


def test_numbers_are_drawn_anew_and_are_those_of_eager_code() -> None:
    x = numbers(3)
    random.seed(11)
    eager = [noisy(x).asnumpy() for _ in range(4)]
    after = random.normal((2,)).asnumpy()
    net = Of(noisy).hybridize(fullgraph=True)
    random.seed(11)
    found = [net(x).asnumpy() for _ in range(4)]
    assert np.array_equal(random.normal((2,)).asnumpy(), after)
    for a, b in zip(found, eager, strict=True):
        close(a, b, 1e-6)
    assert not np.array_equal(found[0], found[1])


@pytest.mark.parametrize("axes", [(), (1,)])
def test_dropout_draws_the_numbers_of_eager_code(axes: tuple[int, ...]) -> None:
    net, x = nn.HybridSequential(nn.Dropout(0.5, axes), nn.Dropout(0.25)), nd.ones((50, 20))
    seen = []
    for hybrid in (False, True):
        net.hybridize(hybrid, fullgraph=True)
        random.seed(3)
        x.attach_grad()
        for _ in range(2):
            with autograd.record():
                y = net(x)
            y.backward()
            assert x.grad is not None
            seen.append((y.asnumpy(), x.grad.asnumpy()))
    for (a, da), (b, db) in zip(seen[2:], seen[:2], strict=True):
        close(a, b, 1e-6)
        close(da, db, 1e-6)
    assert not np.array_equal(seen[0][0], seen[1][0])


def test_a_loop_that_draws() -> None:
    def wanders(x: Array) -> Array:
        for _ in range(4):
            x = x + random.normal(x.shape) * 0.1
        return x

    x = nd.zeros((64,))
    net = Of(wanders).hybridize(fullgraph=True)
    found = [net(x).asnumpy() for _ in range(3)]
    assert len({f.tobytes() for f in found}) == 3
    assert 0.1 < np.std(found) < 0.3


@pytest.mark.parametrize(
    "draws",
    [
        lambda x: x * python_random.random(),
        lambda x: x * float(np.random.rand()),
        lambda x: x + OWN.normal(x.shape),
    ],
)
def test_other_generators_are_no_part_of_a_graph(draws: Callable[[Array], Array]) -> None:
    x, net = numbers(3), Of(draws).hybridize()
    with pytest.warns(GraphBroken, match="random"):
        first = net(x).asnumpy()
    assert not np.array_equal(net(x).asnumpy(), first)


# -- what surrounds a block -------------------------------------------------------------------------------------------


def test_sorted_numbers_are_exported_without_their_places(tmp_path: Path) -> None:
    net, x = Of(lambda x: nd.sort(x) * 2), numbers(5)
    net.export(tmp_path / "s.onnx", x)
    close(load(tmp_path / "s.onnx")(x.asnumpy()), net(x).asnumpy())


class Holds(HybridBlock):
    """Arrays of its own that are no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.flag = nd.asarray(2.0), nd.asarray(True)
        self.deep: Any = [[[[nd.asarray(3.0)]]]]

    def forward(self, x: Array) -> Array:
        return x * self.scale if self.flag else -x


def test_arrays_from_outside_are_read_anew() -> None:
    net, x = Holds().hybridize(fullgraph=True), nd.ones((2,))
    assert net(x).tolist() == [2, 2]
    net.scale[...] = 5
    assert net(x).tolist() == [5, 5]
    net.scale = nd.asarray(7.0)
    assert net(x).tolist() == [7, 7]
    net.flag[...] = False
    assert net(x).tolist() == [-1, -1]
    assert net.report() == "everything is traced"
    deep = Of(lambda x: x * net.deep[0][0][0][0])
    with pytest.warns(GraphBroken, match=r"nobody can watch it.*test_gluon_traces.py:\d+"):
        assert deep.hybridize()(x).tolist() == [3, 3]
    net.deep[0][0][0][0] = nd.asarray(4.0)
    assert deep(x).tolist() == [4, 4]


def test_other_threads_may_draw_by_numpy() -> None:
    loader, before = threading.Thread(target=np.random.rand), np.random.get_state()[2]  # type: ignore[index]

    def slow(x: Array) -> Array:
        loader.start()
        loader.join()
        return x * 2

    x = nd.ones(2)
    assert Of(slow).hybridize(fullgraph=True)(x).tolist() == [2, 2]
    assert np.random.get_state()[2] != before  # type: ignore[index]


def test_a_profiler_of_c_is_there_again() -> None:
    with cProfile.Profile() as profile:
        Of(lambda x: x * 2).hybridize(fullgraph=True)(nd.ones(2))
        noisy(nd.ones(3))
    profile.create_stats()
    assert any("noisy" in name for _, _, name in profile.stats)


CALLS = [0]


def other(x: Array) -> Array:
    CALLS[0] += 1
    return x + float(CALLS[0]) if x[0] > 0 else x * float(CALLS[0])


def test_a_program_that_begins_otherwise_each_time_ends_imperatively() -> None:
    net = Of(other).hybridize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphBroken)
        for i in range(24):
            net(nd.ones(2) * (-1.0) ** i)
    before = CALLS[0]
    assert net(nd.ones(2)).tolist() == [before + 2.0] * 2
    assert net.breaks


def test_one_array_given_twice_is_two_inputs() -> None:
    net, x, y = Of(lambda a, b: a - 2 * b).hybridize(), numbers(3), numbers(3)
    net(x, x)
    close(net(x, y).asnumpy(), x.asnumpy() - 2 * y.asnumpy())


def test_functions_of_one_code_are_told_apart() -> None:
    def times(factor: float) -> Callable[[Array], Array]:
        return lambda x: x * factor

    net, x = Of(times(2)).hybridize(), nd.ones(1)
    assert net(x).tolist() == [2]
    net.function = times(5)
    assert net(x).tolist() == [5]


COUNT = nd.asarray(0.0)


def counts(x: Array) -> Array:
    COUNT[...] = COUNT + 1
    return x * COUNT


def grows(x: Array) -> Array:
    x += 1
    return x * 2


@pytest.mark.parametrize("function", [counts, grows])
def test_arrays_of_others_are_changed_by_every_call(function: Callable[[Array], Array]) -> None:
    net = Of(function).hybridize()
    with pytest.warns(GraphBroken, match="changed in place"):
        net(nd.ones(2))
    found = [net(x).tolist() for x in (nd.ones(2), nd.ones(2))]
    assert (found[0] != found[1]) == (function is counts)
    x = nd.ones(2)
    net(x)
    assert x.tolist() == ([1, 1] if function is counts else [2, 2])


class Averages(HybridBlock):
    """A state that follows what a branch on numbers decides."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = Parameter("mean", shape=(1,), init="zeros", grad_req="null")
        self.norm = nn.BatchNorm(in_channels=2)

    def forward(self, x: Array) -> Array:
        y: Array = self.norm(x)
        return y * 2 if x.sum() > 0 else y - 1


def test_states_move_once_in_a_run_of_several_graphs() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((6, 2)).astype(np.float32) + s for s in (1, -1, 1, -1, -1)]
    found = []
    for hybrid in (False, True):
        net = Averages().initialize().hybridize(hybrid)
        for x in batches:
            with autograd.record():
                y = net(nd.asarray(x)).sum()
            y.backward()
        found.append([p.data().asnumpy() for p in net.collect_params().values()])
    for a, b in zip(*found, strict=True):
        close(b, a)


def test_a_run_of_several_graphs_draws_the_numbers_of_eager_code() -> None:
    def walk(x: Array) -> Array:
        x = x + random.normal((3,))
        while nd.sum(x) < 4:
            x = x + random.uniform(0, 1, (3,))
        return x * random.normal((3,))

    runs = []
    for hybrid in (False, True):
        net = Of(walk).hybridize(hybrid)
        random.seed(4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GraphBroken)
            runs.append([net(nd.zeros((3,))).asnumpy() for _ in range(6)])
    for a, b in zip(*runs, strict=True):
        close(b, a, 1e-6)


def test_second_derivatives_of_what_draws_are_refused() -> None:
    net, x = nn.HybridSequential(nn.Dropout(0.5)).hybridize(), nd.ones((4,))
    x.attach_grad()
    with autograd.record():
        y = (net(x) ** 2).sum()
        with pytest.raises(InputError, match="draws random numbers"):
            autograd.grad(y, x, create_graph=True)


def test_names_of_parameters_are_their_own() -> None:
    class Named(HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.x0, self.v1, self.s0, self.y0 = (Parameter(n, shape=(2,), init="ones") for n in "xvsy")

        def forward(self, x: Array) -> Array:
            made: Array = nd.tanh(x * self.x0.data() + self.v1.data()) * self.s0.data() + self.y0.data()
            return made

    net, x = Named().initialize(), numbers(2)
    expected = with_gradients(net, (x,))
    net.hybridize(fullgraph=True)
    found = with_gradients(net, (x,))
    close(found[0], expected[0])
    close(found[1][0], expected[1][0])


def test_threads_see_parameters_while_another_one_traces() -> None:
    net = nn.HybridSequential(*(nn.Dense(8, "tanh", in_units=8) for _ in range(6))).initialize("xavier").hybridize()
    xs = [numbers(n, 8) for n in range(1, 9)]
    expected = [net(x).asnumpy() for x in xs]
    net.hybridize()
    found: dict[int, Any] = {}
    several = [threading.Thread(target=lambda i=i: found.__setitem__(i, net(xs[i]).asnumpy())) for i in range(8)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    for i, y in enumerate(expected):
        close(found[i], y)


def test_mezzo_says_it_is_recording() -> None:
    def reads(x: Array) -> Array:
        return x * 2 if autograd.is_recording() else x

    net, x = Of(reads).hybridize(fullgraph=True), nd.ones(1)
    for _ in range(2):
        assert net(x).tolist() == [1]
        with autograd.record():
            assert net(x).tolist() == [2]


# -- arrays of NumPy as arguments --------------------------------------------------------------------------------------


class Scaled(HybridBlock):
    """A block that takes arrays of NumPy in several places, and has something to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, in_units=4)

    def forward(self, x: Any, scale: Any, *, masks: Any = ()) -> Any:
        y = self.dense(nd.asarray(x)) * scale
        for mask in masks:
            y = nd.where(mask, y, 0.0)
        return y


def test_arrays_of_numpy_are_inputs() -> None:
    """One trace, whatever they hold."""
    net = Scaled().initialize("xavier")
    rng = np.random.default_rng(0)
    calls = []
    for _ in range(12):
        x, scale = rng.normal(size=(2, 4)).astype(np.float32), rng.normal(size=3).astype(np.float32)
        calls.append((x, scale, [rng.random(3) > 0.5, rng.random((2, 1)) > 0.5]))
    expected = [net(x, scale, masks=masks).asnumpy() for x, scale, masks in calls]
    plain = [net(nd.asarray(x), scale).asnumpy() for x, scale, _ in calls]
    net.hybridize(fullgraph=True)
    for (x, scale, masks), y, z in zip(calls, expected, plain, strict=True):
        close(net(x, scale, masks=masks).asnumpy(), y)
        close(net(x, scale).asnumpy(), z)
        close(net(nd.asarray(x), scale).asnumpy(), z)
    assert [len(traces) for traces in net._traces.values()] == [1, 1]
    assert net.report() == "everything is traced"


def test_large_arrays_of_numpy_are_inputs_too() -> None:
    net = Of(lambda x: x * 2).hybridize(fullgraph=True)
    for i in range(3):
        x = np.full((100, 100), i, np.float32)
        close(net(x).asnumpy(), x * 2)
        x += 1  # it was copied
    assert [len(traces) for traces in net._traces.values()] == [1]


def test_gradients_with_arrays_of_numpy() -> None:
    net, x, scale = Scaled().initialize("xavier"), np.ones((2, 4), np.float32), np.arange(3, dtype=np.float32)
    found = []
    for hybrid in (False, True):
        net.hybridize(hybrid, fullgraph=True)
        net.zero_grad()
        with autograd.record():
            y = net(x, scale).sum()
        y.backward()
        found.append(net.dense.weight.grad().asnumpy())
    close(found[1], found[0])
    assert found[0].any()


def test_what_only_numpy_does_with_them_is_told() -> None:
    net = Of(lambda x, y: y * float(np.ptp(x.ravel()))).hybridize()
    x, y = np.array([1.0, 4.0]), nd.ones(2)
    with pytest.warns(GraphBroken, match="an array of NumPy, and is used as only these are"):
        assert net(x, y).tolist() == [3, 3]
    assert net(np.array([1.0, 7.0]), y).tolist() == [6, 6]
    texts = Of(lambda x, y: y * len(x)).hybridize(fullgraph=True)
    assert texts(np.array(["a", "b"]), y).tolist() == [2, 2]
    with pytest.raises(InputError, match="as only these are"):
        net.hybridize(fullgraph=True)(x, y)


def test_an_export_takes_them_as_well(tmp_path: Path) -> None:
    x = np.arange(3, dtype=np.float32)
    Of(lambda x: x + 1).export(tmp_path / "net.onnx", x)
    close(load(tmp_path / "net.onnx")(x), x + 1)
