"""A kernel of one's own is one class and one registration: sessions have it, operators on arrays, steps of a GPU's
program that run on the host."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops import DType, Op, Sample, Tensor
from mezzo.ops.errors import InputError
from mezzo.runtime.backends.cuda.host import HostSteps
from mezzo.runtime.compile.kernel import Choice, Declined, KernelArgs, KernelRequest
from mezzo.runtime.devices import DEVICES, register_kernel
from mezzo.tools.samples import sample_graph

from .toys import DOMAIN, A, X, close, forward, proto, registered_for_now


@pytest.fixture(autouse=True)
def registered() -> Iterator[Op]:
    with registered_for_now() as record:
        yield record


class SumOfSquares:
    """A kernel: one product, and one sum of squares in place of the reference's arrays."""

    name = "example.squared_sum"
    made = 0

    def serves(self, node: Any) -> bool:
        return (node.domain, node.op) == (DOMAIN, "SquaredSum")

    def select(self, request: KernelRequest) -> Choice | Declined:
        x = request.inputs[0]
        if not isinstance(x, Tensor) or x.dtype is not DType.FLOAT:
            return Declined("not in float32")
        return Choice(self.name, workspace=x.nbytes)

    def prepare(self, args: KernelArgs) -> Any:
        x, w, y = (a for a in (*args.inputs, *args.outputs) if a is not None)
        product, scale = args.scratch(DType.FLOAT, x.shape), np.float32(args.node.attrs.get("scale", 1))
        self.made += 1

        def run() -> None:
            np.multiply(x, w, out=product)
            np.einsum("...i,...i->...", product, product, out=y)
            np.multiply(y, scale, out=y)

        return run


@pytest.mark.parametrize("device", ["cpu", "gpu:0"])
def test_a_kernel_is_one_class_and_one_registration(device: str, registered: Op, request: Any) -> None:
    if device != "cpu":
        request.getfixturevalue("standin")
        registered.body_rule = None  # it runs on the host, by the kernels of the CPU
    content, before = proto(3).SerializeToString(), SumOfSquares()
    assert before.name not in str(mz.load(content).program)
    register_kernel(before)
    register_kernel(kernel := SumOfSquares())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostSteps)
        session = mz.load(content, device=device)
        close(session(X), -forward(X)[0])
    assert before.made == 0 < kernel.made
    (step,) = (s for s in session.program.steps if s.node.op == "SquaredSum")
    assert step.choice.kernel == kernel.name if device == "cpu" else step.choice.primitives[0].kernel == kernel.name
    graph, feeds = sample_graph(registered, Sample([Tensor(DType.DOUBLE, (2, 3)), Tensor(DType.DOUBLE, (3,))]))
    other = mz.Session(graph)
    x, w = feeds.values()
    np.testing.assert_allclose(next(iter(other.run(feeds).values())), ((x * w) ** 2).sum(-1), rtol=1e-6)
    assert dict(other.program.steps[-1].declined) == {kernel.name: "not in float32"}


def test_operators_on_arrays_have_a_kernel_too(registered: Op) -> None:
    registered.planned_from = 0
    x, w = mz.nd.asarray(X), mz.nd.asarray(A[:, 0])
    want = ((X * A[:, 0]) ** 2).sum(-1)
    close(mz.nd.SquaredSum(x, w).asnumpy(), want)
    register_kernel(kernel := SumOfSquares())
    close(mz.nd.SquaredSum(x, w).asnumpy(), want)
    assert kernel.made == 1
    kernel.name = DEVICES["cpu"].target.own[0].name
    with pytest.raises(InputError, match="cpu has a kernel"):
        register_kernel(kernel)


def test_a_device_that_is_planned_for_has_it_alone() -> None:
    content, device = proto(3).SerializeToString(), "gpu:0@sm_90"
    register_kernel(kernel := SumOfSquares(), device)
    for name in ("cpu", device):
        chosen = [s.choice.kernel for s in mz.load(content, device=name).program.steps]
        assert (kernel.name in chosen) is (name == device)
