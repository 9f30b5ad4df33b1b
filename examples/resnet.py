"""A residual network (He et al. 2015) reads handwritten digits: batch normalisation, and ways around."""

from __future__ import annotations

import numpy as np

import mezzo as mz
from mezzo.gluon import HybridBlock, Trainer, loss, nn
from mezzo.models.digits import held_out

STEPS = 200


class Residual(HybridBlock):
    """Two convolutions and a way around them."""

    def __init__(self, channels: int, strides: int = 1) -> None:
        super().__init__()
        self.body = nn.HybridSequential(
            nn.Conv2D(channels, 3, strides, 1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"),
            nn.Conv2D(channels, 3, 1, 1, use_bias=False), nn.BatchNorm(),
        )  # fmt: skip
        self.around = nn.Conv2D(channels, 1, strides) if strides > 1 else nn.Identity()
        self.act = nn.Activation("relu")

    def forward(self, x: mz.nd.Array) -> mz.nd.Array:
        return self.act(self.body(x) + self.around(x))


def train(hybridize: bool, steps: int) -> list[float]:
    """The loss of each step."""
    mz.random.seed(0)
    images, labels = held_out().inputs, held_out().labels
    net = nn.HybridSequential(
        nn.Conv2D(8, 3, 1, 1), nn.BatchNorm(), Residual(8), Residual(16, 2), nn.GlobalAvgPool2D(), nn.Dense(10)
    )
    net.initialize("xavier").hybridize(hybridize)
    measure, losses = loss.SoftmaxCrossEntropyLoss().hybridize(hybridize), []
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.003})
    for step in range(steps):
        rows = np.arange(step * 32, (step + 1) * 32) % len(images)
        with mz.autograd.record():
            found = measure(net(mz.nd.asarray(images[rows])), mz.nd.asarray(labels[rows]))
        found.backward()
        trainer.step(32)
        losses.append(found.mean().item())
    return losses


if __name__ == "__main__":
    print(*(f"{loss:.4f}" for loss in train(hybridize=True, steps=STEPS)))
