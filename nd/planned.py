"""Neural network operators on arrays: each is a graph of one node, compiled and planned as any graph is.

The references of these operators are written to be understood; what runs here are the kernels that graphs get.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..ops import OPS, DType, Tensor
from ..ops.types import Type
from ..runtime.execution.functions import FUNCTIONS, compiled
from ..runtime.execution.session import Session
from ..runtime.ir.graph import RESULT, GraphBuilder, Node
from .place import Place
from .specs import Constant, TensorSpec

Template = tuple["TensorSpec | Constant | None", ...]
Key = tuple[str, str, str, Template, tuple[tuple[str, Any], ...], int, str]


def pays(domain: str, name: str, types: tuple[Type | None, ...]) -> bool:
    """Return True if an operator on operands of these types is planned. It depends on the types alone, so that the same
    operation has the same bits each time."""
    record = OPS.get((domain, name))
    least = record.planned_from if record is not None else None
    if least is None:
        return False
    tensors = [t for t in types if isinstance(t, Tensor)]
    floats = [t for t in tensors if t.dtype.floating]
    elements = sum(math.prod(t.sizes) for t in tensors)
    return all(t.dtype is DType.FLOAT for t in floats) and bool(floats) and elements >= max(least, 1)


class Planned:
    """One operator for one signature of operands, as a call."""

    __slots__ = ("_draw", "_key", "_names")

    def __init__(
        self,
        domain: str,
        name: str,
        template: Template,
        attrs: tuple[tuple[str, Any], ...],
        outputs: int,
        place: Place | None = None,
        draw: tuple[int, ...] | None = None,
    ) -> None:
        device = "cpu" if place is None else place.device
        self._key: Key = ("operator", domain, name, template, attrs, outputs, device)
        self._names = [f"x{i}" for i, t in enumerate(template) if isinstance(t, TensorSpec)]
        self._draw = draw

    def __call__(self, *xs: Any) -> Any:
        results = ran(self.session, dict(zip(self._names, xs, strict=True)), self._draw)
        return tuple(results) if self._key[5] > 1 else results[0]

    @property
    def session(self) -> Session:
        """The session that runs it; its plan, kernels and program can be inspected."""
        session: Session = FUNCTIONS.get(self._key, self._compiled)
        return session

    def _compiled(self) -> Session:
        _, domain, name, template, attrs, outputs, device = self._key
        g = GraphBuilder(name)
        given: list[Any] = []
        for i, t in enumerate(template):
            given.append(g.const(t.value) if isinstance(t, Constant) else g.input(f"x{i}", t.tensor) if t else None)
        results = tuple(f"{RESULT}{i or ''}" for i in range(outputs))
        ins = tuple("" if x is None else x for x in given)
        g.add(Node(name, ins, results, dict(attrs), domain, name=name))
        return compiled(g.graph(results), device=device)


def ran(session: Session, feeds: dict[str, Any], draw: tuple[int, ...] | None = None) -> Sequence[Any]:
    """The results of a run, where the session's device has its arrays."""
    device = session.device.name
    if not session.device.sm:
        return tuple(session.run(feeds, draw=draw).values())
    from ..runtime.backends.cuda.arrays import ran as ran_on_gpu  # with the first array there
    from ..runtime.backends.cuda.arrays import ran_apart

    if session.program.parts:
        return ran_apart(session, feeds, draw)

    return ran_on_gpu(session, feeds, int(device.partition(":")[2]), draw)


__all__ = ["Planned", "pays", "ran"]
