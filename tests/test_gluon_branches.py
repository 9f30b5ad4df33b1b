"""Programs that ask for numbers: each form of `if` and `while` follows the numbers of every call; report() tells where
a graph ends, and fullgraph=True is an error there."""

from __future__ import annotations

import gc
import json
import time
import warnings
from typing import Any

import numpy as np
import pytest

from mezzo import nd
from mezzo.gluon.hybrid import GraphBroken, HybridBlock
from mezzo.gluon.parameter import Parameter
from mezzo.nd import autograd
from mezzo.nd.array import Array
from mezzo.ops.errors import InputError, OutOfRange

from .test_gluon_traces import Of, close, with_gradients

# Inputs whose signs, sizes, orders and places of the largest element differ.
INPUTS = [
    np.array([3.0, -1.0, 2.0], np.float32),
    np.array([-3.0, 1.0, -2.0], np.float32),
    np.array([0.25, 0.5, 8.0], np.float32),
    np.array([-0.5, 40.0, 0.0], np.float32),
    np.array([1.0, 1.0, 1.0], np.float32),
]


def by_sign(x: Array) -> Any:
    if x.sum() > 0:
        return x * 2
    return -x


def by_item(x: Array) -> Any:
    return x * 2 if x.sum().item() > 0 else -x


def by_float(x: Array) -> Any:
    return x * 2 if float(x[0]) > 0 else -x


def by_int(x: Array) -> Any:
    return x * int(nd.argmax(x))


def by_numpy(x: Array) -> Any:
    return x + 1 if x.asnumpy().max() > 2 else x - 1


def by_np_asarray(x: Array) -> Any:
    return x + 1 if np.asarray(x)[1] > 0 else x - 1


def by_list(x: Array) -> Any:
    return x * len([v for v in x.tolist() if v > 0])


def by_elif(x: Array) -> Any:
    if x[0] > 2:
        return x + 1
    elif x[0] > 0:
        return x + 2
    elif x[1] > 30:
        return x + 3
    return x + 4


def by_and(x: Array) -> Any:
    return x * 3 if x[0] > 0 and x[1] > 0 else x


def by_or(x: Array) -> Any:
    return x * 3 if x[0] > 1 or x[1] > 1 else x


def by_not(x: Array) -> Any:
    return x * 3 if not x[0] > 0 else x


def by_chain(x: Array) -> Any:
    return x * 3 if 0 < x[0] < 2 else x


def by_all(x: Array) -> Any:
    return nd.sqrt(x) if nd.all(x >= 0) else x


def by_any(x: Array) -> Any:
    return x * 2 if nd.any(x > 5) else x


def by_python_any(x: Array) -> Any:
    return x * 2 if any(v > 5 for v in x) else x


def by_python_max(x: Array) -> Any:
    return x - max(x[0], x[1])


def by_in(x: Array) -> Any:
    return x * 7 if 1.0 in x else x


def by_equality(x: Array) -> Any:
    return x * 7 if x[0] == x[1] else x


def by_truth(x: Array) -> Any:
    return x * 7 if x[2] else x


def by_index(x: Array) -> Any:
    return [x, x * 2, x * 3][nd.argmax(x)]


def by_slice(x: Array) -> Any:
    return (x[: int(nd.argmax(x)) + 1] * 2).sum()


def by_range(x: Array) -> Any:
    y = x
    for _ in range(int(nd.argmax(x)) + 1):
        y = y * 2
    return y


def by_while(x: Array) -> Any:
    while nd.max(nd.abs(x)) > 1:
        x = x / 2
    return x


def by_while_break(x: Array) -> Any:
    n = 0
    while True:
        x, n = x / 2, n + 1
        if nd.max(x) < 1 or n == 4:
            break
    return x * n


def by_for_break(x: Array) -> Any:
    total = nd.zeros(())
    for v in x:
        if v < 0:
            break
        total = total + v
    return total * x


def by_continue(x: Array) -> Any:
    total = nd.zeros(())
    for v in x:
        if v < 0:
            continue
        total = total + v * v
    return total


def by_assert(x: Array) -> Any:
    assert nd.all(nd.abs(x) < 1000), "too large"
    return x * 2


def by_match(x: Array) -> Any:
    match int(nd.argmax(x)):
        case 0:
            return x + 1
        case 1:
            return x * 2
        case _:
            return -x


def by_try(x: Array) -> Any:
    try:
        return x * {0: 2.0, 2: 3.0}[int(nd.argmax(x))]
    except KeyError:
        return -x


def by_sorted(x: Array) -> Any:
    return nd.stack(sorted(x, key=lambda v: v.item()))


def by_comprehension(x: Array) -> Any:
    return nd.stack([v if v > 0 else -v for v in x])


def by_format(x: Array) -> Any:
    return x * len(f"{x[0]:.0f}")


def by_print(x: Array) -> Any:
    return x * len(str(x))


def by_complex(x: Array) -> Any:
    return x * complex(x[0]).real


def by_recursion(x: Array) -> Any:
    return x if nd.max(x) < 1 else by_recursion(x - 1) * 2 if nd.max(x) < 5 else x / 8


def by_mask(x: Array) -> Any:
    return x[x > 0].sum() * x


def by_nonzero(x: Array) -> Any:
    return x * nd.nonzero(x > 0)[0].size


def by_repeat(x: Array) -> Any:
    return nd.repeat(x, (x > 0).astype("int64") + 1).sum() * x


def by_json(x: Array) -> Any:
    return x * json.loads(json.dumps({"x": x.tolist()}))["x"][0]


def by_dlpack(x: Array) -> Any:
    return x * float(np.from_dlpack(x)[0])


def by_copy(x: Array) -> Any:
    y = nd.zeros((3,))
    y[:2] = 2.0
    if x[0] > 0:
        y[1:] = 5.0
    return y * x


def by_detached(x: Array) -> Any:
    y = x.detach()
    return x * y if y.sum() > 0 else x


def by_two(x: Array) -> Any:
    y = x * 2
    if x[0] > 0:
        y = y + x
    z = nd.tanh(y)
    if z[1] > 0:
        z = z * y
    return z + y


FORMS = {n: f for n, f in sorted(globals().items()) if n.startswith("by_")}
# Those that follow booleans and whole numbers only: their graphs are found by these. What reads other numbers runs
# imperatively.
FOLLOWED = {
    "by_all", "by_and", "by_any", "by_assert", "by_chain", "by_comprehension", "by_continue", "by_copy", "by_detached",
    "by_elif", "by_equality", "by_for_break", "by_in", "by_index", "by_int", "by_match", "by_not", "by_or",
    "by_python_any", "by_python_max", "by_range", "by_recursion", "by_sign", "by_slice", "by_truth", "by_try",
    "by_two", "by_while", "by_while_break",
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.filterwarnings("ignore::mezzo.gluon.hybrid.GraphBroken")
def test_forms_follow_the_numbers_of_every_call(name: str) -> None:
    function = FORMS[name]
    net = Of(function).hybridize()
    for x in map(nd.asarray, INPUTS):
        y, gradients = with_gradients(net, (x,))
        expected, wanted = with_gradients(function, (x,))
        close(y, expected)
        for g, w in zip(gradients, wanted, strict=True):
            close(g, w)
    for x in map(nd.asarray, [*INPUTS[::-1], *INPUTS]):
        close(net(x).asnumpy(), function(x).asnumpy())
    assert net.report() != "everything is traced"
    assert all(f"test_gluon_branches.py:{at.where.split(':')[1].split()[0]}" in str(at) for at in net.breaks)
    assert bool(net._broken) == (name not in FOLLOWED)
    with pytest.raises(InputError, match=r"test_gluon_branches.py:\d+.*|the size of what"):
        Of(function).hybridize(fullgraph=True)(nd.asarray(INPUTS[0]))


def test_there_are_thirty_forms() -> None:
    assert len(FORMS) >= 30
    assert set(FORMS) >= FOLLOWED


def test_a_clock_that_garbage_collection_reads_is_nobodys() -> None:
    def told(phase: str, info: dict[str, int]) -> None:
        time.perf_counter()

    def collecting(x: Any) -> Any:
        gc.collect()  # as it may begin by itself between any two lines
        return x * 2

    gc.callbacks.append(told)
    try:
        net = Of(collecting).hybridize(fullgraph=True)
        assert net(nd.ones((2,))).tolist() == [2, 2]
    finally:
        gc.callbacks.remove(told)


class Rows(HybridBlock):
    """Rows of a table, in one of three ways: as one graph, as two, or imperatively."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.table, self.way = Parameter("table", shape=(4, 3), init="ones"), way

    def forward(self, ids: Array, x: Array) -> Array:
        rows = nd.take(self.table.data(), ids, axis=0)
        if self.way == "two graphs" and nd.sum(x) > 0:
            rows = rows * 2
        if self.way == "imperative" and x.asnumpy().sum() > 0:
            rows = rows * 2
        return rows * nd.sum(x)


@pytest.mark.parametrize("recorded", [False, True], ids=["", "recorded"])
@pytest.mark.parametrize("way", ["one graph", "two graphs", "imperative"])
def test_a_first_call_that_fails_has_one_error(way: str, recorded: bool) -> None:
    """The run that is traced fails too; its numbers are nobody's, and so is its error."""
    net = Rows(way)
    net.initialize()
    net.hybridize()
    bad, good, x = nd.asarray([1, 9]), nd.asarray([1, 2]), nd.ones(2)
    with warnings.catch_warnings(), autograd.record() if recorded else autograd.pause():
        warnings.simplefilter("ignore", GraphBroken)
        with pytest.raises(OutOfRange):
            net(bad, x).asnumpy()
        nd.waitall()
        assert net(good, x).asnumpy().sum() == (12 if way == "one graph" else 24)
        assert ("imperatively" in net.report()) is (way == "imperative")
        with pytest.raises(OutOfRange):
            net(bad, x).asnumpy()
        nd.waitall()
