"""Base of losses: one number for each example, the mean over the example's other axes."""

from __future__ import annotations

from ...nd import functions as nd
from ...nd.array import Array
from ...ops.errors import InputError
from ..hybrid import HybridBlock


class Loss(HybridBlock):
    """Base of losses. `weight` scales all examples (None: by 1), `sample_weight` (an operand) each; axis `batch_axis`
    counts the examples."""

    def __init__(self, weight: float | None = 1.0, batch_axis: int = 0) -> None:
        super().__init__()
        self.weight, self.batch_axis = 1.0 if weight is None else float(weight), batch_axis

    def each(self, pred: Array, label: Array) -> Array:
        """The loss of every element."""
        raise NotImplementedError

    def forward(self, pred: Array, label: Array, sample_weight: Array | None = None) -> Array:
        return weighted_mean(self.each(pred, label), self.weight, self.batch_axis, sample_weight)


def weighted_mean(losses: Array, weight: float, batch_axis: int, sample_weight: Array | None) -> Array:
    """The mean of each example's losses, weighed. One weight for each example is taken whatever their shape is."""
    if sample_weight is not None:
        if sample_weight.ndim == 1 and losses.ndim > 1:
            sample_weight = nd.reshape(sample_weight, tuple(-1 if i == batch_axis else 1 for i in range(losses.ndim)))
        elif sample_weight.ndim > losses.ndim and sample_weight.shape[losses.ndim :] == (1,) * (
            sample_weight.ndim - losses.ndim
        ):
            sample_weight = nd.reshape(sample_weight, sample_weight.shape[: losses.ndim])
        elif sample_weight.ndim > losses.ndim:
            raise InputError(
                f"weights {list(sample_weight.shape)} of losses {list(losses.shape)}", where="loss",
                hint="give one for each example, or for each loss",
            )  # fmt: skip
        losses = losses * sample_weight
    if weight != 1.0:
        losses = losses * weight
    others = tuple(i for i in range(losses.ndim) if i != batch_axis)
    return nd.mean(losses, axis=others) if others else losses
