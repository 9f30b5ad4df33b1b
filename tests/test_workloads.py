"""The benchmarks' networks: they have the sizes that are claimed, and mean in ONNX Runtime what they mean here."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.exporters import to_onnx
from mezzo.models.convnets import no_weights
from mezzo.models.workloads import WORKLOADS
from mezzo.runtime.graph import Graph
from mezzo.runtime.infer import infer
from mezzo.runtime.session import Session

from .models import ort_run

# Parameters as published; BERT without its pooler, BatchNormalization with means and variances.
PARAMETERS = {
    "mlp": 109_386,
    "mobilenetv2": 3_504_872 + 34_112,
    "resnet50": 25_557_032 + 53_120,
    "bert": 108_891_648,
    "lstm": 4 * 256 * (128 + 256) + 8 * 256,
}


def parameters(graph: Graph) -> int:
    return sum(a.size for a in graph.initializers.values() if a.dtype == np.float32 and a.ndim)


@pytest.mark.parametrize("name", WORKLOADS)
def test_sizes(name: str) -> None:
    graph = infer(WORKLOADS[name].build(2, no_weights))
    assert parameters(graph) == PARAMETERS[name]
    assert set(graph.inputs) == set(WORKLOADS[name].feeds(2))
    for value, array in WORKLOADS[name].feeds(2).items():
        assert str(graph.types[value]).startswith(f"{array.dtype}[{','.join(map(str, array.shape))}")


@pytest.mark.parametrize("name", WORKLOADS)
def test_same_as_onnx_runtime(name: str) -> None:
    workload = WORKLOADS[name]
    graph, feeds = workload.build(2, small=True), workload.feeds(2, small=True)
    ours = Session(graph).run(feeds)
    theirs = ort_run(to_onnx(graph), feeds)
    assert list(ours) == list(theirs)
    for value, expected in theirs.items():
        assert np.ptp(expected) > 0.01  # neither dead nor saturated
        assert np.max(np.abs(ours[value] - expected)) <= 1e-4 * np.max(np.abs(expected))
