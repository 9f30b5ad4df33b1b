"""A detector in the manner of SSD (Liu et al. 2016): at each place of two grids a class and a box, in one pass."""

from __future__ import annotations

import numpy as np

import mezzo as mz
from mezzo.gluon import HybridBlock, Trainer, loss, nn

STEPS = 200


class Detector(HybridBlock):
    """Images to scores [batch, places, 2] and boxes [batch, places, 4], of grids of 8 x 8 and 4 x 4."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.HybridSequential(nn.Conv2D(8, 3, 2, 1), nn.BatchNorm(), nn.Activation("relu"))
        self.down = nn.HybridSequential(nn.Conv2D(16, 3, 2, 1), nn.BatchNorm(), nn.Activation("relu"))
        self.heads = nn.HybridSequential(nn.Conv2D(6, 3, 1, 1), nn.Conv2D(6, 3, 1, 1))

    def forward(self, x: mz.nd.Array) -> tuple[mz.nd.Array, mz.nd.Array]:
        fine = self.body(x)
        maps = [self.heads[0](fine), self.heads[1](self.down(fine))]
        rows = [mz.nd.permute_dims(m, (0, 2, 3, 1)).reshape((m.shape[0], -1, 6)) for m in maps]
        whole = mz.nd.concat(rows, axis=1)
        return whole[:, :, :2], whole[:, :, 2:]


def batch(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images with one bright square; for each place whether the square's middle lies there, and its box from there."""
    images, classes, boxes = np.zeros((8, 1, 16, 16)), np.zeros((8, 80)), np.zeros((8, 80, 4))
    for i, (size, top, left) in enumerate(zip(rng.choice([3, 7], 8), *rng.integers(0, 9, (2, 8)), strict=True)):
        images[i, 0, top : top + size, left : left + size] = 1
        cells, first = (8, 0) if size < 5 else (4, 64)
        y, x = (int((begin + size / 2) / 16 * cells) for begin in (top, left))
        at = first + y * cells + x
        off = [(begin + size / 2) / 16 - (n + 0.5) / cells for begin, n in ((top, y), (left, x))]
        classes[i, at], boxes[i, at] = 1, (*off, size / 16, size / 16)
    return images.astype(np.float32), classes, boxes.astype(np.float32)


def train(hybridize: bool, steps: int) -> list[float]:
    """The losses of classes and boxes at each step, added up."""
    mz.random.seed(0)
    rng = np.random.default_rng(0)
    net = Detector().initialize("xavier").hybridize(hybridize)
    which, where, losses = loss.SoftmaxCELoss().hybridize(hybridize), loss.HuberLoss().hybridize(hybridize), []
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    for _ in range(steps):
        images, classes, boxes = map(mz.nd.asarray, batch(rng))
        with mz.autograd.record():
            scores, found = net(images)
            hits = mz.nd.expand_dims(classes.astype("float32"), axis=2)
            total = which(scores, classes.astype("int64")) + 20 * where(found, boxes, hits)
        total.backward()
        trainer.step(8)
        losses.append(total.mean().item())
    return losses


if __name__ == "__main__":
    print(*(f"{loss:.4f}" for loss in train(hybridize=True, steps=STEPS)))
