"""Every operator of ONNX by its name on arrays, as its reference; random ones, misfits, unknown names are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops import OPS, Op, Sample
from mezzo.ops.errors import InputError, MezzoError

from .graphs import hosted
from .test_ops import fill, plain, run

nd: Any = mz.nd


def samples(o: Op) -> list[tuple[Sample, list[Any]]]:
    """Samples whose operands are arrays, filled."""
    found = [(s, fill(s)) for s in o.samples if plain(s) and not hosted(o, s)]
    return [(s, xs) for s, xs in found if all(x is None or x.dtype.kind in "biufc" for x in xs)]


SAMPLED = [o for (domain, _), o in OPS.items() if not domain and o.deterministic and samples(o)]


def close(found: Any, expected: Any) -> None:
    """Planned kernels round otherwise than references."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind not in "fc":  # whole numbers, and floats too narrow to round apart
        assert found.tobytes() == expected.tobytes()
        return
    found, expected = found.astype(np.complex128), expected.astype(np.complex128)
    sound = np.isfinite(expected)
    assert np.array_equal(found[~sound], expected[~sound], equal_nan=True)
    largest = np.abs(expected[sound]).max(initial=0)
    assert np.abs(found[sound] - expected[sound]).max(initial=0) <= 1e-5 * largest


@pytest.mark.parametrize("o", SAMPLED, ids=lambda o: o.name)
def test_operators_by_name(o: Op) -> None:
    for sample, xs in samples(o):
        if any(isinstance(v, np.ndarray) for v in sample.attrs.values()):
            with pytest.raises(InputError, match="no attribute"):
                getattr(nd, o.name)(**sample.attrs)
            continue
        expected = run(o, sample, xs)
        options = {**sample.attrs, "outputs": sample.outputs}
        if any(np.asarray(y).dtype.hasobject for y in expected if y is not None):
            with pytest.raises(InputError, match="arrays hold numbers"):
                getattr(nd, o.name)(*[nd.asarray(x) for x in xs], **options)
            continue
        found = getattr(nd, o.name)(*[None if x is None else nd.asarray(x) for x in xs], **options)
        for mine, theirs in zip(found if isinstance(found, tuple) else [found], expected, strict=False):
            if theirs is not None:
                close(mine.asnumpy(), np.asarray(theirs))


def test_numbers_and_lists_stand_for_operands() -> None:
    x = nd.arange(6, dtype="float32")
    assert nd.Reshape(x, [2, -1]).shape == (2, 3)
    assert nd.Clip(x, 1, 4).tolist() == [1, 1, 2, 3, 4, 4]
    assert nd.CumSum(x, np.int64(0)).tolist() == [0, 1, 3, 6, 10, 15]
    assert nd.Pad(x, [1, 0], None, mode="reflect").shape == (7,)
    assert nd.Where([True, False, True] * 2, x, -1).tolist() == [0, -1, 2, 3, -1, 5]
    assert str(nd.Cast(x, to="float16").dtype) == str(nd.Cast(x, to=np.float16).dtype) == "float16"
    values, indices = nd.TopK(x, [2])
    assert (values.tolist(), indices.tolist()) == ([5, 4], [5, 4])
    assert nd.Dropout(x).tolist() == x.tolist()
    zero = nd.DynamicQuantizeLinear(x)[2]
    zero[...] = 3  # a single number is an array like others
    assert (zero.tolist(), str(zero.dtype)) == (3, "uint8")


def test_what_is_refused() -> None:
    x = nd.arange(3)
    with pytest.raises(InputError, match=r"1\.5 beside an array of int64"):
        nd.Add(x, 1.5)
    with pytest.raises(InputError, match="draws random numbers"):
        nd.Bernoulli(nd.ones((2,)))
    with pytest.raises(InputError, match="Relu of str"):
        nd.Relu("a")
    with pytest.raises(AttributeError, match="Softmx"):
        _ = nd.Softmx
    with pytest.raises(AttributeError, match="softmx"):
        _ = nd.softmx
    with pytest.raises(MezzoError, match=r"Softmax, called at .*test_array_operators"):
        nd.Softmax(nd.ones((2,)), axis=3)


def test_gradients_and_symbols_agree() -> None:
    x = nd.asarray(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3))
    x.attach_grad()
    with mz.autograd.record():
        y = nd.ReduceSum(nd.Mul(nd.LogSoftmax(x, axis=-1), x), keepdims=0)
    y.backward()
    s = mz.sym.Variable("x")
    net = mz.sym.ReduceSum(mz.sym.Mul(mz.sym.LogSoftmax(s, axis=-1), s), keepdims=0).bind(mz.cpu(), {"x": x.detach()})
    net.forward(is_train=True)
    net.backward(nd.ones(()))
    close(net.outputs[0].asnumpy(), y.asnumpy())
    close(net.grad_dict["x"].asnumpy(), x.grad.asnumpy())


@pytest.mark.parametrize("given", [((), {"num_outputs": 3}), (([1, 2, 3],), {}), ((np.array([1, 2, 3]),), {})])
def test_split_says_itself_how_many_parts_there_are(given: Any) -> None:
    sizes, attrs = given
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    wanted = np.split(x, [1, 3] if sizes else 3)
    for found in (
        nd.Split(nd.asarray(x), *sizes, axis=0, **attrs),
        mz.sym.Split(mz.sym.Variable("x"), *sizes, **attrs),
    ):
        parts = found if isinstance(found, tuple) else found.eval(x=x)
        assert len(parts) == 3
        for part, want in zip(parts, wanted, strict=True):
            np.testing.assert_array_equal(part.asnumpy() if hasattr(part, "asnumpy") else part, want)
