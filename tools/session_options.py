"""ONNX Runtime's SessionOptions and RunOptions, as far as sessions here support them.

An option that would be ignored is refused where it is set, with what says the same here. Objects of ONNX Runtime itself
are refused too: entries, overrides and initializers that were added to them cannot be read back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from ..ops.dataclasses import dataclass
from ..ops.errors import ArgumentError

_LEAVE = "leave it as it is"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its default, the other values that it may have, and what to do instead of those."""

    default: Any
    may: Callable[[Any], bool] = lambda value: False
    hint: str = _LEAVE


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _serious(value: Any) -> bool:
    return type(value) is int and 2 <= value <= 4


_LOGS = {
    # nothing is logged: what asks for less than everything has it
    "log_severity_level": Option(-1, _serious, "sessions log nothing; profiles and `mezzo explain` tell what they do"),
    "log_verbosity_level": Option(0, hint="sessions log nothing"),
    "logid": Option("", hint="sessions log nothing"),
}


class _Options:
    """Base of options: checks attributes when they are set, and refuses methods when they are called."""

    _about: ClassVar[Mapping[str, Option]]
    _methods: ClassVar[Mapping[str, str]]  # that ONNX Runtime has, and what to do instead
    _said: dict[str, Any]

    def __init__(self) -> None:
        object.__setattr__(self, "_said", {})

    def __setattr__(self, name: str, value: Any) -> None:
        where, about = f"{type(self).__name__}.{name}", self._about.get(name)
        if about is None:
            hint = f"there are {', '.join(self._about)}"
            raise ArgumentError("there is no such option", where=where, hint=hint)
        given = getattr(value, "name", value)  # of an enumeration
        if not (type(given) is type(about.default) and given == about.default) and not about.may(given):
            raise ArgumentError(f"{given!r} would be ignored, or means nothing", where=where, hint=about.hint)
        self._said[name] = given

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
        return sorted({*super().__dir__(), *self._about})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._said.items())})"


class SessionOptions(_Options):
    """Options of an InferenceSession.

    | option | what is done with it |
    |---|---|
    | `intra_op_num_threads` | threads of one step; 0: as many as OMP_NUM_THREADS says, else all processors |
    | `inter_op_num_threads` | 0 or 1: steps of one run follow each other |
    | `enable_mem_reuse` | False gives every value bytes of its own |
    | `use_deterministic_compute` | runs on the CPU give the same bits each time anyway |
    | `log_severity_level` | 2, 3 or 4: nothing is logged |
    | all others | have the value that ONNX Runtime gives them; another one is refused |

    >>> options = SessionOptions()
    >>> options.intra_op_num_threads = 2
    >>> options
    SessionOptions(intra_op_num_threads=2)
    >>> options.enable_profiling = True
    Traceback (most recent call last):
    mezzo.ops.errors.ArgumentError: SessionOptions.enable_profiling: True would be ignored, or means nothing
      hint: mz.profiler records what runs
    """

    _about: ClassVar[Mapping[str, Option]] = {
        "intra_op_num_threads": Option(0, _count, "give a whole number of threads, 0 for the usual one"),
        "inter_op_num_threads": Option(0, lambda n: type(n) is int and n == 1, "steps of one run follow each other"),
        "enable_mem_reuse": Option(True, _flag, "give True or False"),
        "use_deterministic_compute": Option(False, _flag, "give True or False"),
        "enable_cpu_mem_arena": Option(True, hint="every run has one arena; mz.load(max_memory=) limits them"),
        "enable_mem_pattern": Option(True, hint="memory is always planned ahead"),
        "enable_profiling": Option(False, hint="mz.profiler records what runs"),
        "profile_file_prefix": Option("onnxruntime_profile_", hint="mz.profiler records what runs"),
        "execution_mode": Option("ORT_SEQUENTIAL", hint="steps of one run follow each other"),
        "execution_order": Option("DEFAULT", hint="`mezzo explain` shows the order of the steps"),
        "graph_optimization_level": Option("ORT_ENABLE_ALL", hint="mz.load(onednn=False, strategy='none') does less"),
        "optimized_model_filepath": Option("", hint="`mezzo compile` writes a planned model"),
        "use_per_session_threads": Option(True, hint="all sessions share the threads of the process"),
        **_LOGS,
    }
    _methods: ClassVar[Mapping[str, str]] = {
        "add_session_config_entry": "leave it out: no entry is known",
        "add_free_dimension_override_by_name": "session.warmup(shapes) plans for sizes, mz.load(buckets=) for a few",
        "add_free_dimension_override_by_denotation": "session.warmup(shapes) plans for sizes",
        "add_initializer": "give a model that has it",
        "add_external_initializers": "give a model that has them",
        "add_external_initializers_from_files_in_memory": "give the model as a path, beside its files",
        "add_provider": "give providers= to InferenceSession",
        "add_provider_for_devices": "give providers= to InferenceSession",
        "set_provider_selection_policy": "give providers= to InferenceSession",
        "set_provider_selection_policy_delegate": "give providers= to InferenceSession",
        "register_custom_ops_library": "operators of one's own are written in Python: mz.op",
        "set_load_cancellation_flag": "leave it out",
        "set_ep_context_data_read_func": "leave it out",
    }


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
    _methods: ClassVar[Mapping[str, str]] = {
        "add_run_config_entry": "leave it out: no entry is known",
        "add_active_adapter": "give a model that has its weights",
    }
    cancel: threading.Event

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "cancel", threading.Event())

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "terminate":
            (self.cancel.set if value else self.cancel.clear)()


def check_kind(given: Any, kind: type[_Options], where: str) -> None:
    """Raises ArgumentError for what is neither None nor options of this kind."""
    if given is not None and not isinstance(given, kind):
        raise ArgumentError(
            f"{where} is {type(given).__module__}.{type(given).__name__}, of which parts would be ignored",
            where="InferenceSession",
            hint=f"say it to a mz.{kind.__name__}()",
        )
