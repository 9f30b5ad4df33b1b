"""Connectionist temporal classification."""

from __future__ import annotations

import numpy as np

from ...nd import functions as nd
from ...nd.array import Array
from ...nd.running import apply
from ...ops.errors import InputError
from ..hybrid import HybridBlock
from .base import weighted_mean

_FAR = 1e30  # how far the logarithm of nothing is away


class CTCLoss(HybridBlock):
    """Connectionist temporal classification (Graves et al. 2006): the negative log likelihood of a sequence of labels
    under all alignments. Predictions are [batch, time, classes] (`layout` NTC) or [time, batch, classes] (TNC), before
    the softmax; labels are [batch, longest] (`label_layout` NT or TN) from 0, and -1 behind each example's last.

    The last class is the blank, or `blank`. `pred_lengths` and `label_lengths` tell how much of each example counts.
    The loss of an example is a sum over its times; 1e30 or more, which stands for infinity, where its labels do not fit
    into them.
    """

    def __init__(
        self, layout: str = "NTC", label_layout: str = "NT", weight: float | None = 1.0, blank: int | None = None
    ) -> None:
        super().__init__()
        if layout not in ("NTC", "TNC") or label_layout not in ("NT", "TN"):
            raise InputError(f"layouts {layout!r} and {label_layout!r}", where="CTCLoss", hint="NTC or TNC; NT or TN")
        self.layout, self.label_layout, self.blank = layout, label_layout, blank
        self.weight = 1.0 if weight is None else float(weight)

    def forward(
        self,
        pred: Array,
        label: Array,
        pred_lengths: Array | None = None,
        label_lengths: Array | None = None,
        sample_weight: Array | None = None,
    ) -> Array:
        if self.layout == "TNC":
            pred = nd.permute_dims(pred, (1, 0, 2))
        if self.label_layout == "TN":
            label = nd.permute_dims(label, (1, 0))
        batch, times, classes = pred.shape
        blank = classes - 1 if self.blank is None else self.blank
        label = label.astype("int64")
        real = label >= 0
        if label_lengths is None:
            label_lengths = nd.sum(real.astype("int64"), axis=1)
        label_lengths = label_lengths.astype("int64")
        # blanks between the labels, before the first and behind the last
        known = nd.where(real, label, nd.full_like(label, blank))
        blanks = nd.full_like(known, blank)
        pairs = nd.reshape(nd.stack([blanks, known], axis=2), (batch, 2 * label.shape[1]))
        path = nd.concat([pairs, blanks[:, :1]], axis=1)
        places = path.shape[1]
        # a blank may be left out between labels that differ
        leaps = nd.logical_and(path[:, 2:] != blank, path[:, 2:] != path[:, :-2])
        no = nd.zeros((), dtype="float32", device=pred.device).astype(pred.dtype) - _FAR
        logs = apply("LogSoftmax", pred, axis=2)
        wide = nd.broadcast_to(nd.reshape(path, (batch, 1, places)), (batch, times, places))
        scores = nd.take_along_axis(logs, wide, axis=2)
        start = nd.asarray(np.arange(places) < 2, device=pred.device)
        paths = nd.where(start, scores[:, 0], no)
        before, two = (nd.broadcast_to(no, (batch, n)) for n in (1, 2))
        for t in range(1, times):
            one = nd.concat([before, paths[:, :-1]], axis=1)
            leap = nd.concat([two, nd.where(leaps, paths[:, :-2], no)], axis=1)
            after = nd.logaddexp(nd.logaddexp(paths, one), leap) + scores[:, t]
            after = nd.maximum(after, no)  # what is impossible stays as far as it is
            if pred_lengths is not None:
                after = nd.where(nd.reshape(pred_lengths, (-1, 1)) > t, after, paths)
            paths = after
        # it ends in the last label, or in the blank behind it
        end = nd.reshape(label_lengths * 2, (-1, 1))
        at = nd.asarray(np.arange(places)[None], device=pred.device)
        last = nd.logical_or(at == end, at == end - 1)
        ends = nd.where(last, paths, no)
        highest = nd.max(ends, axis=1, keepdims=True)
        total = nd.log(nd.sum(nd.exp(ends - highest), axis=1)) + nd.squeeze(highest, axis=1)
        return weighted_mean(-total, self.weight, 0, sample_weight)
