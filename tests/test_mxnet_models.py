"""Files of MXNet: formats of every version, damage, whole models, and what is done with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.importers import mxnet
from mezzo.ops.budget import Budget
from mezzo.ops.errors import MezzoError, ModelError, UnsupportedModel
from mezzo.runtime.passes.modes import training
from mezzo.tools.check import check
from mezzo.tools.convert import convert

from .mxnet.damage import damage
from .mxnet.zoo import MODELS, TEXTS, branches
from .peers import peer

FORMATS = Path(__file__).parents[2] / "shared" / "mxnet-fixtures" / "formats"
here = pytest.mark.skipif(not FORMATS.exists(), reason="../shared is not here")
NUMBERS = (0, 1, 255, 1 << 31, 1 << 62, (1 << 64) - 1)  # sizes and counts that a damaged file may tell
FILES = ("g-0003", "gl", "gpu", "sp", "v0", "v1", "v2", "v3")


def small_symbol() -> dict[str, Any]:
    """data -> FullyConnected (weight, bias) -> SoftmaxOutput (label)."""
    nodes = [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": "fc_weight", "inputs": []},
        {"op": "null", "name": "fc_bias", "inputs": []},
        {"op": "FullyConnected", "name": "fc", "attrs": {"num_hidden": "3"}, "inputs": [[i, 0, 0] for i in range(3)]},
        {"op": "null", "name": "softmax_label", "inputs": []},
        {"op": "SoftmaxOutput", "name": "softmax", "inputs": [[3, 0, 0], [4, 0, 0]]},
    ]  # fmt: skip
    return {"nodes": nodes, "arg_nodes": [0, 1, 2, 4], "heads": [[5, 0, 0]], "attrs": {"mxnet_version": ["int", 10901]}}


WEIGHTS: dict[str, Any] = {
    "arg:fc_weight": np.arange(12, dtype=np.float32).reshape(3, 4) / 10,
    "arg:fc_bias": np.array([0.1, -0.2, 0.3], np.float32),
}
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def expected() -> Any:
    logits = X @ WEIGHTS["arg:fc_weight"].T + WEIGHTS["arg:fc_bias"]
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def loaded(symbol: dict[str, Any], **options: Any) -> mz.Session:
    session: mz.Session = mz.load(json.dumps(symbol).encode(), params=WEIGHTS, **options)
    return session


@here
@pytest.mark.parametrize("name", FILES)
def test_arrays_of_every_version(name: str) -> None:
    arrays = mxnet.read_arrays(FORMATS / f"{name}.params")
    stem = f"{name}-expected"
    with np.load(FORMATS / f"{stem}.npz") as page:
        named = {k.removeprefix("#"): page[k] for k in page}
        assert set(arrays) == set(named)
        for key, right in named.items():
            assert arrays[key].dtype == right.dtype
            np.testing.assert_array_equal(arrays[key], right)


@here
@pytest.mark.parametrize("name", FILES)
def test_damaged_arrays_are_an_error_or_right(name: str) -> None:
    """Every truncation of the file's first part, and flips of bits all over it."""
    content = (FORMATS / f"{name}.params").read_bytes()
    rng = np.random.default_rng(1)
    cuts = [content[:n] for n in {*range(min(len(content), 400)), *map(int, rng.integers(0, len(content), 100))}]
    places = {*range(min(len(content), 300)), *map(int, rng.integers(0, len(content), 200))}
    flips = [content[:at] + bytes([content[at] ^ (1 << int(rng.integers(8)))]) + content[at + 1 :] for at in places]
    for damaged in cuts + flips:
        try:
            mxnet.read_arrays(damaged)
        except MezzoError:
            continue
        assert len(damaged) == len(content)


def test_lengths_are_checked_before_memory_is_taken() -> None:
    huge = b"\x12\x01" + bytes(14) + (1).to_bytes(8, "little")
    dims = (3).to_bytes(4, "little") + b"".join((1 << 30).to_bytes(4, "little") for _ in range(3))
    with pytest.raises(MezzoError, match=r"limit|ends within"):
        mxnet.read_arrays(huge + dims + bytes(64))


def test_a_network_and_its_label() -> None:
    session = loaded(small_symbol())
    assert list(session.graph.inputs) == ["data"]
    results = session.run({"data": X})
    np.testing.assert_allclose(results["softmax_output"], expected(), rtol=1e-5)


def test_two_arrays_of_one_name_are_told() -> None:
    with pytest.raises(ModelError, match="two arrays called 'fc_bias'"):
        mxnet.load(json.dumps(small_symbol()).encode(), {**WEIGHTS, "aux:fc_bias": WEIGHTS["arg:fc_bias"] * 2})


def test_files_of_the_first_releases() -> None:
    """`param` and `attr` in place of `attrs`, entries of two numbers, no version, and attributes of inputs on the
    operator."""
    symbol = small_symbol()
    del symbol["attrs"]
    for node in symbol["nodes"]:
        node["param"] = node.pop("attrs", {})
        node["attr"] = {"fc_weight_lr_mult": "2.0"} if node["name"] == "fc" else {"lr_mult": "1.0"}
        node["inputs"] = [e[:2] for e in node["inputs"]]
        node["backward_source_id"] = -1
    symbol["nodes"][3]["param"]["weight_lr_mult"] = symbol["nodes"][3]["attr"].pop("fc_weight_lr_mult")
    symbol["heads"] = [[5, 0]]
    read = mxnet.symbol.read_symbol(json.dumps(symbol).encode())
    assert read.nodes[1].attrs["__lr_mult__"] == "2.0"
    symbol["nodes"][3]["param"].pop("weight_lr_mult")
    np.testing.assert_allclose(loaded(symbol).run({"data": X})["softmax_output"], expected(), rtol=1e-5)


def test_statistics_that_old_files_leave_out() -> None:
    nodes: list[dict[str, Any]] = [
        {"op": "null", "name": n, "param": {}, "inputs": []} for n in ("data", "bn_gamma", "bn_beta")
    ]  # fmt: skip
    nodes.append({"op": "BatchNorm", "name": "bn", "param": {"fix_gamma": "False"}, "inputs": [[0, 0], [1, 0], [2, 0]]})
    symbol = {"nodes": nodes, "arg_nodes": [0, 1, 2], "heads": [[3, 0]]}
    params = {
        "arg:bn_gamma": np.array([2, 3], np.float32), "arg:bn_beta": np.array([0, 1], np.float32),
        "aux:bn_moving_mean": np.array([1, 2], np.float32), "aux:bn_moving_var": np.array([4, 9], np.float32),
    }  # fmt: skip
    session = mz.load(json.dumps(symbol).encode(), params=params, shapes={"data": ("n", 2)})
    x = np.array([[1, 2], [3, 5]], np.float32)
    right = (x - [1, 2]) / np.sqrt(np.array([4, 9], np.float32) + 1e-3) * [2, 3] + [0, 1]
    np.testing.assert_allclose(session.run({"data": x})["bn_output"], right, rtol=1e-5)


def test_a_scale_that_is_fixed_is_no_weight_left_out() -> None:
    """Without a warning, which is an error here."""
    variables = ("data", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var")
    nodes: list[dict[str, Any]] = [{"op": "null", "name": n, "inputs": []} for n in variables]
    nodes.append({"op": "BatchNorm", "name": "bn", "attrs": {}, "inputs": [[i, 0, int(i > 2)] for i in range(5)]})
    symbol = {"nodes": nodes, "heads": [[5, 0, 0]], "attrs": {"mxnet_version": ["int", 10901]}}
    params = {f"arg:{n}": np.full(4, 0.5, np.float32) for n in variables[1:]}
    graph = mxnet.load(json.dumps(symbol).encode(), params, shapes={"data": (2, 4)})
    trainer = mz.Trainer(graph, optimizer=mz.optimizer.SGD(rate=0.1))
    trainer.step({"data": X, "target": np.array([0, 1])})
    assert [*trainer.parameters] == ["bn_beta"]


def test_all_that_is_missing_is_named_at_once() -> None:
    symbol = small_symbol()
    symbol["nodes"][3]["op"], symbol["nodes"][5]["op"] = "Custom", "_contrib_hawkesll"
    with pytest.raises(UnsupportedModel, match="Custom, _contrib_hawkesll"):
        loaded(symbol)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s["nodes"][3]["attrs"].update(num_hiden="3"), "num_hiden"),
        (lambda s: s["nodes"][3].update(attrs={}), "num_hidden"),
        (lambda s: s["nodes"][3].update(inputs=[[0, 0, 0]]), "weight"),
        (lambda s: s["nodes"][3].update(inputs=[[7, 0, 0]]), "names node 7"),
        (lambda s: s.update(heads=[]), "no heads"),
        (lambda s: s["nodes"][5].update(inputs=[[3, 1, 0]]), "output 1"),
        (lambda s: s["nodes"][3]["attrs"].update(num_hidden=3), "no texts"),
        (lambda s: s["nodes"].__setitem__(0, []), "no object"),
    ],
)
def test_what_is_wrong_is_told(change: Any, says: str) -> None:
    symbol = small_symbol()
    change(symbol)
    with pytest.raises(ModelError, match=says):
        loaded(symbol, shapes={"data": (2, 4)})


def transposed(op: str = "transpose", **attrs: str) -> dict[str, Any]:
    symbol = small_symbol()
    symbol["nodes"][3] = {"op": op, "name": "t", "attrs": attrs, "inputs": [[0, 0, 0]]}
    return symbol


def test_shapes_are_asked_for_where_nothing_tells_them() -> None:
    content = json.dumps(transposed()).encode()
    with pytest.raises(MezzoError, match="shape of the input 'data'"):
        mxnet.load(content, WEIGHTS)
    assert loaded(transposed(), shapes={"data": (4, 2)}).run({"data": X.T.copy()})["softmax_output"].shape == (2, 4)


def test_shapes_of_the_first_feed() -> None:
    session = loaded(transposed())
    assert [str(p) for p in session.inputs] == ["data: float32[...]"]
    with pytest.raises(MezzoError, match=r"(?s)there is no graph.*run once"):
        session.graph.nodes  # noqa: B018
    with pytest.raises(MezzoError, match="no input 'x'"):
        session.run({"x": X})
    for rows in (2, 5):
        x = np.random.default_rng(rows).standard_normal((4, rows), np.float32)
        e = np.exp(x.T - x.T.max(1, keepdims=True))
        np.testing.assert_allclose(session(x), e / e.sum(1, keepdims=True), rtol=1e-5)
    assert session.stats().programs == 2
    assert session.run({"data": X[None]})["softmax_output"].shape == (4, 2, 1)  # another rank is another graph
    assert session.run_async({"data": X.tolist()}).result()["softmax_output"].shape == (4, 2)


def test_sizes_that_have_to_be_known_are_those_of_each_feed() -> None:
    session = loaded(transposed("_contrib_MultiBoxPrior", sizes="(0.5,)"), shapes=None)
    for size in (2, 3, 2):
        assert session(np.zeros((1, 3, size, size), np.float32)).shape[1] == size * size
    session.warmup({"data": (1, 3, 4, 4)})
    assert str(session.program.inputs[0].type) == "float32[1,3,4,4]"


def test_a_file_beside_the_symbol(tmp_path: Path) -> None:
    (tmp_path / "net-symbol.json").write_text(json.dumps(small_symbol()))
    with pytest.raises(ModelError, match="no file of parameters"):
        mz.load(tmp_path / "net-symbol.json")
    for epoch, scale in ((1, 0.0), (10, 1.0)):
        written = {k: v * scale for k, v in WEIGHTS.items()}
        (tmp_path / f"net-{epoch:04}.params").write_bytes(v2_file(written))
    results = mz.load(tmp_path / "net-symbol.json").run({"data": X})
    np.testing.assert_allclose(results["softmax_output"], expected(), rtol=1e-5)
    with pytest.raises(ModelError, match="no network"):
        mz.load(tmp_path / "net-0010.params")


def v2_file(arrays: dict[str, Any]) -> bytes:
    """A file as MXNet writes it since 1.0."""
    out = b"\x12\x01" + bytes(14) + len(arrays).to_bytes(8, "little")
    for v in arrays.values():
        out += (0xF993FAC9).to_bytes(4, "little") + bytes(4) + v.ndim.to_bytes(4, "little")
        out += b"".join(d.to_bytes(8, "little") for d in v.shape) + (1).to_bytes(4, "little") + bytes(4)
        out += bytes(4) + v.tobytes()
    out += len(arrays).to_bytes(8, "little")
    for k in arrays:
        out += len(k).to_bytes(8, "little") + k.encode()
    return out


def test_params_are_refused_for_other_files() -> None:
    from mezzo.models.digits import digits_model

    with pytest.raises(MezzoError, match="models of MXNet"):
        mz.load(digits_model(), shapes={"image": (1, 1, 8, 8)})


def test_a_block_of_it_learns(tmp_path: Path) -> None:
    symbol = small_symbol()
    symbol["heads"] = [[3, 0, 0]]
    (tmp_path / "net-symbol.json").write_text(json.dumps(symbol))
    (tmp_path / "w.params").write_bytes(v2_file(WEIGHTS))
    net = mz.gluon.SymbolBlock.imports(tmp_path / "net-symbol.json", ["data"], tmp_path / "w.params")
    trainer = mz.gluon.Trainer(net.collect_params(), mz.optimizer.SGD(rate=0.5))
    loss = mz.gluon.loss.SoftmaxCrossEntropyLoss()
    x, y = mz.nd.asarray(X), mz.nd.asarray(np.array([2, 0]))
    values = []
    for _ in range(20):
        with mz.autograd.record():
            value = mz.nd.mean(loss(net(x), y))
        value.backward()
        trainer.step(1)
        values.append(float(value))
    assert values[-1] < 0.5 * values[0]


def test_checked_and_converted(tmp_path: Path) -> None:
    (tmp_path / "net-symbol.json").write_text(json.dumps(small_symbol()))
    (tmp_path / "net-0000.params").write_bytes(v2_file(WEIGHTS))
    verdict = check(tmp_path / "net-symbol.json")
    assert verdict.parts["run"] == "covered"
    convert(tmp_path / "net-symbol.json", tmp_path / "net.onnx")
    np.testing.assert_allclose(mz.load(tmp_path / "net.onnx").run({"data": X})["softmax_output"], expected(), rtol=1e-5)


# Whole models, which an environment with MXNet writes


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for models, or that of the variable MXNET_ZOO, where they are already."""
    given = os.environ.get("MXNET_ZOO")
    return Path(given) if given else tmp_path_factory.mktemp("mxnet-zoo")


@pytest.fixture(scope="session")
def mxnet_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with MXNet 1.9.1: that of the variable MXNET_PYTHON, or one that is made here."""
    if "MXNET_PYTHON" in os.environ:
        return os.environ["MXNET_PYTHON"]
    folder = tmp_path_factory.mktemp("mxnet")
    python = str(folder / "bin" / "python")
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--quiet", "mxnet==1.9.1", "numpy==1.23.5"],
    ):
        if subprocess.run(command, capture_output=True).returncode:
            pytest.xfail("mxnet 1.9.1 cannot be installed here")
    return python


@pytest.fixture(scope="session")
def written(zoo: Path, request: pytest.FixtureRequest) -> Path:
    missing = [n for n in MODELS if not (zoo / f"{n}-io.npz").exists()]
    if missing:
        python = request.getfixturevalue("mxnet_python")
        maker = Path(__file__).parent / "mxnet" / "zoo.py"
        subprocess.run([python, str(maker), str(zoo), *missing], check=True, capture_output=True)
    return zoo


def error_of(result: Any, right: Any) -> float:
    return float(np.abs(result - right).max() / np.abs(right).max())


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_zoo(written: Path, name: str, tmp_path: Path) -> None:
    ort = peer("onnxruntime")
    symbol = written / f"{name}-symbol.json"
    with np.load(written / f"{name}-io.npz") as page:
        x, answer = page["data"], page["answer"]
    session = mz.load(symbol)
    for feed in (x, x[:, :1] if name in TEXTS else x[:1], x):
        result = next(iter(session.run({"data": feed}).values()))
    assert error_of(result, answer) <= 1e-4
    mz.onnx.save(mz.mxnet.load(symbol), tmp_path / "m.onnx")
    (other,) = ort.InferenceSession(tmp_path / "m.onnx").run(None, {"data": x})
    assert error_of(other, answer) <= 1e-4


# Parameters that gluon does not train, and the file of the symbol does not say so (`BatchNorm(center=False)`).
STILL = {f"resnetv2{i}_batchnorm0_{name}" for i in (0, 1) for name in ("beta", "gamma")}


def held(symbol: dict[str, Any], given: dict[str, Any]) -> None:
    """Have rectifiers and max pooling read the values in `given` in place of their operands, whose gradients they
    still have: x - BlockGrad(x) is exactly 0."""
    nodes: list[dict[str, Any]] = []
    place: list[int] = []

    def add(op: str, name: str, *inputs: list[int]) -> list[int]:
        nodes.append({"op": op, "name": name, "attrs": {}, "inputs": list(inputs)})
        return [len(nodes) - 1, 0, 0]

    for node in symbol["nodes"]:
        entries = [[place[i], *rest] for i, *rest in node["inputs"]]
        if node["name"] in given:
            (x,) = entries
            nothing = add("elemwise_sub", f"{node['name']}_zero", x, add("BlockGrad", f"{node['name']}_still", x))
            value = add("null", f"branch/{node['name']}")
            entries = [add("elemwise_add", f"{node['name']}_held", nothing, value)]
        nodes.append({**node, "inputs": entries})
        place.append(len(nodes) - 1)
    symbol["heads"] = [[place[i], *rest] for i, *rest in symbol["heads"]]
    symbol["nodes"] = nodes


def without_dropout(symbol: dict[str, Any]) -> None:
    for node in symbol["nodes"]:
        if node["op"] == "Dropout":
            node["attrs"]["p"] = "0"


def stepped(
    name: str, folder: Path, stored: dict[str, Any], dtype: str, given: dict[str, Any]
) -> tuple[float, dict[str, Any]]:
    """The loss of one step of SGD, and the parameters after it; `given` is what branches read."""
    params = {k: v.astype(dtype) for k, v in mxnet.read_arrays(folder / f"{name}-0001.params").items()}
    x = stored["data"].astype(dtype)
    symbol = json.loads((folder / f"{name}-symbol.json").read_text())
    without_dropout(symbol)
    for node in symbol["nodes"]:
        if name == "ssd" and node["op"] == "softmax":
            symbol["heads"] = node["inputs"][:1]
    held(symbol, given)
    params |= {f"arg:branch/{k}": v.astype(dtype) for k, v in given.items()}
    if name in TEXTS or name == "ssd":  # the Trainer wants classes in axis 1
        node = {"op": "transpose", "name": "first", "attrs": {"axes": "(0, 2, 1)"}, "inputs": symbol["heads"]}
        symbol["nodes"].append(node)
        symbol["heads"] = [[len(symbol["nodes"]) - 1, 0, 0]]
    graph = mxnet.load(json.dumps(symbol).encode(), params, shapes={"data": x.shape}, dtypes={"data": dtype})
    trainer = mz.Trainer(graph, optimizer=mz.optimizer.SGD(rate=0.1), freeze=["branch/*"] * bool(given))
    loss = trainer.step({"data": x, "target": stored["labels"].astype(np.int64)})
    return loss, {k: np.asarray(v, np.float64) for k, v in trainer.parameters.items()}


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
def test_a_step_on_the_same_branches_is_that_of_mxnet(written: Path, name: str) -> None:
    """Where two values of a window are equal but for rounding, the gradient goes to either, and all layers below have
    another one. What rectifiers and pooling read is MXNet's within rounding, of which normalisation by two images makes
    more; given that, so is the step, in both types."""
    with np.load(written / f"{name}-io.npz") as page:
        stored = dict(page)
    given = {k.removeprefix("branch/"): v for k, v in stored.items() if k.startswith("branch/")}
    symbol = json.loads((written / f"{name}-symbol.json").read_text())
    assert set(given) == set(branches(symbol))
    if given:
        number = {node["name"]: i for i, node in enumerate(symbol["nodes"])}
        symbol["heads"] = [[number[source], 0, 0] for source in branches(symbol).values()]
        without_dropout(symbol)
        params, shapes = mxnet.read_arrays(written / f"{name}-0001.params"), {"data": stored["data"].shape}
        graph = training(mxnet.load(json.dumps(symbol).encode(), params, shapes=shapes))
        reads = mz.Session(graph).run({"data": stored["data"]})
        normalised = any(node["op"] == "BatchNorm" for node in symbol["nodes"])
        for (key, right), read in zip(given.items(), reads.values(), strict=True):
            assert error_of(read, right) <= (1e-3 if normalised else 1e-5), key
    after = {k.removeprefix("after/"): v for k, v in stored.items() if k.startswith("after/")}
    before = {k.partition(":")[2]: v for k, v in mxnet.read_arrays(written / f"{name}-0001.params").items()}
    changed = {k for k, v in after.items() if not np.array_equal(v, before[k]) and "_running_" not in k}
    for dtype in ("float32", "float64"):
        loss, learned = stepped(name, written, stored, dtype, given)
        assert abs(loss - stored["loss"]) <= 1e-5 * abs(stored["loss"])
        assert set(learned) - STILL == changed
        for key in changed:  # of a bias before normalisation all is rounding
            assert np.abs(learned[key] - after[key]).max() <= 1e-4 * np.abs(after[key]).max() + 1e-5, (dtype, key)


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "convention"),
    [(2, 2, 0, "valid"), (3, 2, 0, "full"), (3, 2, 1, "full"), (3, 1, 1, "valid")],
)
def test_of_equal_values_the_first_has_the_gradient(kernel: int, stride: int, pad: int, convention: str) -> None:
    """As in MXNet 1.9.1, to which these cases were given too; and a rectifier passes nothing on at 0."""
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (2, 3, 6, 7)).astype(np.float32)
    nodes: list[dict[str, Any]] = [{"op": "null", "name": n, "inputs": []} for n in ("data", "more")]
    attrs = {n: f"({v}, {v})" for n, v in (("kernel", kernel), ("stride", stride), ("pad", pad))}
    for op, given, inputs in (
        ("broadcast_add", {}, (0, 1)),
        ("Activation", {"act_type": "relu"}, (2,)),
        ("Pooling", {**attrs, "pool_type": "max", "pooling_convention": convention}, (3,)),
    ):
        nodes.append({"op": op, "name": op, "attrs": given, "inputs": [[i, 0, 0] for i in inputs]})
    symbol = json.dumps({"nodes": nodes, "heads": [[4, 0, 0]], "attrs": {"mxnet_version": ["int", 10901]}}).encode()
    graph = mxnet.load(symbol, {"more": np.zeros_like(x)}, shapes={"data": x.shape})
    (y,) = mz.Session(graph).run({"data": x}).values()
    slope = rng.standard_normal(y.shape).astype(np.float32)  # of the loss, as "mse" with this target has it
    trainer = mz.Trainer(graph, loss="mse", optimizer=mz.optimizer.SGD(rate=1))
    trainer.step({"data": x, "target": y - slope * (y.size / 2)})
    right = np.zeros_like(x)
    for n, c, i, j in np.ndindex(y.shape):
        rows, columns = (
            range(max(0, a * stride - pad), min(b, a * stride - pad + kernel)) for a, b in ((i, 6), (j, 7))
        )
        places = [(n, c, row, column) for row in rows for column in columns]
        first = max(places, key=lambda at: max(x[at], 0))
        right[first] += slope[n, c, i, j] * (x[first] > 0)
    np.testing.assert_allclose(-trainer.parameters["more"], right, rtol=0, atol=1e-5)


# Symbols, vocabularies, states


def test_a_symbol_of_mxnet() -> None:
    symbol = mz.sym.load_json(json.dumps(small_symbol()))
    assert symbol.list_arguments() == ["data", "fc_weight", "fc_bias", "softmax_label"]
    assert symbol.infer_shape(data=(2, 4))[0][1] == (3, 4)
    executor = symbol.simple_bind(data=(2, 4))
    executor.copy_params_from({k[4:]: v for k, v in WEIGHTS.items()})
    (result,) = executor.forward(data=X)
    np.testing.assert_allclose(result.asnumpy(), expected(), rtol=1e-5)
    executor.forward_backward(data=X, softmax_label=np.zeros(2, np.float32))
    np.testing.assert_allclose(
        executor.grad_dict["fc_bias"].asnumpy(), (expected() - [1, 0, 0]).sum(0), rtol=1e-4, atol=1e-6
    )


def test_a_symbol_with_statistics_and_old_names(tmp_path: Path) -> None:
    nodes: list[dict[str, Any]] = [{"op": "null", "name": n, "inputs": []} for n in ("data", "bn_gamma", "bn_beta")]
    nodes.append({"op": "BatchNorm", "name": "bn", "param": {"eps": "0.001"}, "inputs": [[0, 0], [1, 0], [2, 0]]})
    nodes.append({"op": "_PlusScalar", "name": "more", "param": {"scalar": "2"}, "inputs": [[3, 0]]})
    nodes.append({"op": "sum_axis", "name": "s", "param": {"axis": "1"}, "inputs": [[4, 0]]})
    path = tmp_path / "old-symbol.json"
    path.write_text(json.dumps({"nodes": nodes, "arg_nodes": [0, 1, 2], "heads": [[5, 0]]}))
    symbol = mz.sym.load(path)
    assert symbol.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    executor = symbol.simple_bind(data=(2, 3))
    (result,) = executor.forward(data=np.ones((2, 3), np.float32))
    np.testing.assert_allclose(result.asnumpy(), 3 * (1 / np.sqrt(1.001) + 2) * np.ones(2), rtol=1e-5)


def test_what_is_no_symbol_is_named_at_once() -> None:
    symbol = small_symbol()
    symbol["nodes"][3]["op"], symbol["nodes"][5]["op"] = "Custom", "_contrib_hawkesll"
    with pytest.raises(UnsupportedModel, match="Custom, _contrib_hawkesll"):
        mz.sym.fromjson(json.dumps(symbol))
    with pytest.raises(ModelError, match="no heads"):
        mz.sym.fromjson(json.dumps({"nodes": [], "heads": []}))


def test_a_vocabulary(tmp_path: Path) -> None:
    stored = {
        "idx_to_token": ["<unk>", "<pad>", "a", "b"], "token_to_idx": {"<unk>": 0, "<pad>": 1, "a": 2, "b": 3},
        "reserved_tokens": ["<pad>"], "unknown_token": "<unk>", "padding_token": "<pad>", "bos_token": None,
    }  # fmt: skip
    (tmp_path / "vocab.json").write_text(json.dumps(stored))
    vocabulary = mxnet.read_vocabulary(tmp_path / "vocab.json")
    assert vocabulary.tokens == ("<unk>", "<pad>", "a", "b")
    assert vocabulary.special == {"unknown": "<unk>", "padding": "<pad>"}
    assert vocabulary.numbers()["b"] == 3
    for wrong in (b"[]", b"{", b'{"idx_to_token": ["a", "a"]}', b'{"idx_to_token": ["a"], "token_to_idx": {"a": 1}}'):
        with pytest.raises(ModelError):
            mxnet.read_vocabulary(wrong)


def test_states_of_optimizers_are_no_arrays() -> None:
    with pytest.raises(ModelError, match=r"(?s)pickle.*read_states"):
        mxnet.read_arrays(b"\x80\x04\x95\x00\x00")


@pytest.mark.soak
@here
@pytest.mark.parametrize("name", FILES)
def test_many_mutations(name: str) -> None:
    """Flips, cuts, insertions and numbers in the place of others: MXNET_MUTATIONS of them (100,000 in all); an error,
    or arrays of no more than four times the file. Sparse ones become dense, of as many elements as the budget has."""
    content = (FORMATS / f"{name}.params").read_bytes()
    rng = np.random.default_rng(7)

    def some(rng: np.random.Generator) -> bytes:
        return rng.bytes(int(rng.integers(1, 9)))

    def number(rng: np.random.Generator) -> bytes:
        return NUMBERS[int(rng.integers(len(NUMBERS)))].to_bytes(8, "little")

    for _ in range(int(os.environ.get("MXNET_MUTATIONS", "100000")) // len(FILES)):
        found = damage(content, rng, b"\0", some, number)
        try:
            arrays = mxnet.read_arrays(found, Budget(tensor_elements=1 << 20))
        except MezzoError:
            continue
        if name != "sp":
            assert sum(a.nbytes for a in arrays.values()) <= 4 * max(len(found), 1 << 12)
