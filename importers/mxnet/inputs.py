"""Guesses of how many axes an input has, from what reads it first."""

from __future__ import annotations

from collections.abc import Mapping

from ...ops.types import Array, Dim
from .operators import RULES
from .rules import literal
from .symbol import SymbolGraph, SymbolNode

SPATIAL = {1: ("width",), 2: ("height", "width"), 3: ("depth", "height", "width")}
CONVOLUTIONS = {"Convolution", "Convolution_v1", "Deconvolution", "_npx_convolution", "_npx_deconvolution"}
DENSE = {"FullyConnected", "_npx_fully_connected", "_sparse_FullyConnected"}


def guessed_type(symbol: SymbolGraph, index: int, values: Mapping[str, Array]) -> tuple[Dim, ...] | None:
    """Dims of an input with open sizes, where a reader of it, or of what is computed from it element by element, tells
    their number; None where nothing does."""
    same = {index}
    for i, node in enumerate(symbol.nodes):
        if not node.inputs or node.inputs[0].node not in same:
            continue
        dims = _dims(symbol, node, values)
        if dims is not None:
            return dims
        if RULES[node.op].keeps_axes:
            same.add(i)
    return None


def _dims(symbol: SymbolGraph, node: SymbolNode, values: Mapping[str, Array]) -> tuple[Dim, ...] | None:
    weight = values.get(symbol.nodes[node.inputs[1].node].name) if len(node.inputs) > 1 else None
    if node.op in CONVOLUTIONS:
        return _windowed(node, weight)
    if node.op in DENSE and weight is not None and weight.ndim == 2:
        plain = literal(node.attrs.get("flatten", "True"))
        return ("batch", weight.shape[1]) if plain else ("batch", "length", weight.shape[1])
    if node.op == "Pooling":
        kernel = literal(node.attrs.get("kernel", "()"))
        if isinstance(kernel, tuple) and len(kernel) in SPATIAL:
            return ("batch", "channels", *SPATIAL[len(kernel)])
    if node.op == "RNN":
        return ("length", "batch", "features")
    if node.op in ("Embedding", "_npx_embedding", "_contrib_SparseEmbedding"):
        return ("batch", "length")
    return None


def _windowed(node: SymbolNode, weight: Array | None) -> tuple[Dim, ...] | None:
    kernel = literal(node.attrs.get("kernel", "()"))
    groups = literal(node.attrs.get("num_group", "1"))
    count = 1 if isinstance(kernel, int) else len(kernel) if isinstance(kernel, tuple) else 0
    if count not in SPATIAL or not isinstance(groups, int):
        return None
    layout = node.attrs.get("layout", "None")
    last = layout.startswith("N") and layout.endswith("C")
    channels: Dim = "channels"
    if weight is not None and weight.ndim == count + 2:
        transposed = "econvolution" in node.op
        channels = weight.shape[0] if transposed else weight.shape[-1 if last else 1] * groups
    return ("batch", *SPATIAL[count], channels) if last else ("batch", channels, *SPATIAL[count])
