"""Random operators of MXNet: moments of what they draw, beside those of their distributions."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.importers import mxnet

from .mxnet.cases import graph, nodes_of

COUNT = 20_000
EULER = 0.5772156649015329
# operator, attributes, mean and variance
DISTRIBUTIONS: list[tuple[str, dict[str, Any], float, float]] = [
    ("_random_uniform", {"low": -1, "high": 3, "shape": f"({COUNT},)"}, 1.0, 16 / 12),
    ("_random_normal", {"loc": 2, "scale": 3, "shape": f"({COUNT},)"}, 2.0, 9.0),
    ("_random_exponential", {"lam": 4, "shape": f"({COUNT},)"}, 0.25, 1 / 16),
    ("_random_randint", {"low": -2, "high": 3, "shape": f"({COUNT},)"}, 0.0, 2.0),
    ("_npi_uniform", {"low": 1.0, "high": 2.0, "size": f"({COUNT},)"}, 1.5, 1 / 12),
    ("_npi_normal", {"loc": 1.0, "scale": 2.0, "size": f"({COUNT},)"}, 1.0, 4.0),
    ("_npi_gumbel", {"loc": 1.0, "scale": 2.0, "size": f"({COUNT},)"}, 1 + 2 * EULER, 4 * math.pi**2 / 6),
    ("_npi_logistic", {"loc": 1.0, "scale": 2.0, "size": f"({COUNT},)"}, 1.0, 4 * math.pi**2 / 3),
    ("_npi_exponential", {"scale": 2.0, "size": f"({COUNT},)"}, 2.0, 4.0),
    ("_npi_rayleigh", {"scale": 2.0, "size": f"({COUNT},)"}, 2 * math.sqrt(math.pi / 2), 4 * (2 - math.pi / 2)),
    ("_npi_pareto", {"a": 6.0, "size": f"({COUNT},)"}, 1 / 5, 6 / (25 * 4)),
    ("_npi_weibull", {"a": 2.0, "size": f"({COUNT},)"}, math.gamma(1.5), math.gamma(2) - math.gamma(1.5) ** 2),
    ("_npi_powerd", {"a": 3.0, "size": f"({COUNT},)"}, 0.75, 3 / 80),
    ("_npi_bernoulli", {"prob": 0.3, "logit": None, "is_logit": False, "size": f"({COUNT},)"}, 0.3, 0.21),
    ("_npi_bernoulli", {"prob": None, "logit": 0.0, "is_logit": True, "size": f"({COUNT},)"}, 0.5, 0.25),
]


def drawn(op: str, attrs: dict[str, Any], *operands: Any, outputs: int = 1) -> list[Any]:
    count = len(operands)
    nodes = nodes_of(count, (op, list(range(count)), attrs), names="x")
    symbol = graph(nodes, *([count, i, 0] for i in range(outputs)))
    feeds = {f"x{i}": v for i, v in enumerate(operands)}
    shapes = {k: v.shape for k, v in feeds.items()}
    session = mz.Session(mxnet.load(json.dumps(symbol).encode(), shapes=shapes))
    first, second = session.run(feeds), session.run(feeds)
    assert not np.array_equal(*(next(iter(r.values())) for r in (first, second)))  # each run draws anew
    return list(first.values())


@pytest.mark.parametrize(("op", "attrs", "mean", "variance"), DISTRIBUTIONS)
def test_moments(op: str, attrs: dict[str, Any], mean: float, variance: float) -> None:
    (values,) = drawn(op, attrs)
    assert values.shape == (COUNT,)
    assert np.isfinite(values).all()
    assert abs(values.mean() - mean) <= 5 * math.sqrt(variance / COUNT)
    assert abs(values.var() - variance) <= 0.12 * variance


def test_parameters_as_operands() -> None:
    low, high = np.array([0, 10], np.float32), np.array([1, 14], np.float32)
    (values,) = drawn("_sample_uniform", {"shape": "(4000,)"}, low, high)
    assert values.shape == (2, 4000)
    np.testing.assert_allclose(values.mean(1), [0.5, 12], atol=0.1)
    (values,) = drawn("_sample_normal", {"shape": "(4000,)"}, low, high)
    np.testing.assert_allclose(values.std(1), high, rtol=0.1)
    (values,) = drawn("_npi_normal_n", {"loc": None, "scale": 1.0, "size": "(4000,)"}, low)
    assert values.shape == (4000, 2)
    np.testing.assert_allclose(values.mean(0), low, atol=0.1)
    (values,) = drawn("_random_normal_like", {"loc": 3, "scale": 0.1}, np.zeros((50, 60), np.float32))
    assert values.shape == (50, 60)
    np.testing.assert_allclose(values.mean(), 3, atol=0.02)


def test_classes_by_their_probabilities() -> None:
    p = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]], np.float32)
    classes, logs = drawn("_sample_multinomial", {"shape": "(8000,)", "get_prob": True}, p, outputs=2)
    assert classes.dtype == np.int32
    for row in range(2):
        shares = np.bincount(classes[row], minlength=3) / 8000
        np.testing.assert_allclose(shares, p[row], atol=0.03)
        np.testing.assert_allclose(logs[row], np.log(p[row][classes[row]]), rtol=1e-5)


def test_rows_in_another_order() -> None:
    x = np.arange(200, dtype=np.float32).reshape(100, 2)
    (values,) = drawn("_shuffle", {}, x)
    assert not np.array_equal(values, x)
    np.testing.assert_array_equal(values[np.argsort(values[:, 0])], x)
