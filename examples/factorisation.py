"""Matrix factorisation (Koren et al. 2009): who likes what, from vectors and biases of both."""

from __future__ import annotations

import numpy as np

import mezzo as mz
from mezzo.gluon import HybridBlock, Trainer, loss, nn

STEPS = 200


USERS, ITEMS = 40, 30


class Ratings(HybridBlock):
    """The product of two vectors, and two biases."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, 4), nn.Embedding(ITEMS, 4)
        self.user_bias, self.item_bias = nn.Embedding(USERS, 1), nn.Embedding(ITEMS, 1)

    def forward(self, user: mz.nd.Array, item: mz.nd.Array) -> mz.nd.Array:
        biases = (self.user_bias(user) + self.item_bias(item))[:, 0]
        return mz.nd.sum(self.user(user) * self.item(item), axis=1) + biases


def train(hybridize: bool, steps: int) -> list[float]:
    """The loss of each step."""
    mz.random.seed(0)
    rng = np.random.default_rng(0)
    truth = (rng.standard_normal((USERS, 2)) @ rng.standard_normal((2, ITEMS)) + 3).astype(np.float32)
    net = Ratings().initialize("normal").hybridize(hybridize)
    measure, losses = loss.L2Loss().hybridize(hybridize), []
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.05, "wd": 1e-4})
    for _ in range(steps):
        user, item = rng.integers(0, USERS, 128), rng.integers(0, ITEMS, 128)
        with mz.autograd.record():
            found = measure(net(mz.nd.asarray(user), mz.nd.asarray(item)), mz.nd.asarray(truth[user, item]))
        found.backward()
        trainer.step(128)
        losses.append(found.mean().item())
    return losses


if __name__ == "__main__":
    print(*(f"{loss:.4f}" for loss in train(hybridize=True, steps=STEPS)))
