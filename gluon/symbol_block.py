"""Imported models as blocks: the computation of an ONNX file, with its weights as parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from ..importers import load_graph, mxnet
from ..nd.array import Array
from ..nd.recording import RECORDING
from ..nd.running import as_array
from ..ops.errors import InputError
from ..ops.types import Dim
from ..runtime.ir.graph import Graph
from ..runtime.ir.infer import infer
from ..runtime.passes.modes import inference, training
from ..train.integers import with_integer_weights
from ..train.learning import weights
from ..train.prepare import prepared
from ..train.quantize import shares
from .export import Dynamic, save
from .hybrid import HybridBlock
from .nest import Slot
from .parameter import Parameter
from .trace import Traced, call, move


class SymbolBlock(HybridBlock):
    """A graph as a block. Its weights are parameters under their names in the graph, and so are running statistics of
    batch normalisation, which no gradient changes. In training (`autograd.record()`), batch normalisation and dropout
    act as in any block; else running statistics are used and dropout has no effect, whatever mode the file has. With
    `statistics=False` normalisation keeps to its running statistics. A quantised graph learns through its steps
    (docs/training.md), and with `learn_scales` its scales learn.

    >>> from mezzo.models.digits import digits_model, held_out
    >>> net = SymbolBlock.imports(digits_model())
    >>> net(as_array(held_out().inputs[:2])).shape
    (2, 10)
    """

    def __init__(self, graph: Graph, *, statistics: bool = True, learn_scales: bool = False) -> None:
        super().__init__()
        whole = prepared(graph)
        self._graph, self._learning = inference(whole), training(whole, statistics=statistics)
        self._moves = {s.input: s.output for s in self._learning.states if s not in self._graph.states}
        self._learnt = tuple(n for n in weights(self._graph, scales=learn_scales) if n not in self._moves)
        shared = shares(self._learning, self._learnt)
        for name in (*self._learnt, *self._moves):
            value = self._graph.initializers[name]
            request = "null" if name in self._moves else "write"
            rate, decay = (shared[name], 0.0) if name in shared else (1.0, 1.0)
            p = self._params[name] = Parameter(
                name, shape=value.shape, dtype=value.dtype, grad_req=request, lr_mult=rate, wd_mult=decay
            )
            p.set_data(value)
        self._forms: dict[Any, Traced] = {}

    @classmethod
    def imports(
        cls,
        path: str | os.PathLike[str],
        input_names: str | Sequence[str] = (),
        param_file: str | os.PathLike[str] | None = None,
        *,
        shapes: Mapping[str, Sequence[Dim]] | None = None,
        statistics: bool = True,
        learn_scales: bool = False,
    ) -> Self:
        """Read a model file of any format. `input_names` says in which order inputs are given to the block; of a model
        of MXNet, `param_file` has the parameters, and is found beside the symbol when left out, and `shapes` are sizes
        of inputs, which some models need.

        Raises ModelError as `mz.load` does, InputError for names that are not those of the inputs.
        """
        given = param_file is not None or shapes is not None
        graph = mxnet.load(path, param_file, shapes=shapes) if given else load_graph(path)
        names = (input_names,) if isinstance(input_names, str) else tuple(input_names)
        fed = [n for n in graph.inputs if n not in graph.initializers]
        if names and sorted(names) != sorted(fed):
            raise InputError(f"the inputs are {', '.join(fed)}, not {', '.join(names)}", where="SymbolBlock.imports")
        if names:
            graph = graph.but(inputs=(*names, *(n for n in graph.inputs if n in graph.initializers)))
        return cls(graph, statistics=statistics, learn_scales=learn_scales)

    def forward(self, *inputs: Array) -> Any:
        fed = [n for n in self._graph.inputs if n not in self._graph.initializers]
        if len(inputs) != len(fed):
            raise InputError(f"{len(inputs)} inputs for {', '.join(fed)}", where=type(self).__name__)
        learns = RECORDING.training
        key = (*(x._spec for x in inputs), learns)
        form = self._forms.get(key)
        if form is None or not form.fits():
            form = self._forms[key] = self._form(fed, inputs, learns)
        if learns:  # what a tape has read must not change in place, and statistics do
            running = [self._params[n].data() for n in self._moves]
            inputs = (*inputs, *(running if RECORDING.trace is not None else [x.copy() for x in running]))
        outs: tuple[Array, ...] = call(form, inputs)
        count = len(self._graph.outputs)
        for name, value in zip(self._moves, outs[count:], strict=False):
            move(self._params[name], value)
        return outs[0] if count == 1 else outs[:count]

    def _form(self, fed: list[str], inputs: tuple[Array, ...], learns: bool) -> Traced:
        """The graph for inputs of these kinds; in training what running statistics become stands behind its outputs."""
        graph = self._learning if learns else self._graph
        constants = {n: a for n, a in graph.initializers.items() if n not in self._params}
        types = {n: x._spec.tensor for n, x in zip(fed, inputs, strict=True)}
        types |= {n: p.data()._spec.tensor for n, p in self._params.items()}
        moves = self._moves if learns else {}
        outputs = (*graph.outputs, *moves.values())
        whole = graph.but(inputs=(*fed, *self._params), initializers=constants, outputs=outputs, states=())
        typed = infer(whole, types)
        params = {n: p for n, p in self._params.items() if n not in moves}
        draws = int(any(not n.record.deterministic for _, n in typed.walk()))
        shell = tuple(map(Slot, range(len(outputs))))
        return Traced(typed, len(outputs), [*fed, *moves], params, {}, {}, shell, draws)

    def graph(self) -> Graph:
        """The graph with what its parameters are now, for inference and export."""
        learned = {n: p.data().detach().asnumpy() for n, p in self._params.items()}
        return with_integer_weights(self._graph.but(initializers={**self._graph.initializers, **learned}))

    def export(
        self,
        path: str | os.PathLike[str],
        *inputs: Array | np.ndarray[Any, Any],
        dynamic: Dynamic | None = None,
        opset: int | None = None,
        input_names: Sequence[str] = (),
        output_names: Sequence[str] = (),
    ) -> Self:
        """Write the graph with what it has learned, to `.onnx` or `.mezzo`: names, nodes and open sizes are those that
        it came with. Raises InputError where inputs, open sizes or names are given."""
        if inputs or dynamic or input_names or output_names:
            raise InputError(
                "the graph has sizes and names of its own", where="SymbolBlock.export", hint="give the path alone"
            )
        save(self.graph(), path, opset)
        return self


__all__ = ["SymbolBlock", "as_array"]
