"""A recurrent language model learns which letter follows; gradients are clipped."""

from __future__ import annotations

import numpy as np

import mezzo as mz
from mezzo.gluon import HybridBlock, Trainer, loss, nn, rnn

STEPS = 200


TEXT = "the time traveller for so it will be convenient to speak of him was expounding a recondite matter to us "


class Model(HybridBlock):
    """Letters to scores of the next letters."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(letters, 16), rnn.GRU(32, layout="NTC", input_size=16)
        self.out = nn.Dense(letters, flatten=False, in_units=32)

    def forward(self, x: mz.nd.Array) -> mz.nd.Array:
        return self.out(self.layer(self.embed(x)))


def train(hybridize: bool, steps: int) -> list[float]:
    """The loss of each step."""
    mz.random.seed(0)
    letters = sorted(set(TEXT))
    codes = np.array([letters.index(c) for c in TEXT])
    net = Model(len(letters)).initialize("xavier").hybridize(hybridize)
    measure, losses = loss.SoftmaxCrossEntropyLoss().hybridize(hybridize), []
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, clip_norm=1.0)
    for step in range(steps):
        starts = (np.arange(8) * 11 + step) % (len(codes) - 17)
        rows = codes[starts[:, None] + np.arange(17)]
        with mz.autograd.record():
            found = measure(net(mz.nd.asarray(rows[:, :-1])), mz.nd.asarray(rows[:, 1:]))
        found.backward()
        trainer.step(8)
        losses.append(found.mean().item())
    return losses


if __name__ == "__main__":
    print(*(f"{loss:.4f}" for loss in train(hybridize=True, steps=STEPS)))
