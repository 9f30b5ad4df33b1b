"""A multilayer perceptron with dropout reads handwritten digits."""

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
    net = nn.HybridSequential(nn.Dense(64, "relu"), nn.Dropout(0.2), nn.Dense(10))
    net.initialize("xavier").hybridize(hybridize)
    measure, losses = loss.SoftmaxCrossEntropyLoss().hybridize(hybridize), []
    trainer = Trainer(net.collect_params(), "nag", {"learning_rate": 0.05})
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
