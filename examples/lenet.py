"""LeNet (LeCun et al. 1998) reads handwritten digits of 8 x 8 pixels."""

from __future__ import annotations

import numpy as np

import mezzo as mz
from mezzo.gluon import Trainer, loss, nn
from mezzo.models.digits import held_out

STEPS = 200


def train(hybridize: bool, steps: int) -> list[float]:
    """The loss of each step."""
    mz.random.seed(0)
    images, labels = held_out().inputs, held_out().labels
    net = nn.HybridSequential(
        nn.Conv2D(6, 3, padding=1, activation="relu"), nn.AvgPool2D(),
        nn.Conv2D(16, 3, activation="relu"), nn.AvgPool2D(),
        nn.Dense(60, "relu"), nn.Dense(42, "relu"), nn.Dense(10),
    )  # fmt: skip
    net.initialize("msra").hybridize(hybridize)
    measure, losses = loss.SoftmaxCrossEntropyLoss().hybridize(hybridize), []
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.005})
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
