"""Two networks against each other (Goodfellow et al. 2014): one draws points, the other tells them from real ones."""

from __future__ import annotations

import numpy as np

import mezzo as mz
from mezzo.gluon import Trainer, loss, nn

STEPS = 200


def train(hybridize: bool, steps: int) -> list[float]:
    """The losses of both at each step, added up."""
    mz.random.seed(0)
    rng = np.random.default_rng(0)
    draws = nn.HybridSequential(nn.Dense(8, "tanh", in_units=2), nn.Dense(2, in_units=8))
    judges = nn.HybridSequential(nn.Dense(8, "tanh", in_units=2), nn.Dense(1, in_units=8))
    measure, losses = loss.SigmoidBCELoss().hybridize(hybridize), []
    trainers = []
    for net, rate in ((draws, 0.01), (judges, 0.02)):
        net.initialize("xavier").hybridize(hybridize)
        trainers.append(Trainer(net.collect_params(), "adam", {"learning_rate": rate, "beta1": 0.5}))
    ones, zeros = mz.nd.ones((32, 1)), mz.nd.zeros((32, 1))
    for _ in range(steps):
        real = rng.standard_normal((32, 2)) @ np.array([[1, 2], [-0.1, 0.5]]) + np.array([1, 2])
        noise = mz.random.normal((32, 2))
        with mz.autograd.record():
            fake = draws(noise)
            true = judges(mz.nd.asarray(real.astype(np.float32)))
            judged = measure(true, ones) + measure(judges(fake.detach()), zeros)
        judged.backward()
        trainers[1].step(32)
        with mz.autograd.record():
            fooled = measure(judges(draws(noise)), ones)
        fooled.backward()
        trainers[0].step(32)
        losses.append(judged.mean().item() + fooled.mean().item())
    return losses


if __name__ == "__main__":
    print(*(f"{loss:.4f}" for loss in train(hybridize=True, steps=STEPS)))
