"""The networks of the training benchmarks with their optimizers, and the graphs whose memory is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from ..ops import Tensor
from ..ops.types import Array, f32, type_of
from ..runtime.ir.autodiff import grad
from ..runtime.ir.graph import Graph, GraphBuilder
from ..runtime.ir.infer import infer
from ..runtime.ir.typed import TypedBuilder
from ..runtime.optimizer import SGD, Adam, Optimizer
from ..runtime.passes import modes
from ..train.building import Step
from ..train.head import logits_of
from ..train.judged import TARGET
from ..train.learning import weights as learnable
from ..train.loss import LOSSES
from ..train.step import training_step
from ..train.trainer import Trainer
from .convnets import Weights, alexnet_owt, googlenet, mlp, no_weights, resnet18, vgg
from .transformer import classifier
from .workloads import FEATURES, GATES, HIDDEN, LENGTH, Workload, digits, pictures, recurrent, series

Feeder = Callable[..., dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Lesson(Workload):
    """A network that ends in scores of `classes` classes or their softmax, its labels, and its training settings."""

    optimizer: Optimizer = field(kw_only=True)

    def trainer(self, batch: int, *, small: bool = False, **how: Any) -> Trainer:
        """A Trainer at the start of the lesson; `how` are its other arguments."""
        return Trainer(self.build(batch, small=small), optimizer=self.optimizer, **how)


def recurrent_classifier(
    batch: int | str = 1,
    weights: Weights = no_weights,
    *,
    op: str = "LSTM",
    length: int = LENGTH,
    features: int = FEATURES,
    hidden: int = HIDDEN,
    classes: int = 10,
) -> Graph:
    """One layer of LSTM or GRU, and a linear layer over its last state: `x` float32 [length, batch, features] to
    scores."""
    g = GraphBuilder(f"{op.lower()}_classifier")
    _, last = recurrent(g, op, g.input("x", f32(length, batch, features)), weights, features, hidden)
    head = [g.const(weights(shape)) for shape in ((classes, hidden), (classes,))]
    return g.graph([g.Gemm(g.Squeeze(last, g.const([0])), *head, transB=1)])


def vectors(rng: np.random.Generator, batch: int, *, length: int = 128, width: int = 256, **_: int) -> dict[str, Array]:
    return {"x": rng.standard_normal((batch, length, width), np.float32)}


def _labelled(feeder: Feeder, count: int) -> Feeder:
    """Return a feeder that adds a random class label to each sample of `feeder`."""

    def feeds(rng: np.random.Generator, batch: int, *, classes: int = count, **sizes: int) -> dict[str, Array]:
        return {**feeder(rng, batch, **sizes), TARGET: rng.integers(0, classes, batch)}

    return feeds


# Rates at which the loss falls steadily from the first step: where it jumps, rounding errors of a peer grow with it.
_MOMENTUM, _PLAIN, _ADAM = SGD(rate=0.001, momentum=0.9), SGD(rate=0.00001), Adam(rate=0.0001)
_PICTURES = _labelled(pictures, 1000)

LESSONS: Mapping[str, Lesson] = MappingProxyType(
    {
        "resnet18": Lesson(resnet18, _PICTURES, MappingProxyType({"side": 32, "classes": 10}), optimizer=_MOMENTUM),
        "mlp": Lesson(mlp, _labelled(digits, 10), optimizer=SGD(rate=0.01)),
        "transformer": Lesson(
            classifier,
            _labelled(vectors, 10),
            MappingProxyType({"layers": 2, "width": 32, "heads": 4, "length": 8}),
            optimizer=_ADAM,
        ),
        **{
            f"{op.lower()}_classifier": Lesson(
                partial(recurrent_classifier, op=op),
                _labelled(series, 10),
                MappingProxyType({"length": 5, "features": 12, "hidden": 16}),
                optimizer=_ADAM,
            )
            for op in GATES
        },
        # those of the MXNet paper's Fig. 6: no small form, since their dense layers are made for 224 x 224
        "alexnet_owt": Lesson(alexnet_owt, _PICTURES, optimizer=_PLAIN),
        "googlenet_v1": Lesson(googlenet, _PICTURES, optimizer=_PLAIN),
        "vgg_a": Lesson(lambda batch, weights: vgg("a", batch, weights), _PICTURES, optimizer=_PLAIN),
    }
)


# Graphs to plan: what a network needs to learn


def with_loss(graph: Graph) -> tuple[Graph, str, list[str]]:
    """A network in training mode whose output is the cross-entropy of its scores; the names of that and of what is
    learned."""
    graph = infer(graph)
    learned = learnable(graph)
    graph, kind = infer(modes.training(graph)), LOSSES["cross_entropy"]
    g = TypedBuilder(graph.types, prefix="loss/")
    scores = logits_of(graph, graph.outputs[0])
    known = g.type_of(scores)
    assert isinstance(known, Tensor)
    assert kind.target is not None
    loss = kind.build(g, scores, g.input(TARGET, kind.target(known)))
    trained = graph.but(
        inputs=(*graph.inputs, TARGET),
        outputs=(loss,),
        nodes=(*graph.nodes, *g.nodes()),
        initializers={**graph.initializers, **g.constants()},
        types=g.types,
    )
    return trained, loss, learned


def forward_and_backward(graph: Graph) -> Graph:
    """Loss and gradients of a network whose weights are inputs: neither they nor their gradients take planned memory,
    as MXNet counts it."""
    graph, loss, learned = with_loss(graph)
    weights = {n: type_of(graph.initializers[n]) for n in learned}
    fed = graph.but(
        inputs=(*graph.inputs, *learned),
        initializers={n: a for n, a in graph.initializers.items() if n not in weights},
        types={**graph.types, **weights},
    )
    return grad(fed, loss, learned)


def whole_step(graph: Graph, optimizer: Optimizer) -> Graph:
    """The step that trains a network: gradients take planned memory, weights and the optimizer's states do not."""
    graph, loss, learned = with_loss(graph)
    return training_step(graph, loss, learned, Step(optimizer))
