"""Special values that the array API standard has otherwise than NumPy, eager, traced, and exported to ONNX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.runtime.ir.infer import infer

from .models import ort_run, referee
from .peers import peer
from .test_gluon_same import in_mezzo
from .test_gluon_traces import Of

nd: Any = mz.nd
INF, NAN = np.inf, np.nan
REAL = np.array([0.0, -0.0, 1, -1, 0.1, -0.1, 7.5, -7.5, 3, 1e20, -1e20, INF, -INF, NAN])
PAIRS = [x.ravel() for x in np.meshgrid(REAL, REAL)]


def floor_divided(x: Any, y: Any) -> Any:
    """As the standard prefers it: floor(x / y) where one is infinite, and exactly between finite numbers."""
    with np.errstate(all="ignore"):
        return np.where(np.isinf(x) | np.isinf(y), np.floor(x / y), np.floor_divide(x, y))


def remainders(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.remainder(x, y)


def same(found: Any, expected: Any) -> None:
    """Bit for bit, but for the kind of NaN: signs of zeros count."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    sound = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[sound]), np.signbit(expected[sound]))


QUOTIENTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "floor_divide": (nd.floor_divide, floor_divided),
    "remainder": (nd.remainder, remainders),
    "//": (lambda x, y: x // y, floor_divided),
    "%": (lambda x, y: x % y, remainders),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", QUOTIENTS)
def test_quotients(name: str, dtype: str) -> None:
    function, numpys = QUOTIENTS[name]
    x, y = (p.astype(dtype) for p in PAIRS)
    expected = numpys(x, y).astype(dtype)
    same(function(nd.asarray(x), nd.asarray(y)).asnumpy(), expected)
    same(Of(function).hybridize(fullgraph=True)(nd.asarray(x), nd.asarray(y)).asnumpy(), expected)


def test_quotients_in_place() -> None:
    for change, numpys in (("__ifloordiv__", floor_divided), ("__imod__", remainders)):
        x = nd.asarray(PAIRS[0])
        kept = x
        assert getattr(x, change)(nd.asarray(PAIRS[1])) is kept
        same(kept.asnumpy(), numpys(*PAIRS))
    whole = nd.asarray([7, -7])
    whole %= 3
    assert whole.tolist() == [1, 2]
    with pytest.raises(mz.ShapeError, match="in place of int64"):
        whole %= 0.5


@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_exported_quotients_are_standard(name: str, tmp_path: Path) -> None:
    """Floats have fmod=1 in what is written, as ONNX asks. ONNX Runtime gives the same numbers, where it is there; its
    Where is a sum of both sides, and loses the sign of zeros."""
    import onnx

    function, numpys = QUOTIENTS[name]
    x, y = (p.astype(np.float32) for p in PAIRS)
    path = tmp_path / "net.onnx"
    Of(function).export(path, nd.asarray(x), nd.asarray(y))
    model = onnx.load(path)
    nodes = [n for f in model.functions for n in f.node] + [*model.graph.node]
    mods = [{a.name: a.i for a in n.attribute} for n in nodes if n.op_type == "Mod"]
    assert mods == [{"fmod": 1}]
    expected = numpys(x, y).astype(np.float32)
    same(in_mezzo(path, {"x0": x, "x1": y})[0], expected)
    g = GraphBuilder()
    whole = g.op(
        {"floor_divide": "FloorDiv"}.get(name, "Remainder"), *(g.input(n, f32(196)) for n in "xy"), domain="mezzo"
    )
    written = load_onnx(to_onnx(infer(g.graph([whole])), standard=True))
    assert {n.domain for n in written.nodes} == {""}
    same(Session(written, onednn=False)(x, y), expected)  # oneDNN loses it as well
    referee()
    (found,) = ort_run(path, {"x0": x, "x1": y}).values()
    np.testing.assert_array_equal(found, expected)


def test_gradients_of_remainders_are_pytorchs() -> None:
    torch = peer("torch")
    values = np.array([7.5, -7.5, 3.25, -0.5]), np.array([2.0, 3, -1.5, -2])
    xs, theirs = [nd.asarray(v) for v in values], [torch.tensor(v, requires_grad=True) for v in values]
    for x in xs:
        x.attach_grad()
    with mz.autograd.record():
        y = (xs[0] % xs[1]).sum()
    y.backward()
    torch.remainder(*theirs).sum().backward()
    for x, t in zip(xs, theirs, strict=True):
        np.testing.assert_allclose(x.grad.asnumpy(), t.grad.numpy())


# Of z = a + bj what the standard says, where C says otherwise or nothing: None where the sign is left open.
EXPM1 = [
    (complex(0, 0), complex(0, 0)), (complex(-0.0, 0), complex(0, 0)), (complex(INF, 0), complex(INF, 0)),
    (complex(-INF, 1), complex(-1, 0)), (complex(-INF, INF), complex(-1, 0)), (complex(-INF, NAN), complex(-1, 0)),
    (complex(INF, INF), complex(INF, NAN)), (complex(INF, NAN), complex(INF, NAN)), (complex(NAN, 0), complex(NAN, 0)),
    (complex(NAN, 1), complex(NAN, NAN)), (complex(1, INF), complex(NAN, NAN)), (complex(1, NAN), complex(NAN, NAN)),
    (complex(INF, 1), complex(INF, INF)), (complex(INF, 3), complex(-INF, INF)),
]  # fmt: skip
TANH = [
    (complex(INF, 1), complex(1, 0)), (complex(INF, 2), complex(1, 0)), (complex(INF, 0), complex(1, 0)),
    (complex(-INF, 2), complex(-1, 0)), (complex(INF, -2), complex(1, -0.0)), (complex(1, INF), complex(NAN, NAN)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(("name", "table"), [("expm1", EXPM1), ("tanh", TANH)], ids=["expm1", "tanh"])
def test_complex_functions(name: str, table: list[tuple[complex, complex]], dtype: str) -> None:
    given, expected = (np.array(side, dtype) for side in zip(*table, strict=True))
    for net in (Of(getattr(nd, name)), Of(getattr(nd, name)).hybridize(fullgraph=True)):
        found = net(nd.asarray(given)).asnumpy()
        for part in ("real", "imag"):
            np.testing.assert_array_equal(getattr(found, part), getattr(expected, part), err_msg=part)
        np.testing.assert_array_equal(np.signbit(found.imag[given.imag == 0]), False)
        np.testing.assert_array_equal(np.signbit(found.real[given == 0]), False)
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(0, 3, 40) + 1j * rng.normal(0, 3, 40), 1e-9 * rng.normal(size=9) * (1 + 1j)])
    z = z.astype(dtype)
    tolerance = 1e-5 if dtype == "complex64" else 1e-13
    found, expected = getattr(nd, name)(nd.asarray(z)).asnumpy(), getattr(np, name)(z.astype(np.complex128))
    assert np.all(np.abs(found - expected) <= tolerance * np.abs(expected))
