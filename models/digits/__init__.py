"""Handwritten digits: a small convolutional network, and real images that it was not trained on.

The images are the test part of Optical Recognition of Handwritten Digits (E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), as scikit-learn carries them: 8 x 8 pixels, 0 to 16.
`train.py` made everything here with PyTorch.

>>> digits = held_out()
>>> digits.images.shape, digits.images.dtype.name
((360, 1, 8, 8), 'uint8')
>>> float((digits.logits.argmax(1) == digits.labels).mean()) > 0.98
True
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Digits", "digits_model", "held_out"]

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """Images that the network was not trained on, their labels, and PyTorch's answers."""

    images: NDArray[np.uint8]  # [360, 1, 8, 8], 0 to 16
    labels: NDArray[np.uint8]  # [360], 0 to 9
    logits: NDArray[np.float32]  # [360, 10]

    @property
    def inputs(self) -> NDArray[np.float32]:
        """The images as the model takes them: float32, 0 to 1."""
        return self.images.astype(np.float32) / np.float32(16)


def digits_model() -> Path:
    """The model file: `image` float32 [batch, 1, 8, 8], 0 to 1, to `logits` float32 [batch, 10]."""
    return FOLDER / "digits.onnx"


def held_out() -> Digits:
    """The 360 held-out digits."""
    with np.load(FOLDER / "digits.npz", allow_pickle=False) as stored:
        arrays: dict[str, Any] = {name: stored[name] for name in ("images", "labels", "logits")}
    return Digits(**arrays)
