"""Networks of Gluon at random: layers one after the other, shared, gated, around each other, over rows, images or
sequences, with a mask and whole numbers beside their floats, a loss, and an optimizer. All is a function of a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from mezzo import nd
from mezzo.gluon import Parameter, loss, nn, rnn
from mezzo.gluon.block import Block
from mezzo.gluon.hybrid import HybridBlock
from mezzo.nd import random
from mezzo.ops.errors import MezzoError

Array = np.ndarray[Any, Any]
WIDE, SIDE, STEPS, WORDS, CLASSES = 6, 8, 6, 7, 4
BATCHES = (3, 1, 5, 3, 2)
LARGEST = 6000  # numbers of an image between two layers


class Calls(HybridBlock):
    """A function of an array and of blocks."""

    def __init__(self, function: Callable[..., Any], *blocks: Block) -> None:
        super().__init__()
        self.function, self.blocks = function, nn.HybridSequential(*blocks)

    def forward(self, x: Any) -> Any:
        return self.function(x, *self.blocks)


class Scaled(HybridBlock):
    """A parameter of its own, read twice."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.w = Parameter("w", shape=(wide,), init="ones")

    def forward(self, x: Any) -> Any:
        w = self.w.data()
        return x * w + nd.where(x > 0, x, 0.5 * x) * nd.exp(-w)


def activation(r: Random) -> Block:
    kinds: list[Callable[[], Block]] = [
        lambda: nn.Activation(r.choice(["relu", "tanh", "sigmoid", "softrelu", "softsign"])), nn.PReLU, nn.SELU,
        lambda: nn.LeakyReLU(r.choice([0.1, 0.25])), lambda: nn.ELU(r.choice([1.0, 0.5])), nn.Swish, nn.GELU, nn.SiLU,
    ]  # fmt: skip
    return r.choice(kinds)()


FUNCTIONS: list[Callable[[Any], Any]] = [  # of rows
    lambda x: nd.where(nd.abs(x) > 0.3, x * 2, x - 1),
    lambda x: x * nd.topk(x, k=2, ret_typ="mask"),
    lambda x: nd.sort(x, axis=-1) + x,
    lambda x: nd.cumulative_sum(x, axis=1) * 0.3,
    lambda x: x / nd.sqrt((x * x).sum(axis=1, keepdims=True) + 1e-3),
    lambda x: nd.clip(x, -1, 1) + nd.maximum(x, 0.2),
    lambda x: nd.concat([x[:, : WIDE // 2] * 2, nd.flip(x[:, WIDE // 2 :], axis=1)], axis=1),
]


def of_rows(r: Random, shared: Block) -> Block:
    kinds: list[Callable[[], Block]] = [
        lambda: nn.Dense(WIDE, r.choice([None, "relu", "tanh"]), use_bias=r.random() < 0.7, flatten=r.random() < 0.5),
        lambda: nn.BatchNorm(momentum=r.choice([0.9, 0.5]), scale=r.random() < 0.8, center=r.random() < 0.8),
        lambda: nn.LayerNorm(epsilon=r.choice([1e-5, 1e-3])),
        lambda: activation(r),
        lambda: Scaled(WIDE),
        lambda: Calls(lambda x, f: x + f(x), nn.Dense(WIDE, "tanh")),
        lambda: Calls(lambda x, f: f(nd.tanh(f(x))), nn.Dense(WIDE, in_units=WIDE)),
        lambda: Calls(lambda x, f, g: f(x) * nd.sigmoid(g(x)), nn.Dense(WIDE), nn.Dense(WIDE)),
        lambda: shared,
        lambda: nn.Dropout(0.5),
    ]
    return Calls(r.choice(FUNCTIONS)) if r.random() < 0.3 else r.choice(kinds)()


def of_images(r: Random, channels: int) -> Block:
    out = r.choice([2, 4, 6])
    one_of: Any = r.choice  # of numbers and of pairs
    even = channels % 2 == 0
    kinds: list[Callable[[], Block]] = [
        *[lambda: nn.Conv2D(out, one_of([3, 1, (3, 1), 2]), one_of([1, 1, 2, (1, 2)]), one_of([0, 1, (1, 0)]),
            r.choice([1, 1, 2]), 2 if even and r.random() < 0.3 else 1, use_bias=r.random() < 0.7)] * 3,
        lambda: nn.Conv2DTranspose(4, r.choice([2, 3]), r.choice([1, 2]), r.choice([0, 1]), use_bias=r.random() < 0.7),
        lambda: nn.BatchNorm(use_global_stats=r.random() < 0.2),
        lambda: activation(r),
        lambda: nn.MaxPool2D(one_of([2, 3, (2, 1)]), r.choice([None, 1, 2]), r.choice([0, 1]),
            ceil_mode=r.random() < 0.3),
        lambda: nn.AvgPool2D(r.choice([2, 3]), r.choice([None, 1]), r.choice([0, 1]),
            count_include_pad=r.random() < 0.5),
        lambda: nn.GroupNorm(2 if even else 1),
        nn.InstanceNorm,
        lambda: nn.Upsample(2),
        lambda: nn.ReflectionPad2D(1),
        lambda: nn.PixelShuffle2D(2) if channels % 4 == 0 else activation(r),
        lambda: Calls(lambda x, f: nd.relu(x + f(x)), nn.Conv2D(channels, 3, padding=1)),
        lambda: Calls(lambda x, f: x * nd.sigmoid(f(nd.mean(x, axis=(2, 3)))).reshape((-1, channels, 1, 1)),
            nn.Dense(channels)),
        lambda: Calls(lambda x: nd.concat([x, x[:, :, ::-1] * 0.5], axis=1)),
        lambda: Calls(lambda x, f: x - f(x), nn.GlobalAvgPool2D()),
        lambda: Calls(lambda x: nd.concat([x[:, :1], nd.tanh(x[:, 1:])], axis=1)),
        lambda: nn.Dropout(0.3),
    ]  # fmt: skip
    return r.choice(kinds)()


def of_steps(r: Random) -> Block:
    cells: list[Callable[[], rnn.RecurrentCell]] = [
        lambda: rnn.LSTMCell(WIDE), lambda: rnn.GRUCell(WIDE), lambda: rnn.RNNCell(WIDE),
        lambda: rnn.ResidualCell(rnn.GRUCell(WIDE)),
        lambda: rnn.SequentialRNNCell(rnn.LSTMCell(WIDE), rnn.GRUCell(WIDE)),
        lambda: rnn.BidirectionalCell(rnn.LSTMCell(WIDE // 2), rnn.GRUCell(WIDE // 2)),
    ]  # fmt: skip

    def layer() -> Block:
        both = r.random() < 0.4
        kind: Any = r.choice([rnn.LSTM, rnn.GRU, rnn.RNN])
        made: Block = kind(WIDE // 2 if both else WIDE, r.choice([1, 2]), bidirectional=both, layout="NTC")
        return made

    kinds: list[Callable[[], Block]] = [
        layer,
        lambda: r.choice(cells)(),
        lambda: nn.MultiHeadAttention(WIDE, 2),
        lambda: nn.TransformerEncoderLayer(WIDE, 2, 8, dropout=0.0),
        lambda: nn.Dense(WIDE, "tanh", flatten=False),
        nn.LayerNorm,
        lambda: Calls(lambda x, f: f(x.transpose((0, 2, 1))).transpose((0, 2, 1)), nn.Conv1D(WIDE, 3, padding=1)),
        lambda: activation(r),
    ]
    return r.choice(kinds)()


class Rows(HybridBlock):
    """Of rows of numbers."""

    shape = (5,)

    def __init__(self, r: Random) -> None:
        super().__init__()
        shared = nn.Dense(WIDE, in_units=WIDE)
        self.body = nn.HybridSequential(nn.Dense(WIDE), *(of_rows(r, shared) for _ in range(r.randint(1, 6))))
        self.head = nn.Dense(CLASSES)
        self.table = nn.Embedding(WORDS, WIDE) if r.random() < 0.4 else None

    def forward(self, x: Any, mask: Any, ids: Any) -> Any:
        y = self.body(x)
        if self.table is not None:
            y = y + self.table(ids)[:, 0] * 0.5
        return self.head(y * mask.astype(y.dtype)[:, :1] + 0.1 * y)


class Images(HybridBlock):
    """Of images."""

    shape = (2, SIDE, SIDE)

    def __init__(self, r: Random) -> None:
        super().__init__()
        layers, channels = list[Block](), 2
        for _ in range(r.randint(1, 6)):
            layer = of_images(r, channels)
            try:
                y = nn.HybridSequential(*layers, layer).initialize()(nd.zeros((2, *self.shape)))
            except MezzoError:  # it does not fit what is left of the image
                continue
            if y.size <= LARGEST and min(y.shape[2:]) > 0:
                layers.append(layer)
                channels = y.shape[1]
        self.body = nn.HybridSequential(*layers, nn.Conv2D(3, 1))
        self.sums_up = r.choice([nd.mean, nd.max, None])
        self.head = nn.Dense(CLASSES)

    def forward(self, x: Any, mask: Any, ids: Any) -> Any:
        y = self.body(x)
        y = nd.where(mask[:, :1].reshape((-1, 1, 1, 1)), y, y * 0.5)
        if self.sums_up is not None:
            y = self.sums_up(y, axis=(2, 3))
        return self.head(y) + ids[:, :1].astype(y.dtype) * 0.1


class Texts(HybridBlock):
    """Of sequences, whose lengths the mask says."""

    shape = (STEPS, WIDE)

    def __init__(self, r: Random) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDE)
        self.body = nn.HybridSequential(*(of_steps(r) for _ in range(r.randint(1, 3))))
        self.head = nn.Dense(CLASSES, flatten=False)
        self.sums_up = r.choice(["mean", "last", "largest", "sum"])

    def forward(self, x: Any, mask: Any, ids: Any) -> Any:
        y = self.table(ids) + x * 0.3
        lengths = mask.astype("int64").sum(axis=1) + 1
        for block in self.body:
            if isinstance(block, rnn.RecurrentCell):
                y, _ = block.unroll(STEPS, y, valid_length=lengths if self.sums_up == "sum" else None)
            else:
                y = block(y)
        seen = (nd.arange(STEPS)[None, :] < lengths[:, None]).astype(y.dtype)[:, :, None]
        summaries: dict[str, Callable[[], Any]] = {
            "mean": lambda: (y * seen).sum(axis=1) / seen.sum(axis=1),
            "last": lambda: y[:, -1],
            "largest": lambda: nd.max(y - (1 - seen) * 1e3, axis=1),
            "sum": lambda: (y * seen).sum(axis=1),
        }
        return self.head(summaries[self.sums_up]())


TARGETS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "class": lambda rng, n: rng.integers(0, CLASSES, n),
    "share": lambda rng, n: rng.dirichlet([1] * CLASSES, n),
    "sign": lambda rng, n: rng.choice([-1.0, 1.0], (n, CLASSES)),
    "unit": lambda rng, n: rng.integers(0, 2, (n, CLASSES)).astype(np.float64),
    "count": lambda rng, n: rng.integers(0, 5, (n, CLASSES)).astype(np.float64),
    "any": lambda rng, n: rng.standard_normal((n, CLASSES)),
}
LOSSES: list[tuple[Callable[[], Block], str]] = [
    (loss.SoftmaxCrossEntropyLoss, "class"), (lambda: loss.SoftmaxCrossEntropyLoss(weight=2.0), "class"),
    (loss.L2Loss, "any"), (loss.L1Loss, "any"), (loss.HuberLoss, "any"), (loss.SigmoidBCELoss, "unit"),
    (lambda: loss.KLDivLoss(from_logits=False), "share"), (loss.HingeLoss, "sign"), (loss.LogisticLoss, "sign"),
    (loss.SquaredHingeLoss, "sign"), (loss.PoissonNLLLoss, "count"), (loss.TripletLoss, "any"),
    (loss.CosineEmbeddingLoss, "any"),
]  # fmt: skip
OPTIMIZERS: list[tuple[str, dict[str, float]]] = [
    ("sgd", {"learning_rate": 0.05, "momentum": 0.9}), ("sgd", {"learning_rate": 0.05, "wd": 0.1}),
    ("nag", {"learning_rate": 0.05, "momentum": 0.9}), ("adam", {"learning_rate": 0.01}),
    ("adamw", {"learning_rate": 0.01, "weight_decay": 0.1}), ("adagrad", {"learning_rate": 0.05}),
    ("rmsprop", {"learning_rate": 0.005}), ("ftrl", {"learning_rate": 0.05}), ("lamb", {"learning_rate": 0.01}),
]  # fmt: skip


class Measured(HybridBlock):
    """A network and its loss: its answer, and how far that is off."""

    def __init__(self, net: HybridBlock, measure: Block) -> None:
        super().__init__()
        self.net, self.measure = net, measure

    def forward(self, x: Any, mask: Any, ids: Any, target: Any, weight: Any) -> Any:
        y = self.net(x, mask, ids)
        if isinstance(self.measure, loss.TripletLoss):
            return y, self.measure(y, target, target[:, ::-1] * 0.5)
        if isinstance(self.measure, loss.CosineEmbeddingLoss):
            return y, self.measure(y, target, nd.sign(target[:, 0]))
        weights = () if isinstance(self.measure, loss.PoissonNLLLoss) else (weight,)
        return y, self.measure(y, target, *weights)


@dataclass(frozen=True)
class Drawn:
    """What a seed makes: a network with its loss, batches of several sizes, and how it learns."""

    net: Measured
    batches: list[list[Array]]
    optimizer: tuple[str, dict[str, float]]


def drawn(seed: int) -> Drawn:
    r, rng = Random(seed), np.random.default_rng(seed)
    random.seed(seed)
    dtype = np.float32 if r.random() < 0.5 else np.float64
    kind: Any = r.choice([Rows, Images, Texts])
    body = kind(r)
    make, wanted = r.choice(LOSSES)
    net = Measured(body, make())
    net.initialize(r.choice(["xavier", "uniform", "normal", "orthogonal"]))

    def batch(n: int) -> list[Array]:
        x, target = rng.standard_normal((n, *body.shape)), TARGETS[wanted](rng, n)
        target = target.astype(dtype) if target.dtype.kind == "f" else target
        mask, ids = rng.random((n, STEPS)) < 0.5, rng.integers(0, WORDS, (n, STEPS))
        return [x.astype(dtype), mask, ids, target, rng.uniform(0.5, 2, (n, 1)).astype(dtype)]

    batches = [batch(n) for n in BATCHES]
    net.cast(dtype)
    net(*map(nd.asarray, batches[0]))
    return Drawn(net, batches, r.choice(OPTIMIZERS))
