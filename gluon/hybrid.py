"""Hybrid blocks: written imperatively, replayed as planned graphs once they are hybridized."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Self

import numpy as np

from .. import nd
from ..nd import autograd
from ..nd.array import Array
from ..nd.random import generator
from ..nd.recorder import READ, Cut, GraphBreak, Recorder
from ..nd.recording import RECORDING
from ..nd.running import as_arrays
from ..nd.specs import TensorSpec
from ..ops.errors import InputError
from ..runtime.engine import Variable
from ..runtime.ir.graph import Graph
from ..train.amp import Policy, mixed, policy_named
from ..train.integers import with_integer_weights
from .block import Block
from .export import Dynamic, exported, named, save
from .guards import OTHERS, Guards, Unguarded, Watch, attributes, numpys_state, of_blocks, snapshot
from .nest import filled, flat, numbers
from .trace import MISSING, Trace, call, trace

MOST = 8  # traces for inputs of one kind, or ways through one; what changes more often is better left imperative
_LOCK = threading.RLock()


class GraphBroken(UserWarning):
    """Warning: a hybridized block runs imperatively."""


@dataclass(slots=True)
class Break:
    """The reason why a block is not traced as one graph, the place, and the remedy. `calls` ran imperatively since, and
    took that many seconds; or, if it is `cut` there, they went on to another graph after waiting so long for the
    first."""

    block: str
    reason: str
    where: str
    remedy: str
    calls: int = 0
    seconds: float = 0.0
    cut: bool = False

    def __str__(self) -> str:
        how = "goes on with another graph" if self.cut else "runs imperatively"
        return f"{self.block} {how}: {self.reason} ({self.where}). {self.remedy}"


class HybridBlock(Block):
    """A block that `hybridize` turns into planned graphs: one for each signature of the inputs and each state of the
    Python values that forward reads.

    The values that a trace has read (attributes, globals, closures) are compared before each replay: where one has
    changed, the block is traced again. What cannot be traced, such as a branch on numbers, is told once, with its line
    and a remedy, and runs imperatively (`fullgraph=True`: InputError); blocks below are then traced by themselves.

    >>> from mezzo.gluon import nn
    >>> from mezzo import nd
    >>> net = nn.Dense(2, in_units=3).initialize("ones").hybridize()
    >>> net(nd.ones((1, 3))).asnumpy()
    array([[3., 3.]], dtype=float32)
    """

    def __init__(self) -> None:
        super().__init__()
        self._active = False
        self._fullgraph = False
        self._imperative = ""
        self._policy: Policy | None = None
        self._traces: dict[Any, list[Trace]] = {}
        self._broken: dict[Any, Break] = {}
        self._cuts: dict[str, Break] = {}
        self._seconds = 0.0  # spent in calls since it was hybridized

    def hybridize(
        self,
        active: bool = True,
        *,
        static_alloc: bool = True,
        static_shape: bool = True,
        fullgraph: bool = False,
        amp: str | Policy | None = None,
        **how: Any,
    ) -> Self:
        """Trace from now on, or (`active=False`) no longer. With `amp` ("bf16", "fp16" or a Policy of mz.amp) products
        are computed in 16 bits, and in 32 what loses by it; parameters, inputs, outputs and gradients stay in float32.
        Plans are always made ahead of time, for the shapes at hand: `static_alloc` and `static_shape` are taken for
        compatibility. Raises InputError for other precisions."""
        self._active, self._fullgraph = active, fullgraph
        self._policy = None if amp is None else policy_named(amp)
        self._traces.clear()
        self._broken.clear()
        self._cuts.clear()
        self._seconds = 0.0
        how |= {"static_alloc": static_alloc, "static_shape": static_shape, "fullgraph": fullgraph, "amp": amp}
        super().hybridize(active, **how)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """State for a copy, without the traces: they read the parameters of this block."""
        return {**self.__dict__, "_traces": {}, "_broken": {}, "_cuts": {}}

    def keep_imperative(self, why: str = "it was asked for") -> Self:
        """Never trace this block, nor let a trace go through it."""
        self._imperative = why
        return self

    @property
    def breaks(self) -> list[Break]:
        """Return the places where this block and its children are not traced, or not as one graph."""
        blocks = [block for _, block in self.named_blocks() if isinstance(block, HybridBlock)]
        return [b for block in blocks for b in (*block._broken.values(), *block._cuts.values())]

    def report(self) -> str:
        """The breaks as a table, with their share of the time of this block's calls."""
        lines = [f"{'share':>6}{'calls':>8}  why"]
        for b in self.breaks:
            share = b.seconds / self._seconds if self._seconds else 0.0
            lines.append(f"{share:>6.0%}{b.calls:>8}  {b}")
        return "\n".join(lines) if len(lines) > 1 else "everything is traced"

    def __call__(self, *args: Any, **options: Any) -> Any:
        if RECORDING.trace is not None:
            if self._imperative:
                RECORDING.trace.broke(f"{type(self).__name__} is kept imperative: {self._imperative}", "")
            if self._before or self._after:
                RECORDING.trace.broke(f"{type(self).__name__} has hooks", "remove them, or keep the block imperative")
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
            key: Any = (*[x._spec for x in args], training)
        elif not options and all(x.__class__ is Array or numbers(x) for x in args):
            inputs, others = as_arrays(args), None
            key = (*[x._spec for x in inputs], training)
        else:
            inputs, others = flat((list(args), options), numpys=True)
            inputs = as_arrays(inputs)
            try:
                key = (tuple(x._spec for x in inputs), snapshot(others), training)
            except Unguarded:
                return super().__call__(*args, **options)
        broken = self._broken.get(key)
        if broken is not None:
            return self._imperatively(broken, args, options)
        several = self._traces.setdefault(key, [])
        known: Trace | None = None
        for i, traced in enumerate(several):
            if not traced.guards.changed() and traced.fits():
                if i:  # the latest first
                    several.insert(0, several.pop(i))
                if traced.alone is not None:
                    return call(traced.alone, inputs)
                drawing = generator(inputs[0]._place)
                before = drawing.state[1]
                result = traced(inputs)
                if result is not MISSING:
                    return result
                drawing.back(before, drawing.state[1])
                known = traced
                break
        if not inputs or not all(p.known and p._data is not None for p in self.collect_params().values()):
            return super().__call__(*args, **options)  # the first input tells the shapes
        try:
            with _LOCK:
                traced = self._trace(inputs, others, known, _numpys_among(args, options))
        except GraphBreak as error:
            broken = Break(type(self).__name__, error.reason, error.where, error.remedy)
            if self._fullgraph:
                raise InputError(error.reason, where=error.where, hint=error.remedy) from None
            return self._break(key, broken, args, options)
        if traced is not known:
            several.insert(0, traced)
        if len(several) > MOST:
            names = ", ".join(dict.fromkeys(t.guards.changed() for t in several[1:]))
            reason, remedy = f"{names} changed in {MOST} calls", "pass it as an array, or keep it as it is"
            return self._break(key, Break(type(self).__name__, reason, "", remedy), args, options)
        result = traced(inputs) if traced.ways <= MOST else MISSING
        if result is MISSING:
            where = next(iter(self._cuts.values())).where
            reason = f"the program goes more than {MOST} ways, as numbers that are read decide"
            return self._break(key, Break(type(self).__name__, reason, where, READ), args, options)
        return result

    def _break(self, key: Any, broken: Break, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run imperatively from now on, for inputs of this kind."""
        self._broken[key] = broken
        self._traces.pop(key, None)
        if not broken.reason.endswith("it was asked for"):
            warnings.warn(str(broken), GraphBroken, stacklevel=4)
        return self._imperatively(broken, args, options)

    def _trace(self, inputs: Sequence[Array], others: Any, known: Trace | None, numpys: bool) -> Trace:
        """Trace a call; `known` is what goes another way where this one begins, and takes it up. `numpys` says that
        some of the inputs were given as arrays of NumPy."""
        guards, watch = Guards(), Watch()
        held = {path: snapshot(attributes(b)) for path, b in self.named_blocks()}
        chance = numpys_state(self)
        if known is not None:
            guards = known.guards

        def run(*given: Array) -> Any:
            args, options = (given, {}) if others is None else filled(others, given)
            with watch:
                return self.forward(*args, **options)

        def as_numpys_too(*given: Array) -> Any:
            """Inputs that were arrays of NumPy are ours in a trace, which cannot do all that NumPy's can."""
            try:
                return run(*given)
            except (AttributeError, TypeError) as error:
                why = f"an argument is an array of NumPy, and is used as only these are: {error}"
                raise GraphBreak(why, "give nd.asarray(x), or keep the block imperative") from error

        params = self.collect_params()
        try:
            names, way, recorder = trace(as_numpys_too if numpys else run, inputs, params, not self._fullgraph)
            for path, block in self.named_blocks():
                if snapshot(attributes(block)) != held.get(path):
                    raise GraphBreak(
                        f"forward changes an attribute of {path.rstrip('.') or type(self).__name__}",
                        "return what it computes, or keep the block imperative",
                    )
            if known is None:
                of_blocks(guards, self)
            if watch.chance is None and watch.may_draw_by_numpy() and numpys_state(self) != chance:
                watch.chance = OTHERS, "NumPy's"
            if watch.chance is not None:
                raise GraphBreak(watch.chance[0], "draw from mz.random, or pass it as an argument", watch.chance[1])
            watch.guard(guards)
            _guard_outside(guards, recorder)
        except Unguarded as error:
            raise GraphBreak(str(error), "make it a Parameter with grad_req='null', or an Array") from None
        recording = known or Trace(names, params, guards, self._policy)
        recording.add(way)
        recording.passed = self._passed
        for cut in (s.part.cut for s in way if s.part.cut is not None):
            self._cuts.setdefault(cut.where, Break(type(self).__name__, cut.reason, cut.where, READ, cut=True))
        return recording

    def _passed(self, cut: Cut, seconds: float) -> None:
        told = self._cuts[cut.where]
        told.calls += 1
        told.seconds += seconds

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
        if not kinds or not all(isinstance(k, TensorSpec) for k in kinds):
            raise InputError(
                "the shapes of the inputs are not known",
                where=f"{type(self).__name__}.export",
                hint="net.export(path, x), or call the net once after hybridize()",
            )
        return tuple(nd.zeros(k.shape, dtype=k.dtype) for k in kinds)

    def export(
        self,
        path: str | os.PathLike[str],
        *inputs: Array | np.ndarray[Any, Any],
        dynamic: Dynamic | None = None,
        opset: int | None = None,
        input_names: Sequence[str] = (),
        output_names: Sequence[str] = (),
    ) -> Self:
        """Write what the block computes for inputs of these kinds, in prediction, to `.onnx` or `.mezzo`; without
        inputs, for those of the latest call that was traced.

        `dynamic` names sizes that stay open, by axis: {0: "batch"} of the only input, or of each by its number or name
        {0: {0: "batch", 1: "length"}, "x1": {0: "batch"}}; axes of one name have one size. The block is then traced at
        several sizes, and what differs has to follow from them. A block that is hybridized with `amp` is written with
        its casts. Inputs are called x0, x1, ... and outputs output0, output1, ... where no names are given. Raises
        InputError where it cannot be traced, does something else at another size, or has not as many inputs or outputs
        as names.
        """
        whole = self._whole(as_arrays(inputs) or self._latest(), dynamic or {})
        if self._policy is not None:
            whole = mixed(whole, self._policy)
        whole = named(whole, input_names or whole.inputs, output_names or whole.outputs, type(self).__name__)
        save(with_integer_weights(whole), path, opset)
        return self

    def _whole(self, inputs: Sequence[Array], dynamic: Dynamic) -> Graph:
        """Return the block's computation in prediction as a graph, for inputs of these shapes and types."""
        params = self.collect_params()
        if not all(p.known for p in params.values()):
            self(*inputs)
        with autograd.pause(train_mode=False), _LOCK:
            return exported(self, inputs, dynamic)


def _numpys_among(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    return any(isinstance(x, np.ndarray) for x in flat((list(args), options), numpys=True)[0])


def _guard_outside(guards: Guards, recorder: Recorder) -> None:
    """See to it that each array from outside is one that is watched; watch the numbers of those that were read, and
    whether the call was recorded if that was asked for."""
    for name, x in recorder.outside.items():
        if id(x._var) not in guards.variables:
            raise GraphBreak(
                f"an array comes from where nobody can watch it ({x._spec})",
                "pass it as an argument, or keep it in an attribute of the block, a global or a closure",
                recorder.lines[name],
            )
    for var, version in recorder.read_outside:
        guards.quick.append((lambda v=var, n=version: _as_it_was(v, n), "the numbers of an array"))  # type: ignore[misc]
    if recorder.asked_whether_recorded:
        guards.quick.append((lambda on=RECORDING.on: RECORDING.on is on, "whether record() is on"))  # type: ignore[misc]


def _as_it_was(var: Variable, version: int) -> bool:
    return var.version == version and var._writer is None
