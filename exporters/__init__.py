"""Exporters: graphs to other formats. The writers load on first use, so that `import mezzo` needs none of their
packages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from ..runtime.ir.graph import Graph

if TYPE_CHECKING:
    import onnx

__all__ = ["expressible", "save_onnx", "to_onnx"]


def to_onnx(
    graph: Graph, *, opset: int | None = None, ir_version: int | None = None, standard: bool = False
) -> onnx.ModelProto:
    """The graph as an ONNX model, at the lowest opset and IR version that express it.

    A graph that was imported comes out as it went in: nodes, names, attributes, inputs and outputs. Nodes are
    rewritten for opsets older than ours only down to the opset of the file they came from, or to `opset`, which
    fixes the opset of the result; what it lacks is written in older operators where there is such a form. A state
    becomes an extra input (its value before the run, with the first value as default) and an extra output (its value
    after).

    Operators of the domain `mezzo` (gradients, optimizers) leave as local functions, whose bodies are standard
    operators; `load_onnx` makes operators of them again. They are written out in place where the target has no
    functions (an `ir_version` below 8, or an `opset` below 15 without one), and with `standard`, which writes out
    operators of other domains too (com.microsoft, or your own), where they have a body.

    Raises UnsupportedModel naming every node that the opset cannot express, or what an `ir_version` cannot hold.

    >>> from mezzo.runtime.ir.graph import GraphBuilder
    >>> from mezzo.ops.types import f32
    >>> g = GraphBuilder()
    >>> model = to_onnx(g.graph([g.Relu(g.input("x", f32(2)))]))
    >>> model.opset_import[0].version, model.ir_version
    (7, 3)
    """
    from .model import to_model

    return to_model(graph, opset=opset, ir_version=ir_version, standard=standard)


def expressible(
    graph: Graph, *, opset: int | None = None, ir_version: int | None = None, standard: bool = False
) -> int:
    """The opset that `to_onnx` would write, found without touching the weights; it raises the same errors."""
    from .model import opset_for

    return opset_for(graph, opset, ir_version=ir_version, standard=standard)


def save_onnx(
    graph: Graph,
    path: str | os.PathLike[str],
    *,
    opset: int | None = None,
    ir_version: int | None = None,
    standard: bool = False,
    external_data: Literal["auto", "always", "never"] = "auto",
    threshold: int = 1024,
    location: str = "",
) -> None:
    """Write the graph as an ONNX file (see `to_onnx`), checked by onnx before it replaces what is there.

    Weights of at least `threshold` bytes go to a second file beside it (`<name>.<digest>.data`) if `external_data` is
    "always", or if it is "auto" and the weights are too large for a protobuf. A failed or interrupted call leaves the
    former file as it was; data files of former calls are removed after a successful one. A file name given as
    `location` is that of the second file: one that is there is replaced before the model is.

    Raises UnsupportedModel where ONNX, the opset or the IR version cannot express the graph, ModelError if onnx refuses
    the result or the file cannot be written.
    """
    from .save import save

    save(
        graph,
        path,
        opset=opset,
        ir_version=ir_version,
        standard=standard,
        external_data=external_data,
        threshold=threshold,
        location=location,
    )
