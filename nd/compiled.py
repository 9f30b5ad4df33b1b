"""Functions over arrays, compiled from graphs: each call is a workload of the engine, ordered with all other uses of
these arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ..ops import Tensor
from ..runtime.compile.program import Port
from ..runtime.engine import Variable, engine
from ..runtime.execution.functions import compiled
from ..runtime.ir.graph import Graph
from . import pending
from .array import Array
from .place import Place, place_of
from .planned import ran
from .running import UNKNOWN, memory
from .specs import TensorSpec, spec_of, spec_of_value

BRIEF = 4e-4  # seconds: handing a run to a thread, which both then want Python's lock, takes up to a tenth of that


class CompiledFunction:
    """A graph as a function over arrays at a place. `states` are arrays by the names under which the graph has them as
    states: it reads and writes them where they lie. `others` is the memory of further states, if they do not begin
    anew. `outputs` is the number of outputs that become arrays (default: all).

    Where runs take less than BRIEF, they are made by the thread that asks for them, if there is nothing to wait for.
    """

    __slots__ = ("_memories", "_name", "_outs", "_place", "_reads", "_seconds", "_writes", "draws", "inputs", "session")

    def __init__(
        self,
        graph: Graph,
        name: str,
        place: Place,
        states: Mapping[str, Array] | None = None,
        others: Mapping[str, Any] | None = None,
        outputs: int | None = None,
    ) -> None:
        arrays = states or {}
        self._memories = {n: memory(x) for n, x in arrays.items()}
        device = "cpu" if graph.devices else place.device  # where each node tells its own
        self.session = compiled(graph, device=device, states={**(others or {}), **self._memories})
        self._name, self._place = name, place
        self.draws = any(not n.record.deterministic for _, n in graph.walk())  # whether it draws random numbers
        self.inputs = graph.inputs
        made: list[tuple[TensorSpec, Place]] = []
        if graph.outputs:
            parts = self.session.program.parts.items()
            at = {p.name: place_of(d) for d, part in parts for p in part.outputs}
            made = [(_spec(p), at.get(p.name, place)) for p in self.session.program.outputs[:outputs]]
        self._outs = made
        self._reads = [x._var for x in arrays.values()]
        self._writes = [arrays[s.input]._var for s in graph.states if s.output != s.input and s.input in arrays]
        self._seconds = float("inf")  # that runs take lately

    def __call__(self, given: Sequence[Any], draw: tuple[int, ...] | None = None) -> list[Array]:
        """Ask for a run on these inputs, arrays or memory of NumPy, in the order of `inputs`; `draw` begins its random
        numbers. Returns before the outputs are computed."""
        if pending.waiting:
            pending.flush()
        one = engine()
        outs = [Array(Variable(one, self._name, None), spec, place) for spec, place in self._outs]
        reads = [x._var for x in given if x.__class__ is not np.ndarray]
        work = one.push(
            self._run,
            [*reads, *self._reads],
            [*[o._variable for o in outs], *self._writes],
            name=self._name,
            args=(given, draw, outs),
            brief=self._seconds < BRIEF,
        )
        for out in outs:
            out._code, out._at = work._code, work._at
            if out._spec is UNKNOWN:  # its size is the data's choice: it is told once it is there
                one.wait(out._variable)
                out._spec = spec_of_value(out._variable.value)
        return outs

    def over(self, states: Mapping[str, Array]) -> bool:
        """True if its states are those of these arrays, where they lie now."""
        return all(self._memories.get(n) is memory(x) for n, x in states.items())

    def _run(self, given: Sequence[Any], draw: tuple[int, ...] | None, outs: Sequence[Array]) -> None:
        begin = perf_counter()
        values = [x if x.__class__ is np.ndarray else x._look(x._variable.value) for x in given]
        results = ran(self.session, dict(zip(self.inputs, values, strict=True)), draw)
        for out, value in zip(outs, results, strict=False):
            out._variable.value = value
        self._seconds = min(perf_counter() - begin, 1.2 * self._seconds)  # one run that was held up does not count


def initial_value(x: Array) -> np.ndarray[Any, Any]:
    """Return the initial value in a graph of a state that is this array: its memory, or, of one on a GPU, zeros that
    take no memory."""
    lies = memory(x)
    return lies if isinstance(lies, np.ndarray) else np.broadcast_to(np.zeros((), lies.dtype), lies.shape)


def _spec(port: Port) -> TensorSpec:
    if isinstance(port.type, Tensor) and port.type.static:
        return spec_of(np.dtype(port.type.dtype.numpy), port.type.sizes)
    return UNKNOWN
