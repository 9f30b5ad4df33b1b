"""States of optimizers as MXNet saves them, read as data: nothing in the files is run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.importers.mxnet import OptimizerStates, read_states, states, stream
from mezzo.ops.budget import Budget
from mezzo.ops.dataclasses import replace
from mezzo.ops.errors import BudgetError, InputError, MezzoError, ModelError
from mezzo.runtime.optimizer import LAMB, NAG, SGD, Adadelta, Adagrad, Adam, Ftrl, Nadam, Optimizer, RMSprop, Signum

from .mxnet import states as maker
from .mxnet.damage import damage

with np.load(maker.FILE) as _page:
    PAGE = {k: _page[k] for k in _page}
NAMES = sorted(k.removesuffix(".states") for k in PAGE if k.endswith(".states"))


def content(name: str) -> bytes:
    return bytes(PAGE[f"{name}.states"].tobytes())


def flat(prefix: str, state: Any) -> dict[str, Any]:
    if isinstance(state, tuple):
        return {k: v for i, s in enumerate(state) for k, v in flat(f"{prefix}/{i}", s).items()}
    return {} if state is None else {prefix: state}


def all_arrays(read: OptimizerStates, name: str) -> dict[str, Any]:
    return {k: v for index, state in read.states.items() for k, v in flat(f"{name}/{index}", state).items()}


@pytest.mark.parametrize("name", NAMES)
def test_states_are_those_of_mxnet(name: str) -> None:
    read = read_states(content(name))
    found, right = all_arrays(read, name), {k: v for k, v in PAGE.items() if k.startswith(f"{name}/")}
    assert found.keys() == right.keys()
    assert len(read.states) == 2
    for key, value in right.items():
        assert found[key].dtype == value.dtype
        np.testing.assert_array_equal(found[key], value)


def test_settings_are_plain_data(tmp_path: Path) -> None:
    (tmp_path / "t.states").write_bytes(content("adam"))
    read = read_states(tmp_path / "t.states")
    assert (read.optimizer, read.updates, read.settings["beta1"]) == ("Adam", 2, 0.8)
    assert read.settings["lr_scheduler"]["class"] == "FactorScheduler"
    assert read.settings["lr_scheduler"]["factor"] == 0.5
    assert (read_states(content("module")).optimizer, read_states(content("module")).updates) == ("", 0)
    assert read_states(value_of(({}, None)) + b".").states == {}


def value_of(value: Any) -> bytes:
    """The steps that make a value; bytes are steps already."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, tuple | list):
        close = b"t" if isinstance(value, tuple) else b"l"
        return b"(" + b"".join(map(value_of, value)) + close
    if isinstance(value, dict):
        return b"(" + b"".join(value_of(k) + value_of(v) for k, v in value.items()) + b"d"
    return b"N" if value is None else f"I{value}\n".encode() if isinstance(value, int) else f"V{value}\n".encode()


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(rate=0.1),
    "momentum": SGD(rate=0.1, momentum=0.9, weight_decay=1e-3),
    "nag": NAG(rate=0.1, momentum=0.9),
    "signum": Signum(rate=0.1, momentum=0.9),
    "adam": Adam(rate=0.01, beta1=0.8),
    "rms": RMSprop(rate=0.01, alpha=0.9),
    "rmsprop": RMSprop(rate=0.01, alpha=0.9, momentum=0.9, centered=True),
    "adagrad": Adagrad(rate=0.1),
    "adadelta": Adadelta(epsilon=1e-5),
    "ftrl": Ftrl(rate=0.1, beta=1.0, lamda1=0.01),
    "lamb": LAMB(rate=0.1),
}


def file_of(name: str, folder: Path) -> Path:
    path = folder / f"{name}.states"
    path.write_bytes(content(name))
    return path


def gluon_trainer(name: str, optimizer: Optimizer) -> mz.gluon.Trainer:
    """A trainer of two parameters as MXNet had them after two updates, by the names "a" and "b"."""
    parameters = {}
    for key, label in enumerate("ba"):
        value = PAGE[f"step.{name}/{key}"][0]
        parameters[label] = mz.gluon.Parameter(label, shape=value.shape)
        parameters[label].initialize()
        parameters[label].set_data(mz.nd.asarray(value))
    clip = 0.5 if name == "adagrad" else None
    return mz.gluon.Trainer(parameters, optimizer, clip_value=clip)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_trainer_goes_on_from_states_of_mxnet(name: str, tmp_path: Path) -> None:
    """The update after them is MXNet's own."""
    rate = 1.0 if name == "adadelta" else float(PAGE[f"step.{name}/rate"])  # which has none in MXNet
    trainer = gluon_trainer(name, replace(OPTIMIZERS[name], rate=rate))
    trainer.load_states(file_of(name, tmp_path), names=["b", "a"])
    assert trainer.updates == 2
    for p in trainer.params.values():
        p.set_grad(mz.nd.asarray(maker.slope(p.data().asnumpy(), 2)))
    trainer.step(4)
    for key, label in enumerate("ba"):
        before, after = PAGE[f"step.{name}/{key}"]
        step = np.abs(after - before).max()
        np.testing.assert_allclose(trainer.params[label].data().asnumpy(), after, rtol=0, atol=1e-5 * step + 1e-7)
        assert step > 1e-4


def wrong(name: str, folder: Path, optimizer: Optimizer, says: str, **options: Any) -> None:
    """The states are refused, and the trainer has none of them."""
    trainer = gluon_trainer("momentum", optimizer)
    options = {"names": ["b", "a"]} | options
    with pytest.raises(InputError, match=says):
        trainer.load_states(file_of(name, folder), **options)
    assert trainer.updates == 0
    assert not any(a.any() for key, a in trainer._states.items() if key.startswith("optimizer/velocity"))


MOMENTUM = SGD(rate=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("name", "optimizer", "says", "options"),
    [
        ("momentum", Adam(), "those of SGD, the trainer's optimizer is Adam", {}),
        ("momentum", NAG(), "those of SGD, the trainer's optimizer is NAG", {}),
        ("momentum", replace(MOMENTUM, momentum=0.8), r"momentum is 0\.9 in the file, momentum is 0\.8 here", {}),
        ("momentum", MOMENTUM, "the file numbers parameters", {"names": ()}),
        ("momentum", MOMENTUM, r"the velocity of 'b' has the shape \(3,\), not \(2, 3\)", {"names": ["a", "b"]}),
        ("momentum", MOMENTUM, "none of 'a'; nothing learns 'c'", {"names": ["b", "c"]}),
        ("momentum", MOMENTUM, "parameter 1 is beyond the 1", {"names": ["b"]}),
        ("momentum", MOMENTUM, "two states of 'b'", {"names": ["b", "b"]}),
        ("momentum", MOMENTUM, "updates=3, and the file tells 2", {"updates": 3}),
        ("momentum", replace(MOMENTUM, rate=0.0), "the rate of the next update is 0", {}),
        ("sgd", MOMENTUM, r"momentum is 0\.0 in the file", {}),
        ("module", SGD(rate=0.1), "1 states of 'b', of which the optimizer keeps none", {}),
        ("module", Adam(), "does not tell how many updates", {}),
        ("module", Adam(), "1 states of 'b', of which the optimizer keeps mean, square", {"updates": 2}),
        ("half", MOMENTUM, "2 states of 'b'", {}),
        ("nadam", Nadam(), "what Nadam of MXNet keeps is not taken up", {}),
        ("rms", RMSprop(alpha=0.5), r"gamma1 is 0\.9 in the file, alpha is 0\.5 here", {}),
    ],
)
def test_states_that_do_not_fit(name: str, optimizer: Optimizer, says: str, options: Any, tmp_path: Path) -> None:
    wrong(name, tmp_path, optimizer, says, **options)


def test_a_trainer_of_graphs_goes_on_from_states_of_mxnet() -> None:
    """Those of a module, which has no settings: the next step by hand, in float64."""
    W, b = np.arange(6, dtype=np.float32).reshape(2, 3) / 10, np.array([0.3, -0.1, 0.2], np.float32)
    nodes: list[dict[str, Any]] = [{"op": "null", "name": n, "inputs": []} for n in ("x", "W", "b")]
    nodes.append({"op": "dot", "name": "d", "inputs": [[0, 0, 0], [1, 0, 0]]})
    nodes.append({"op": "broadcast_add", "name": "y", "inputs": [[3, 0, 0], [2, 0, 0]]})
    symbol = json.dumps({"nodes": nodes, "heads": [[4, 0, 0]], "attrs": {"mxnet_version": ["int", 10901]}})
    graph = mz.mxnet.load(symbol.encode(), {"W": W, "b": b}, shapes={"x": (4, 2)})
    x = np.random.default_rng(3).standard_normal((4, 2)).astype(np.float32)
    target = np.random.default_rng(4).standard_normal((4, 3)).astype(np.float32)
    for rate in (0.1, mz.schedule.Step(0.2, 2, 0.5)):
        trainer = mz.Trainer(graph, loss="mse", optimizer=SGD(rate=rate, momentum=0.9), threads=1)
        names = ["W", "b"]
        if rate != 0.1:
            with pytest.raises(InputError, match="does not tell how many updates"):
                trainer.load_states(content("module"), names)
        trainer.load_states(content("module"), names, updates=2)
        trainer.step({"x": x, "target": target})
        assert trainer.updates == 3
        slope = 2 * (x.astype(float) @ W + b - target) / target.size
        for name, value, dw, key in (("W", W, x.T.astype(float) @ slope, 0), ("b", b, slope.sum(0), 1)):
            after = value + 0.9 * PAGE[f"module/{key}"].astype(float) - 0.1 * dw
            np.testing.assert_allclose(trainer.parameters[name], after, rtol=0, atol=1e-6)


EVIL = b"cbuiltins\nexec\n(Vimport tests.mxnet.states as s; s.ran = True\ntR"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (EVIL, "builtins.exec, which is none of MXNet's"),
        ({0: EVIL}, "builtins.exec"),
        ({0: b"cposix\nsystem\n"}, "posix.system, which is none"),
        ([], "a list, no dict"),
        ({0: "text"}, "a state is a str"),
        ({(0,): None}, "a tuple does not belong"),
        ({None: None}, "no parameter"),
        (({}, 3), "no optimizer"),
        ({0: {1: 2}}, "a state is a dict"),
        ({0: b"cbuiltins\ncomplex\n"}, "complex, which is none"),
        ({0: b"\x8b\xff\xff\xff\x7f"}, "none that states of MXNet have"),
    ],
)
def test_all_else_is_refused(value: Any, says: str) -> None:
    for head in (b"", b"\x80\x02", b"\x80\x04"):
        with pytest.raises(ModelError, match=says):
            read_states(head + value_of(value) + b".")
    assert not hasattr(maker, "ran")


@pytest.mark.parametrize(
    ("bytes_", "says"),
    [
        (b"}(K\x00cmxnet.optimizer\nSGD\n)R" + b"u.", "a state is a mxnet.optimizer.SGD"),
        (b"cmxnet.ndarray.ndarray\nNDArray\n(Nt" + b"b.", "does not belong"),
        (b"}(K\x00cmxnet.ndarray\nNDArray\n(NtR}S'handle'\ncbuiltins\nexec\n", "builtins.exec"),
        (b"}(K\x00cmxnet.ndarray\nNDArray\n(NtRu.", "an array has no bytes"),
        (b"\x80\x09}.", "protocol"),
        (b"}..", "follows its end"),
        (b"h\x05.", "put aside as 5"),
        (b"u.", "a mark is missing"),
        (b"(R.", "a value is missing"),
        (b"I" + b"9" * 5000 + b"\n.", "no number"),
        (b"L" + b"9" * 5000 + b"L\n.", "no number"),
        (b"\x8d" + b"\xff" * 8, "bytes are needed"),
        (b"X\xff\xff\xff\xff", "bytes are needed"),
        (b"T\xff\xff\xff\xff", "bytes are needed"),
        (b"cmxnet.optimizer\nSGD.__init__.__globals__\n.", "none of MXNet's"),
    ],
)
def test_bytes_that_no_mxnet_writes(bytes_: bytes, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        read_states(bytes_)


def test_states_that_grow_by_repetition_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuples of the tuple before, each a hundred times: the file is small, what it says is not."""
    again = b"(" + b"g1\n" * 100 + b"tp1\n"
    whole = b"}I0\n((Ntp1\n" + again * 5 + b"ls."
    monkeypatch.setattr(states, "MOST", 1000)
    with pytest.raises(ModelError, match="too many values"):
        read_states(whole)
    with pytest.raises(BudgetError):
        read_states(content("momentum"), Budget(tensor_elements=4))
    monkeypatch.setattr(stream, "MOST_STEPS", 100)
    with pytest.raises(ModelError, match="more than 100 steps"):
        read_states(b"(" * 101)


def damaged_ones(name: str, count: int, seed: int) -> Any:
    rng, whole = np.random.default_rng(seed), content(name)
    codes = np.frombuffer(b"".join(content(n) for n in NAMES), np.uint8)

    def some(rng: np.random.Generator) -> bytes:
        return bytes(codes[rng.integers(len(codes), size=int(rng.integers(1, 9)))])

    def one(rng: np.random.Generator) -> bytes:
        return bytes([codes[rng.integers(len(codes))]])

    for _ in range(count):
        yield damage(whole, rng, b".", some, one)


def outcome(found: bytes) -> None:
    try:
        read = read_states(found, Budget(tensor_elements=1 << 20))
    except MezzoError:
        return
    arrays = {id(a): a for a in all_arrays(read, "").values() if isinstance(a, np.ndarray)}
    assert sum(a.nbytes for a in arrays.values()) <= 4 * max(len(found), 1 << 12)


@pytest.mark.parametrize("name", ["adam", "protocol0", "protocol2"])
def test_damaged_states_are_an_error_or_states(name: str) -> None:
    for size in range(0, len(content(name)), 29):
        with pytest.raises(MezzoError):
            read_states(content(name)[:size])
    for damaged in damaged_ones(name, 60, 1):
        outcome(damaged)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_many_mutations_of_states(name: str) -> None:
    for damaged in damaged_ones(name, int(os.environ.get("MXNET_MUTATIONS", "100000")) // len(NAMES), 7):
        outcome(damaged)
