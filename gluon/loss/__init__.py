"""Losses as blocks: one number for each example; the mean over an example's other axes is taken."""

from .base import Loss
from .ctc import CTCLoss
from .elements import (
    HingeLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    L2Loss,
    SigmoidBCELoss,
    SigmoidBinaryCrossEntropyLoss,
    SoftmaxCELoss,
    SoftmaxCrossEntropyLoss,
    SquaredHingeLoss,
)
from .pairs import CosineEmbeddingLoss, LogisticLoss, PoissonNLLLoss, TripletLoss

__all__ = [
    "CTCLoss", "CosineEmbeddingLoss", "HingeLoss", "HuberLoss", "KLDivLoss", "L1Loss", "L2Loss", "LogisticLoss", "Loss",
    "PoissonNLLLoss", "SigmoidBCELoss", "SigmoidBinaryCrossEntropyLoss", "SoftmaxCELoss", "SoftmaxCrossEntropyLoss",
    "SquaredHingeLoss", "TripletLoss",
]  # fmt: skip
