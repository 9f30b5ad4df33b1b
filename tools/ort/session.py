"""ONNX Runtime's InferenceSession on our sessions.

https://onnxruntime.ai/docs/api/python/api_summary.html#inferencesession
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic_ns, perf_counter
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ...ops.budget import Budget
from ...ops.dataclasses import dataclass
from ...ops.errors import ArgumentError, InputError, MezzoError
from ...runtime.compile.program import Port
from ...runtime.execution.session import Session
from ...runtime.memory.plan import Strategy
from ..load import file_name, load
from .entries import EXTERNAL_FOLDER
from .enumerations import GraphOptimizationLevel
from .errors import Fail, InvalidArgument, WrongType, opening, renamed
from .feeds import differing, fitted, in_words_of_onnxruntime, loose, odd, plain
from .log import INFO, VERBOSE, WARNING, Log
from .options import RunOptions, SessionOptions, check_kind
from .process import Process
from .providers import CPU, choose, said_twice
from .values import OrtValue, OrtValueVector

if TYPE_CHECKING:
    from .binding import IOBinding
    from .devices import OrtEpDevice, OrtMemoryInfo
    from .extension import ExtensionSession
    from .metadata import ModelMetadata, NodeArg
    from .profile import RunTimes

ASSIGNMENT = "session.record_ep_graph_assignment_info"
READ_CONFIG = "ORT_LOAD_CONFIG_FROM_MODEL"
SHRINKAGE = "memory.enable_memory_arena_shrinkage"
Providers = Sequence[str | tuple[str, Mapping[str, Any]]]
Callback = Callable[[list[Any], Any, str], Any]


@dataclass(frozen=True, slots=True)
class OrtEpAssignedNode:
    """A step of the planned program, by the operator that it computes."""

    name: str
    domain: str
    op_type: str


@dataclass(frozen=True, slots=True)
class OrtEpAssignedSubgraph:
    """The steps that a provider runs."""

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return list(self.nodes)


class InferenceSession:
    """A model with ONNX Runtime's `run(output_names, input_feed)`.

    >>> import numpy as np
    >>> from mezzo.models.digits import digits_model
    >>> s = InferenceSession(digits_model())
    >>> s.get_inputs()[0].name, s.get_inputs()[0].shape
    ('image', ['batch', 1, 8, 8])
    >>> (logits,) = s.run(None, {"image": np.zeros((2, 1, 8, 8), np.float32)})
    >>> logits.shape
    (2, 10)
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Providers | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        budget: Budget | None = None,
        enable_fallback: bool | int = False,
        disabled_optimizers: Iterable[str] | None = None,
        read_config_from_model: bool | int | None = None,
    ) -> None:
        """The first of `providers` that is here runs the model, the CPU where none is given: see tools/ort/providers.py
        for their options, and SessionOptions for those of the session. Warns of providers that are not here or do
        nothing.

        Raises ArgumentError for what is not known or would be ignored, and as `load` does, by the names of
        tools/ort/errors.py.
        """
        check_kind(sess_options, SessionOptions, "sess_options")
        if not isinstance(path_or_bytes, (str, os.PathLike, bytes)):
            kind, hint = type(path_or_bytes).__name__, "give a path, or bytes(...)"
            raise WrongType(f"a {kind} is no model", where="InferenceSession", hint=hint)
        if enable_fallback:
            self.enable_fallback()
        if disabled_optimizers:
            hint = "GraphOptimizationLevel.ORT_DISABLE_ALL in SessionOptions leaves all out"
            text = f"{', '.join(disabled_optimizers)} would be ignored: our passes have other names"
            raise ArgumentError(text, where="InferenceSession(disabled_optimizers=)", hint=hint)
        self._source, self._budget = path_or_bytes, budget
        self._said = options = SessionOptions() if sess_options is None else sess_options.snapshot()
        if os.environ.get(READ_CONFIG) == "1" if read_config_from_model is None else read_config_from_model:
            from .changes import configured
            from .metadata import said_by

            configured(said_by(path_or_bytes), options)
        if providers and options.has_providers():
            said_twice()
        asked: Any = options.providers
        if not asked and not providers and options.selection:
            from .selection import selected

            asked = selected(options.selection[-1], path_or_bytes)
        self._place = choose(providers or asked or providers, provider_options)
        self._log = Log(options.log_severity_level, options.logid)
        self._profile: RunTimes | None = None
        self._profile_begun = 0
        self._open()

    def _open(self) -> None:
        """Load the model for the place that was chosen."""
        options, place, began, at = self._said, self._place, perf_counter(), monotonic_ns()
        if options.use_deterministic_compute and place.device != "cpu":
            why = "libraries of GPUs promise no equal bits"
            raise ArgumentError(why, where="SessionOptions.use_deterministic_compute", hint=f"give providers=[{CPU!r}]")
        own, entries = options.intra_op_num_threads, options.entries
        settings: dict[str, Any] = {
            "device": place.device,
            "budget": self._budget,
            "strategy": Strategy.BOTH if options.enable_mem_reuse else Strategy.NONE,
            "threads": (own if options.use_per_session_threads else Process.threads) or None,
            "precision": entries.given.get("mezzo.precision", place.precision),
            "onednn": options.graph_optimization_level is not GraphOptimizationLevel.ORT_DISABLE_ALL,
            "max_memory": entries.number("mezzo.max_memory"),
            "max_programs": entries.number("mezzo.max_programs"),
            "instances": entries.number("mezzo.instances"),
            "seed": Process.seed,
        }
        self._settings = settings
        with opening():
            folder = entries.given.get(EXTERNAL_FOLDER)
            if folder is not None and not isinstance(self._source, bytes):
                where, hint = f"SessionOptions: {EXTERNAL_FOLDER}", "leave it out: external data are beside their model"
                raise ArgumentError(f"{folder!r} would be ignored", where=where, hint=hint)
            if options.changes or folder is not None:
                from .changes import changed

                graph = changed(self._source, options, self._budget, None if folder is None else Path(folder))
                self.session = Session(graph, name=file_name(self._source), **settings)
            else:
                self.session = load(self._source, **settings)
            if options.optimized_model_filepath:
                from .changes import save_optimised

                save_optimised(self.session, options.optimized_model_filepath, entries.given)
        self._ports = (tuple(self.session.inputs), tuple(self.session.outputs))
        self._names, self._loose = tuple(p.name for p in self._ports[1]), loose(self._ports[0])
        if options.enable_profiling:
            from .profile import RunTimes

            first, host = next(iter(place.providers)), self.session.device.host
            self._profile = RunTimes(at, first, "" if host is None else host.name)
            self._profile.session("session_initialization", at)
        self._watched = options.enable_profiling or not options.enable_cpu_mem_arena
        if self._log.wants(INFO):
            took = (perf_counter() - began) * 1e3
            name = self.session.signature.name or "a model"
            self._log.say(INFO, "InferenceSession", f"{name} on {place.device}: loaded in {took:.1f} ms")

    def __copy__(self) -> Self:
        """The same session, of which only the providers may be others."""
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        return clone

    def __reduce__(self) -> NoReturn:
        hint = "give the path or the bytes of the model, and make a session there"
        raise WrongType("a session is not copied, nor sent to another process", where="InferenceSession", hint=hint)

    # -- running ----------------------------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run once; returns the named outputs in that order (None: all). Raises as Session.run does, by the names of
        tools/ort/errors.py: InvalidArgument (a ValueError) for feeds that do not fit."""
        if output_names.__class__ is not list and output_names is not None:
            if isinstance(output_names, str):
                raise WrongType(f"{output_names!r} is no list of outputs", where="run", hint=f"give [{output_names!r}]")
            output_names = list(output_names)
        results = self._answers(output_names, input_feed, None, run_options)
        return [results[n] for n in output_names or self._names]

    def _answers(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        buffers: Mapping[str, Any] | None,
        run_options: RunOptions | None,
    ) -> dict[str, Any]:
        """Results of a run by name."""
        names = None
        if output_names:
            names = tuple(dict.fromkeys(output_names))
            if names == self._names:
                names = None
        if input_feed.__class__ is not dict and not isinstance(input_feed, Mapping):
            hint = "give {name: array}"
            raise WrongType(f"feeds are a mapping, not a {type(input_feed).__name__}", where="run", hint=hint)
        check_kind(run_options, RunOptions, "run_options")
        if run_options is not None and run_options.adapters:
            from .adapters import fed_by

            input_feed = fed_by(run_options.adapters, input_feed)
        for fed in input_feed.values():
            if odd(fed):
                input_feed = {n: plain(x) for n, x in input_feed.items()}
                break
        if self._loose:
            input_feed = fitted(input_feed, self._loose)
        try:
            return self._run(names, input_feed, buffers, run_options)
        except MezzoError as error:
            wrong, reason = error, differing(input_feed, self.session.inputs) if isinstance(error, InputError) else ""
        if reason:
            self._forget_names(reason)
            try:
                return self._run(names, input_feed, buffers, run_options)
            except MezzoError as error:
                wrong = error
        required = (p for p in self._ports[0] if p.name not in self.session.signature.defaults)
        if isinstance(wrong, InputError) and (words := in_words_of_onnxruntime(input_feed, required)):
            text = f"{words}: {wrong.message}"
            raise InvalidArgument(text, where=wrong.where, hint=wrong.hint, parts=wrong.parts) from wrong
        raise renamed(wrong) from wrong

    def _run(
        self,
        names: tuple[str, ...] | None,
        feeds: Mapping[str, Any],
        buffers: Mapping[str, Any] | None,
        run_options: RunOptions | None,
    ) -> dict[str, Any]:
        if run_options is None and not self._watched and not self._log.wants(INFO):
            return self.session.run(feeds, names=names, outputs=buffers)
        return self._watch(names, feeds, buffers, run_options)

    def _forget_names(self, reason: str) -> None:
        """Make the session again for inputs whose dims have no names."""
        from .feeds import unnamed

        self._log.say(WARNING, "run", f"{reason}: from now on each has a size of its own")
        self.session = Session(unnamed(self.session.graph), name=file_name(self._source), **self._settings)

    def _watch(
        self,
        names: tuple[str, ...] | None,
        feeds: Mapping[str, Any],
        buffers: Mapping[str, Any] | None,
        run_options: RunOptions | None,
    ) -> dict[str, Any]:
        """A run that is ended from outside, recorded, logged, or after which memory is given back."""
        log, shrink, cancel = self._log, not self._said.enable_cpu_mem_arena, None
        if run_options is not None:
            cancel, shrink = run_options.cancel, shrink or SHRINKAGE in run_options.entries.given
            log = Log(run_options.log_severity_level, run_options.logid or log.identity)
            log = log if run_options.log_severity_level >= 0 else Log(self._log.severity, log.identity)
        planned, began, at = self.session.stats().planned, perf_counter(), monotonic_ns()
        profile = self._profile
        try:
            results = self.session.run(feeds, names=names, outputs=buffers, cancel=cancel, observe=profile)
        finally:
            if profile is not None:
                profile.session("model_run", at)
            if shrink:
                self.session.trim()
        if self.session.stats().planned > planned:
            steps, arena = len(self.session.program.steps), self.session.program.arena_bytes
            log.say(INFO, "run", f"planned for new sizes: {steps} steps, an arena of {arena} bytes")
        log.say(VERBOSE, "run", f"took {(perf_counter() - began) * 1e3:.3f} ms")
        return results

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback,
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run on a thread of the engine, which then calls `callback(results, user_data, error)`: the results of `run`
        and "", or [] and what went wrong."""
        from ...runtime.engine.future import submit  # of a start, several ms

        if not callable(callback):
            raise WrongType(f"{callback!r} is no function", where="run_async", hint="give a function of three")
        submit(self._call_back, output_names, input_feed, callback, user_data, run_options)

    def _call_back(self, names: Any, feeds: Any, callback: Callback, user_data: Any, run_options: Any) -> None:
        try:
            results = self.run(names, feeds, run_options)
        except MezzoError as error:
            callback([], user_data, str(error))
        else:
            callback(results, user_data, "")

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """`run` from values to values."""
        return [OrtValue(x) for x in self.run(output_names, input_dict_ort_values, run_options)]

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Run, and put the results behind those in `fetches`."""
        fed = dict(zip(feed_names, feeds, strict=True))
        fetches.extend(self.run_with_ort_values(fetch_names, fed, run_options))

    def io_binding(self) -> IOBinding:
        """Feeds and buffers for results, given once for many runs."""
        from .binding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run on what is bound; `iobinding.get_outputs()` has the results. Raises InvalidArgument for a binding of
        another session, and as `run` does."""
        if iobinding.session is not self:
            raise InvalidArgument("the binding is of another session", where="run_with_iobinding", hint="io_binding()")
        iobinding.run(self._answers, run_options)

    # -- what it is -------------------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that must be fed."""
        return self._described(p for p in self._ports[0] if p.name not in self.session.signature.defaults)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that may be fed and otherwise have the file's value."""
        return self._described(p for p in self._ports[0] if p.name in self.session.signature.defaults)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, with their shapes as far as they are known before a run."""
        return self._described(self._ports[1])

    @staticmethod
    def _described(ports: Iterable[Port]) -> list[NodeArg]:
        from .metadata import NodeArg  # of a start, a millisecond

        return [NodeArg.of(p) for p in ports]

    def get_modelmeta(self) -> ModelMetadata:
        """Name, domain, version, texts and metadata of the model file."""
        from .metadata import metadata_of

        return metadata_of(self._source, self.session)

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with; changes do not reach it."""
        return self._said.snapshot()

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        return self._host(len(self.get_inputs()))

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        return self._host(len(self._names))

    @staticmethod
    def _host(count: int) -> list[OrtMemoryInfo]:
        from .devices import HOST

        return [HOST] * count

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        from .devices import get_ep_devices

        return [get_ep_devices()[-1] for _ in self.get_inputs()]

    # -- providers --------------------------------------------------------------------------------------------------

    # Attributes of ONNX Runtime's class that packages read, though their names are private.

    @property
    def _sess(self) -> ExtensionSession:
        from .extension import ExtensionSession

        return ExtensionSession(self)

    @property
    def _model_path(self) -> str | None:
        return None if isinstance(self._source, bytes) else os.fspath(self._source)

    @property
    def _model_bytes(self) -> bytes | None:
        return self._source if isinstance(self._source, bytes) else None

    @property
    def _sess_options(self) -> SessionOptions:
        return self._said

    @property
    def _inputs_meta(self) -> list[NodeArg]:
        return self.get_inputs()

    @property
    def _outputs_meta(self) -> list[NodeArg]:
        return self.get_outputs()

    @property
    def _model_meta(self) -> ModelMetadata:
        return self.get_modelmeta()

    @property
    def _providers(self) -> list[str]:
        return self.get_providers()

    @property
    def _provider_options(self) -> dict[str, dict[str, str]]:
        return self.get_provider_options()

    def get_providers(self) -> list[str]:
        """The devices in use, by ONNX Runtime's names; steps without a kernel on the first run on the next."""
        return list(self._place.providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of each of them."""
        return {name: dict(options) for name, options in self._place.providers.items()}

    def set_providers(
        self, providers: Providers | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Load the model again, for other providers. The session stays as it is if they are refused."""
        before, self._place = self._place, choose(providers, provider_options)
        try:
            self._open()
        except BaseException:
            self._place = before
            raise

    def disable_fallback(self) -> None:
        """A run that fails raises. So it is always: nothing is run again on another provider."""

    def enable_fallback(self) -> None:
        """Refused: nothing is run again on another provider."""
        hint = "leave it out: steps without a kernel on a GPU run on the host anyway"
        raise ArgumentError("a run that fails raises", where="InferenceSession.enable_fallback", hint=hint)

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Each node of the model, on the CPU; with a GPU the steps of the program that was planned last, by the
        provider that runs them. Raises Fail unless the entry `session.record_ep_graph_assignment_info` is 1."""
        if self._said.entries.given.get(ASSIGNMENT) != "1":
            text = f"Session configuration entry '{ASSIGNMENT}' must be set to \"1\""
            raise Fail(text, where="SessionOptions", hint="set it before the session is made")
        first, host = next(iter(self._place.providers)), self.session.device.host
        if host is None:
            nodes = [OrtEpAssignedNode(n.name, n.domain, n.op) for n in self.session.graph.nodes]
            return [OrtEpAssignedSubgraph(first, (node,)) for node in nodes]
        held: dict[str, list[OrtEpAssignedNode]] = {}
        for step in self.session.program.steps:
            name = CPU if step.node.device == host.name else first
            held.setdefault(name, []).append(OrtEpAssignedNode(step.node.name, step.node.domain, step.node.op))
        return [OrtEpAssignedSubgraph(name, tuple(nodes)) for name, nodes in held.items()]

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Refused: no option changes while a session lives."""
        where, hint = "InferenceSession.set_ep_dynamic_options", "make another session"
        raise ArgumentError(f"{', '.join(options) or 'nothing'} would be ignored", where=where, hint=hint)

    def get_tuning_results(self) -> list[Any]:
        """[]: kernels are chosen by their records, not tuned."""
        return []

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Refuse anything but [], what `get_tuning_results` tells."""
        if len(results):
            where, hint = "InferenceSession.set_tuning_results", "leave it out: kernels are chosen by their records"
            raise ArgumentError("tuning results would be ignored", where=where, hint=hint)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """`OrtValue.ortvalue_from_shape_and_type`."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Give back the arenas that no run is using, and the graphs of a GPU with them."""
        self.session.trim()

    # -- profiling --------------------------------------------------------------------------------------------------

    def end_profiling(self) -> str:
        """Write what was recorded (see tools/ort/profile.py); returns the path, or "" where nothing is."""
        profile, self._profile = self._profile, None
        if profile is None:
            return ""
        self._watched = not self._said.enable_cpu_mem_arena
        self._profile_begun = profile.begun
        return profile.write(self._said.profile_file_prefix)

    def get_profiling_start_time_ns(self) -> int:
        """The time when recording began, of `monotonic_ns()`; 0 where nothing is recorded."""
        return self._profile_begun if self._profile is None else self._profile.begun
