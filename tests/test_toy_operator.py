"""An operator that a user registers from outside goes wherever ours go."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mezzo as mz
from mezzo.gluon import Trainer
from mezzo.gluon.hybrid import HybridBlock
from mezzo.gluon.parameter import Parameter
from mezzo.ops import OPS, DType, Op
from mezzo.ops.errors import InputError, UnsupportedModel
from mezzo.runtime.backends.cuda.host import HostSteps
from mezzo.tools.check import check
from mezzo.tools.check_options import Options
from mezzo.tools.samples import sample_graph
from mezzo.tools.verdict import GOOD, MISSING

from .cupy_standin import Standin
from .models import model, node, value
from .toys import DOMAIN, SCALE, A, W, X, close, forward, proto, registered_for_now, toy

ROOT = Path(__file__).parents[1]
RATE = 0.01
TARGET = np.array([1, -2, 3], np.float32)


@pytest.fixture(autouse=True)
def registered() -> Iterator[Op]:
    with registered_for_now() as record:
        yield record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(proto(), str(tmp_path / "model.onnx"))
    return tmp_path / "model.onnx"


def test_its_samples_run(registered: Op) -> None:
    for sample in registered.samples:
        graph, feeds = sample_graph(registered, sample)
        x, w = feeds.values()
        (found,) = mz.Session(graph).run(feeds).values()
        close(found, sample.attrs.get("scale", 1) * ((x * w) ** 2).sum(-1))


def test_a_model_with_it_is_imported_and_run(path: Path) -> None:
    session = mz.load(path)
    assert str(session.outputs[0].type) == "float32[n]"
    for rows in (3, 2):
        close(session(X[:rows]), -forward(X[:rows])[0])


def test_arrays_and_gradients() -> None:
    x, w = mz.nd.asarray(X), mz.nd.asarray(A[:, 0])
    x.attach_grad()
    w.attach_grad()
    with mz.autograd.record():
        y = mz.nd.SquaredSum(x, w, scale=SCALE)
    y.backward(mz.nd.asarray(TARGET))
    v = w.asnumpy()
    close(y.asnumpy(), SCALE * ((X * v) ** 2).sum(-1))
    close(x.grad.asnumpy(), 2 * SCALE * TARGET[:, None] * X * v**2)
    close(w.grad.asnumpy(), (2 * SCALE * TARGET[:, None] * X**2 * v).sum(0))


def test_symbols(tmp_path: Path) -> None:
    net = mz.sym.SquaredSum(mz.sym.Variable("h"), mz.sym.Variable("w"), scale=SCALE, name="toy")
    assert net.infer_shape(h=(3, 4), w=(4,))[1] == [(3,)]
    net.save(tmp_path / "net.json")
    for symbol in (net, mz.sym.load(tmp_path / "net.json")):
        bound = symbol.bind(args={"h": X @ A, "w": W})
        bound.forward(is_train=True)
        bound.backward([np.ones(3, np.float32)])
        close(bound.outputs[0].asnumpy(), forward(X)[0])
        close(bound.grad_dict["w"].asnumpy(), forward(X)[2])


def test_names_of_domains() -> None:
    """A name alone is ONNX's, or that of the one domain that has it."""

    @mz.op("Relu", domain=DOMAIN)
    def relu(k: Any, x: Any) -> Any:
        return x + 1

    x, symbol = mz.nd.asarray([-2.0]), mz.sym.Variable("x")
    assert (mz.nd.Relu(x).item(), mz.nd.operator("Relu", DOMAIN)(x).item()) == (0, -1)
    both = mz.sym.Group([mz.sym.Relu(symbol), mz.sym.operator("Relu", DOMAIN)(symbol)]).simple_bind(x=(1,))
    assert [y.item() for y in both.forward(x=[-2.0])] == [0, -1]
    for space in (mz.nd, mz.sym):
        assert {"SquaredSum", "Relu"} < {*dir(space)}
        with pytest.raises(InputError, match=r"there is no operator acme::SquaredSum"):
            space.operator("SquaredSum", "acme")
        with pytest.raises(AttributeError, match="Nowhere"):
            _ = space.Nowhere
    mz.op("SquaredSum", domain="acme")(lambda k, x: x * 7)
    for space in (mz.nd, mz.sym):
        with pytest.raises(AttributeError, match=r"org\.example and acme: say which, operator"):
            _ = space.SquaredSum
    assert mz.nd.operator("SquaredSum", "acme")(mz.nd.asarray([1.0])).item() == 7
    mz.op("SquaredSum", domain="acme")(lambda k, x: x * 8)  # the cell of a notebook runs twice
    assert mz.nd.operator("SquaredSum", "acme")(mz.nd.asarray([1.0])).item() == 8


def stepped(rate: float = RATE) -> tuple[float, Any, Any]:
    """The loss of the model, and its weights after one step of gradient descent, by hand."""
    off = -forward(X)[0] - TARGET
    da, dw = (sum(-2 * off[i] / len(X) * forward(X[i : i + 1])[part] for i in range(len(X))) for part in (1, 2))
    return float((off**2).mean()), A - rate * da, W - rate * dw


@pytest.mark.parametrize(("amp", "mixed"), [(None, ""), ("bf16", ""), ("bf16", "low")])
def test_a_trainer_trains_through_it(amp: Any, mixed: str, path: Path) -> None:
    toy(mixed=mixed)
    trainer = mz.Trainer(path, loss="mse", optimizer=mz.optimizer.SGD(rate=RATE), amp=amp)
    loss, a, w = stepped()
    tolerance = 0.02 if amp else 1e-5
    assert trainer.step({"x": X, "target": TARGET}) == pytest.approx(loss, rel=tolerance)
    close(trainer.parameters["a"], a, tolerance)
    close(trainer.parameters["w"], w, tolerance)
    types = [trainer.graph_of_step.types[n.inputs[0]] for n in trainer.graph_of_step.nodes if n.op == "SquaredSum"]
    assert [str(t) for t in types] == [f"{'bfloat16' if mixed else 'float32'}[n,4]"]


# Traits: whether it computes in 16 bits behind a product, and behind an exponential.
NARROW: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "nothing": ({}, False, False),
    "low": ({"mixed": "low"}, True, True),
    "wide": ({"mixed": "wide"}, False, False),
    "follows": ({"follows": True}, True, False),
    "first": ({"mixed": "first"}, True, False),
}


@pytest.mark.parametrize("traits", NARROW)
def test_its_record_says_how_it_computes_in_mixed_precision(traits: str) -> None:
    given, behind_product, behind_exponential = NARROW[traits]
    toy(**given)
    policy = mz.amp.policy_named("bf16")
    assert narrow(policy) == (behind_product, behind_exponential)
    named = f"{DOMAIN}::SquaredSum"  # a policy may say otherwise; what it computes in 16 bits goes first
    assert narrow(mz.amp.Policy(DType.BFLOAT16, low={"MatMul", named})) == (True, True)
    assert narrow(mz.amp.Policy(DType.BFLOAT16, wide={"Exp", named})) == (traits == "low",) * 2


def narrow(policy: Any) -> tuple[bool, ...]:
    """Whether the operator computes in 16 bits behind a product, and behind an exponential; the numbers are right."""
    nodes = [
        node("MatMul", "x a", "h"), node("SquaredSum", "h w", "y", domain=DOMAIN),
        node("Exp", "x", "e"), node("SquaredSum", "e v", "z", domain=DOMAIN),
    ]  # fmt: skip
    v = A[:, 0]
    made = model(nodes, [value("x", 3, 5)], [value("y", 3), value("z", 3)], initializers={"a": A, "w": W, "v": v},
                 domains={DOMAIN: 2})  # fmt: skip
    graph = mz.amp.mixed(mz.onnx.load(made.SerializeToString()), policy)
    found = mz.Session(graph).run({"x": X})
    close(found["y"], forward(X, scale=1)[0], 0.02)
    close(found["z"], ((np.exp(X) * v) ** 2).sum(-1), 0.02)
    uses = [n for n in graph.nodes if n.op == "SquaredSum"]
    return tuple(graph.types[n.inputs[0]].dtype is DType.BFLOAT16 for n in uses)


class Net(HybridBlock):
    """The model above as a block."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.w = Parameter("a", shape=A.shape, init="ones"), Parameter("w", shape=W.shape, init="ones")

    def forward(self, x: Any) -> Any:
        return -mz.nd.SquaredSum(x @ self.a.data(), self.w.data(), scale=SCALE)


@pytest.mark.parametrize("amp", [None, "bf16"])
def test_blocks_are_hybridized_trained_and_exported(amp: Any, tmp_path: Path) -> None:
    net = Net().initialize()
    net.a.set_data(A)
    net.w.set_data(W)
    x, tolerance = mz.nd.asarray(X), 0.02 if amp else 1e-5
    close(net(x).asnumpy(), -forward(X)[0])
    net.hybridize(fullgraph=True, amp=amp)
    close(net(x).asnumpy(), -forward(X)[0], tolerance)
    net.export(tmp_path / "net.onnx", x, dynamic={0: "n"})
    close(mz.load(tmp_path / "net.onnx")(X[:2]), -forward(X[:2])[0], tolerance)
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": RATE})
    with mz.autograd.record():
        loss = net(x).sum()
    loss.backward()
    trainer.step(1)
    _, da, dw = forward(X)
    close(net.a.data().asnumpy(), A + RATE * da, tolerance)
    close(net.w.data().asnumpy(), W + RATE * dw, tolerance)


def test_check_covers_it(path: Path) -> None:
    whole = Options(train=True, opset=20, device="gpu:0@sm_90", round_trip=True)
    verdict = check(path, whole)
    assert (verdict.code, verdict.problems) == (GOOD, ())
    assert (verdict.facts["weights_to_train"], verdict.facts["host_steps"]) == (2, 0)
    (table,) = (t for t in verdict.tables if t.title == "Operators")
    assert (DOMAIN, "SquaredSum", 2, 1, "yes", "") in table.rows
    record = OPS[DOMAIN, "SquaredSum"]
    record.grad_rule = record.body_rule = None
    assert [p.part for p in check(path, whole).problems] == ["train"]
    del OPS[DOMAIN, "SquaredSum"]
    assert check(path, whole).code == MISSING


def test_it_is_exported_as_itself_and_as_standard_operators(path: Path, tmp_path: Path) -> None:
    graph = mz.onnx.load(path)
    mz.onnx.save(graph, tmp_path / "again.onnx")
    again = onnx.load(str(tmp_path / "again.onnx"))
    assert [(n.domain, n.op_type) for n in again.graph.node] == [("", "MatMul"), (DOMAIN, "SquaredSum"), ("", "Neg")]
    assert {o.domain: o.version for o in again.opset_import}[DOMAIN] == 2
    mz.onnx.save(graph, tmp_path / "standard.onnx", standard=True)
    del OPS[DOMAIN, "SquaredSum"]  # nobody has to know it
    close(mz.load(tmp_path / "standard.onnx")(X), -forward(X)[0])
    with pytest.raises(UnsupportedModel, match="SquaredSum"):
        mz.load(tmp_path / "again.onnx")


READ = """
import sys
import numpy as np
import mezzo as mz
from tests.toys import toy
toy()
path, x, y = sys.argv[1:]
session = mz.load(path)
np.save(y, session(np.load(x)))
print(session.bound_from.partition(" ")[0])
"""


@pytest.mark.parametrize("portable", [False, True])
def test_another_process_reads_it_from_a_mezzo_file(path: Path, portable: bool, tmp_path: Path) -> None:
    session, names = mz.load(path), [str(tmp_path / n) for n in ("m.mezzo", "x.npy", "y.npy")]
    session(X)
    session.save(names[0], portable=portable)
    np.save(names[1], X)
    code = [sys.executable, "-c", READ, *names]
    done = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["graph" if portable else "variant"]
    close(np.load(names[2]), -forward(X)[0])


@pytest.mark.parametrize("body", [True, False])
def test_a_plan_for_a_gpu_and_a_run(body: bool, registered: Op, standin: Standin) -> None:
    """Its standard form has kernels there; without one it runs on the host, which is told."""
    if not body:
        registered.body_rule = None
    content = proto(3).SerializeToString()
    kernels = [s.choice.kernel for s in mz.load(content, device="gpu:0@sm_90").program.steps]
    assert ("host" in kernels) is not body
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        session = mz.load(content, device="gpu:0")
        for _ in range(3):
            close(session(X), -forward(X)[0])
    assert [w.category for w in told] == ([] if body else [HostSteps])
