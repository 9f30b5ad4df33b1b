"""Imported models as blocks: what an ONNX file computes, with its weights as parameters."""

from __future__ import annotations

import os
from typing import Any, Self

from ..importers import load_onnx
from ..ops.errors import InputError
from ..runtime.arrays.array import Array
from ..runtime.arrays.running import as_array
from ..runtime.graph import Graph
from ..runtime.infer import infer
from ..train.learning import weights
from ..train.prepare import prepared
from .hybrid import HybridBlock
from .nest import Slot
from .parameter import Parameter
from .trace import Traced, call


class SymbolBlock(HybridBlock):
    """A graph as a block; its weights are parameters under the names that the graph has for them. Normalisation by the
    batch and dropout stay as the graph has them.

    >>> from mezzo.models.digits import digits_model, held_out
    >>> net = SymbolBlock.imports(digits_model())
    >>> net(as_array(held_out().inputs[:2])).shape
    (2, 10)
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = prepared(graph)
        self._learnt = weights(self._graph)
        for name in self._learnt:
            value = self._graph.initializers[name]
            p = self._params[name] = Parameter(name, shape=value.shape, dtype=value.dtype)
            p.set_data(value)
        self._forms: dict[Any, Traced] = {}

    @classmethod
    def imports(cls, path: str | os.PathLike[str]) -> Self:
        """Read an ONNX file. Raises ModelError as `mz.load` does."""
        return cls(load_onnx(path))

    def forward(self, *inputs: Array) -> Any:
        fed = [n for n in self._graph.inputs if n not in self._graph.initializers]
        if len(inputs) != len(fed):
            raise InputError(f"{len(inputs)} inputs for {', '.join(fed)}", where=type(self).__name__)
        key = tuple(x._kind for x in inputs)
        form = self._forms.get(key)
        if form is None or not form.fits():
            form = self._forms[key] = self._form(fed, inputs)
        return call(form, inputs)

    def _form(self, fed: list[str], inputs: tuple[Array, ...]) -> Traced:
        graph = self._graph
        constants = {n: a for n, a in graph.initializers.items() if n not in self._learnt}
        types = {n: x._kind.tensor for n, x in zip(fed, inputs, strict=True)}
        types |= {n: self._params[n].data()._kind.tensor for n in self._learnt}
        whole = graph.but(inputs=(*fed, *self._learnt), initializers=constants)
        typed = infer(whole, types)
        params = {n: self._params[n] for n in self._learnt}
        draws = int(any(not n.record.deterministic for _, n in typed.walk()))
        count = len(graph.outputs)
        shell = Slot(0) if count == 1 else tuple(map(Slot, range(count)))
        return Traced(typed, count, fed, params, {}, {}, shell, draws)


__all__ = ["SymbolBlock", "as_array"]
