"""The extension fft: NumPy's numbers, PyTorch's gradients, traces, exports to ONNX's DFT, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops.errors import UnsupportedModel

from .array_modes import every_mode  # noqa: F401 (a fixture)
from .models import ort_run, referee
from .peers import peer
from .test_array_complex import gradients_of, numbers, weight
from .test_gluon_same import in_mezzo
from .test_gluon_traces import Of

nd: Any = mz.nd
# What a transform takes: complex numbers, the first half of what is its own conjugate turned round, or real numbers.
SORTS = {
    "fft": "complex", "ifft": "complex", "fftn": "complex", "ifftn": "complex", "irfft": "complex", "irfftn": "complex",
    "hfft": "complex", "rfft": "float", "rfftn": "float", "ihfft": "float",
}  # fmt: skip
LINES: list[dict[str, Any]] = [{}, {"n": 7}, {"n": 3}, {"axis": 0}, {"n": 6, "axis": -2}, {"n": 1}]
GRIDS: list[dict[str, Any]] = [
    {}, {"axes": (0, 1)}, {"s": (3, 6), "axes": (0, -1)}, {"s": (7,), "axes": (1,)}, {"s": (-1, 5), "axes": (2, 1)},
]  # fmt: skip


def ways(name: str) -> list[dict[str, Any]]:
    """The options that a transform is tried with."""
    plain = GRIDS if name.endswith("n") else LINES
    return [*plain, *({**plain[i], "norm": norm} for i in (0, 2) for norm in ("backward", "ortho", "forward"))]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("name", SORTS)
def test_transforms_are_numpys(name: str, bits: int) -> None:
    dtype = f"{SORTS[name]}{bits * (2 if SORTS[name] == 'complex' else 1)}"
    for shape in ((2, 4, 5), (3, 0, 4), (2, 3, 2)):
        x = numbers(*shape, dtype=dtype)
        for options in ways(name):
            numpys = getattr(np.fft, name)
            if "s" in options:  # -1 is the size that there is, which NumPy says so from 2.0 on
                options = {**options, "s": tuple(options["s"])}
            try:
                with np.errstate(all="ignore"):
                    expected = numpys(x, **options)
            except ValueError:
                with pytest.raises(mz.ShapeError, match="points"):
                    getattr(nd.fft, name)(nd.asarray(x), **options)
                continue
            if not x.size and expected.size:  # zeros; NumPy's is what lay in the memory
                expected = np.zeros_like(expected)
            found = getattr(nd.fft, name)(nd.asarray(x), **options).asnumpy()
            assert (found.shape, found.dtype.kind) == (expected.shape, expected.dtype.kind), options
            assert found.dtype.itemsize == (1 + (found.dtype.kind == "c")) * bits // 8
            tolerance = 1e-5 if bits == 32 else 1e-12
            assert np.abs(found - expected).max(initial=0) <= tolerance * np.abs(expected).max(initial=1e-30), options


def test_in_every_mode(mode: str) -> None:
    x = numbers(3, 8, dtype="float64")
    a = nd.asarray(x)
    np.testing.assert_allclose(nd.fft.irfft(nd.fft.rfft(a)).asnumpy(), x)
    np.testing.assert_allclose(nd.fft.ifftn(nd.fft.fftn(a)).asnumpy(), x, atol=1e-12)
    np.testing.assert_allclose(nd.fft.hfft(nd.fft.ihfft(a)).asnumpy(), x)


def test_real_and_whole_numbers_are_transformed_too() -> None:
    assert nd.fft.fft(nd.asarray([1, 2, 3])).dtype == np.complex128
    np.testing.assert_allclose(nd.fft.fft(nd.asarray([1.0, 2, 3])).asnumpy(), np.fft.fft([1, 2, 3]), rtol=1e-6)
    np.testing.assert_allclose(nd.fft.irfft(nd.asarray([1.0, 2, 3])).asnumpy(), np.fft.irfft([1, 2, 3]), rtol=1e-6)
    half = nd.fft.fft(nd.asarray(np.ones(4, np.float16)))
    assert (half.dtype, half.tolist()) == (np.complex64, [4, 0, 0, 0])


def test_nan_stays_in_its_line() -> None:
    x = numbers(2, 4)
    x[0, 1] = np.nan
    y = nd.fft.fft(nd.asarray(x)).asnumpy()
    assert np.isnan(y[0]).all()
    assert np.isfinite(y[1]).all()


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_and_shifts(n: int) -> None:
    for name in ("fftfreq", "rfftfreq"):
        found = getattr(nd.fft, name)(n, d=0.1, dtype=nd.float64)
        np.testing.assert_allclose(found.asnumpy(), getattr(np.fft, name)(n, d=0.1))
        assert getattr(nd.fft, name)(n).dtype == np.float32
        assert getattr(nd.fft, name)(n, device=mz.cpu(1)).device is mz.cpu(1)
    x = np.arange(3.0 * n).reshape(3, n)
    for axes in (None, 0, (1,), (0, -1)):
        for name in ("fftshift", "ifftshift"):
            found = getattr(nd.fft, name)(nd.asarray(x), axes=axes)
            np.testing.assert_array_equal(found.asnumpy(), getattr(np.fft, name)(x, axes=axes))


@pytest.mark.parametrize("name", SORTS)
def test_gradients_are_pytorchs(name: str) -> None:
    torch = peer("torch")
    sort = SORTS[name] + ("128" if SORTS[name] == "complex" else "64")

    def function(options: dict[str, Any]) -> Callable[[Any, Any, Any], Any]:
        theirs = {{"axis": "dim", "axes": "dim"}.get(k, k): v for k, v in options.items()}
        return lambda xp, x, y: getattr(xp.fft, name)(x, **(options if xp is nd else theirs))

    xs = [numbers(2, 4, 5, dtype=sort, seed=i) for i in (1, 2)]
    for options in ways(name):
        if options == {"n": 1} and name in ("irfft", "hfft"):
            continue  # PyTorch's is of the wrong size there
        ours, theirs = (gradients_of(xp, function(options), xs, weight)[0] for xp in (nd, torch))
        assert np.abs(ours - theirs).max() <= 1e-10 * np.abs(theirs).max(), options


def test_a_spectrum_is_one_graph_of_standard_operators(tmp_path: Path) -> None:
    """Complex numbers between a transform and their parts are pairs of ONNX, and nothing else."""
    import onnx

    net = Of(lambda x: nd.log1p(abs(nd.conj(nd.fft.rfft(x, norm="ortho")))))
    x = numbers(2, 12, dtype="float32")
    path = tmp_path / "net.onnx"
    net.export(path, nd.asarray(x))
    model = onnx.load(path)
    assert {n.op_type for n in model.graph.node} >= {"DFT"}
    assert not {"RealImag", "Complex", "Conj"} & {n.op_type for n in model.graph.node}
    expected = np.log1p(np.abs(np.fft.rfft(x, norm="ortho")))
    for run in (in_mezzo, None):
        if run is None:
            referee()
        (found,) = run(path, {"x0": x}) if run is not None else ort_run(path, {"x0": x}).values()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_complex_results_are_no_business_of_onnx(tmp_path: Path) -> None:
    net, x = Of(nd.fft.rfft), nd.asarray(numbers(2, 8, dtype="float32"))
    with pytest.raises(UnsupportedModel, match=r"Complex is no operator of ONNX(.|\n)*\.mezzo"):
        net.export(tmp_path / "net.onnx", x)
    net.export(tmp_path / "net.mezzo", x)
    (found,) = in_mezzo(tmp_path / "net.mezzo", {"x0": x.asnumpy()})
    np.testing.assert_allclose(found, np.fft.rfft(x.asnumpy()), rtol=1e-4, atol=1e-5)


def test_what_is_refused() -> None:
    x, z = nd.ones((2, 4)), nd.asarray(numbers(2, 4))
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: nd.fft.fft(z, norm="both"), "backward, ortho, forward"),
        (lambda: nd.fft.rfft(z), "complex numbers have fft"),
        (lambda: nd.fft.ihfft(z), "complex numbers have fft"),
        (lambda: nd.fft.fft(z, n=0), "points"),
        (lambda: nd.fft.irfft(z[:, :1]), "points"),
        (lambda: nd.fft.fft(z, axis=2), "axis 2 is outside rank 2"),
        (lambda: nd.fft.fftn(z, s=(2,), axes=(0, 1)), "1 sizes for 2 axes"),
        (lambda: nd.fft.fftn(z, axes=(0, 0)), "one axis twice"),
        (lambda: nd.fft.fft(nd.asarray(1j)), "outside rank 0"),
        (lambda: nd.fft.fftfreq(0), "frequencies of 0"),
        (lambda: nd.fft.fftshift(x, axes=3), "outside rank 2"),
    ]
    for call, match in wrong:
        with pytest.raises(mz.MezzoError, match=match):
            call()
