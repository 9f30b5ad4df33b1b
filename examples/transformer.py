"""A transformer (Vaswani et al. 2017) reads sequences from their end, each letter as the next one."""

from __future__ import annotations

import numpy as np

import mezzo as mz
from mezzo.gluon import HybridBlock, Trainer, loss, nn

STEPS = 400


LETTERS, LENGTH, UNITS = 7, 6, 16


class Transformer(HybridBlock):
    """Scores of each letter of the answer, whose letters before are given."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(LETTERS + 1, UNITS), nn.PositionalEncoding(UNITS)
        self.encoder = nn.TransformerEncoderLayer(UNITS, 2, 32, dropout=0.05)
        self.decoder = nn.TransformerDecoderLayer(UNITS, 2, 32, dropout=0.05)
        self.out = nn.Dense(LETTERS, flatten=False, in_units=UNITS)

    def forward(self, source: mz.nd.Array, before: mz.nd.Array) -> mz.nd.Array:
        memory = self.encoder(self.places(self.embed(source)))
        return self.out(self.decoder(self.places(self.embed(before)), memory))


def train(hybridize: bool, steps: int) -> list[float]:
    """The loss of each step."""
    mz.random.seed(0)
    rng = np.random.default_rng(0)
    net = Transformer().initialize("xavier").hybridize(hybridize)
    measure, losses = loss.SoftmaxCrossEntropyLoss().hybridize(hybridize), []
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.005})
    for _ in range(steps):
        source = rng.integers(0, LETTERS, (32, LENGTH))
        answer = (source[:, ::-1] + 1) % LETTERS
        before = np.concatenate([np.full((32, 1), LETTERS), answer[:, :-1]], 1)
        with mz.autograd.record():
            found = measure(net(mz.nd.asarray(source), mz.nd.asarray(before)), mz.nd.asarray(answer))
        found.backward()
        trainer.step(32)
        losses.append(found.mean().item())
    return losses


if __name__ == "__main__":
    print(*(f"{loss:.4f}" for loss in train(hybridize=True, steps=STEPS)))
