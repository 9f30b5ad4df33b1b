"""MXNet's operators, imported and run, beside the answers of a real MXNet 1.9.1."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.importers import mxnet

from .mxnet.answers import PAGE  # with all cases
from .mxnet.cases import CASES, symbol_of
from .peers import peer

FIXTURES = Path(__file__).parents[2] / "shared" / "mxnet-fixtures"
OFFICIAL = sorted(p.name.removesuffix("-symbol.json") for p in (FIXTURES / "ops").glob("*-symbol.json"))
TOLERANCE = 1e-4


def stored() -> dict[str, dict[str, Any]]:
    """Operands and answers of each case."""
    cases: dict[str, dict[str, Any]] = {}
    with np.load(PAGE) as page:
        for key in page:
            name, _, value = key.rpartition("/")
            cases.setdefault(name, {})[value] = page[key]
    return cases


ANSWERS = stored()


def graph_of(source: Any, feeds: Mapping[str, Any], params: Any = None) -> Any:
    shapes = {k: v.shape for k, v in feeds.items()}
    return mxnet.load(source, params, shapes=shapes, dtypes={k: v.dtype.name for k, v in feeds.items()})


def differences(results: Mapping[str, Any], answers: list[Any]) -> Iterator[str]:
    if len(results) != len(answers):
        yield f"{len(results)} results, {len(answers)} answers"
        return
    for (name, result), answer in zip(results.items(), answers, strict=True):
        if result.shape != answer.shape or result.dtype != answer.dtype:
            yield f"{name}: {result.dtype}{result.shape}, MXNet {answer.dtype}{answer.shape}"
            continue
        got, right = result.astype(np.float64), answer.astype(np.float64)
        finite = np.isfinite(right)
        if not np.array_equal(got[~finite], right[~finite], equal_nan=True):
            yield f"{name}: infinities or NaN differ"
            continue
        apart = np.abs(got[finite] - right[finite]).max(initial=0)
        if apart > TOLERANCE * np.abs(right[finite]).max(initial=0):
            yield f"{name}: {apart} off"


@pytest.mark.parametrize("name", CASES)
def test_an_operator_answers_as_mxnet(name: str) -> None:
    case = ANSWERS[name]
    feeds = {k: v for k, v in case.items() if k.startswith("x")}
    graph = graph_of(symbol_of(name).encode(), feeds)
    results = mz.Session(graph).run({k: v for k, v in feeds.items() if k in graph.inputs})
    assert not list(differences(results, [case[f"out{i}"] for i in range(CASES[name][3])]))


def official(name: str) -> tuple[Any, dict[str, Any], list[Any]]:
    """Graph, feeds and answers of an official case."""
    with np.load(FIXTURES / "ops" / f"{name}-io.npz") as page:
        values = dict(page)
    answers = [values.pop(k) for k in sorted(k for k in values if k.startswith("out"))]
    graph = graph_of(FIXTURES / "ops" / f"{name}-symbol.json", values)
    return graph, {k: v for k, v in values.items() if k in graph.inputs}, answers


@pytest.mark.skipif(not OFFICIAL, reason="../shared is not here")
@pytest.mark.parametrize("name", OFFICIAL)
def test_an_official_case(name: str) -> None:
    graph, feeds, answers = official(name)
    assert not list(differences(mz.Session(graph).run(feeds), answers))


def test_detection_among_many_anchors() -> None:
    """Boxes behind the first `nms_topk` are compared with none: 30,000 anchors take no square of that."""
    name, many = "detection of few", 30_000
    feeds = {k: v for k, v in ANSWERS[name].items() if k.startswith("x")}
    chances, shifts, anchors = feeds.values()
    count = many - anchors.shape[1]
    background = np.broadcast_to(np.array([[1], [0], [0]], np.float32), (len(chances), 3, count))
    wide = (
        np.concatenate([chances, background], 2),
        np.pad(shifts, ((0, 0), (0, 4 * count))),
        np.pad(anchors, ((0, 0), (0, count), (0, 0))),
    )
    widened = dict(zip(feeds, wide, strict=True))
    (result,) = mz.Session(graph_of(symbol_of(name).encode(), widened)).run(widened).values()
    np.testing.assert_allclose(result[:, : anchors.shape[1]], ANSWERS[name]["out0"], rtol=1e-4, atol=1e-6)
    assert np.all(result[:, anchors.shape[1] :] == -1)


def test_every_case_has_an_answer() -> None:
    assert set(ANSWERS) == set(CASES)


def test_defaults_are_those_of_mxnet() -> None:
    """Attributes that rules have by name have the defaults of MXNet's registry."""
    path = FIXTURES / "op_registry_1.9.1.json"
    if not path.exists():
        pytest.skip("../shared is not here")
    from mezzo.importers.mxnet.operators import RULES
    from mezzo.importers.mxnet.rules import literal

    registry = json.loads(path.read_text("utf8"))
    assert set(RULES) <= set(registry)
    wrong = []
    for name, rule in RULES.items():
        known = registry[name]
        for attr, default in rule.attrs.items():
            told = known["attrs"].get(attr)
            if told is None or "default" not in told or default is inspect.Parameter.empty:
                continue
            value = literal(told["default"])
            same = value == default or (not value and not default)
            near = isinstance(value, float) and isinstance(default, float) and abs(value - default) <= 1e-6 * abs(value)
            if not (same or near or bool(value) is default):
                wrong.append(f"{name}.{attr}: {default!r}, MXNet {value!r}")
    assert not wrong


EXPORTED = (
    "foreach",
    "while of 3",
    "while of 2",
    "cond 0",
    "cond 1",
    "quantized conv",
    "quantize v2 auto",
    "percentiles",
)


def runtime_differences(graph: Any, feeds: Mapping[str, Any], answers: list[Any], folder: Path) -> list[str]:
    """Export a graph and run it in ONNX Runtime; say what differs from MXNet's answers."""
    ort = peer("onnxruntime")
    mz.onnx.save(graph, folder / "case.onnx")
    session = ort.InferenceSession(folder / "case.onnx")
    results = session.run(None, dict(feeds))
    return list(differences(dict(zip(graph.outputs, results, strict=True)), answers))


def exported(name: str, folder: Path) -> list[str]:
    """Export one of our own cases; say what differs."""
    case = ANSWERS[name]
    feeds = {k: v for k, v in case.items() if k.startswith("x")}
    graph = graph_of(symbol_of(name).encode(), feeds)
    answers = [case[f"out{i}"] for i in range(len(graph.outputs))]
    return runtime_differences(graph, {k: v for k, v in feeds.items() if k in graph.inputs}, answers, folder)


@pytest.mark.parametrize("name", EXPORTED)
def test_an_operator_leaves_as_onnx(name: str, tmp_path: Path) -> None:
    assert not exported(name, tmp_path)


# Cases that do not leave as ONNX, or that ONNX Runtime does not take.
KEPT = {
    **dict.fromkeys(
        ["potrf", "potri", "trsm False False", "trsm False True", "trsm True False", "trsm True True", "inverse",
         "inverse of one", "slogdet", "gelqf", "np cholesky", "np eigvalsh", "np solve", "np solve of a vector",
         "np inv", "np slogdet", "pinv", "tensorinv", "tensorsolve"],
        "ONNX has no decompositions of matrices",
    ),
    **dict.fromkeys(
        [f"pool {kind} {how}" for kind in ("max", "avg", "sum") for how in ("full padded", "far")],
        "ONNX Runtime refuses windows that begin behind the data",
    ),
    "deconv to a size": "ONNX Runtime has no transposed convolution in float64",
    "_npi_log1p of integers": "the exporter has no form of it for whole numbers",
}  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_every_operator_leaves_as_onnx(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if name in KEPT:
        request.applymarker(pytest.mark.xfail(reason=KEPT[name], strict=True))
    assert not exported(name, tmp_path)


@pytest.mark.skipif(not OFFICIAL, reason="../shared is not here")
@pytest.mark.parametrize("name", OFFICIAL)
def test_an_official_case_leaves_as_onnx(name: str, tmp_path: Path) -> None:
    assert not runtime_differences(*official(name), tmp_path)
