"""A recurrent encoder, and a decoder that looks back by attention (Bahdanau et al. 2014), turn sequences around."""

from __future__ import annotations

import numpy as np

import mezzo as mz
from mezzo.gluon import HybridBlock, Trainer, loss, nn, rnn

STEPS = 200


LETTERS, LENGTH, UNITS = 8, 5, 24


class Translator(HybridBlock):
    """Scores of each letter of the answer, whose letters before are given."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.encoder = nn.Embedding(LETTERS + 1, UNITS), rnn.GRU(UNITS, layout="NTC", input_size=UNITS)
        self.cell, self.query = rnn.GRUCell(UNITS, input_size=2 * UNITS), nn.Dense(UNITS, in_units=UNITS)
        self.out = nn.Dense(LETTERS, in_units=UNITS)

    def forward(self, source: mz.nd.Array, before: mz.nd.Array) -> mz.nd.Array:
        memory = self.encoder(self.embed(source))
        given, states, scores = self.embed(before), [memory[:, -1]], []
        for t in range(before.shape[1]):
            query = mz.nd.expand_dims(self.query(states[0]), axis=2)
            weights = mz.nd.Softmax(mz.nd.matmul(memory, query), axis=1)
            seen = mz.nd.sum(memory * weights, axis=1)
            y, states = self.cell(mz.nd.concat([given[:, t], seen], axis=1), states)
            scores.append(self.out(y))
        return mz.nd.stack(scores, axis=1)


def train(hybridize: bool, steps: int) -> list[float]:
    """The loss of each step."""
    mz.random.seed(0)
    rng = np.random.default_rng(0)
    net = Translator().initialize("xavier").hybridize(hybridize)
    measure, losses = loss.SoftmaxCrossEntropyLoss().hybridize(hybridize), []
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, clip_norm=1.0)
    for _ in range(steps):
        source = rng.integers(0, LETTERS, (32, LENGTH))
        answer = source[:, ::-1].copy()
        before = np.concatenate([np.full((32, 1), LETTERS), answer[:, :-1]], 1)
        with mz.autograd.record():
            found = measure(net(mz.nd.asarray(source), mz.nd.asarray(before)), mz.nd.asarray(answer))
        found.backward()
        trainer.step(32)
        losses.append(found.mean().item())
    return losses


if __name__ == "__main__":
    print(*(f"{loss:.4f}" for loss in train(hybridize=True, steps=STEPS)))
