"""Instances on a GPU: the arena, the stream, and the program as CUDA graphs over staging slots.

The first run launches every step by itself, which is the warm-up; with the second, what can be captured is captured,
and from then on a run copies in, launches a graph, and copies out. Steps that run on the host (host.py) stand between
graphs; values whose sizes data decide, and host objects, live on the host throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ....ops import DType, Tensor
from ....ops.types import Array
from ...compile.kernel import KernelArgs, Rebinds, failed, nothing
from ...compile.program import Program, ProgramStep, body_bytes
from ...execution.executor import Executor
from ...execution.instance import BodyRunner, ExecutionContext, Instance, Observer
from ...execution.instance import _into as into
from ...ir.interpreter import blaming
from ...memory.liveness import Space, aligned
from ...memory.pool import aligned_empty
from .capture import CaptureRefused, Numbered, captured
from .driver import LOADED, cupy
from .exchange import carrier
from .faults import DeviceLost, lost, step_by_step, told
from .host import HOST, HostFallback, host_fallbacks
from .keys import Keys
from .launch import Written
from .memory import Resident, check_operand, view
from .staging import Staging
from .target import GpuTarget
from .uploads import uploaded

CAPTURES = 3  # that are tried at most, each by a run of its own


class GpuInstance(Instance):
    """The prepared calls of a program on a GPU.

    `arrays` are on the host, as for any instance: constants, copies of what steps of the host touch, values of dynamic
    segments. `device_arrays` are on the device. `refused` lists the steps that could not be captured, and why, once
    the second run has tried.
    """

    def __init__(
        self,
        program: Program,
        arena: Any,
        around: ExecutionContext,
        executor: Executor,
        states: Mapping[str, Array] | None = None,
    ) -> None:
        self._begin(program, arena, around, executor)
        gpu = executor.target
        assert isinstance(gpu, GpuTarget)
        self._gpu, self._arena = gpu, arena
        self._target = HOST
        self._fallbacks = {a.index: a for a in host_fallbacks(program)}
        self._kept: list[Array] = []
        self._moving: dict[int, Any] = {}
        self._rebinds: dict[int, Rebinds] = {}
        self.staged: dict[str, Array] = {}
        self.fixed = None  # no replay without a choice: see Known.short
        self._cuda = cupy().cuda
        with self._gpu.current():
            self.stream = self._cuda.Stream(non_blocking=True)
            self._came = self._cuda.Event(disable_timing=True)
            self._bind(states or {})
            self._carried = carrier(around.exchange, self.stream)
            self._keys = Keys(self._load(), gpu.index)
            self.calls = [self._call(i) for i in range(len(program.steps))]
        self._eager: list[Numbered] = [(i, call) for i, call in enumerate(self.calls) if call is not nothing]
        self._parts: list[Numbered] | None = None
        self._warm, self._captures, self._checks = False, 0, step_by_step()
        self.refused: tuple[CaptureRefused, ...] = ()
        self.graphs: tuple[Any, ...] = ()

    # -- where everything lies --------------------------------------------------------------------------------------

    def _bind(self, states: Mapping[str, Array]) -> None:
        program, types = self.program, self.program.types
        on_host = {n for a in self._fallbacks.values() for n in (*a.step.reads(), *a.step.writes())}
        read = {n for i, s in enumerate(program.steps) if i not in self._fallbacks for n in s.reads()}
        beside = [n for n in sorted(on_host - {*program.weights, *program.staged}) if _fixed(types[n])]
        self._staging = Staging(program, self._arena.data.ptr, beside)
        self.arrays = {n: self.around.weights[n] for n in program.weights}
        self.arrays |= self._staging.arrays
        self.device_arrays: dict[str, Any] = {}
        constants: dict[str, Array] = {}
        for slot in program.plan.slots:
            name, known = slot.life.value, types.get(slot.life.value)
            if slot.life.space is Space.WEIGHT:
                if name in read:
                    constants[name] = self.around.weights[name]
            elif slot.life.space is Space.ARENA and isinstance(known, Tensor):
                self.device_arrays[name] = view(self._arena, slot.offset, known)
        self.device_arrays |= uploaded(constants, self._gpu.index)
        for before, after in program.states.items():
            state: Any = states[before]
            assert isinstance(state, Resident)
            self.device_arrays[before] = self.device_arrays[after] = state.array
        at = aligned(program.plan.size)
        for name in program.staged:
            known = types[name]
            assert isinstance(known, Tensor)
            self.device_arrays[name] = view(self._arena, at, known)
            at += aligned(known.nbytes)
        bodies = [aligned(body_bytes(b)) for s in program.steps for b in s.bodies.values()]
        self._memory = aligned_empty(sum(bodies))
        self._used = 0
        self.runners = [self._runners_of(s) for s in program.steps]
        self._wanted = [n for n in program.given if n in read and n in program.staged]
        written = {n for a in self._fallbacks.values() for n in a.step.writes()}
        self._at_hand = {n for n in program.results if n in written}  # results that the host has made
        self._read_here = on_host
        self._passing = [n for n in types if n not in self.arrays]  # of one run, or copied for its observer

    def _runners_of(self, step: ProgramStep) -> dict[str, BodyRunner]:
        runners = {}
        for attr, body in step.bodies.items():
            nbytes = body_bytes(body)
            runners[attr] = BodyRunner(body, self._memory[self._used : self._used + nbytes], self)
            self._used += aligned(nbytes)
        return runners

    def _load(self) -> list[ProgramStep]:
        """Compile and load the kernels of all steps together; those that draw random numbers."""
        sources, drawing = [], []
        for i, step in enumerate(self.program.steps):
            for written in () if i in self._fallbacks else step.choice.primitives:
                if isinstance(written, Written):
                    sources += [launch.source for launch in written.launches]
                    drawing += [step] if written.draws else []
        LOADED.load(sources, self._gpu.index, self._gpu.sm)
        return drawing

    # -- the calls --------------------------------------------------------------------------------------------------

    def _call(self, i: int) -> Callable[[], Any]:
        step = self.program.steps[i]
        with blaming(step.node.place):
            on_host = self._fallbacks.get(i)
            if on_host is not None:
                return self._around(on_host, partial(self._run_dynamic, i) if step.dynamic else self._on_host(i))
            return self._gpu_kernel(i)

    def _gpu_kernel(self, i: int) -> Callable[[], Any]:
        step = self.program.steps[i]
        outputs = [self.device_arrays[o] if o else None for o in step.node.outputs]
        inputs = [self.device_arrays[n] if n else None for n in step.node.inputs]
        scratch, words = self._scratch(step), self._keys.words(step)
        asked, store = self._ask(step), self._carried
        for side, names in (("in", step.node.inputs), ("out", step.node.outputs)):
            for k, name in enumerate(names):
                known = self.program.types[name] if name else None
                if isinstance(known, Tensor) and known.elements:
                    check_operand(self.device_arrays[name], known.nbytes, known.dtype.itemsize, (side, k))
        args = KernelArgs(asked, step.choice, inputs, outputs, scratch, exchange=store, words=words)
        with self.stream:
            call: Callable[[], Any] = self._gpu.prepare(args)
        return call

    def _on_host(self, i: int) -> Callable[[], Any]:
        step = self.program.steps[i]
        outputs = [self.arrays[o] if o else None for o in step.node.outputs]
        call: Callable[[], Any] = HOST.prepare(self._kernel_args(i, outputs, self._host_scratch))
        return into(call, outputs) if step.choice.allocates else call

    def _host_scratch(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        """Workspace of a step on the host. Prepared calls know addresses only: it is kept here."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._kept.append(aligned_empty(nbytes))
        return self._kept[-1].view(dtype.numpy).reshape(shape)

    def _around(self, step: HostFallback, call: Callable[[], Any]) -> Callable[[], Any]:
        """The call of a step on the host between its copies. What nobody else reads is not waited for."""
        down = [(c.value, self.device_arrays[c.value]) for c in step.copies.down if c.value in self.device_arrays]
        up = [(c.value, self.device_arrays[c.value]) for c in step.copies.up]
        staging, stream = self._staging, self.stream

        def run() -> Any:
            for name, value in down:
                staging.down(name, value, stream)
            if down:
                stream.synchronize()
            status = call()
            for name, value in up:
                staging.up(name, value, stream)
            return status

        return run

    # -- running ----------------------------------------------------------------------------------------------------

    def run(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        *,
        captures: Sequence[Array] = (),
        observe: Observer | None = None,
    ) -> list[Any]:
        """Replay, as Instance.run does. Inputs and the buffers of outputs are arrays of the host, or CuPy's arrays on
        this device. It returns when the results are there, and begins behind what the current stream has to do: inputs,
        buffers and states may be others' arrays, and memory that others have given back may still be in use there."""
        program = self.program
        with self._cuda.Device(self._gpu.index):
            fed = chain(zip(program.given, inputs, strict=True), zip(program.captures, captures, strict=True))
            try:
                self._came.record(self._cuda.get_current_stream())
                self.stream.wait_event(self._came)
                self._feed(dict(fed))
                self._keys.send(self.around.key, self.stream)
                with self.stream:
                    self._replay(observe)
                return self._results(outputs)
            except BaseException as error:
                fault: BaseException = error
                try:
                    self._staging.settle()  # whoever takes the arena next finds nothing going on in it
                    self.stream.synchronize()
                    if self._carried is not None:
                        self._carried.forget()
                except Exception as later:  # the device's own word for what a library noticed first
                    fault = later if lost(later) and not isinstance(error, DeviceLost) else error
                if lost(fault):
                    raise told(fault, self._gpu.name) from error
                raise
            finally:
                for name in self._passing:
                    self.arrays.pop(name, None)

    def _feed(self, fed: Mapping[str, Any]) -> None:
        staged, host = self._staging.arrays, dict[str, Array]()
        for name, array in fed.items():
            if on_device(array):
                self._feed_from_device(name, array)
            elif name in staged:
                host[name] = array
            else:
                self.arrays[name] = array
        self._staging.bring(host, self._wanted, self.stream, self._came)

    def _feed_from_device(self, name: str, array: Any) -> None:
        """Take an input that lies on the device already."""
        if name not in self._staging.arrays:
            self.arrays[name] = array.get()
            return
        self._staging.across(self.device_arrays[name], array, self.stream)
        if name in self._read_here:
            self._staging.down(name, self.device_arrays[name], self.stream)
            self.stream.synchronize()

    def _replay(self, observe: Observer | None) -> None:
        i, meter = 0, self.around.meter
        try:
            if observe is not None:
                self._observed(observe)
                return
            if self._warm and not self._checks and self._may_capture():
                self._parts = self._capture()
            parts, self._warm = self._parts, True
            for i, call in self._eager if parts is None else parts:  # noqa: B007 (the handler below reads the index)
                if meter.watches:
                    meter.check()
                status = call()
                if status.__class__ is int and status:
                    raise failed(status)
                if self._checks:
                    self.stream.synchronize()
        except Exception as error:
            if lost(error):
                if self._checks:  # then it is of this step
                    raise told(error, self._gpu.name, self._place(i)) from error
                raise
            with blaming(self.program.steps[i].node.place):
                raise
            raise AssertionError from error  # not reached: blaming raises

    def _observed(self, observe: Observer) -> None:
        """Run step by step, with the results of each on the host before its observer is told."""
        for i, (step, call) in enumerate(zip(self.program.steps, self.calls, strict=True)):
            self.around.meter.check()
            observe("before", i, step, self)
            with blaming(step.node.place):
                status = call()
                if status.__class__ is int and status:
                    raise failed(status)
                self.stream.synchronize()
                for name in step.writes() if i not in self._fallbacks else ():
                    if name in self._staging.arrays:
                        self._staging.down(name, self.device_arrays[name], self.stream)
                        self.stream.synchronize()
                    else:
                        known = self.program.types[name]
                        assert isinstance(known, Tensor)
                        self.arrays[name] = self.device_arrays[name].get().view(known.dtype.numpy)
            observe("after", i, step, self)

    def _place(self, i: int) -> str:
        return self.program.steps[i].node.place

    def _may_capture(self) -> bool:
        """True before the first capture, and again after one in which a call was refused, which may have been for that
        moment."""
        refused = any(r.index not in self._fallbacks and self._capturable(r.index) for r in self.refused)
        return not self._captures or (refused and self._captures < CAPTURES)

    def _capturable(self, i: int) -> bool:
        return self.program.steps[i].choice.capturable

    def _capture(self) -> list[Numbered]:
        """The program as graphs, and the calls between them."""
        self._captures += 1
        for name in dict.fromkeys(
            s.choice.kernel for i, s in enumerate(self.program.steps) if i not in self._fallbacks
        ):
            ready = getattr(self._gpu.kernel(name), "ready", None)
            if ready is not None:
                ready(self._gpu.name)
        parts: list[Numbered] = []
        refused: list[CaptureRefused] = []
        graphs: list[Any] = []
        together: list[Numbered] = []

        def close() -> None:
            recorded = captured(together, self.stream)
            parts.extend(recorded.parts)
            refused.extend(recorded.refused)
            graphs.extend(recorded.graphs)
            together.clear()

        for i, call in self._eager:
            if i not in self._fallbacks and self._capturable(i):
                together.append((i, call))
                continue
            close()
            parts.append((i, call))
            reason = self._fallbacks[i].reason if i in self._fallbacks else "its kernel says that it cannot be captured"
            refused.append(CaptureRefused(i, reason))
        close()
        self.refused, self.graphs = tuple(refused), tuple(graphs)
        return parts

    def _results(self, outputs: Sequence[Any]) -> list[Any]:
        named = list(zip(self.program.results, outputs, strict=True))
        wanted = [n for n, b in named if b is not None and not on_device(b) and n not in self._at_hand]
        for name, buffer in named:
            if on_device(buffer) and name in self._at_hand:
                self._staging.up(name, buffer, self.stream)
            elif on_device(buffer):
                self._staging.across(buffer, self.device_arrays[name], self.stream)
        self._staging.fetch(wanted, self.stream)
        self.stream.synchronize()
        results: list[Any] = []
        for name, buffer in named:
            if isinstance(buffer, np.ndarray):
                np.copyto(buffer, self.arrays[name])
            results.append(self.arrays[name] if buffer is None else buffer)
        return results


def on_device(array: Any) -> bool:
    """True if an array is one of CuPy's."""
    return hasattr(array, "__cuda_array_interface__")


def _fixed(type: Any) -> bool:
    return isinstance(type, Tensor) and type.static
