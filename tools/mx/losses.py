"""`mx.gluon.loss`: losses that MXNet 1.9 counts otherwise than ours."""

from __future__ import annotations

from ... import nd
from ...gluon import loss as ours
from ...nd.array import Array
from . import blocks


class _KLDivLoss(ours.KLDivLoss):
    """The divergence of each example, summed over its elements, where ours takes the mean."""

    def forward(self, pred: Array, label: Array, sample_weight: Array | None = None) -> Array:
        mean = super().forward(pred, label, sample_weight)
        return mean * (pred.size // pred.shape[self.batch_axis])


class _PoissonNLLLoss(ours.PoissonNLLLoss):
    """The mean over all examples."""

    def forward(self, pred: Array, label: Array, sample_weight: Array | None = None) -> Array:
        return nd.reshape(nd.mean(super().forward(pred, label, sample_weight)), (1,))


class _CosineEmbeddingLoss(ours.CosineEmbeddingLoss):
    """One number for each example, in a column."""

    def forward(self, input1: Array, input2: Array, label: Array, sample_weight: Array | None = None) -> Array:
        return nd.reshape(super().forward(input1, input2, label, sample_weight), (-1, 1))


OWN = {kind.__name__[1:]: blocks.layer(kind) for kind in (_KLDivLoss, _PoissonNLLLoss, _CosineEmbeddingLoss)}
__all__ = ["OWN"]
