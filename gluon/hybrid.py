"""Hybrid blocks: written imperatively, replayed as planned graphs once they are hybridized."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Self

from ..exporters import save_onnx
from ..ops.errors import InputError
from ..runtime import arrays as nd
from ..runtime import autograd
from ..runtime.arrays.array import Array
from ..runtime.arrays.kinds import Kind
from ..runtime.arrays.recording import RECORDING
from ..runtime.session import Session
from .block import Block
from .guards import Guards, Unguarded, Watch, attributes, of_blocks, snapshot
from .nest import filled, flat
from .trace import GraphBreak, Traced, call, trace

MOST = 8  # traces for inputs of one kind; what changes more often is better left imperative
_LOCK = threading.RLock()


class GraphBroken(UserWarning):
    """A hybridized block runs imperatively."""


@dataclass(slots=True)
class Break:
    """Why a block is not traced, where, and what to do about it; how many calls ran imperatively since, and how many
    seconds they took."""

    block: str
    reason: str
    where: str
    remedy: str
    calls: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.block} runs imperatively: {self.reason} ({self.where}). {self.remedy}"


class HybridBlock(Block):
    """A block that `hybridize` turns into planned graphs: one for each kind of inputs and each state of the Python
    values that forward reads.

    The values that a trace has read (attributes, globals, closures) are compared before each replay: where one has
    changed, the block is traced again. What cannot be traced, such as a branch on numbers, is told once, with its line
    and a remedy, and runs imperatively (`fullgraph=True`: InputError); blocks below are then traced by themselves.

    >>> from mezzo.gluon import nn
    >>> from mezzo.runtime import arrays as nd
    >>> net = nn.Dense(2, in_units=3).initialize("ones").hybridize()
    >>> net(nd.ones((1, 3))).asnumpy()
    array([[3., 3.]], dtype=float32)
    """

    def __init__(self) -> None:
        super().__init__()
        self._active = False
        self._fullgraph = False
        self._imperative = ""
        self._traces: dict[Any, list[Traced]] = {}
        self._broken: dict[Any, Break] = {}
        self._seconds = 0.0  # spent in calls since it was hybridized

    def hybridize(
        self,
        active: bool = True,
        *,
        static_alloc: bool = True,
        static_shape: bool = True,
        fullgraph: bool = False,
        **how: Any,
    ) -> Self:
        """Trace from now on, or (`active=False`) no longer. Plans are always made ahead of time, for the shapes at
        hand: `static_alloc` and `static_shape` are taken for compatibility."""
        self._active, self._fullgraph = active, fullgraph
        self._traces.clear()
        self._broken.clear()
        self._seconds = 0.0
        super().hybridize(active, static_alloc=static_alloc, static_shape=static_shape, fullgraph=fullgraph, **how)
        return self

    def keep_imperative(self, why: str = "it was asked for") -> Self:
        """Never trace this block, nor let a trace go through it."""
        self._imperative = why
        return self

    @property
    def breaks(self) -> list[Break]:
        """What is not traced, in this block and below."""
        return [b for _, block in self.named_blocks() if isinstance(block, HybridBlock) for b in block._broken.values()]

    def report(self) -> str:
        """The breaks as a table, with their share of the time of this block's calls."""
        lines = [f"{'share':>6}{'calls':>8}  why"]
        for b in self.breaks:
            share = b.seconds / self._seconds if self._seconds else 0.0
            lines.append(f"{share:>6.0%}{b.calls:>8}  {b}")
        return "\n".join(lines) if len(lines) > 1 else "everything is traced"

    def __call__(self, *args: Any, **options: Any) -> Any:
        if RECORDING.broke is not None:  # a trace goes on
            if self._imperative:
                RECORDING.broke(f"{type(self).__name__} is kept imperative: {self._imperative}", "")
            if self._before or self._after:
                RECORDING.broke(f"{type(self).__name__} has hooks", "remove them, or keep the block imperative")
            return self.forward(*args, **options)
        if not self._active or self._imperative or self._before or self._after:
            return super().__call__(*args, **options)
        begin = perf_counter()
        try:
            return self._replayed(args, options)
        finally:
            self._seconds += perf_counter() - begin

    def _replayed(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        training = RECORDING.training
        inputs: Sequence[Array]
        if not options and all(x.__class__ is Array for x in args):
            inputs, others = args, None
            key: Any = (*[x._kind for x in args], training)
        else:
            inputs, others = flat((list(args), options))
            try:
                key = (tuple(x._kind for x in inputs), snapshot(others), training)
            except Unguarded:
                return super().__call__(*args, **options)
        broken = self._broken.get(key)
        if broken is not None:
            return self._imperatively(broken, args, options)
        several = self._traces.setdefault(key, [])
        for i, traced in enumerate(several):
            if not traced.guards.changed() and traced.fits():
                if i:  # the latest first
                    several.insert(0, several.pop(i))
                return call(traced, inputs, training)
        if not inputs or not all(p.known and p._data is not None for p in self.collect_params().values()):
            return super().__call__(*args, **options)  # the first input tells the shapes
        try:
            with _LOCK:
                traced = self._trace(inputs, others)
        except GraphBreak as error:
            found = Break(type(self).__name__, error.reason, error.where, error.remedy)
            if self._fullgraph:
                raise InputError(error.reason, where=error.where, hint=error.remedy) from None
            self._broken[key] = found
            if not error.reason.endswith("it was asked for"):
                warnings.warn(str(found), GraphBroken, stacklevel=4)
            return self._imperatively(found, args, options)
        several.insert(0, traced)
        if len(several) > MOST:
            names = ", ".join(dict.fromkeys(t.guards.changed() for t in several[1:]))
            self._broken[key] = Break(
                type(self).__name__, f"{names} changed in {MOST} calls", "", "pass it as an array, or keep it as it is"
            )
            warnings.warn(str(self._broken[key]), GraphBroken, stacklevel=4)
            several.clear()
        return call(traced, inputs, training)

    def _trace(self, inputs: Sequence[Array], others: Any) -> Traced:
        guards, watch = Guards(), Watch()
        held = {path: snapshot(attributes(b)) for path, b in self.named_blocks()}

        def run(*given: Array) -> Any:
            args, options = (given, {}) if others is None else filled(others, given)
            with watch:
                return self.forward(*args, **options)

        try:
            made = trace(run, inputs, self.collect_params(), guards)
            for path, block in self.named_blocks():
                if snapshot(attributes(block)) != held.get(path):
                    raise GraphBreak(
                        f"forward changes an attribute of {path.rstrip('.') or type(self).__name__}",
                        "return what it computes, or keep the block imperative",
                    )
            of_blocks(guards, self)
            watch.guard(guards)
        except Unguarded as error:
            raise GraphBreak(str(error), "make it a Parameter with grad_req='null', or an Array") from None
        return made

    def _imperatively(self, broken: Break, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        begin = perf_counter()
        try:
            return super().__call__(*args, **options)
        finally:
            broken.calls += 1
            broken.seconds += perf_counter() - begin

    def _latest(self) -> tuple[Array, ...]:
        """Arrays as the latest call that was traced had them, if it had nothing else."""
        kinds = next(reversed(self._traces), ())[:-1]
        if not kinds or not all(isinstance(k, Kind) for k in kinds):
            raise InputError(
                "for which inputs?",
                where=f"{type(self).__name__}.export",
                hint="net.export(path, x), or call the net once after hybridize()",
            )
        return tuple(nd.zeros(k.shape, dtype=k.dtype) for k in kinds)

    def export(self, path: str | os.PathLike[str], *inputs: Array) -> Self:
        """Write what the block computes for inputs of these kinds, in prediction, to `.onnx` or `.mezzo`; without
        inputs, for those of the latest call that was traced. Raises InputError where it cannot be traced."""
        inputs = inputs or self._latest()
        params = self.collect_params()
        if not all(p.known for p in params.values()):
            self(*inputs)
        with autograd.pause(train_mode=False), _LOCK:
            try:
                traced = trace(self.forward, list(inputs), params, Guards())
            except GraphBreak as error:
                raise InputError(error.reason, where=error.where, hint=error.remedy) from None
        graph = traced.graph
        known = {n: p.data().detach().asnumpy() for n, p in params.items() if n in graph.inputs}
        known |= {n: x.asnumpy() for n, x in traced.captured.items()}
        graph = graph.but(
            inputs=tuple(i for i in graph.inputs if i not in known),
            outputs=graph.outputs[: traced.count],
            initializers={**graph.initializers, **known},
            name=type(self).__name__,
        )
        names = {o: f"output{i}" for i, o in enumerate(graph.outputs)}
        from ..runtime.passes.prune import prune

        whole = prune(_renamed(graph, names)).verify()
        if str(path).endswith(".mezzo"):
            Session(whole).save(path)
        else:
            save_onnx(whole, path)
        return self


def _renamed(graph: Any, names: dict[str, str]) -> Any:
    """The graph with other names for its outputs."""
    from dataclasses import replace

    nodes = tuple(replace(n, outputs=tuple(names.get(o, o) for o in n.outputs)) for n in graph.rename(names).nodes)
    types = {names.get(n, n): t for n, t in graph.types.items()}
    return graph.but(nodes=nodes, outputs=tuple(names.get(o, o) for o in graph.outputs), types=types)
