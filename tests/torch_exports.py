"""Modules of PyTorch, and what its two exporters make of them. Imported inside tests: it needs PyTorch."""

from __future__ import annotations

import io
import logging
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

Array = np.ndarray[Any, Any]


def exported(module: Any, example: Array, axes: dict[int, str], names: list[str]) -> bytes:
    """What torch.onnx.export makes of a module with one input `x`, some of whose axes are free."""
    with warnings.catch_warnings(action="ignore"):
        free = {axis: torch.export.Dim(name, min=1, max=64) for axis, name in axes.items()}
        logging.disable(logging.WARNING)  # of torchvision, which nothing here needs
        try:
            program = torch.onnx.export(
                module, (torch.from_numpy(example),), dynamo=True, dynamic_shapes=(free,), input_names=["x"],
                output_names=names, verbose=False,
            )  # fmt: skip
        finally:
            logging.disable(logging.NOTSET)
    content: bytes = program.model_proto.SerializeToString()
    return content


def traced(module: Any, example: Array, axes: dict[int, str], names: list[str]) -> bytes:
    """The same by the older exporter."""
    made = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            module, (torch.from_numpy(example),), made, dynamo=False, dynamic_axes={"x": axes}, input_names=["x"],
            output_names=names,
        )  # fmt: skip
    return made.getvalue()


class Tagger(nn.Module):  # type: ignore[misc]
    """Two layers that read both ways, and a score for each step; the last states are outputs too."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = nn.LSTM(6, 10, num_layers=2, bidirectional=True)
        self.scores = nn.Linear(20, 3)

    def forward(self, x: Any) -> Any:
        steps, (h, c) = self.reads(x)
        return self.scores(steps), h, c


class Backbone(nn.Module):  # type: ignore[misc]
    """A small convolutional network with two heads: for each cell of its grid two boxes, and their scores in three
    classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU()),
            *(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 1, 1)),
        )
        self.boxes, self.scores = nn.Conv2d(16, 8, 1), nn.Conv2d(16, 6, 1)

    def forward(self, x: Any) -> Any:
        found = self.body(x)
        boxes = self.boxes(found).reshape(x.shape[0], 2, 4, -1).transpose(2, 3).flatten(1, 2)
        where, size = torch.tanh(boxes[..., :2]), torch.sigmoid(boxes[..., 2:]) + 0.1
        scores = self.scores(found).reshape(x.shape[0], 2, 3, -1).transpose(1, 2).flatten(2, 3)
        return torch.cat([where - size / 2, where + size / 2], -1), torch.sigmoid(4 * scores)
