"""A session: one model, its programs by input signature, and a bounded pool of instances for many threads."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import Any, Literal

import numpy as np

from ..ops import DType, Map, Optional, Tensor, Type
from ..ops import Sequence as ListType
from ..ops.budget import Budget
from ..ops.errors import DeadlineError, ForkedProcess, InputError, PlanError
from ..ops.types import Array, type_of
from .compile import Bound, Compiled, compile_graph, specialise
from .device import Device
from .device import device as device_named
from .eager import Meter
from .graph import Graph
from .instance import Instance, Observer, Surroundings
from .lower import Options
from .plan import MemoryPlan, Strategy
from .pool import Pool, PoolStats
from .program import Port, Program

_ran_in: int | None = None  # the process that has run a program first


def _check_process() -> None:
    """Threads and locks of a runtime do not survive a fork; say so instead of hanging."""
    global _ran_in
    here = os.getpid()
    if _ran_in is None:
        _ran_in = here
    elif _ran_in != here:
        raise ForkedProcess(
            f"process {here} was forked from {_ran_in}, which had run a program",
            hint="start workers with multiprocessing's 'spawn' or 'forkserver', or load the model in the child",
        )


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of a session: programs planned in all, kept now and evicted; runs; arenas and their bytes; the pool."""

    planned: int
    programs: int
    evicted: int
    runs: int
    arenas: int
    arena_bytes: int
    pool: PoolStats


class _Seat:
    """One arena, and the instances that live in it; at most one of them runs at a time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.arena = device.allocate(0)
        self.instances: dict[Bound, Instance] = {}
        self.evicted = 0  # how many evictions this seat has heard of

    def instance(self, bound: Bound, around: Surroundings, states: Mapping[str, Array]) -> Instance:
        if bound.program.plan.size > self.arena.nbytes:
            self.instances.clear()  # they point into the old arena
            self.arena = self._device.allocate(bound.program.plan.size)
        made = self.instances.get(bound)
        if made is None:
            made = self.instances[bound] = Instance(bound.program, self.arena, around, states)
        return made


class Session:
    """Runs one graph, from any number of threads.

    `strategy` is how the memory plan reuses bytes; `instances` bounds how many runs go on at once (each takes an
    arena; the default is the number of processors); `max_programs` how many input signatures are kept planned. A
    graph with states keeps them from run to run, and then runs one at a time. `seed` begins the random numbers; with
    `random="numpy"` operators that have a seed of their own draw NumPy's numbers, as ONNX's official suite expects.

    >>> from mezzo.runtime.graph import GraphBuilder
    >>> from mezzo.ops.types import f32
    >>> g = GraphBuilder()
    >>> s = Session(g.graph([g.Relu(g.input("x", f32("n")))]))
    >>> s(np.array([-1, 2], np.float32))
    array([0., 2.], dtype=float32)
    """

    def __init__(
        self,
        graph: Graph,
        *,
        device: str = "cpu",
        budget: Budget | None = None,
        strategy: Strategy | str = Strategy.BOTH,
        instances: int | None = None,
        max_programs: int = 64,
        seed: int = 0,
        random: Literal["philox", "numpy"] = "philox",
    ) -> None:
        self.graph, self.budget = graph, budget or Budget()
        self._options = Options(device_named(device), Strategy(strategy))
        self._compiled: dict[tuple[str, ...], Compiled] = {}
        self._bound: OrderedDict[Any, Bound] = OrderedDict()
        self._latest: Bound | None = None
        if random not in ("philox", "numpy"):
            raise InputError(f"random={random!r} is unknown", where="Session", hint="give 'philox' or 'numpy'")
        self._max_programs, self._seed = max_programs, seed
        self._numpy_random = random == "numpy"
        self._planning = threading.RLock()
        self._table = threading.Lock()
        self._seats: list[_Seat] = []
        self._free: list[_Seat] = []
        self._changed = threading.Condition()
        self._most = 1 if graph.states else max(1, instances or os.cpu_count() or 1)
        self._pool = Pool(self.budget.dynamic_bytes)
        self._numbers, self._planned, self._evicted = count(), 0, 0
        self._done = 0
        self.states: dict[str, Array] = {s.input: np.array(graph.initializers[s.input]) for s in graph.states}
        self._compile(graph.outputs)
        if all(isinstance(p.type, Tensor) and p.type.static for p in self.inputs):
            self._bind(graph.outputs, {p.name: p.type for p in self.inputs})

    # -- what it is -------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Names and types of the inputs."""
        return tuple(Port(n, self.graph.types[n]) for n in self.graph.inputs)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Names and types of the outputs, as far as they are known before a run."""
        compiled = self._compile(self.graph.outputs)
        types = compiled.graph.types
        return tuple(Port(n, types[v]) for n, v in zip(compiled.outputs, compiled.graph.outputs, strict=True))

    @property
    def program(self) -> Program:
        """The program that was planned last; PlanError before the first."""
        return self.bound.program

    @property
    def plan(self) -> MemoryPlan:
        """The memory plan of `program`."""
        return self.program.plan

    @property
    def bound(self) -> Bound:
        """The last program with its constants and its graph."""
        if self._latest is None:
            raise PlanError(
                "nothing is planned yet, since the input sizes are not known",
                hint="run once, or call warmup({name: shape})",
            )
        return self._latest

    def stats(self) -> Stats:
        """Counters; a consistent snapshot."""
        with self._changed, self._table:
            size = sum(s.arena.nbytes for s in self._seats)
            planned = (self._planned, len(self._bound), self._evicted)
            return Stats(*planned, self._done, len(self._seats), size, self._pool.stats())

    # -- planning ---------------------------------------------------------------------------------------------------

    def warmup(self, shapes: Mapping[str, Sequence[int]]) -> Program:
        """Plan for these input shapes, so that the first run with them only replays."""
        types: dict[str, Type] = {}
        for port in self.inputs:
            if port.name in shapes and isinstance(port.type, Tensor):
                types[port.name] = port.type.of(tuple(int(n) for n in shapes[port.name]))
            else:
                types[port.name] = port.type
        return self._bind(self.graph.outputs, types).program

    def _compile(self, outputs: tuple[str, ...]) -> Compiled:
        with self._planning:
            if outputs not in self._compiled:
                self._compiled[outputs] = compile_graph(
                    self.graph, outputs=outputs, options=self._options, budget=self.budget
                )
            return self._compiled[outputs]

    def _bind(self, outputs: tuple[str, ...], types: Mapping[str, Type]) -> Bound:
        key = (outputs, tuple(types.items()))
        found = self._find(key)
        if found is not None:
            return found
        with self._planning:  # one thread plans, the others wait for its result
            found = self._find(key)
            if found is not None:
                return found
            made = specialise(self._compile(outputs), types)
            with self._table:
                self._bound[key] = self._latest = made
                self._planned += 1
                while len(self._bound) > self._max_programs:
                    self._bound.popitem(last=False)
                    self._evicted += 1
            return made

    def _find(self, key: Any) -> Bound | None:
        with self._table:
            found = self._bound.get(key)
            if found is not None:
                self._bound.move_to_end(key)
                self._latest = found
            return found

    def _forget_evicted(self, seat: _Seat) -> None:
        with self._table:
            if seat.evicted != self._evicted:
                live = set(self._bound.values())
                seat.instances = {b: i for b, i in seat.instances.items() if b in live}
                seat.evicted = self._evicted

    # -- running ----------------------------------------------------------------------------------------------------

    def __call__(self, *inputs: Any) -> Any:
        """Run on positional inputs; returns the output, or a tuple of several."""
        if len(inputs) > len(self.graph.inputs):
            raise InputError(
                f"{len(inputs)} inputs given, the model takes {len(self.graph.inputs)}: {self._signature()}"
            )
        results = tuple(self.run(dict(zip(self.graph.inputs, inputs, strict=False))).values())
        return results[0] if len(results) == 1 else results

    def run(
        self,
        feeds: Mapping[str, Any],
        *,
        names: Sequence[str] | None = None,
        outputs: Mapping[str, Array] | None = None,
        deadline: float | None = None,
        observe: Observer | None = None,
    ) -> dict[str, Any]:
        """Run once: input arrays by name to output arrays by name.

        `names` asks for some outputs only (nothing else is computed). `outputs` gives C-contiguous buffers to write
        into. `deadline` is how many seconds to wait for a free instance. Results belong to the caller. Raises
        InputError where feeds do not fit, DeadlineError, BudgetError, ExecutionError.
        """
        _check_process()
        wanted = tuple(self.graph.outputs if names is None else names)
        arrays = self._checked(feeds)
        bound = self._bind(wanted, {p.name: _signature_type(p.type, arrays[p.name]) for p in self.inputs})
        program = bound.program
        buffers = [self._buffer(p, v, program, outputs) for p, v in zip(program.outputs, program.results, strict=True)]
        with self._seat(deadline) as seat:
            meter = Meter(self.budget.steps)
            around = Surroundings(bound.constants, self.budget, self._pool, meter, numpy_random=self._numpy_random)
            instance = seat.instance(bound, around, self.states)
            instance.around.meter.used = 0
            instance.around.key = (self._seed, next(self._numbers))
            with np.errstate(all="ignore"):
                results = instance.run(list(arrays.values()), buffers, observe=observe)
        return {
            p.name: r if b is not None else _own(r) for p, b, r in zip(program.outputs, buffers, results, strict=True)
        }

    @contextmanager
    def _seat(self, deadline: float | None) -> Iterator[_Seat]:
        """Borrow an arena; wait for one when all are taken."""
        until = None if deadline is None else monotonic() + deadline
        with self._changed:
            while not self._free and len(self._seats) >= self._most:
                left = None if until is None else until - monotonic()
                if left is not None and left <= 0:
                    raise DeadlineError(
                        f"no instance was free within {deadline} s; {self._most} runs are going on",
                        hint="allow more with instances=, or a longer deadline",
                    )
                self._changed.wait(left)
            if self._free:
                seat = self._free.pop()
            else:
                seat = _Seat(self._options.device)
                self._seats.append(seat)
        try:
            self._forget_evicted(seat)
            yield seat
        finally:
            with self._changed:
                self._done += 1
                self._free.append(seat)
                self._changed.notify()

    def _buffer(self, port: Port, value: str, program: Program, given: Mapping[str, Array] | None) -> Array | None:
        if not (isinstance(port.type, Tensor) and port.type.static):
            return None
        if given is None or port.name not in given:
            return np.empty(port.type.sizes, port.type.dtype.numpy)
        array = given[port.name]
        fits = type_of(array) == port.type and array.flags.c_contiguous and array.flags.writeable
        if not fits:
            raise InputError(
                f"the buffer for {port} is a {type_of(array)}, or is not contiguous and writable",
                where=f"outputs[{port.name!r}]",
                hint=f"give np.empty({port.type.sizes}, {str(port.type.dtype)!r})",
            )
        return array

    # -- feeds ------------------------------------------------------------------------------------------------------

    def _signature(self) -> str:
        return ", ".join(map(str, self.inputs))

    def _checked(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """The feeds in input order as arrays; InputError lists all that does not fit."""
        known = {p.name: p.type for p in self.inputs}
        problems = [f"there is no input {n!r}" for n in feeds if n not in known]
        arrays: dict[str, Array] = {}
        sizes: dict[str, tuple[int, str]] = {}
        for name, type in known.items():
            if name not in feeds:
                if name in self.graph.initializers:
                    arrays[name] = self.graph.initializers[name]
                else:
                    problems.append(f"input {name!r} ({type}) is not fed")
                continue
            try:
                arrays[name] = _as_array(feeds[name], type)
            except (TypeError, ValueError) as error:
                problems.append(f"input {name!r} is no array: {error}")
                continue
            problems += _misfits(name, type, arrays[name], sizes)
        if problems:
            raise InputError(
                "; ".join(problems), where=self.graph.name, hint=f"the model takes {self._signature() or 'no inputs'}"
            )
        return arrays


def _signature_type(declared: Type, value: Any) -> Type:
    """What a program is planned for: sizes of arrays, but only the declared type of host objects."""
    return type_of(value) if isinstance(declared, Tensor) else declared


def _as_array(value: Any, type: Type) -> Any:
    """A feed as operators take it: an array, or a list, dict or None of such."""
    match type:
        case Optional():
            return None if value is None else _as_array(value, type.element)
        case ListType():
            if not isinstance(value, (list, tuple)):
                raise TypeError(f"a {type} is a list, not a {value.__class__.__name__}")
            return [_as_array(v, type.element) for v in value]
        case Map():
            if not isinstance(value, dict):
                raise TypeError(f"a {type} is a dict, not a {value.__class__.__name__}")
            return {key: _as_array(v, type.element)[()] for key, v in value.items()}
    if not isinstance(value, np.ndarray):
        # Python numbers and lists take the input's type; other arrays keep theirs, which is then checked
        value = np.asarray(value, type.dtype.numpy if isinstance(value, (bool, int, float, list, tuple)) else None)
    if type.dtype is DType.STRING:
        return value.astype(object) if value.dtype.kind in "UT" else value
    return np.ascontiguousarray(value).reshape(value.shape)


def _misfits(name: str, want: Type, array: Array, sizes: dict[str, tuple[int, str]]) -> list[str]:
    """What is wrong with one feed; named dims must agree over all inputs."""
    if isinstance(want, Optional):
        return [] if array is None else _misfits(name, want.element, array, sizes)
    if isinstance(want, ListType):
        return [p for i, v in enumerate(array) for p in _misfits(f"{name}[{i}]", want.element, v, {})]
    if not isinstance(want, Tensor):
        return []
    try:
        have = type_of(array)
    except Exception as error:
        return [f"input {name!r}: {error}"]
    assert isinstance(have, Tensor)
    if have.dtype is not want.dtype:
        return [f"input {name!r} is {have.dtype}, expected {want.dtype}"]
    if want.dims is None:
        return []
    if len(want.dims) != have.rank:
        return [f"input {name!r} is {have}, expected rank {len(want.dims)} ({want})"]
    found = []
    for axis, (dim, size) in enumerate(zip(want.dims, have.sizes or array.shape, strict=True)):
        if isinstance(dim, int) and dim != size:
            found.append(f"input {name!r} has {size} in axis {axis}, expected {dim} ({want})")
        elif isinstance(dim, str):
            before = sizes.setdefault(dim, (size, name))
            if before[0] != size:
                found.append(f"dim {dim!r} is {before[0]} in input {before[1]!r} and {size} in input {name!r}")
    return found


def _own(value: Any) -> Any:
    """A dynamic result as the caller's own array: bytes of the pool go back, lists no longer share their elements."""
    if isinstance(value, list):
        return [_own(v) for v in value]
    return np.array(value) if isinstance(value, np.ndarray) else value
