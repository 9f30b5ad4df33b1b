"""MXNet's groups of operators on devices of their own: the numbers of one device, arrays where their group is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mezzo.compat.mxnet as mx
from mezzo.ops.errors import InputError
from mezzo.runtime.compile.parts import copies
from mezzo.sym.executor import TOGETHER

from .cupy_standin import Standin

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
Y = np.arange(4, dtype=np.float32) % 3


def network() -> Any:
    data = mx.sym.Variable("data")
    with mx.AttrScope(ctx_group="one"):
        x = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=5, name="fc1"), act_type="relu", name="act")
        x = mx.sym.BatchNorm(x, name="bn", fix_gamma=False)
    with mx.AttrScope(ctx_group="two"):
        x = mx.sym.FullyConnected(x, num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(x, mx.sym.Variable("label"), name="softmax", attr={"ctx_group": "two"})


def trained(ctx: Any, group2ctx: Any = None, grad_req: str = "write") -> Any:
    one = network().simple_bind(ctx, grad_req, data=X.shape, label=Y.shape, group2ctx=group2ctx)
    rng = np.random.default_rng(0)
    one.copy_params_from({n: rng.normal(size=a.shape).astype(np.float32)
                          for n, a in one.arg_dict.items() if n not in ("data", "label")})  # fmt: skip
    for together in (True, False, True):
        if together:
            one.forward_backward(data=X, label=Y)
        else:
            one.forward(is_train=True, data=X, label=Y)
            one.backward()
        for name, gradient in one.grad_dict.items():
            one.arg_dict[name][:] = one.arg_dict[name] - 0.1 * gradient
    one.forward(data=X, label=Y)
    return one


def compared(apart: Any, alone: Any) -> None:
    for kind in ("arg_dict", "grad_dict", "aux_dict", "output_dict"):
        for name, array in getattr(alone, kind).items():
            np.testing.assert_array_equal(getattr(apart, kind)[name].asnumpy(), array.asnumpy(), name)


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_two_processors_have_the_bits_of_one(grad_req: str) -> None:
    apart = trained(mx.cpu(), {"one": mx.cpu(0), "two": mx.cpu(1)}, grad_req)
    compared(apart, trained(mx.cpu(), grad_req=grad_req))
    assert [str(apart.arg_dict[n].context) for n in ("data", "fc1_weight", "fc2_weight", "label")] == [
        "cpu(0)", "cpu(0)", "cpu(1)", "cpu(0)",
    ]  # fmt: skip
    assert str(apart.aux_dict["bn_moving_mean"].context) == "cpu(0)"
    assert str(apart.outputs[0].context) == "cpu(1)"
    program = apart._function(TOGETHER).session.program
    assert list(program.parts) == ["cpu:0", "cpu:1"]
    large = sorted((c.source, c.device) for c in copies(program) if c.type.dims == (4, 5))
    assert large == [("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")], "an activation, and its gradient"


def test_two_gpus_have_the_bits_of_one(standin: Standin) -> None:
    standin.devices = 2
    with mx_engine():
        apart = trained(mx.gpu(0), {"one": mx.gpu(0), "two": mx.gpu(1)})
        compared(apart, trained(mx.gpu(0)))
        assert str(apart.arg_dict["fc2_weight"].context) == "gpu(1)"
        assert str(apart.outputs[0].context) == "gpu(1)"
        mx.nd.waitall()
    assert standin.races == []


def mx_engine() -> Any:
    from .array_modes import Using

    return Using("threaded")


def test_bound_arrays_stay_where_they_lie() -> None:
    args = {"fc1_weight": mx.nd.ones((5, 6)), "fc1_bias": mx.nd.zeros((5,)), "data": mx.nd.array(X)}
    with mx.AttrScope(ctx_group="one"):
        data = mx.sym.Variable("data")
    with mx.AttrScope(ctx_group="two"):
        symbol = mx.sym.FullyConnected(data, num_hidden=5, name="fc1")
    bound = symbol.bind(mx.cpu(), args, group2ctx={"one": mx.cpu(0), "two": mx.cpu(1)})
    (y,) = bound.forward()
    np.testing.assert_allclose(y.asnumpy(), np.repeat(X.sum(1, keepdims=True), 5, 1), rtol=1e-6)
    args["fc1_bias"][:] = 1  # it is read again in each run
    np.testing.assert_allclose(bound.forward()[0].asnumpy(), np.repeat(X.sum(1, keepdims=True), 5, 1) + 1, rtol=1e-6)
    assert str(args["fc1_weight"].context) == "cpu(0)"


def test_groups_are_kept_in_text() -> None:
    again = mx.sym.load_json(network().tojson())
    attrs = again.attr_dict()
    assert [attrs[n]["ctx_group"] for n in ("fc1", "fc1_weight", "bn_moving_var", "fc2_bias", "softmax")] == [
        "one", "one", "one", "two", "two",
    ]  # fmt: skip
    assert "ctx_group" not in attrs.get("data", {})
    whole = (
        '{"nodes": [{"op": "null", "name": "x", "inputs": []}, {"op": "Activation", "name": "a", "attrs": '
        '{"act_type": "relu", "__ctx_group__": "dev"}, "inputs": [[0, 0, 0]]}], "arg_nodes": [0], "heads": [[1, 0, 0]]}'
    )
    assert mx.sym.load_json(whole).attr_dict()["a"]["ctx_group"] == "dev"


def test_a_module_takes_groups() -> None:
    answers = []
    for groups in (None, {"one": mx.cpu(0), "two": mx.cpu(1)}):
        module = mx.mod.Module(network(), label_names=["label"], group2ctxs=groups)
        module.bind([("data", X.shape)], [("label", Y.shape)])
        module.init_params(mx.init.One())
        module.forward(mx.io.DataBatch([mx.nd.array(X)], [mx.nd.array(Y)]), is_train=False)
        answers.append(module.get_outputs()[0])
    np.testing.assert_array_equal(answers[1].asnumpy(), answers[0].asnumpy())
    assert [str(a.context) for a in answers] == ["cpu(0)", "cpu(1)"]


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(InputError, match="maps no groups to devices"):
        network().simple_bind(mx.cpu(), data=X.shape, label=Y.shape, group2ctx=[mx.cpu(0)])
