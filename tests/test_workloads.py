"""The benchmarks' networks: they have the sizes claimed, mean in ONNX Runtime what they mean here, and learn."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.exporters import to_onnx
from mezzo.models.convnets import no_weights
from mezzo.models.training import LESSONS
from mezzo.models.workloads import WORKLOADS, Workload
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.ir.infer import infer

from .models import ort_run

# Parameters as published; BERT without its pooler, BatchNormalization with means and variances.
PARAMETERS = {
    "mlp": 109_386,
    "mobilenetv2": 3_504_872 + 34_112,
    "resnet50": 25_557_032 + 53_120,
    "bert": 108_891_648,
    "lstm": 4 * 256 * (128 + 256) + 8 * 256,
}
# Of those that are trained: ResNet-18 as published, with means and variances; the transformer's layers have four square
# products, two of four times the width and two normalisations.
LEARNED = {
    "resnet18": 11_689_512 + 9_600,
    "mlp": PARAMETERS["mlp"],
    "transformer": 4 * (4 * (256**2 + 256) + 2 * 4 * 256**2 + 5 * 256 + 2 * 512) + 10 * 257,
    "lstm_classifier": PARAMETERS["lstm"] + 10 * 257,
    "gru_classifier": 3 * 256 * (128 + 256) + 6 * 256 + 10 * 257,
    "alexnet_owt": 61_100_840,
    "googlenet_v1": 6_998_552,
    "vgg_a": 132_863_336,
}


def parameters(graph: Graph) -> int:
    return sum(a.size for a in graph.initializers.values() if a.dtype == np.float32 and a.ndim)


def sized(workload: Workload, count: int, labels: set[str]) -> None:
    """It has so many parameters, and what it is fed fits; `labels` are for the loss."""
    graph, feeds = infer(workload.build(2, no_weights)), workload.feeds(2)
    assert parameters(graph) == count
    assert set(graph.inputs) | labels == set(feeds)
    for value in graph.inputs:
        array = feeds[value]
        assert str(graph.types[value]).startswith(f"{array.dtype}[{','.join(map(str, array.shape))}")


@pytest.mark.parametrize("name", WORKLOADS)
def test_sizes(name: str) -> None:
    sized(WORKLOADS[name], PARAMETERS[name], set())


@pytest.mark.parametrize("name", LESSONS)
def test_sizes_of_what_is_trained(name: str) -> None:
    sized(LESSONS[name], LEARNED[name], {"target"})


@pytest.mark.parametrize("amp", [None, "bf16"])
@pytest.mark.parametrize("name", [n for n, lesson in LESSONS.items() if lesson.small or n == "mlp"])
def test_a_few_steps_lower_the_loss(name: str, amp: str | None) -> None:
    lesson = LESSONS[name]
    trainer, feeds = lesson.trainer(4, small=True, amp=amp), lesson.feeds(4, small=True)
    losses = [trainer.step(feeds) for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


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
