"""Sessions: one model, its programs by input signature, and a bounded pool of instances for many threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...ops import Tensor, Type
from ...ops.budget import Budget
from ...ops.dataclasses import replace
from ...ops.errors import BudgetError, InputError, PlanError
from ...ops.types import Array, type_of
from ..compile.buckets import Buckets
from ..compile.collection import collection_paused
from ..compile.defects import DEFECTS, Unprepared
from ..compile.executable import Executable
from ..compile.kernel import Exchange
from ..compile.lower import Options
from ..compile.program import Port, Program
from ..devices import Placement, on_devices
from ..environment import flag, processors, seed_of, threads_for, whole
from ..files import replace_file
from ..ir.graph import Graph
from ..ir.interpreter import InvalidOperation, Meter
from ..memory.allocate import owned
from ..memory.plan import MemoryPlan, Strategy
from ..memory.pool import Pool
from .alarm import readable
from .arena_pool import Arena, ArenaPool
from .exact_rerun import again
from .feeds import ONE_DICT, ONE_LIST, by_name, check_draw, checked, chosen, ends_at, planned_types, signature_type
from .fitting import AS_THEY_ARE, ProvenBuckets, fitting
from .guards import FedKey, Guard, Wanted, fed_key
from .instance import ExecutionContext, Instance, Observer
from .kept_programs import KeptPrograms, weakly
from .observers import PROFILING
from .overlap import apart, delivered, own_buffers, result_buffer
from .ready import made_ready, refused_after_fork, refused_copy
from .session_stats import SessionStats

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..compile.specialize import Compiled
    from ..engine import Variable
    from ..file import Opened, VariantKey

# Bytes that arenas may take together where nobody bounds their number. Runs of small models are a few microseconds, and
# to wait for one that has lost its processor takes a hundred times as long.
SMALL_ARENAS = 16 << 20
NO_BUFFERS: Mapping[str, Array] = {}
REPLANNED = 8  # programs that are planned for one run, each without the kernels that could not be prepared before
_here = os.getpid()
# One session plans at a time: what planning remembers belongs to all of them; and most of it is Python, of which one
# thread runs at a time anyway.
_PLANNING = threading.RLock()


def _forked() -> None:
    global _here
    _here = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)  # to ask for the process at each run would be a fiftieth of a small one


def _overwrites(model: Graph | Opened) -> bool:
    """True if a run changes a state, so that it cannot be made again; those of a block's run are its parameters."""
    return any(s.output != s.input for s in model.states) if isinstance(model, Graph) else bool(model.signature.states)


class Session:
    """Run one graph, from any number of threads.

    `strategy` is how the memory plan reuses bytes; `instances` bounds how many runs go on at once (each takes an arena;
    the default is the number of processors, or more on the CPU where 16 MiB hold their arenas); `max_memory` how many
    bytes arenas, values of data-dependent size and planned programs may take together (weights and the caller's inputs
    and outputs are not counted): programs that were not used for longest are dropped, and a run waits for others to
    end, or is refused, before that is passed. Without it programs may take 256 MiB beside two layouts of the weights.
    `max_programs` is how many input signatures are kept planned at most, None for as many as there is room for. `fuse`
    puts one operator in the place of several where that saves memory (see runtime/passes/fusions.py). `threads` is how
    many one step may use (default: OMP_NUM_THREADS, else all processors), `onednn=False` leaves the CPU to NumPy.
    `device` is "cpu", "gpu:0", "gpu" (the process's own), or "gpu:0@sm_90" to plan for a GPU that is not here; `place`
    has patterns of names of nodes or weights, and the device of each, or is "auto" or an AutoPlace (docs/multi-gpu.md).
    `precision` is "auto" ("fp32" on a CPU, "tf32" on a GPU, as other runtimes compute there), "fp32", "bf16" (tensors
    in bfloat16 where kernels take them), on the CPU also "bf16-math" (operands of float32 products are rounded to
    bfloat16), on GPUs "tf32" (rounded to TF32) and "fp16". `buckets` maps open dims to the few sizes that are planned,
    e.g. `{"batch": (1, 8, 64)}`: inputs are padded with zeros to the next one and results cut back, which is right for
    dims whose elements the model treats independently; "auto" rounds up what is proven not to change results
    (docs/service.md). A graph with states keeps them from run to run, and then runs one at a time; `states` gives
    arrays to keep them in, by name of the value that is read, which sessions may share that do not run at the same
    time. `exchange` is what Emit and Await speak to. `seed` begins the random numbers, which follow the number of the
    run (`next_run`); with `random="numpy"` operators that have a seed of their own draw NumPy's numbers, as ONNX's
    official suite expects. Errors call the model by `name` (or that of the graph). `model` is a graph, or an opened
    `.mezzo` file: its programs are taken where they fit this machine, else its graph.

    >>> from mezzo.runtime.ir.graph import GraphBuilder
    >>> from mezzo.ops.types import f32
    >>> g = GraphBuilder()
    >>> s = Session(g.graph([g.Relu(g.input("x", f32("n")))]))
    >>> s(np.array([-1, 2], np.float32))
    array([0., 2.], dtype=float32)
    """

    alternates = False  # whether many rows and single ones take turns

    def __init__(
        self,
        model: Graph | Opened,
        *,
        device: str = "cpu",
        place: Placement | None = None,
        budget: Budget | None = None,
        strategy: Strategy | str = Strategy.BOTH,
        instances: int | None = None,
        max_programs: int | None = None,
        max_memory: int | None = None,
        fuse: bool = False,
        threads: int | None = None,
        onednn: bool = True,
        precision: str = "auto",
        buckets: Buckets | Literal["auto"] | None = None,
        seed: int = 0,
        random: Literal["philox", "numpy"] = "philox",
        states: dict[str, Array] | None = None,
        exchange: Exchange | None = None,
        name: str = "",
    ) -> None:
        model, on = on_devices(model, device, place)
        self._model, self.budget, max_memory = model, Budget.of(budget), whole("max_memory", max_memory, 0)
        self.signature = replace(model.signature, name=name or model.signature.name)
        self._owner = self.signature.name or "a program"
        self.device, self._stored = on, None if isinstance(model, Graph) else model
        self._options = Options(
            on.target, Strategy(strategy), fuse=flag("fuse", fuse), threads=threads_for(threads),
            onednn=flag("onednn", onednn), precision=on.check_precision(precision, onednn),
            exchange=exchange is not None, place=on.place or None, one_layout=self.alternates,
            numpy_random=random == "numpy", nan="kept" if _overwrites(model) else "watched" if readable() else "exact",
        )  # fmt: skip
        self._exchange, self._part = exchange, () if exchange is None else exchange.part
        self._process: int | None = None  # the one that runs this session
        self._compiled: dict[tuple[str, ...], Compiled] = {}
        self._executables: dict[Any, Executable] = {}
        self._latest: Executable | None = None
        self._known: dict[tuple[Wanted, FedKey], Guard] = {}
        self._again: Guard | None = None  # the latest of them
        self._direct: Any = None  # of a GPU: see backends/cuda/direct.py
        self._exact: Session | None = None
        self._careful = False  # whether an alarm has been raised: the next ones should have a cause
        self._alarms, self._often = 0, False  # runs made again, and whether nearly all are
        if random not in ("philox", "numpy"):
            raise InputError(f"random={random!r} is unknown", where="Session", hint="give 'philox' or 'numpy'")
        self._seed = seed_of(seed)
        self._fitting = fitting(buckets, self.inputs, rounds=self._stored is not None and self._stored.rounds > 0)
        self.planning = _PLANNING
        self._table = threading.Lock()
        most = 1 if self.signature.states else whole("instances", instances, 1) or processors()
        spare = 0 if instances or self.signature.states or on.sm else SMALL_ARENAS
        self._pool = Pool(min(self.budget.dynamic_bytes, max_memory or self.budget.dynamic_bytes))
        self._kept = KeptPrograms(whole("max_programs", max_programs, 0), on.held, weakly(self._ran, {}))
        self._arenas = ArenaPool(on, self._pool, self._kept, most, max_memory, spare, self._owner)
        self._turn: Variable | None = None  # written by runs that the engine starts, where they change states
        self._planned, self._reported, self.next_run = 0, False, 0
        self.states: dict[str, Array] = {} if states is None else states
        for name, first in self.signature.states.items():
            if name not in self.states:
                self.states[name] = np.array(first)
            elif type_of(self.states[name]) != type_of(first):
                raise InputError(
                    f"state {name!r} is {type_of(self.states[name])}, not {type_of(first)}", where="Session"
                )
        self.states.update(on.keep({n: self.states[n] for n in self.signature.states}))
        self._fixed = all(isinstance(t, Tensor) and t.static for t in self.signature.inputs.values())
        if not self._starts_ready():
            # whatever is wrong with the graph is said here, and not by the first run
            self.compiled(self.signature.outputs)
            self._bind_fixed()

    def _claim(self) -> None:
        """Note that this process runs the session. Raises ForkedProcess if another has run it before: its threads and
        locks do not survive a fork."""
        if self._process is not None:
            raise refused_after_fork(_here, self._process, self._owner)
        self._process = _here

    # -- what it is -------------------------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The graph as it was imported; that of a `.mezzo` file is read when it is first asked for, and raises then
        what is wrong with it."""
        if isinstance(self._model, Graph):
            return self._model
        with self.planning:
            return self._model.graph

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Names and types of the inputs."""
        return tuple(Port(n, t) for n, t in self.signature.inputs.items())

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Names and types of the outputs, as far as they are known before a run."""
        stored = () if self._stored is None else self._stored.outputs
        return stored or self.compiled(self.signature.outputs).ports

    @property
    def program(self) -> Program:
        """The program that was planned last; PlanError before the first."""
        return self.executable.program

    @property
    def plan(self) -> MemoryPlan:
        """The memory plan of `program`."""
        return self.program.plan

    @property
    def executable(self) -> Executable:
        """The last program with its constants and its graph."""
        self._bind_fixed()
        if self._latest is None:
            raise PlanError(
                "nothing is planned yet, since the input sizes are not known",
                hint="run once, or call warmup({name: shape})",
            )
        return self._latest

    @property
    def bound_from(self) -> str:
        """Origin of the last program: `variant` of a `.mezzo` file, or `graph`, with the reason in brackets if the
        session came from such a file."""
        return self.executable.origin

    def stats(self) -> SessionStats:
        """Counters; a consistent snapshot."""
        with self._table:
            planned = (self._planned, len(self._executables), self._kept.evicted)
            compiled = [*self._compiled.values()]
        templates = [sum(len(c.templates.all) for c in compiled), sum(c.templates.used for c in compiled)]
        rounded = self._fitting.count() if isinstance(self._fitting, ProvenBuckets) else 0
        held = (DEFECTS.count, self._alarms, *templates, rounded, self._arenas.program_bytes())
        return SessionStats(*planned, *self._arenas.counts(), self._pool.stats(), *held)

    def uncaptured(self) -> tuple[tuple[int, str], ...]:
        """Steps of the last program that stand outside of its CUDA graphs, by number, and why. It is known after two
        runs; nothing on the CPU, which has no graphs."""
        instance = self._arenas.instance(self.executable)
        return tuple((r.index, r.reason) for r in instance.refused) if instance is not None else ()

    def has_room(self, nbytes: int) -> bool:
        """Return True if an arena of so many bytes may be made at all."""
        return self._arenas.ceiling is None or nbytes <= self._arenas.ceiling

    def trim(self) -> int:
        """Give back the arenas that no run is using and the pool's idle bytes; returns how many bytes that were."""
        return self._arenas.trim()

    # -- planning ---------------------------------------------------------------------------------------------------

    def warmup(self, shapes: Mapping[str, Sequence[int]]) -> Program:
        """Plan for these input shapes, so that the first run with them only replays."""
        outputs, types = self.signature.outputs, planned_types(self.signature, shapes)
        served = self._fitting.plan(self, outputs, types) if isinstance(self._fitting, ProvenBuckets) else None
        return (self._bind(outputs, types) if served is None else served[0].executable).program

    def prepare(self) -> int:
        """Make the programs for rounded sizes of the session's file ready, so that no first run waits for one; returns
        their number. Ends early where `max_memory` has no room for more."""
        return made_ready(self)

    def _starts_ready(self) -> bool:
        """Return True if the file has a program for the sizes of the inputs; any program, if sizes are open."""
        if self._stored is None or not self._fixed:
            return self._stored is not None and bool(self._stored.variants or self._stored.rounds)
        return self.lies_ready(self.signature.outputs, self.signature.inputs)

    def lies_ready(self, outputs: tuple[str, ...], types: Mapping[str, Type]) -> bool:
        """Return True if the session's file has a program for exactly these inputs."""
        return self._stored is not None and self._stored.holds(self._options, outputs, types)

    def _bind_fixed(self) -> None:
        """Plan a model whose input sizes are all known, if nothing is planned."""
        if self._fixed and self._latest is None:
            self._bind(self.signature.outputs, self.signature.inputs)

    def compiled(self, outputs: tuple[str, ...]) -> Compiled:
        """The graph for these outputs, rewritten as far as it can be without sizes."""
        from ..compile.specialize import compile_graph  # of a start, several ms; a file may hold the program

        known = self._compiled.get(outputs)
        if known is not None:  # without waiting for others that plan
            return known
        with self.planning:
            if outputs not in self._compiled:
                self._compiled[outputs] = compile_graph(
                    self.graph, outputs=outputs, options=self._options, budget=self.budget
                )
            return self._compiled[outputs]

    def types_of(self, arrays: Mapping[str, Any]) -> dict[str, Type]:
        """The types of inputs that have been checked."""
        return {p.name: signature_type(p.type, arrays[p.name]) for p in self.inputs}

    def _bind(self, outputs: tuple[str, ...], types: Mapping[str, Type]) -> Executable:
        key = (outputs, tuple(types.items()))
        known = self._find(key)
        if known is not None:
            return known
        with self.planning:  # one thread plans, the others wait for its result
            known = self._find(key)
            if known is not None:
                return known
            with collection_paused():
                executable = self._from_file(outputs, types) or self._specialised(outputs, types)
            if not self._reported:
                self._reported = self.device.report(executable.program)
            with self._table:
                self._executables[key] = self._latest = executable
                self._planned += 1
            self.keep(executable, partial(weakly(self._forget_exact, None), key))
            return executable

    def _specialised(self, outputs: tuple[str, ...], types: Mapping[str, Type]) -> Executable:
        """The program that the graph makes for these types."""
        from ..compile.specialize import specialise

        return specialise(self.compiled(outputs), types)

    def keep(self, executable: Executable, forget: Callable[[], None]) -> None:
        """Keep a program, or note that it is used again; others that were not used for longest go where there is no
        room. `forget` is called when it goes itself."""
        if self._kept.use(executable, forget):
            self._arenas.settle(executable)

    def _forget_exact(self, key: Any) -> None:
        """Let a program be planned again for its types."""
        with self._table:
            gone = self._executables.pop(key, None)
            self._known = {k: v for k, v in self._known.items() if v.executable is not gone}
            self._again = None
            self._direct = None if self._direct is not None and self._direct.executable is gone else self._direct

    def _ran(self) -> dict[Executable, int]:
        """The time at which programs ran last on the shortest way, by the clock of those that are kept."""
        ran: dict[Executable, int] = {}
        for session in (self, self._exact):
            if session is not None:
                with session._table:
                    guards = [*session._known.values()]
                for known in guards:
                    ran[known.executable] = max(known.used, ran.get(known.executable, 0))
                if session._direct is not None:
                    ran[session._direct.executable] = self._kept.clock
        return ran

    def _from_file(self, outputs: tuple[str, ...], types: Mapping[str, Type]) -> Executable | None:
        """The program that the session's file holds for these types; otherwise the graph is bound again as a whole."""
        if self._stored is None:
            return None
        with self.device.making_ahead(self._options.onednn):
            executable, reason = self._stored.find(self._options, outputs, types, self.budget)
        return executable or replace(self._specialised(outputs, types), origin=f"graph ({reason})")

    def save(
        self, path: str | os.PathLike[str], *, portable: bool = False, source: str = "", producer: str = ""
    ) -> None:
        """Write the graph to a `.mezzo` file, with the programs that are planned now as variants and patterns.

        `portable` leaves the programs out; `source` and `producer` (the model file, and what made it) are noted in
        it. States begin with their first values again. The file is replaced as a whole. Raises ModelError if it
        cannot be written, or the graph holds something that files cannot. Over several devices it holds no programs.
        """
        from .saving import content

        replace_file(path, content(self, portable=portable, source=source, producer=producer))

    def variants(self) -> list[tuple[VariantKey, Executable]]:
        """The programs that are planned now, each with what it was planned for, as a file keeps them."""
        from .saving import variants

        return variants(self)

    def _find(self, key: Any) -> Executable | None:
        with self._table:
            executable = self._executables.get(key)
            self._latest = executable or self._latest
        if executable is not None:
            self.keep(executable, partial(weakly(self._forget_exact, None), key))
        return executable

    __reduce__ = refused_copy

    def __repr__(self) -> str:
        ins, outs = (", ".join(names) for names in (self.signature.inputs, self.signature.outputs))
        return f"<Session of {self.signature.name or 'a model'}: {ins} -> {outs}>"

    def __call__(self, *inputs: Any) -> Any:
        """Run on positional inputs; returns the output, or a tuple of several."""
        if len(inputs) > len(self.signature.inputs):
            raise InputError(
                f"{len(inputs)} inputs given, the model takes {len(self.signature.inputs)}",
                where=self.signature.name,
                hint=f"they are {', '.join(map(str, self.inputs))}",
            )
        results = (*self.run(dict(zip(self.signature.inputs, inputs, strict=False))).values(),)
        return results[0] if len(results) == 1 else results

    def run(
        self,
        feeds: Mapping[str, Any],
        *,
        names: Sequence[str] | None = None,
        outputs: Mapping[str, Array] | None = None,
        deadline: float | None = None,
        cancel: threading.Event | None = None,
        observe: Observer | None = None,
        draw: tuple[int, ...] | None = None,
    ) -> dict[str, Any]:
        """Run once: input arrays by name to output arrays by name.

        `names` asks for some outputs only (nothing else is computed). `outputs` gives C-contiguous buffers to write
        into. `deadline` is how many seconds the run may take, waiting for a free instance included; setting `cancel`
        from another thread ends it too; both are looked at between steps (docs/untrusted.md). `draw` begins the random
        numbers of this run, in place of the seed and the number of the run. Results belong to the caller. Raises
        InputError where feeds or buffers do not fit, DeadlineError, Cancelled, BudgetError, ExecutionError.
        """
        if self._process != _here:
            self._claim()
        if feeds.__class__ is not dict or outputs.__class__ not in ONE_DICT or names.__class__ not in ONE_LIST:
            by_name(self._owner, feeds, outputs, names)
        if draw is not None:
            check_draw(self._owner, draw)
        if self._often and self._exact is not None:
            return self._exact.run(
                feeds, names=names, outputs=outputs, deadline=deadline, cancel=cancel, observe=observe,
                draw=self._drawn(draw),
            )  # fmt: skip
        observe = observe or PROFILING.observer
        key, wanted = None, None if names is None else tuple(names)
        if deadline is None and cancel is None and not observe and self._fitting is AS_THEY_ARE:
            known = self._again
            if outputs is None or not self.device.sm:
                if known is not None and known.wanted == wanted:
                    try:
                        answer = self._arenas.replay(known, feeds, outputs or NO_BUFFERS)
                    except InvalidOperation:
                        return again(self, feeds, names=names, outputs=outputs, draw=draw)
                    if answer is not None:
                        known.used, self._latest = self._kept.clock, known.executable
                        return answer
                if known is None or known.wanted != wanted or not known.fits(feeds):
                    by_name(self._owner, feeds, outputs, names)
                    key = fed_key(feeds)
                    known = None if key is None else self._known.get((wanted, key))
                    self._again = known or self._again
                if known is not None:
                    return self._replay(known, feeds, outputs, draw)
            if (direct := self._direct) is not None and names is None and direct.fits(feeds, outputs or NO_BUFFERS):
                answer = self._arenas.replay(direct, feeds, outputs or NO_BUFFERS)
                if answer is not None:
                    return answer
        return self._unguarded(feeds, key, names, outputs, deadline, cancel, observe, draw)

    def _unguarded(
        self,
        feeds: Mapping[str, Any],
        key: FedKey | None,
        names: Sequence[str] | None,
        outputs: Mapping[str, Array] | None,
        deadline: float | None,
        cancel: threading.Event | None,
        observe: Observer | None,
        draw: tuple[int, ...] | None,
    ) -> dict[str, Any]:
        """`run` where no guard matched: all is checked, and what is new is planned. `key` is that of the guard that
        runs like this one will have."""
        until = ends_at(self._owner, deadline, cancel, observe)
        wanted = chosen(self.signature, names)
        whole = checked(self.signature, feeds, self.device.from_dlpack)
        fitted = self._fitting.fit(self, wanted, whole, outputs)
        drawn = self._drawn(draw)
        for left in reversed(range(REPLANNED)):
            arrays = fitted.arrays
            executable = self._latest = fitted.executable or self._bind(wanted, self.types_of(arrays))
            program = executable.program
            own = own_buffers(program.outputs, outputs, self.device, self._owner)
            buffers = [result_buffer(p, own or fitted.buffers, self._owner) for p in program.outputs]
            if own:
                arrays = apart(arrays, own, self._owner)
                feeds = {n: arrays.get(n, x) for n, x in feeds.items()}  # for a second run
            try:
                with self._arenas.borrow(program.arena_bytes, until, executable) as arena:
                    instance = self._instance(arena, executable)
                    instance.around.key = (*drawn, *self._part)
                    limits = Meter(self.budget.steps, until=until, cancel=cancel)
                    with instance.around.limited(limits), np.errstate(all="ignore"):
                        results = instance.run(list(arrays.values()), buffers, observe=observe)
                    if names is None and self._fitting is AS_THEY_ARE and not (deadline or cancel or observe):
                        self._direct = self.device.fast_path(executable, feeds, outputs or {}, arena, instance)
                break
            except BudgetError as error:
                raise self.device.explain(error, self, program).at(self._owner) from error.__cause__
            except InvalidOperation:
                remaining = None if until is None else until - monotonic()
                return again(
                    self, feeds, observe, names=names, outputs=outputs, deadline=remaining, cancel=cancel, draw=drawn
                )
            except Unprepared:  # before the first step: nothing has happened yet
                self._arenas.drop(executable)
                if not left:
                    raise
                fitted = self._fitting.fit(self, wanted, whole, outputs)
        named = {
            p.name: r if b is not None else owned(r) for p, b, r in zip(program.outputs, buffers, results, strict=True)
        }
        if key is not None:
            with self._table:
                if executable in self._kept:
                    known = Guard.of(executable, None if names is None else wanted, key, arrays, self._kept.clock)
                    self._again = self._known[known.wanted, key] = known
        if fitted.finish is not None:
            return fitted.finish(named)
        return delivered(named, own, self._owner)

    def _instance(self, arena: Arena, executable: Executable) -> Instance:
        """The instance of a program in an arena."""
        instance = arena.instances.get(executable)
        if instance is None or instance.around.careful != self._careful:
            around = ExecutionContext(
                *(executable.constants, self.budget, self._pool, Meter(self.budget.steps)),
                numpy_random=self._options.numpy_random,
                exchange=self._exchange,
                careful=self._careful,
            )
            instance = self.device.instantiate(executable.program, arena.memory, around, self.states)
            arena.instances[executable] = instance
            self._arenas.settle(executable)
            if executable not in self._kept:  # another thread has dropped it: nobody will ask for this again
                arena.drop(executable)
        return instance

    def _replay(
        self,
        known: Guard,
        feeds: Mapping[str, Any],
        outputs: Mapping[str, Array] | None,
        draw: tuple[int, ...] | None,
    ) -> dict[str, Any]:
        """`run` for arrays of kinds that were fed before: nothing is left to check but the buffers."""
        known.used = self._kept.clock
        executable = self._latest = known.executable
        own = own_buffers(executable.program.outputs, outputs, self.device, self._owner) if outputs else {}
        if own:
            feeds = apart(feeds, own, self._owner)
        try:
            with self._arenas.borrow(executable.program.arena_bytes, None, executable) as arena:
                instance = self._instance(arena, executable)
                around = instance.around
                if known.counted or around.meter.watches:
                    draw = self._drawn(draw)
                    around.meter, around.key = Meter(self.budget.steps), (*draw, *self._part)
                buffers, results = known.replay(instance, feeds, own, self._owner)
                short = known.short(instance)
                if short is not None and around.careful == self._careful:
                    arena.replays[known] = short
        except InvalidOperation:
            return again(self, feeds, names=known.wanted, outputs=outputs, draw=draw)
        answers = zip(known.results, buffers, results, strict=True)
        named = {name: r if b is not None else owned(r) for (name, _, _), b, r in answers}
        return delivered(named, own, self._owner) if own else named

    def _drawn(self, draw: tuple[int, ...] | None) -> tuple[int, ...]:
        """Return the random key of this run: the given one, or the seed and the number of the run."""
        if draw is not None:
            return draw
        with self._table:
            self.next_run += 1
            return (self._seed, self.next_run - 1)

    def run_async(self, feeds: Mapping[str, Any], **options: Any) -> Future[dict[str, Any]]:
        """`run` as a workload of the engine; takes the same arguments and returns a future of its result.

        Runs of a graph with states follow one another in the order of the calls. `result()` without a timeout runs in
        the calling thread what has not begun; an error names the line of this call.
        """
        from ..engine.future import submit
        from ..engine.process import engine  # of a start, several ms

        with self._table:
            if self._turn is None:
                self._turn = engine().variable(f"states of {self.signature.name}")
        return submit(self.run, feeds, writes=(self._turn,) if self.signature.states else (), **options)
