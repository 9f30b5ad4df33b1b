"""Options that only hint at how to be quick: answers are the same without them.

They are refused as all others that would be ignored, but for programs that were not written for Mezzo
(`mz.as_onnxruntime`): there each is overlooked, and named once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final


class Overlooking:
    """The setting of this process: who is told of options that are overlooked; None refuses them."""

    tell: ClassVar[Callable[[str], None] | None] = None
    told: ClassVar[set[str]] = set()


# Entries of sessions and runs, and options of providers.
ENTRIES: Final = frozenset(
    (
        *("session.disable_prepacking", "session.dynamic_block_base", "session.force_spinning_stop"),
        *("session.inter_op.allow_spinning", "session.intra_op.allow_spinning", "session.intra_op_thread_affinities"),
        *("session.use_device_allocator_for_initializers", "session.use_env_allocators", "ep.dynamic.workload_type"),
        *("memory.enable_memory_arena_shrinkage", "session.strict_shape_type_inference"),
        *("session.inter_op.spin_duration_us", "session.intra_op.spin_duration_us"),
        *("session.inter_op.spin_backoff_max", "session.intra_op.spin_backoff_max", "gpu_graph_id"),
        *("session.graph_optimizations_loop_level", "disable_synchronize_execution_providers"),
        "session.set_denormal_as_zero",  # denormal numbers are kept: all are below 2e-38
        *(
            "session.enable_quant_qdq_cleanup",
            "session.disable_aot_function_inlining",
            "session.use_ort_model_bytes_directly",
        ),
    )
)
PROVIDER_OPTIONS: Final = frozenset(
    (
        *("arena_extend_strategy", "use_arena", "gpu_mem_limit", "cudnn_conv_algo_search", "do_copy_in_default_stream"),
        *("cudnn_conv_use_max_workspace", "cudnn_conv1d_pad_to_nc1d", "enable_cuda_graph", "prefer_nhwc"),
        *("enable_skip_layer_norm_strict_mode", "tunable_op_enable", "tunable_op_tuning_enable"),
    )
)


def overlooked(what: str, value: Any) -> bool:
    """True, and a word to whoever listens, where hints are overlooked."""
    if Overlooking.tell is None:
        return False
    hint = f"{what} = {getattr(value, 'name', value)}"
    if hint not in Overlooking.told:
        Overlooking.told.add(hint)
        Overlooking.tell(f"{hint} is a hint that means nothing here, and is overlooked")
    return True
