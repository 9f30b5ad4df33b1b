"""`HybridBlock.export` and `SymbolBlock.imports`: a symbol and a file of parameters, as MXNet's blocks have them.

The symbol is one of ours, of the operators of ONNX: `mx.sym.load`, `mx.model.load_checkpoint`, `mz.sym.load` read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...gluon.symbol_block import SymbolBlock as OurSymbolBlock
from ...ops.errors import InputError, UnsupportedModel
from ...runtime.ir.graph import Graph
from ...sym import Symbol
from ...sym import load as load_symbol
from ...sym.expression import Constant, Entry, Use, Variable
from ...sym.graphs import graph_of
from ...sym.shapes import typed
from ...sym.text import FORMAT
from . import arrays
from .modules import save_checkpoint


def exported(block: Any, path: str | os.PathLike[str], epoch: int, inputs: Sequence[Any]) -> tuple[str, str]:
    """Write `PATH-symbol.json` and `PATH-0000.params` of a block for such inputs; the batch's size is open where the
    block allows it. Returns both names."""
    try:
        graph = block._whole(inputs, {i: {0: "batch"} for i in range(len(inputs))})
    except InputError:
        graph = block._whole(inputs, {})
    params = block.collect_params()
    names = {n: "data" if len(graph.inputs) == 1 else f"data{i}" for i, n in enumerate(graph.inputs)}
    symbol = symbol_of(graph, names, [n for n in graph.initializers if n in params])
    fixed = {n for n, p in params.items() if p.grad_req == "null"}
    held = {n: arrays.array(a, dtype=a.dtype) for n, a in graph.initializers.items() if n in params}
    save_checkpoint(str(path), epoch, symbol, {n: a for n, a in held.items() if n not in fixed},
                    {n: a for n, a in held.items() if n in fixed})  # fmt: skip
    return f"{path}-symbol.json", f"{path}-{epoch:04d}.params"


def symbol_of(graph: Graph, names: Mapping[str, str], learnt: Sequence[str]) -> Symbol:
    """A graph as a symbol, whose inputs have these names, and whose constants are numbers but for the learnt ones.

    Raises UnsupportedModel for a graph with subgraphs.
    """
    entries: dict[str, Entry] = {}
    for name in graph.inputs:
        dims: Any = graph.types[name].dims  # type: ignore[union-attr]
        open_ = None if dims is None else tuple(d if isinstance(d, int) else None for d in dims)
        entries[name] = Variable(names[name], open_, graph.types[name].dtype), 0  # type: ignore[union-attr]
    for name, value in graph.initializers.items():
        entries[name] = (Variable(name, tuple(value.shape), init="xavier"), 0) if name in learnt else (
            Constant(np.asarray(value)), 0)  # fmt: skip
    for number, node in enumerate(graph.nodes):
        if node.bodies:
            raise UnsupportedModel(f"{node.op} has a part of its own", where=node.place, hint="net.export('net.onnx')")
        inputs = tuple(entries[i] if i else None for i in node.inputs)
        use = Use(node.op, f"{node.op.lower()}_{number}", inputs, node.attrs, node.domain, len(node.outputs))
        entries.update((o, (use, i)) for i, o in enumerate(node.outputs) if o)
    return Symbol([entries[o] for o in graph.outputs])


class SymbolBlock(OurSymbolBlock):
    """A block of a symbol's file: MXNet's, or one that `HybridBlock.export` has written."""

    @classmethod
    def imports(  # type: ignore[override]
        cls, symbol_file: str | os.PathLike[str], input_names: Any, param_file: Any = None, ctx: Any = None, **_: Any
    ) -> Any:
        if json.loads(Path(symbol_file).read_text("utf8")).get("format") != FORMAT:
            return super().imports(symbol_file, input_names, param_file)
        symbol, names = load_symbol(symbol_file), [input_names] if isinstance(input_names, str) else list(input_names)
        held = {} if param_file is None else arrays.load(param_file)
        values = {n.split(":", 1)[-1]: a.asnumpy() for n, a in held.items()}
        missing = [n for n in symbol.list_inputs() if n not in values and n not in names]
        if missing:
            raise InputError(f"the file lacks {', '.join(missing)}", where=str(param_file))
        inferred = typed(symbol, {n: a.shape for n, a in values.items() if n in symbol.list_inputs()})
        graph = graph_of(symbol.entries, inferred)
        known = {n: values[n] for n in graph.inputs if n in values}
        return cls(graph.but(inputs=tuple(names), initializers={**graph.initializers, **known}))


__all__ = ["SymbolBlock", "exported", "symbol_of"]
