"""Linear regression: two weights and a bias from noisy sums."""

from __future__ import annotations

import numpy as np

import mezzo as mz
from mezzo.gluon import Trainer, loss, nn

STEPS = 200


def train(hybridize: bool, steps: int) -> list[float]:
    """The loss of each step."""
    mz.random.seed(0)
    rng = np.random.default_rng(0)
    net = nn.Dense(1, in_units=2).initialize("normal").hybridize(hybridize)
    measure, losses = loss.L2Loss().hybridize(hybridize), []
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for _ in range(steps):
        x = rng.standard_normal((10, 2)).astype(np.float32)
        y = x @ np.array([2, -3.4], np.float32) + 4.2 + 0.01 * rng.standard_normal(10).astype(np.float32)
        with mz.autograd.record():
            found = measure(net(mz.nd.asarray(x)), mz.nd.asarray(y))
        found.backward()
        trainer.step(10)
        losses.append(found.mean().item())
    return losses


if __name__ == "__main__":
    print(*(f"{loss:.4f}" for loss in train(hybridize=True, steps=STEPS)))
