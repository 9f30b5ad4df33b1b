"""`mz.gluon.quantize`: a quantised block that can be trained further, made from a block and calibration data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..nd.running import as_array
from ..ops.errors import InputError
from ..train import quantize as graphs
from .export import Dynamic
from .hybrid import HybridBlock
from .symbol_block import SymbolBlock


def quantize(
    net: HybridBlock,
    batches: Iterable[Any],
    *,
    learn_scales: bool = False,
    dynamic: Dynamic | None = None,
    **how: Any,
) -> SymbolBlock:
    """A block that computes as `net` does, with QuantizeLinear and DequantizeLinear around what is calibrated on
    `batches`: arrays, or tuples of them where there are several inputs.

    It trains as any block does, with parameters of its own that begin as those of `net` and have their names, but for
    those of a convolution that has taken in the normalisation behind it. What it exports has integers for weights.
    `how` is that of `mz.quantize` (weights, activations, per_channel, method, percentile, skip), `dynamic` that of
    export: by default the first axis of each input stays open. Raises InputError where the block cannot be traced.

    >>> from mezzo.gluon import nn
    >>> from mezzo import nd
    >>> net = nn.HybridSequential(nn.Dense(4, "relu"), nn.Dense(2)).initialize()
    >>> quantize(net, [nd.ones((3, 5))])(nd.ones((7, 5))).shape
    (7, 2)
    """
    data = [tuple(map(as_array, b)) if isinstance(b, tuple | list) else (as_array(b),) for b in batches]
    if not data:
        raise InputError("there is no data to calibrate with", where="quantize", hint="give some typical inputs")
    if isinstance(net, SymbolBlock):
        graph = net.graph()
    else:
        graph = net._whole(data[0], {i: {0: "batch"} for i in range(len(data[0]))} if dynamic is None else dynamic)
    arrays = [[x.asnumpy() for x in batch] for batch in data]
    return SymbolBlock(graphs.quantize(graph, arrays, train=True, **how), learn_scales=learn_scales)
