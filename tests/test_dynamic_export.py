"""Exported with open sizes: a file of one block runs at sizes it was never traced at, here and in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo import nd
from mezzo.gluon import nn, rnn
from mezzo.gluon.hybrid import HybridBlock
from mezzo.nd.array import Array
from mezzo.ops.errors import InputError
from mezzo.tools.load import load

from .models import ort_run, referee

RNG = np.random.default_rng(4)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


class Rows(HybridBlock):
    """Products of sizes, sums of them, and slices that end at one."""

    def forward(self, x: Array) -> Array:
        batch, length, units = x.shape
        flat = nd.reshape(x, (batch * length, units))
        wide = nd.concat([flat, nd.broadcast_to(flat[:1], (2 * batch, units))], axis=0)
        return nd.reshape(wide[: batch * length - 1], (-1,)) * 2


class Both(HybridBlock):
    """Two inputs that share a size."""

    def forward(self, x: Array, y: Array) -> Array:
        return nd.matmul(nd.reshape(x, (x.shape[0], -1)).T, nd.reshape(y, (y.shape[0], -1)))


class Recurrent(HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = rnn.LSTM(4, 2, "NTC", bidirectional=True), nn.Dense(3, flatten=False)

    def forward(self, x: Array) -> Array:
        made: Array = self.out(self.layer(x))
        return made


class Patterns(HybridBlock):
    """Arrays of open sizes that their shape tells: diagonals, ranges, equal numbers."""

    def forward(self, x: Array) -> Array:
        n, m = x.shape
        near = nd.matmul(x, nd.matrix_transpose(x)) * (1 - nd.eye(n)) + nd.ones((n, n)) / 4
        return near + nd.reshape(nd.arange(n, dtype="float32"), (n, 1)) / 8 + (x * nd.full((m,), 0.5))[:, :1]


CASES: dict[str, tuple[Callable[[], HybridBlock], list[tuple[int, ...]], Any, list[list[tuple[int, ...]]]]] = {
    "images": (
        lambda: nn.HybridSequential(nn.Conv2D(4, 3, 2, 1), nn.BatchNorm(), nn.AdaptiveAvgPool2D(1), nn.Dense(3)),
        [(1, 3, 8, 8)],
        {0: "batch", 2: "height", 3: "width"},
        [[(5, 3, 11, 6)], [(1, 3, 9, 32)]],
    ),
    "sequences": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, causal=True),
        [(2, 5, 8)],
        {0: "batch", 1: "length"},
        [[(1, 1, 8)], [(3, 9, 8)]],
    ),
    "recurrent": (Recurrent, [(2, 5, 3)], {0: "batch", 1: "time"}, [[(1, 1, 3)], [(4, 7, 3)]]),
    "pixels": (lambda: nn.PixelShuffle2D(2), [(1, 8, 3, 4)], {0: "n", 2: "h", 3: "w"}, [[(2, 8, 5, 1)]]),
    "positions": (lambda: nn.PositionalEncoding(6), [(2, 4, 6)], {0: "batch", 1: "length"}, [[(1, 11, 6)]]),
    "rows": (Rows, [(2, 3, 4)], {0: "batch", 1: "length"}, [[(1, 5, 4)], [(4, 2, 4)]]),
    "patterns": (Patterns, [(3, 4)], {0: "n", 1: "m"}, [[(1, 4)], [(7, 2)]]),
    "two inputs": (Both, [(2, 3), (2, 4, 2)], {0: {0: "n"}, "x1": {0: "n", 1: "m"}}, [[(5, 3), (5, 7, 2)]]),
}


@pytest.mark.parametrize("name", CASES)
def test_one_file_for_all_sizes(name: str, tmp_path: Path) -> None:
    make, shapes, dynamic, others = CASES[name]
    net = make().initialize("xavier")
    net(*(nd.asarray(numbers(*s)) for s in shapes))
    net.export(tmp_path / "open.onnx", *(nd.asarray(numbers(*s)) for s in shapes), dynamic=dynamic)
    net.export(tmp_path / "open.mezzo", *(nd.asarray(numbers(*s)) for s in shapes), dynamic=dynamic)
    session, other = load(tmp_path / "open.onnx"), load(tmp_path / "open.mezzo")
    for several in ([tuple(s) for s in shapes], *others):
        feeds = {f"x{i}": numbers(*shape) for i, shape in enumerate(several)}
        want = net(*map(nd.asarray, feeds.values())).asnumpy()
        found = [session.run(feeds), other.run(feeds)]
        for (y,) in (f.values() for f in found):
            assert y.shape == want.shape
            np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    names = {i.name: str(i) for i in session.inputs}
    given: Any = dynamic if isinstance(next(iter(dynamic.values())), dict) else {0: dynamic}
    assert all(word in " ".join(names.values()) for axes in given.values() for word in axes.values())


@pytest.mark.parametrize("name", ["images", "sequences", "recurrent", "rows"])
def test_elsewhere_too(name: str, tmp_path: Path) -> None:
    referee()
    make, shapes, dynamic, others = CASES[name]
    net = make().initialize("xavier")
    given = [nd.asarray(numbers(*s)) for s in shapes]
    net(*given)
    net.export(tmp_path / "open.onnx", *given, dynamic=dynamic, opset=20)
    for several in others:
        feeds = {f"x{i}": numbers(*shape) for i, shape in enumerate(several)}
        want = net(*map(nd.asarray, feeds.values())).asnumpy()
        (found,) = ort_run(tmp_path / "open.onnx", feeds).values()
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


class Draws(HybridBlock):
    """Random numbers of open shapes: one of each row, a mask, whole numbers, rows in another order."""

    def forward(self, x: Array) -> tuple[Array, ...]:
        n, m = x.shape
        noise = nd.random.normal((n, 2 * m), 5.0, 0.1)
        kept = nd.random.bernoulli(0.5, (n, m))
        whole = nd.random.randint(3, 9, (m, n, 2))
        return noise, nd.where(kept, x, -x), whole, nd.random.uniform(-1.0, 1.0, (4, 3)), nd.random.permutation(n)


@pytest.mark.parametrize("suffix", [".onnx", ".mezzo"])
def test_what_is_drawn_has_the_sizes_of_the_run(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"draws{suffix}"
    Draws().export(file, nd.ones((2, 3)), dynamic={0: "n", 1: "m"})
    session = load(file)
    for n, m in ((7, 5), (2, 3), (1, 40), (30, 1), (0, 2)):
        x = numbers(n, m)
        noise, kept, whole, fixed, order = (np.asarray(v) for v in session.run({"x0": x}).values())
        assert (noise.shape, whole.shape, fixed.shape) == ((n, 2 * m), (m, n, 2), (4, 3))
        assert np.array_equal(np.sort(order), np.arange(n))
        assert np.array_equal(np.abs(kept), np.abs(x))
        if x.size > 20:
            assert noise.mean() == pytest.approx(5, abs=0.1)
            assert 0.05 < noise.std() < 0.15
            assert len(np.unique(noise)) > noise.size - 2
            assert {*whole.flat} == {*range(3, 9)}
            assert 0.1 < (kept == x).mean() < 0.9


class Branch(HybridBlock):
    def forward(self, x: Array) -> Array:
        return x * 2 if x.shape[0] > 3 else -x


class Table(HybridBlock):
    def forward(self, x: Array) -> Array:
        return x + nd.asarray(np.sin(np.arange(x.shape[0], dtype=np.float32)))


class Squares(HybridBlock):
    """The number of elements is no sum of products of the size."""

    def forward(self, x: Array) -> Array:
        return nd.broadcast_to(x[:1], (x.shape[0] ** 2,))


REFUSED: dict[str, tuple[Callable[[], HybridBlock], tuple[int, ...], Any, str]] = {
    "a branch": (Branch, (2,), {0: "n"}, "at n=4 Branch does something else: Neg"),
    "a table": (Table, (2,), {0: "n"}, "a constant .* depends on the open sizes"),
    "squares": (Squares, (3,), {0: "n"}, "a constant .* depends on the open sizes"),
    "windows": (lambda: nn.AdaptiveAvgPool2D(2), (1, 1, 4, 4), {2: "h"}, "something else: AveragePool"),
    "an axis": (Branch, (2,), {1: "n"}, "axis 1 named 'n' of x0"),
    "an input": (Branch, (2,), {"y": {0: "n"}}, "there is no input 'y'"),
    "a word": (Branch, (2,), {0: "no word"}, "named 'no word'"),
    "sizes": (Branch, (2,), {0: {0: "n"}, 1: {0: "n"}}, "there is no input 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_another_graph_at_another_size(name: str, tmp_path: Path) -> None:
    make, shape, dynamic, said = REFUSED[name]
    with pytest.raises(InputError, match=said):
        make().export(tmp_path / "no.onnx", nd.asarray(numbers(*shape)), dynamic=dynamic)
    assert not (tmp_path / "no.onnx").exists()


def test_sizes_of_one_name_are_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'n' is 2 and 3"):
        Both().export(tmp_path / "no.onnx", nd.ones((2, 3)), nd.ones((3, 3)), dynamic={0: {0: "n"}, 1: {0: "n"}})
    with pytest.raises(InputError, match="2 inputs"):
        Both().export(tmp_path / "no.onnx", nd.ones((2, 3)), nd.ones((2, 3)), dynamic={0: "n"})


class Twos(HybridBlock):
    def forward(self, x: Array, y: Array) -> Array:
        return nd.reshape(x[:, :2], (x.shape[0], 2)) + nd.reshape(y, (x.shape[0],))[:, None]


def test_sizes_that_equal_other_numbers_by_chance(tmp_path: Path) -> None:
    Twos().export(tmp_path / "m.onnx", nd.ones((1, 3)), nd.ones((1, 1)), dynamic={0: {0: "n"}, 1: {0: "n"}})
    x, y = numbers(5, 3), numbers(5, 1)
    found = load(tmp_path / "m.onnx").run({"x0": x, "x1": y})["output0"]
    assert np.array_equal(found, x[:, :2] + y)
