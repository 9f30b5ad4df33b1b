"""Files made of an architecture: by both exporters of PyTorch, and what ONNX Runtime makes of one when it optimises."""

from __future__ import annotations

import io
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from .architecture import Architecture


@cache
def module(made: Architecture) -> Any:
    """The module, its weights drawn so that every part of it matters: as built, many start near 0 (biases, the scales
    of residuals) or where attention is uniform, and batch normalisation has seen no data."""
    import torch

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.manual_seed(7)
    with _quiet(), torch.no_grad():
        built = made.build().eval()
        for part in built.parameters():
            if part.ndim > 1:
                gain = 2.0 if part.ndim > 2 else 1.0  # convolutions have a rectifier behind them
                part.normal_(0, (gain / part[0].numel()) ** 0.5)
            else:
                part.add_(0.1 * torch.randn_like(part))
        for norm in (m for m in built.modules() if isinstance(m, torch.nn.BatchNorm2d)):
            norm.momentum = None  # what is seen now is what counts
            norm.train()
        built(*_example(made))
        for part in built.eval().parameters():
            part.requires_grad_(False)
    return built


def _example(made: Architecture) -> tuple[Any, ...]:
    import torch

    return tuple(torch.from_numpy(a) for a in made.feeds({"batch": 2, **made.sizes[0]}).values())


@cache
def exported(made: Architecture, exporter: str) -> bytes:
    """The file that an exporter of PyTorch writes; free are the dims that have a name."""
    import torch

    example = _example(made)
    names = {"input_names": [read.name for read in made.reads], "output_names": list(made.returns)}
    with _quiet():
        if exporter == "dynamo":
            # a dim that the exporter cannot keep free takes the size of the example
            free = tuple(dict.fromkeys(_free(read.dims), torch.export.Dim.AUTO) for read in made.reads)
            asked = free if made.named else (free,)
            program = torch.onnx.export(
                module(made), example, dynamo=True, dynamic_shapes=asked, verbose=False, **names
            )
            content: bytes = program.model_proto.SerializeToString()
            return content
        held = io.BytesIO()
        axes = {read.name: _free(read.dims) for read in made.reads}
        torch.onnx.export(module(made), example, held, dynamo=False, dynamic_axes=axes, opset_version=17, **names)
        return held.getvalue()


def _free(dims: tuple[int | str, ...]) -> dict[int, str]:
    return {i: dim for i, dim in enumerate(dims) if isinstance(dim, str)}


def optimised(content: bytes) -> bytes:
    """What ONNX Runtime saves of a file after its extended optimisations: operators of com.microsoft, fused ones."""
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(path)
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        return path.read_bytes()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters say about themselves and their own dependencies."""
    with warnings.catch_warnings(action="ignore"):
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
