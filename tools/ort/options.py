"""ONNX Runtime's SessionOptions and RunOptions, as far as sessions here support them.

An option that would be ignored is refused where it is set, with what says the same here. Objects of ONNX Runtime itself
are refused too: entries, overrides and initializers that were added to them cannot be read back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ...ops.dataclasses import dataclass
from ...ops.errors import ArgumentError
from .entries import RUN_ENTRIES, SESSION_ENTRIES, Entries
from .enumerations import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from .errors import Unknown, WrongType
from .hints import overlooked
from .values import OrtValue

if TYPE_CHECKING:
    from .adapters import LoraAdapter
    from .devices import OrtEpDevice
    from .enumerations import OrtExecutionProviderDevicePolicy
    from .selection import Choice

_LEAVE = "leave it as it is"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its default, the other values that it may have, and what to do instead of those; `speed` for one that
    only hints at how to be quick."""

    default: Any
    may: Callable[[Any], bool] = lambda value: False
    hint: str = _LEAVE
    speed: bool = False  # it changes no answers


def _whole(value: Any) -> Any:
    """The same, as Python's integer if it is one of NumPy's."""
    return int(value) if isinstance(value, np.integer) else value


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _severity(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 4


def _text(value: Any) -> bool:
    return isinstance(value, str)


_LOGS = {
    "log_severity_level": Option(-1, _severity, "0 verbose, 1 info, 2 warning, 3 error, 4 fatal, -1 the default"),
    "log_verbosity_level": Option(0, _count, "give 0, 1, ..."),
    "logid": Option("", _text, "give a text"),
}


class _Options:
    """Base of options: checks attributes when they are set, and refuses methods when they are called."""

    _about: ClassVar[Mapping[str, Option]]
    _methods: ClassVar[Mapping[str, str]]  # that ONNX Runtime has, and what to do instead
    _said: dict[str, Any]
    entries: Entries

    def __init__(self) -> None:
        object.__setattr__(self, "_said", {})

    def __setattr__(self, name: str, value: Any) -> None:
        where, about = f"{type(self).__name__}.{name}", self._about.get(name)
        if about is None:
            hint = f"there are {', '.join(self._about)}"
            raise Unknown("there is no such option", where=where, hint=hint)
        default = about.default
        if isinstance(default, IntEnum):  # of ONNX Runtime's enumerations, a member of the same name
            value = type(default).__members__.get(getattr(value, "name", ""), value)
        elif isinstance(default, bool) and type(value) is int and value in (0, 1):
            value = bool(value)
        elif type(default) is int:
            value = _whole(value)
        if not isinstance(value, type(default)) or isinstance(value, bool) != isinstance(default, bool):
            raise WrongType(f"{value!r} is no {type(default).__name__}", where=where, hint=about.hint)
        if value != default and not about.may(value) and not (about.speed and overlooked(where, value)):
            raise ArgumentError(f"{value!r} would be ignored, or means nothing", where=where, hint=about.hint)
        self._said[name] = value

    def __getattr__(self, name: str) -> Any:
        if name in self._about:
            return self._said.get(name, self._about[name].default)
        if name in self._methods:
            return partial(self._refuse, name)
        raise AttributeError(f"{type(self).__name__} has no {name!r}", name=name, obj=self)

    def _refuse(self, name: str, *args: Any, **more: Any) -> None:
        where = f"{type(self).__name__}.{name}"
        raise ArgumentError("what is said here would be ignored", where=where, hint=self._methods[name])

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._about, *self._methods} - {"entries"})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._said.items())})"


_GATHERED = ("dims", "meanings", "initializers", "files")


class SessionOptions(_Options):
    """Options of an InferenceSession.

    | option | what is done with it |
    |---|---|
    | `intra_op_num_threads` | threads of one step; 0: as many as OMP_NUM_THREADS says, else all processors |
    | `inter_op_num_threads` | 0 or 1: steps of one run follow each other |
    | `use_per_session_threads` | False takes the number of `set_global_thread_pool_sizes` |
    | `enable_mem_reuse` | False gives every value bytes of its own |
    | `enable_cpu_mem_arena` | False gives memory back after each run |
    | `enable_profiling`, `profile_file_prefix` | a trace of all runs, which `end_profiling` writes |
    | `optimized_model_filepath` | the model is written there as it is after the passes that need no sizes |
    | `graph_optimization_level` | ORT_DISABLE_ALL: operators as they stand, by NumPy |
    | `use_deterministic_compute` | runs on the CPU give the same bits each time anyway |
    | `log_severity_level`, `log_verbosity_level`, `logid` | see tools/ort/log.py |
    | all others | have the value that ONNX Runtime gives them; another one is refused |

    >>> options = SessionOptions()
    >>> options.intra_op_num_threads = 2
    >>> options
    SessionOptions(intra_op_num_threads=2)
    >>> options.execution_mode = ExecutionMode.ORT_PARALLEL
    Traceback (most recent call last):
    mezzo.ops.errors.ArgumentError: SessionOptions.execution_mode: <ExecutionMode.ORT_PARALLEL: 1> would be ignored, \
or means nothing
      hint: steps of one run follow each other
    """

    _about: ClassVar[Mapping[str, Option]] = {
        "intra_op_num_threads": Option(0, _count, "give an integer of threads, 0 for the usual one"),
        "inter_op_num_threads": Option(0, lambda n: n == 1, "steps of one run follow each other", speed=True),
        "use_per_session_threads": Option(True, _flag, "give True or False"),
        "enable_mem_reuse": Option(True, _flag, "give True or False"),
        "enable_cpu_mem_arena": Option(True, _flag, "give True or False"),
        "use_deterministic_compute": Option(False, _flag, "give True or False"),
        "enable_profiling": Option(False, _flag, "give True or False"),
        "profile_file_prefix": Option("onnxruntime_profile_", _text, "give how the path of the file begins"),
        "graph_optimization_level": Option(
            GraphOptimizationLevel.ORT_ENABLE_ALL,
            lambda level: level is GraphOptimizationLevel.ORT_DISABLE_ALL,
            "there are all passes, or with ORT_DISABLE_ALL none",
            speed=True,
        ),
        "enable_mem_pattern": Option(True, hint="memory is always planned ahead", speed=True),
        "execution_mode": Option(ExecutionMode.ORT_SEQUENTIAL, hint="steps of one run follow each other", speed=True),
        "execution_order": Option(
            ExecutionOrder.DEFAULT, hint="`mezzo explain` shows the order of the steps", speed=True
        ),
        "optimized_model_filepath": Option("", _text, "give a path"),
        **_LOGS,
    }
    _methods: ClassVar[Mapping[str, str]] = {
        "register_custom_ops_library": "operators of one's own are written in Python: mz.op, mz.pointwise",
        "set_load_cancellation_flag": "give a Budget: it limits what a model may ask for",
        "set_ep_context_data_read_func": "models with compiled contexts are those of other providers",
        "clear_ep_context_data_read_func": "models with compiled contexts are those of other providers",
    }
    dims: dict[str, int]  # sizes of named dims
    meanings: dict[str, int]  # sizes of dims by their denotations
    initializers: dict[str, OrtValue]
    files: dict[str, bytes]  # of external data, by their names
    providers: list[tuple[str, dict[str, str]]]
    selection: list[Choice]  # that were made, the last of which counts

    def __init__(self) -> None:
        super().__init__()
        for name in (*_GATHERED, "providers", "selection"):
            object.__setattr__(self, name, {} if name in _GATHERED else [])
        object.__setattr__(self, "entries", Entries(SESSION_ENTRIES, "SessionOptions.add_session_config_entry"))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - {*_GATHERED, "providers", "selection", "changes"})

    def snapshot(self) -> Self:
        """A copy, which later changes do not reach."""
        clone = type(self)()
        clone._said.update(self._said)
        for name in _GATHERED:
            getattr(clone, name).update(getattr(self, name))
        clone.providers.extend(self.providers)
        clone.selection.extend(self.selection)
        clone.entries.given.update(self.entries.given)
        clone.entries.hints.update(self.entries.hints)
        return clone

    @property
    def changes(self) -> bool:
        """True if something is said of sizes or values of the model."""
        return any(getattr(self, name) for name in _GATHERED)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set an entry of tools/ort/entries.py. Raises ArgumentError for one that would be ignored."""
        self.entries.add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """An entry that was set. Raises ArgumentError, a RuntimeError, if it was not."""
        return self.entries.get(key, "SessionOptions.get_session_config_entry")

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Plan the dim of this name for one size, and refuse others."""
        self.dims[name] = _checked_size(size, "add_free_dimension_override_by_name")

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """The same for all dims of inputs that the file gives this meaning, as DATA_BATCH."""
        self.meanings[denotation] = _checked_size(size, "add_free_dimension_override_by_denotation")

    def add_initializer(self, name: str, ort_value: OrtValue) -> None:
        """Give an initializer of the model another value. Raises ArgumentError if it has been given one."""
        where = "SessionOptions.add_initializer"
        if not isinstance(ort_value, OrtValue):
            raise WrongType(f"{ort_value!r} is no OrtValue", where=where, hint="OrtValue.ortvalue_from_numpy(array)")
        if name in self.initializers:
            raise ArgumentError(f"{name!r} is given twice", where=where, hint="give one value")
        self.initializers[name] = ort_value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """`add_initializer` for each of them."""
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], contents: Sequence[bytes], sizes: Sequence[int]
    ) -> None:
        """Take files of external data from memory: the first `sizes` bytes of each, by the names that the model has for
        them. Raises ArgumentError if fewer are there, or a name is given twice."""
        where = "SessionOptions.add_external_initializers_from_files_in_memory"
        for name, content, size in zip(names, contents, sizes, strict=True):
            if not isinstance(content, (bytes, bytearray, memoryview)):
                raise WrongType(f"a {type(content).__name__} has no bytes", where=where, hint="give bytes(...)")
            held = memoryview(content).cast("B")
            if not 0 <= size <= len(held) or name in self.files:
                text = f"{size} bytes of {len(held)}" if name not in self.files else "it is given twice"
                raise ArgumentError(f"{name!r}: {text}", where=where, hint="give each file once, with its size")
            self.files[name] = bytes(held[:size])

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Try this provider after those that were added before; `providers=` of the session goes before all of them."""
        self.providers.append((name, dict(options)))

    def add_provider_for_devices(self, ep_devices: Sequence[OrtEpDevice], provider_options: Mapping[str, str]) -> None:
        """`add_provider` for that of these devices. Raises InvalidArgument for none, and for several."""
        from .selection import of_devices  # of a start, a millisecond

        self.providers.extend(of_devices(ep_devices, provider_options, "SessionOptions.add_provider_for_devices"))

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Take the provider of a GPU, where there is one, for PREFER_GPU and MAX_PERFORMANCE; for others the CPU's.
        Providers that are added or given go before. Raises ArgumentError for what is no policy."""
        from .selection import check_policy

        self.selection.append(check_policy(policy))

    def set_provider_selection_policy_delegate(self, delegate: Callable[..., Any]) -> None:
        """Let a function choose providers where none are added or given: of devices, what the model says of itself,
        nothing more, and how many it may choose, as devices."""
        if not callable(delegate):
            where = "SessionOptions.set_provider_selection_policy_delegate"
            raise WrongType(f"{delegate!r} is no function", where=where, hint="give a function of four")
        self.selection.append(delegate)

    def has_providers(self) -> bool:
        return bool(self.providers or self.selection)


class RunOptions(_Options):
    """Options of one run. Setting `terminate` from another thread ends the run, which raises Cancelled; only what the
    outputs need is computed, whatever `only_execute_path_to_fetches` says.

    >>> options = RunOptions()
    >>> options.terminate = True
    >>> options.cancel.is_set()
    True
    """

    _about: ClassVar[Mapping[str, Option]] = {
        "terminate": Option(False, _flag, "give True or False"),
        "only_execute_path_to_fetches": Option(False, _flag, "give True or False"),
        **_LOGS,
    }
    _methods: ClassVar[Mapping[str, str]] = {}
    cancel: threading.Event
    adapters: list[LoraAdapter]

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "cancel", threading.Event())
        object.__setattr__(self, "adapters", [])
        object.__setattr__(self, "entries", Entries(RUN_ENTRIES, "RunOptions.add_run_config_entry"))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "terminate":
            (self.cancel.set if value else self.cancel.clear)()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - {"cancel", "adapters"})

    def add_active_adapter(self, adapter: LoraAdapter) -> None:
        """Feed the values of an adapter to the inputs of their names, too. Raises ArgumentError for one that has loaded
        none."""
        from .adapters import LoraAdapter  # of a start, a millisecond

        where, hint = "RunOptions.add_active_adapter", "give a LoraAdapter whose Load(path) has been called"
        if not isinstance(adapter, LoraAdapter):
            raise WrongType(f"a {type(adapter).__name__} is no adapter", where=where, hint=hint)
        if adapter.parameters is None:
            raise ArgumentError("the adapter has no values", where=where, hint=hint)
        self.adapters.append(adapter)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set an entry of tools/ort/entries.py. Raises ArgumentError for one that would be ignored."""
        self.entries.add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """An entry that was set. Raises ArgumentError, a RuntimeError, if it was not."""
        return self.entries.get(key, "RunOptions.get_run_config_entry")


def _checked_size(size: Any, call: str) -> int:
    size = _whole(size)
    if not _count(size):
        raise ArgumentError(f"{size!r} is no size", where=f"SessionOptions.{call}", hint="give an integer")
    return int(size)


def check_kind(given: Any, kind: type[_Options], where: str) -> None:
    """Raises ArgumentError for what is neither None nor options of this kind."""
    if given is not None and not isinstance(given, kind):
        raise WrongType(
            f"{where} is {type(given).__module__}.{type(given).__name__}, of which parts would be ignored",
            where="InferenceSession",
            hint=f"say it to a mz.{kind.__name__}()",
        )
