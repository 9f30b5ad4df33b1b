"""Configuration entries of sessions and runs: those of ONNX Runtime's that mean something here, and our own.

| entry of a session | values |
|---|---|
| `mezzo.precision` | as `mz.load(precision=)`: auto, fp32, bf16, bf16-math, tf32, fp16 |
| `mezzo.max_memory`, `mezzo.max_programs`, `mezzo.instances` | numbers, as `mz.load` takes them |
| `session.model_external_initializers_file_folder_path` | the folder of the external data of a model given as bytes |
| `session.optimized_model_external_initializers_file_name` | a file for the weights of `optimized_model_filepath` |
| `session.optimized_model_external_initializers_min_size_in_bytes` | of how many bytes on weights go there (1024) |
| `session.record_ep_graph_assignment_info` | 0 or 1: `get_provider_graph_assignment_info` tells it with 1 |
| others of ONNX Runtime in `SESSION_ENTRIES` | the one value that says what is so here |

Of a run, `memory.enable_memory_arena_shrinkage` gives memory back behind it. All others are refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from ...ops.dataclasses import dataclass, field
from ...ops.errors import ArgumentError
from .hints import ENTRIES, overlooked

Check = Callable[[str], bool]


def _one_of(*values: str) -> Check:
    return lambda value: value in values


def _number(value: str) -> bool:
    return str(value).isascii() and str(value).isdigit() and int(value) > 0


def _name(value: str) -> bool:
    return value not in ("", ".", "..") and os.path.basename(str(value)) == value


EXTERNAL_FILE = "session.optimized_model_external_initializers_file_name"
EXTERNAL_SIZE = "session.optimized_model_external_initializers_min_size_in_bytes"
EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
SESSION_ENTRIES: Mapping[str, tuple[Check, str]] = {  # what each may be, and the hint for what it may not
    "mezzo.precision": (
        _one_of("auto", "fp32", "bf16", "bf16-math", "tf32", "fp16"),
        "auto, fp32, bf16, bf16-math, tf32 or fp16",
    ),
    "mezzo.max_memory": (_number, "give a number of bytes"),
    "mezzo.max_programs": (_number, "give a number"),
    "mezzo.instances": (_number, "give a number"),
    EXTERNAL_FOLDER: (os.path.isdir, "give a folder that is there"),
    EXTERNAL_FILE: (_name, "give the name of a file without a folder"),
    EXTERNAL_SIZE: (_number, "give a number of bytes"),
    "session.record_ep_graph_assignment_info": (_one_of("0", "1"), "0 or 1"),
    "session.load_model_format": (_one_of("ONNX"), "models are ONNX files (or .mezzo, told by how they begin)"),
    "session.save_model_format": (_one_of("ONNX"), "`mezzo compile` writes a planned model"),
    "session.strict_shape_type_inference": (_one_of("1"), "a model whose shapes do not fit is always refused"),
    "session.use_env_allocators": (_one_of("0"), "every session plans its own memory"),
    "session.set_denormal_as_zero": (_one_of("0"), "denormal numbers are kept"),
    "session.disable_cpu_ep_fallback": (_one_of("0"), "`mezzo check --device gpu:0` tells which steps run on the host"),
    "session.disable_prepacking": (_one_of("0"), "weights lie as kernels read them"),
    "session.inter_op.allow_spinning": (_one_of("0"), "no thread waits for another step"),
    "session.disable_quant_qdq": (_one_of("0"), "GraphOptimizationLevel.ORT_DISABLE_ALL leaves all passes out"),
    "optimization.enable_gelu_approximation": (_one_of("0"), "Gelu is computed as the file says"),
    "mlas.enable_gemm_fastmath_arm64_bfloat16": (_one_of("0"), "set mezzo.precision to bf16-math"),
    "ep.context_enable": (_one_of("0"), "`mezzo compile` writes a planned model"),
}
RUN_ENTRIES: Mapping[str, tuple[Check, str]] = {
    "memory.enable_memory_arena_shrinkage": (_one_of("cpu:0"), "give cpu:0"),
}


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries by name, of the `known` ones; `where` is the call that sets them."""

    known: Mapping[str, tuple[Check, str]]
    where: str
    given: dict[str, str] = field(default_factory=dict[str, str])
    hints: dict[str, str] = field(default_factory=dict[str, str])  # that were overlooked: told, not followed

    def add(self, key: str, value: str) -> None:
        """Raises ArgumentError for an entry or a value that would be ignored.

        >>> entries = Entries(SESSION_ENTRIES, "options")
        >>> entries.add("mezzo.precision", "bf16")
        >>> entries.add("session.load_model_format", "ORT")
        Traceback (most recent call last):
        mezzo.ops.errors.ArgumentError: options: session.load_model_format = 'ORT' would be ignored
          hint: models are ONNX files (or .mezzo, told by how they begin)
        """
        check, hint = self.known.get(key, (_one_of(), f"leave it out; known are {', '.join(self.known)}"))
        if not check(value):
            if key in ENTRIES and overlooked(key, value):
                self.hints[key] = str(value)
                return
            raise ArgumentError(f"{key} = {value!r} would be ignored", where=self.where, hint=hint)
        self.given[key] = str(value)

    def get(self, key: str, where: str) -> str:
        """Raises ArgumentError for an entry that was not set."""
        if key not in self.given and key not in self.hints:
            text = f"{where.partition('.')[0]} does not have configuration with key: {key}"
            raise ArgumentError(text, where=where, hint="set it before")
        return self.given[key] if key in self.given else self.hints[key]

    def number(self, key: str) -> int | None:
        return int(self.given[key]) if key in self.given else None
