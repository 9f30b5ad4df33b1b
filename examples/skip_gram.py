"""Word vectors by skip-grams with negative samples (Mikolov et al. 2013)."""

from __future__ import annotations

import numpy as np

import mezzo as mz
from mezzo.gluon import HybridBlock, Trainer, loss, nn

STEPS = 200


WORDS, NEGATIVE = 30, 4


class SkipGram(HybridBlock):
    """Products of a word's vector with those of words beside it, and of words drawn by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.context = nn.Embedding(WORDS, 8), nn.Embedding(WORDS, 8)

    def forward(self, centre: mz.nd.Array, others: mz.nd.Array) -> mz.nd.Array:
        vectors = mz.nd.expand_dims(self.word(centre), axis=1)
        return mz.nd.sum(vectors * self.context(others), axis=2)


def train(hybridize: bool, steps: int) -> list[float]:
    """The loss of each step."""
    mz.random.seed(0)
    rng = np.random.default_rng(0)
    net = SkipGram().initialize("normal").hybridize(hybridize)
    measure, losses = loss.SigmoidBCELoss().hybridize(hybridize), []
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})
    labels = np.concatenate([np.ones((64, 1)), np.zeros((64, NEGATIVE))], 1).astype(np.float32)
    for _ in range(steps):
        centre = rng.integers(0, WORDS, 64)
        beside = (centre + rng.choice([-1, 1], 64)) % WORDS  # words stand on a ring
        others = np.concatenate([beside[:, None], rng.integers(0, WORDS, (64, NEGATIVE))], 1)
        with mz.autograd.record():
            found = measure(net(mz.nd.asarray(centre), mz.nd.asarray(others)), mz.nd.asarray(labels))
        found.backward()
        trainer.step(64)
        losses.append(found.mean().item())
    return losses


if __name__ == "__main__":
    print(*(f"{loss:.4f}" for loss in train(hybridize=True, steps=STEPS)))
