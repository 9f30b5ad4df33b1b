"""Digits through eight numbers and back, by convolutions and transposed ones."""

from __future__ import annotations

import numpy as np

import mezzo as mz
from mezzo.gluon import Trainer, loss, nn
from mezzo.models.digits import held_out

STEPS = 200


def train(hybridize: bool, steps: int) -> list[float]:
    """The loss of each step."""
    mz.random.seed(0)
    images = held_out().inputs
    net = nn.HybridSequential(
        nn.Conv2D(8, 3, 2, 1, activation="relu"), nn.Flatten(), nn.Dense(8), nn.Dense(128, "relu"),
        nn.HybridLambda(lambda x: x.reshape((-1, 8, 4, 4))), nn.Conv2DTranspose(1, 4, 2, 1),
    )  # fmt: skip
    net.initialize("xavier").hybridize(hybridize)
    measure, losses = loss.L2Loss().hybridize(hybridize), []
    trainer = Trainer(net.collect_params(), "nadam", {"learning_rate": 0.01})
    for step in range(steps):
        x = mz.nd.asarray(images[np.arange(step * 32, (step + 1) * 32) % len(images)])
        with mz.autograd.record():
            found = measure(net(x), x)
        found.backward()
        trainer.step(32)
        losses.append(found.mean().item())
    return losses


if __name__ == "__main__":
    print(*(f"{loss:.4f}" for loss in train(hybridize=True, steps=STEPS)))
