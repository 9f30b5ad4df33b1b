"""Runs of sessions on arrays: each is a workload of the engine, ordered with all other uses of these arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ..ops import Tensor
from ..runtime.compile.program import Port
from ..runtime.engine import Variable, engine
from ..runtime.execution.session import Session
from . import pending
from .array import Array
from .place import Place
from .planned import ran
from .running import UNKNOWN
from .specs import TensorSpec, spec_of, spec_of_value

BRIEF = 4e-4  # seconds: handing a run to a thread, which both then want Python's lock, takes up to a tenth of that


class Runs:
    """Runs of a session. `states` are arrays that its program reads in place, `writes` those among them that it
    changes; `outputs` is the number of outputs that become arrays (default: all).

    Where runs take less than BRIEF, they are made by the thread that asks for them, if there is nothing to wait for.
    """

    __slots__ = ("_inputs", "_kinds", "_name", "_reads", "_seconds", "_writes", "draws", "session")

    def __init__(
        self,
        session: Session,
        name: str,
        states: Sequence[Array] = (),
        writes: Sequence[Array] = (),
        outputs: int | None = None,
    ) -> None:
        self.session, self._name = session, name
        self.draws = any(not n.record.deterministic for _, n in session.graph.walk())  # whether it draws random numbers
        self._inputs = tuple(p.name for p in session.inputs)
        self._kinds = [_spec(port) for port in session.program.outputs[:outputs]]
        self._reads, self._writes = [x._var for x in states], [x._var for x in writes]
        self._seconds = float("inf")  # that runs take lately

    def __call__(self, given: Sequence[Any], place: Place, draw: tuple[int, ...] | None = None) -> list[Array]:
        """Ask for a run on these inputs, arrays or memory of NumPy, in the session's order; `draw` begins its random
        numbers. Returns before the outputs, which are at `place`, are computed."""
        if pending.waiting:
            pending.flush()
        one = engine()
        outs = [Array(Variable(one, self._name, None), kind, place) for kind in self._kinds]
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

    def _run(self, given: Sequence[Any], draw: tuple[int, ...] | None, outs: Sequence[Array]) -> None:
        begin = perf_counter()
        values = [x if x.__class__ is np.ndarray else x._look(x._variable.value) for x in given]
        results = ran(self.session, dict(zip(self._inputs, values, strict=True)), draw)
        for out, value in zip(outs, results, strict=False):
            out._variable.value = value
        self._seconds = min(perf_counter() - begin, 1.2 * self._seconds)  # one run that was held up does not count


def initial_value(memory: Any) -> np.ndarray[Any, Any]:
    """Return the initial value in a graph of a state in this memory: the memory itself, or, for a GPU's, zeros that
    take no memory."""
    here = isinstance(memory, np.ndarray)
    return memory if here else np.broadcast_to(np.zeros((), memory.dtype), memory.shape)


def resident_states(memories: Mapping[str, Any]) -> dict[str, Any]:
    """The states of a session that lie in this memory."""
    return {name: m if isinstance(m, np.ndarray) else _resident(m) for name, m in memories.items()}


def _resident(memory: Any) -> Any:
    from ..runtime.backends.cuda.memory import Resident  # with the first program over arrays there

    return Resident.over(memory)


def _spec(port: Port) -> TensorSpec:
    if isinstance(port.type, Tensor) and port.type.static:
        return spec_of(np.dtype(port.type.dtype.numpy), port.type.sizes)
    return UNKNOWN
