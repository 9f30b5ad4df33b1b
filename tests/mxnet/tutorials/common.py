"""Data and first weights that both libraries draw alike: from NumPy, by shapes."""

import mxnet as mx
import numpy as np


class ByShape(mx.init.Initializer):
    """Normal numbers that the shape alone decides."""

    def _init_weight(self, name, arr):
        rng = np.random.RandomState(sum((i + 1) * s for i, s in enumerate(arr.shape)) % 9973)
        arr[:] = mx.nd.array(rng.normal(0, 0.7 / np.sqrt(np.prod(arr.shape[1:])), arr.shape))


def digits(count=480, side=8, classes=4, seed=7):
    """Images [count, 1, side, side] around the centres of their classes, and the classes."""
    rng = np.random.RandomState(seed)
    centres = rng.uniform(0, 1, (classes, 1, side, side))
    labels = rng.randint(0, classes, count)
    images = centres[labels] + 0.35 * rng.normal(size=(count, 1, side, side))
    return images.astype(np.float32), labels.astype(np.float32)
