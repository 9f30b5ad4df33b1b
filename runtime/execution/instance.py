"""Instances: a program with its buffers, ready to be called by one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import chain
from math import prod
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from ...ops import DType, MezzoError, Tensor, Type
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, field
from ...ops.errors import PlanError, ShapeError
from ...ops.types import Array, type_of
from ..compile.kernel import Exchange, KernelArgs, KernelRequest, Rebinds, Scratch, answered, nothing
from ..compile.program import Program, ProgramStep, body_bytes
from ..ir.graph import Node
from ..ir.infer import check_size
from ..ir.interpreter import Meter, blaming, node_key
from ..memory.liveness import Space, aligned
from ..memory.pool import Pool
from .least_time import lengthy_steps

if TYPE_CHECKING:
    from .executor import Executor


class Observer(Protocol):
    """Observer of steps, called before and after each; for tests and measurements."""

    def __call__(self, phase: str, index: int, step: ProgramStep, instance: Instance) -> None: ...


@dataclass(slots=True)
class ExecutionContext:
    """State that all instances of one run share: constants, the pool, the budget's meter, the random key."""

    weights: Mapping[str, Array]
    budget: Budget
    pool: Pool
    meter: Meter
    key: tuple[int, ...] = (0, 0)
    extern: Mapping[str, Array] = field(default_factory=dict[str, Array])
    numpy_random: bool = False  # seeded draws follow NumPy's RandomState
    exchange: Exchange | None = None
    watch: Observer | None = None  # of the steps of bodies
    careful: bool = False  # whether flags are taken down where steps may have raised them for no reason

    def check(self) -> None:
        """Raise DeadlineError or Cancelled if the run is to end."""
        meter = self.meter
        if meter.watches:
            meter.check()

    @contextmanager
    def limited(self, meter: Meter) -> Iterator[None]:
        """Limit what runs inside; what runs later on the same instance has no deadline of this run."""
        self.meter = meter
        try:
            yield
        finally:
            self.meter = Meter(meter.limit) if meter.watches else meter

    def buffer(self, name: str, type: Type | None) -> Array:
        """The bytes from outside that a value of this type lies in."""
        if self.exchange is not None and name not in self.extern:
            assert isinstance(type, Tensor)
            return self.exchange.buffer(name, type)
        return self.extern[name]


class Instance:
    """The prepared calls of a program over one arena.

    Steps whose operands all have a fixed place are prepared here, once. Small inputs and outputs have one too, behind
    the planned bytes of the arena, and are copied there and back; steps that touch large ones are bound to the buffers
    of each run, and dynamic steps prepared when their operands exist.
    """

    def __init__(
        self,
        program: Program,
        arena: np.ndarray[Any, Any],
        around: ExecutionContext,
        executor: Executor,
        states: Mapping[str, Array] | None = None,
    ) -> None:
        self._begin(program, arena, around, executor)
        self._target, self._memory = executor.target, arena
        self.arrays: dict[str, Array] = {}
        self._bind_fixed(states or {})
        self.staged = self._bind_staged()
        self.runners = [self._runners_of(s) for s in program.steps]
        foreign = {Space.INPUT, Space.OUTPUT, Space.DYNAMIC}
        places = [s.life for s in program.plan.slots if s.life.value not in self.staged]
        self._foreign = [life.value for life in places if life.space in foreign]
        moving = {life.value for life in places if life.space in (Space.INPUT, Space.OUTPUT)}
        self._moving: dict[int, list[tuple[Place, str]]] = {}
        self._rebinds: dict[int, Rebinds] = {}
        self._holding: list[Callable[[], None]] = []  # of rebound calls that hold arrays: to let go of them
        self.calls: list[Callable[[], Any]] = []
        self._shared = {}
        for i, step in enumerate(program.steps):
            if step.dynamic:
                self.calls.append(partial(self._run_dynamic, i))
            elif moving.isdisjoint(step.node.inputs) and moving.isdisjoint(step.node.outputs):
                self.calls.append(nothing if _lies_there(program, step) else self._prepared(i))
            else:
                self._moving[i] = [(p, n) for p, n in _places(step.node) if n in moving]
                self.calls.append(_not_yet)
        self._shared = None  # what is prepared from here on touches buffers that move
        self.order = executor.call_order(program, self.arrays, around.careful)
        self.fixed = None if self._moving else self.order.working(self.calls)
        self.refused: tuple[Any, ...] = ()  # of a GPU: see gpu/capture.py

    # types of values of a body that is asked for its types and does not run: what bodies inside of it read
    told: Mapping[str, Type] = MappingProxyType({})
    # what steps share whose buffers stay where they are, while these are prepared
    _shared: dict[Any, Any] | None = None

    def _begin(self, program: Program, arena: Any, around: ExecutionContext, executor: Executor) -> None:
        """Set the fields that instances of all devices have. Raises PlanError for an arena that is too small."""
        if arena.nbytes < program.arena_bytes:
            raise PlanError(f"an arena of {arena.nbytes} bytes for a program of {program.arena_bytes}")
        self.program, self.arena, self.around = program, arena, around
        self.host = executor.host or executor  # of bodies
        self._constant = frozenset(program.weights)
        # kernels look at a few numbers among the constants (an exponent, a bound, axes, the scales of an image)
        small = [n for n in program.weights if around.weights[n].size <= 16 and around.weights[n].dtype != np.uint8]
        self._known = {n: type_of(around.weights[n], known=True) for n in small}

    def _bind_fixed(self, states: Mapping[str, Array]) -> None:
        program, types, arrays = self.program, self.program.types, self.arrays
        arena, weight, extern = Space.ARENA, Space.WEIGHT, Space.EXTERN
        for slot in program.plan.slots:
            life = slot.life
            if life.space is arena:
                known = types.get(life.value)
                if isinstance(known, Tensor):
                    arrays[life.value] = _view(self.arena, slot.offset, known)
            elif life.space is weight:
                arrays[life.value] = self.around.weights[life.value]
            elif life.space is extern:
                arrays[life.value] = self.around.buffer(life.name, types.get(life.value))
        for read, write in program.states.items():
            self.arrays[read] = self.arrays[write] = states[read]

    def _bind_staged(self) -> dict[str, Array]:
        """Places for the small ports, behind those of the plan."""
        at, staged = aligned(self.program.plan.size), dict[str, Array]()
        for name in self.program.staged:
            known = self.program.types[name]
            assert isinstance(known, Tensor)
            staged[name] = _view(self.arena, at, known)
            at += aligned(known.nbytes)
        self.arrays |= staged
        return staged

    def _scratch(self, step: ProgramStep) -> Scratch:
        """Hand out the step's workspace piece by piece."""
        slot = self.program.plan.by_value.get(step.workspace) if step.choice.workspace else None
        at = slot.offset if slot else 0

        def take(dtype: DType, shape: tuple[int, ...]) -> Array:
            nonlocal at
            nbytes = prod(shape) * dtype.itemsize
            if not nbytes:  # of no elements: the plan has no slot for it
                return np.empty(shape, dtype.numpy)
            if slot is None or at + nbytes > slot.end:
                raise PlanError(f"{step.choice.kernel} wants more workspace than it declared", where=step.node.place)
            view = self.arena[at : at + nbytes].view(dtype.numpy).reshape(shape)  # of a GPU, the arena is CuPy's
            at += aligned(nbytes)
            return view

        return take

    def _runners_of(self, step: ProgramStep) -> dict[str, BodyRunner]:
        if not step.bodies:
            return {}
        slot = self.program.plan.by_value.get(step.workspace)
        space = self.arena[slot.offset : slot.end] if slot else self.arena[:0]
        return {attr: BodyRunner(body, space[: body_bytes(body)], self) for attr, body in step.bodies.items()}

    def _prepared(self, i: int) -> Callable[[], Any]:
        step = self.program.steps[i]
        outputs = [self.arrays[o] if o else None for o in step.node.outputs]
        args = self._kernel_args(i, outputs, self._scratch(step))
        call = self._target.prepare(args)
        return _into(call, outputs) if step.choice.allocates else call

    def _kernel_args(self, i: int, outputs: Sequence[Array | None], scratch: Scratch) -> KernelArgs:
        step = self.program.steps[i]
        inputs = [self.arrays[n] if n else None for n in step.node.inputs]
        key, around = partial(self._key, step), self.around
        return KernelArgs(
            *(self._ask(step), step.choice, inputs, outputs, scratch, self.runners[i], key),
            numpy_random=around.numpy_random,
            exchange=around.exchange,
            check=around.check,
            room=around.budget.dynamic_bytes,
            shared=self._shared,
        )

    def _ask(self, step: ProgramStep) -> KernelRequest:
        """Return the request that the step's kernel was chosen by."""
        program, node = self.program, step.node
        types = [self._known.get(n) or program.types.get(n) if n else None for n in node.inputs]
        results = [program.types[n] for n in node.outputs if n]
        constants = [n in self._constant for n in node.inputs]
        return KernelRequest(node, types, results, constants, program.target)

    def _key(self, step: ProgramStep) -> tuple[int, ...]:
        return node_key(step.node, self.around.key)

    def _run_dynamic(self, i: int) -> None:
        """Prepare and run a step whose operands have their sizes only now."""
        step, pool = self.program.steps[i], self.around.pool
        types: Sequence[Type | None] = []
        if not step.bodies:
            types = self._result_types(step)
        kernel = self._target.kernel(step.choice.kernel)
        if step.choice.allocates:
            results = kernel.prepare(self._kernel_args(i, (), pool.take))()
            for name, result in zip(step.node.outputs, results, strict=False):
                if name:
                    self._store(name, result)
        else:
            outputs: list[Array | None] = []
            for name, known in zip(step.node.outputs, types, strict=True):
                if name and self.program.space(name) is Space.DYNAMIC:
                    assert isinstance(known, Tensor)
                    self.arrays[name] = pool.take(known.dtype, known.sizes)
                outputs.append(self.arrays[name] if name else None)
            kernel.prepare(self._kernel_args(i, outputs, pool.take))()
        for name in step.frees:
            self.arrays.pop(name, None)

    def _result_types(self, step: ProgramStep) -> Sequence[Type]:
        """Types of the results from the operands that are there; refuses sizes above the budget."""
        ins = [self._type_now(n) if n else None for n in step.node.inputs]
        types = step.node.record.infer_types(ins, step.node.attrs, step.node.wanted)
        for t in types:
            check_size(t, self.around.budget)
        return types

    def _type_now(self, name: str) -> Type:
        """The type of a value that is there; for host objects, which may be empty, the planned one."""
        if name in self.told:
            return self.told[name]
        planned = self.program.types.get(name)
        if planned is not None and not isinstance(planned, Tensor):
            return planned
        return type_of(self.arrays[name], known=True)

    def _store(self, name: str, result: Any) -> None:
        pool = self.around.pool
        if self.program.space(name) is not Space.DYNAMIC:
            np.copyto(self.arrays[name], result, casting="unsafe")
        elif not isinstance(result, np.ndarray) or result.dtype == object:
            self.arrays[name] = result
        elif result.base is self._memory.base:  # a body's static result lies in workspace, which others use next
            self.arrays[name] = pool.take(DType.of(result.dtype), result.shape)
            np.copyto(self.arrays[name], result)
        elif any(result is x for x in self.arrays.values()):  # a body handed on what it was given
            self.arrays[name] = result
        else:
            self.arrays[name] = pool.adopt(result)

    def run(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array | None],
        *,
        captures: Sequence[Array] = (),
        observe: Observer | None = None,
    ) -> list[Any]:
        """Replay. `inputs` (and `captures`) in the program's order; `outputs` holds the buffer of each static output,
        None for dynamic ones. Returns the outputs: those buffers, or arrays of the pool."""
        program, arrays, staged = self.program, self.arrays, self.staged
        for name, source in chain(
            zip(program.given, inputs, strict=True), zip(program.captures, captures, strict=True)
        ):
            if name in staged:
                np.copyto(staged[name], source)
            else:
                arrays[name] = source
        for name, buffer in zip(program.results, outputs, strict=True):
            if buffer is not None and name not in staged:
                arrays[name] = buffer
        watch, working = self.order.watch, self.fixed
        if watch is not None and monotonic() >= watch.next:
            watch.look()
        if working is None:
            self._bind_moving()
        i = 0
        try:
            meter = self.around.meter
            if observe is None:
                watches = meter.watches
                if watches:
                    working = self.order.separate(self.calls)
                elif working is None:
                    working = self.order.working(self.calls)
                for i, call in working:
                    if watches:  # what only looks after a step takes none of its time
                        meter.check(self.least.get(i, 0.0) if call is self.calls[i] else 0.0)
                    status = call()
                    if status.__class__ is int and status:
                        answered(call, status)
            else:
                for i in range(len(self.calls)):
                    call = self.order.observed(i, self.calls)
                    meter.check(self.least.get(i, 0.0))
                    observe("before", i, program.steps[i], self)
                    status = call()
                    if status.__class__ is int and status:
                        answered(call, status)
                    observe("after", i, program.steps[i], self)
        except BaseException as error:
            self.order.abandon()
            self._let_go()
            if not isinstance(error, Exception):
                raise
            with blaming(program.steps[i].node.place):
                raise
            raise AssertionError from error  # not reached: blaming raises
        results: list[Any] = []
        for name, buffer in zip(program.results, outputs, strict=True):
            if buffer is not None and name in staged:
                np.copyto(buffer, staged[name])
            results.append(arrays[name] if buffer is None else buffer)
        self._let_go()
        return results

    @cached_property
    def least(self) -> dict[int, float]:
        """See `lengthy_steps`; of runs that may end early."""
        return lengthy_steps(self.program)

    def _bind_moving(self) -> None:
        """Bind the steps that touch the buffers of this run."""
        for i, places in self._moving.items():
            call = self._rebinds.get(i)
            if call is None:
                prepared = self.calls[i] = self._prepared(i)
                if not hasattr(prepared, "rebind"):  # `isinstance` of a protocol takes as long as some steps
                    continue
                call = self._rebinds[i] = cast(Rebinds, prepared)
                if hasattr(prepared, "let_go"):
                    self._holding.append(prepared.let_go)
            for place, name in places:
                call.rebind(place, self.arrays[name])

    def _let_go(self) -> None:
        """Keep nothing alive that belongs to the caller."""
        for i in self._moving:
            if i not in self._rebinds:
                self.calls[i] = _not_yet
        for let_go in self._holding:
            let_go()
        for name in self._foreign:
            self.arrays.pop(name, None)


class BodyRunner:
    """A planned subgraph that a reference calls through `k.run`.

    Its static outputs alternate between two buffers, so that the results of one call can be the operands of the next.
    """

    def __init__(self, program: Program, space: np.ndarray[Any, Any], parent: Instance) -> None:
        self.program, self._parent = program, parent
        self._instance = Instance(program, space[: program.arena_bytes], parent.around, parent.host)
        at = program.arena_bytes
        self._buffers: tuple[list[Array | None], list[Array | None]] = ([], [])
        for buffers in self._buffers:
            for port in program.outputs:
                if isinstance(port.type, Tensor) and port.type.static:
                    buffers.append(_view(space, at, port.type))
                    at += aligned(port.type.nbytes)
                else:
                    buffers.append(None)
        self._turn = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.program.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.program.results

    def infer(self, *types: Type) -> tuple[Type, ...]:
        known: dict[str, Type] = {n: self._parent._type_now(n) for n in self.program.captures}
        known |= {n: type_of(self._instance.around.weights[n], known=True) for n in self.program.weights}
        known |= zip(self.inputs, types, strict=True)
        self._instance.told = known
        try:
            for step, bodies in zip(self.program.steps, self._instance.runners, strict=True):
                ins = [known[n] if n else None for n in step.node.inputs]
                results = step.node.record.infer_types(ins, {**step.node.attrs, **bodies}, step.node.wanted)
                known |= zip(step.node.outputs, results, strict=True)
        finally:
            del self._instance.told
        return tuple(known[n] for n in self.program.results)

    def refuse(self, error: MezzoError) -> None:
        raise error

    def __call__(self, *args: Array) -> tuple[Any, ...]:
        watch = self._parent.around.watch
        self._parent.around.meter.tick()
        self._turn ^= 1
        captures = [self._parent.arrays[n] for n in self.program.captures]
        args = tuple(map(_contiguous, args))  # a slice of a scanned value may not be
        return tuple(self._instance.run(args, self._buffers[self._turn], captures=captures, observe=watch))


Place = tuple[str, int]


def _places(node: Node) -> list[tuple[Place, str]]:
    """Return the place of each value of a node."""
    sides = (("in", node.inputs), ("out", node.outputs))
    return [((side, i), name) for side, names in sides for i, name in enumerate(names) if name]


def _view(memory: np.ndarray[Any, Any], offset: int, type: Tensor) -> Array:
    """A value's bytes as an array; of its own shape if it is row-major, else as the bytes that they are."""
    if type.layout:
        return memory[offset : offset + type.nbytes]
    return np.ndarray(type.sizes, type.dtype.numpy, memory, offset)


def _lies_there(program: Program, step: ProgramStep) -> bool:
    """Return True if all results of a step are views of its operands, and the plan has put them into their bytes."""
    node, aliases, slots = step.node, step.choice.aliases, program.plan.by_value
    if node.domain or not aliases or len(aliases) < len(node.outputs):
        return False
    for alias in aliases:
        if alias.kind != "view":
            return False
        result, source = slots.get(node.outputs[alias.output]), slots.get(node.inputs[alias.input])
        if result is None or source is None or not result.same_content(source):
            return False
        if result.offset != source.offset + alias.delta:
            return False
    return len({a.output for a in aliases}) == len(node.outputs)


def _contiguous(value: Any) -> Any:
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) and not value.flags.c_contiguous else value


def _into(call: Callable[[], Any], outputs: Sequence[Array | None]) -> Callable[[], None]:
    """Copy what a reference returns into its slots."""
    kept = [(i, o) for i, o in enumerate(outputs) if o is not None]

    def run() -> None:
        results = call()
        for i, out in kept:
            _copy(out, results[i])

    return run


def _copy(out: Array, result: Array) -> None:
    if result.shape != out.shape:
        raise ShapeError(f"the result has shape {result.shape}, planned was {out.shape}")
    np.copyto(out, result, casting="unsafe")


def _not_yet() -> None:
    raise PlanError("a step ran before its buffers were bound")
