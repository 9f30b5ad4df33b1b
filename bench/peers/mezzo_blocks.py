"""Ours, imperatively and otherwise, for `bench/blocks.py`: `mezzo_blocks.py CHILD`, CHILD being the path of
tools/compare_child.py.

Settings: `net`, and `how`: eager or hybridized (a forward run of a block), mixed (a loop of a symbol's executor with
the update in array code), graph (the same step as one program of the Trainer).
"""

from __future__ import annotations

import runpy
import sys
from time import perf_counter

import numpy as np

from mezzo import nd, sym
from mezzo.gluon import nn
from mezzo.gluon.hybrid import HybridBlock
from mezzo.nd import random
from mezzo.runtime.optimizer import SGD
from mezzo.runtime.version import __version__
from mezzo.train.trainer import Trainer

RATE = 0.01


class Encoder(HybridBlock):
    def __init__(self):
        super().__init__()
        self.attention, self.one, self.two = nn.MultiHeadAttention(256, 4), nn.LayerNorm(), nn.LayerNorm()
        self.wide, self.back, self.bend = nn.Dense(1024, flatten=False), nn.Dense(256, flatten=False), nn.GELU()

    def forward(self, x):
        x = self.one(x + self.attention(x))
        return self.two(x + self.back(self.bend(self.wide(x))))


def lenet():
    return nn.HybridSequential(
        nn.Conv2D(20, 5, activation="tanh"), nn.MaxPool2D(), nn.Conv2D(50, 5, activation="tanh"), nn.MaxPool2D(),
        nn.Dense(500, "tanh"), nn.Dense(10),
    )  # fmt: skip


def mlp():
    return nn.HybridSequential(nn.Dense(128, "relu"), nn.Dense(64, "relu"), nn.Dense(10))


NETS = {"mlp": mlp, "lenet": lenet, "transformer": Encoder}


def symbol():
    x = sym.Variable("data")
    for i, filters in enumerate((20, 50)):
        x = x.Convolution(kernel=(5, 5), num_filter=filters, name=f"conv{i}").Activation(act_type="tanh")
        x = x.Pooling(kernel=(2, 2), stride=2)
    x = x.FullyConnected(num_hidden=500, name="fc0").Activation(act_type="tanh")
    return x.FullyConnected(num_hidden=10, name="fc1").SoftmaxOutput(name="softmax", normalization="batch")


def learning(settings, feeds):
    """LeNet's step: a function that makes one and waits for it."""
    data, label = feeds["data"], feeds["label"]
    net = symbol()
    learnt = {n: "write" for n in net.list_arguments() if n not in ("data", "softmax_label")}  # as a Trainer does
    net = net.simple_bind(data=data.shape, grad_req=learnt)
    rng = np.random.default_rng(1)
    for w in net.w.values():
        w[:] = (rng.standard_normal(w.shape) * 0.05).astype(np.float32)
    if settings["how"] == "mixed":

        def mixed():
            net.forward_backward(data=data, softmax_label=label.astype(np.float32))
            net.w -= RATE * net.g
            nd.waitall()

        return mixed
    from mezzo.sym.graphs import graph_of
    from mezzo.sym.shapes import closed

    scores = symbol().get_internals()["fc1_output"]
    graph = graph_of(scores.entries, closed(scores, {"data": data.shape}))
    weights = {n: w.asnumpy() for n, w in net.w.items()}
    graph = graph.but(inputs=("data",), initializers={**graph.initializers, **weights})
    trainer = Trainer(graph, optimizer=SGD(rate=RATE), threads=settings["threads"])
    feeds = {"data": data, "target": label}
    return lambda: trainer.step(feeds)


def make(settings, feeds):
    begin = perf_counter()
    facts = {"version": __version__, "precision": "fp32"}
    if settings["how"] in ("mixed", "graph"):
        return Ready(learning(settings, feeds), lambda _: [], perf_counter() - begin, facts)
    random.seed(1)
    net = NETS[settings["net"]]().initialize("xavier")
    x = nd.asarray(feeds["data"])
    net(x)
    net.hybridize(settings["how"] == "hybridized")
    return Ready(lambda: net(x).wait_to_read(), lambda y: [], perf_counter() - begin, facts)


if __name__ == "__main__":
    child = runpy.run_path(sys.argv[1])
    Ready = child["Ready"]
    child["serve"](make)
