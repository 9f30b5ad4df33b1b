"""Write models of MXNet's gluon zoo with random weights, and what they answer: in an environment with mxnet 1.9.1,

    python tests/mxnet/zoo.py FOLDER [NAME ...]

Beside each pair of files stands `NAME-io.npz`: the operand, the answer, and the parameters after one step of SGD, in
which dropout leaves nothing out; that of the SSD head is one of its classes. Of the models in BRANCHING it has also
what rectifiers and max pooling were given in that step, as `branch/NODE`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZE = {"inceptionv3": 299, "ssd": 64}


def _vision(name: str) -> Callable[[Any], Any]:
    return lambda mx: getattr(mx.gluon.model_zoo.vision, name)(classes=10)


def _ssd(mx: Any) -> Any:
    """A head of SSD over a small network: anchors, classes, offsets, detection."""
    nn = mx.gluon.nn

    class Head(mx.gluon.HybridBlock):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.body = nn.HybridSequential()
                for width in (8, 16):
                    self.body.add(nn.Conv2D(width, 3, strides=2, padding=1), nn.BatchNorm(), nn.Activation("relu"))
                self.classes = nn.Conv2D(3 * 4, 3, padding=1)
                self.offsets = nn.Conv2D(4 * 4, 3, padding=1)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            x = self.body(x)
            anchors = F.contrib.MultiBoxPrior(x, sizes=(0.3, 0.5), ratios=(1, 2, 0.5))
            classes = self.classes(x).transpose((0, 2, 3, 1)).reshape((0, -1, 3))
            offsets = self.offsets(x).transpose((0, 2, 3, 1)).reshape((0, -1))
            chances = F.softmax(classes, axis=-1).transpose((0, 2, 1))
            return F.contrib.MultiBoxDetection(chances, offsets, anchors, nms_threshold=0.45, nms_topk=40)

    return Head()


def _classes(net: Any) -> Callable[[Any], Any]:
    """What the head says of classes, before the softmax."""
    return lambda x: net.classes(net.body(x)).transpose((0, 2, 3, 1)).reshape((0, -1, 3))


def _language(kind: str) -> Callable[[Any], Any]:
    def make(mx: Any) -> Any:
        nn, rnn = mx.gluon.nn, mx.gluon.rnn
        net = nn.HybridSequential()
        layer = {"lstm": rnn.LSTM, "gru": rnn.GRU}[kind]
        net.add(nn.Embedding(50, 16), layer(24, num_layers=2, bidirectional=kind == "gru"), nn.Dense(50, flatten=False))
        return net

    return make


def _transformer(mx: Any) -> Any:
    """Two layers of an encoder in the manner of GluonNLP, with interleaved products."""
    nn = mx.gluon.nn

    class Layer(mx.gluon.HybridBlock):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.parts = nn.Dense(3 * 32, flatten=False)
                self.out = nn.Dense(32, flatten=False)
                self.wide = nn.Dense(64, flatten=False)
                self.narrow = nn.Dense(32, flatten=False)
                self.first, self.second = nn.LayerNorm(), nn.LayerNorm()

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            parts = self.parts(x)
            weights = F.softmax(F.contrib.interleaved_matmul_selfatt_qk(parts, heads=4), axis=-1)
            x = self.first(x + self.out(F.contrib.interleaved_matmul_selfatt_valatt(parts, weights, heads=4)))
            return self.second(x + self.narrow(F.LeakyReLU(self.wide(x), act_type="gelu")))

    net = nn.HybridSequential()
    net.add(nn.Embedding(50, 32), Layer(), Layer())
    return net


MODELS: dict[str, Callable[[Any], Any]] = {
    "resnet18_v1": _vision("resnet18_v1"),
    "resnet18_v2": _vision("resnet18_v2"),
    "resnet50_v1": _vision("resnet50_v1"),
    "resnet50_v2": _vision("resnet50_v2"),
    "mobilenet0_25": _vision("mobilenet0_25"),
    "mobilenet_v2_0_25": _vision("mobilenet_v2_0_25"),
    "squeezenet1_1": _vision("squeezenet1_1"),
    "densenet121": _vision("densenet121"),
    "vgg11": _vision("vgg11"),
    "alexnet": _vision("alexnet"),
    "inceptionv3": _vision("inception_v3"),
    "ssd": _ssd,
    "lstm": _language("lstm"),
    "gru": _language("gru"),
    "transformer": _transformer,
}
TEXTS = ("lstm", "gru", "transformer")


def operand(name: str) -> Any:
    rng = np.random.default_rng(len(name))
    if name in TEXTS:
        return rng.integers(0, 50, (7, 2)).astype(np.float32)
    size = SIZE.get(name, 224)
    return rng.standard_normal((2, 3, size, size)).astype(np.float32)


def step(mx: Any, net: Any, x: Any, answer: Callable[..., Any], name: str) -> dict[str, Any]:
    """Labels, the loss, all parameters after one step of SGD, and what its branches were given."""
    net.apply(lambda block: setattr(block, "_rate", 0) if isinstance(block, mx.gluon.nn.Dropout) else None)
    net.hybridize()
    shape = answer(x).shape
    names: list[str] = []
    read: list[Any] = []
    if name not in TEXTS:
        block, names = watched(mx, answer, net.collect_params())

        def answer(x: Any) -> Any:
            first, *read[:] = block(x)
            return first

    labels = mx.nd.array(np.arange(np.prod(shape[:-1])).reshape(shape[:-1]) % shape[-1])
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with mx.autograd.record():
        value = loss(answer(x), labels).mean()
    value.backward()
    trainer.step(1, ignore_stale_grad=True)
    after = {f"after/{key}": p.data().asnumpy() for key, p in net.collect_params().items()}
    given = {f"branch/{key}": v.asnumpy() for key, v in zip(names, read, strict=True)}
    return {"labels": labels.asnumpy(), "loss": value.asnumpy()} | after | given


def branches(symbol: dict[str, Any]) -> dict[str, str]:
    """By name of each rectifier, clipping and max pooling of a symbol's JSON the node that it reads: some of their
    choices are decided by rounding."""
    read = {}
    for node in symbol["nodes"]:
        kind = {"Activation": ("act_type", "relu"), "Pooling": ("pool_type", "max"), "clip": ("", "")}.get(node["op"])
        if kind is not None and node["attrs"].get(kind[0], kind[1]) == kind[1]:
            read[node["name"]] = symbol["nodes"][node["inputs"][0][0]]["name"]
    return read


def watched(mx: Any, net: Callable[[Any], Any], params: Any) -> tuple[Any, list[str]]:
    """A block over the same parameters that answers with what its rectifiers and max pooling read behind its answer,
    and their names."""
    symbol = net(mx.sym.var("data"))
    read, inside = branches(json.loads(symbol.tojson())), symbol.get_internals()
    outputs = [symbol, *(inside[f"{source}_output"] for source in read.values())]
    return mx.gluon.SymbolBlock(outputs, [mx.sym.var("data")], params=params), [*read]


def write(name: str, folder: Path) -> None:
    import mxnet as mx

    mx.random.seed(7)
    np.random.seed(7)  # noqa: TID251  MXNet draws its first weights there
    net = MODELS[name](mx)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = mx.nd.array(operand(name))
    with mx.autograd.record():  # running statistics unlike 0 and 1
        net(x).sum()
    answer = net(x).asnumpy()
    net.export(str(folder / name), epoch=1)
    stored = {"data": operand(name), "answer": answer}
    stored |= step(mx, net, x, _classes(net) if name == "ssd" else net, name)
    np.savez(folder / f"{name}-io.npz", **stored)


if __name__ == "__main__":
    for model in sys.argv[2:] or MODELS:
        write(model, Path(sys.argv[1]))
