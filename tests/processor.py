"""What the processor of the tests computes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from mezzo.runtime.backends.onednn.library import library


def computes_bfloat16() -> bool:
    """Return True if oneDNN computes bfloat16 natively here: from AVX-512 on."""
    loaded = library()
    return loaded is not None and loaded.bf16


def has_avx512() -> bool:
    """Return True if oneDNN computes with AVX-512 here."""
    loaded = library()
    return loaded is not None and loaded.isa.startswith("avx512")


@cache
def adds_bytes_without_loss() -> bool:
    """Return True if the processor adds products of bytes in 32 bits (VNNI); before, ONNX Runtime cuts sums of two
    products of uint8 and int8 to 16 bits, and is no referee.
    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html#when-and-why-do-i-need-to-try-u8u8
    """
    try:
        return "_vnni" in Path("/proc/cpuinfo").read_text("ascii", "replace")
    except OSError:
        return True


# Tests that compare with ONNX Runtime what is computed of bytes.
SATURATED = (
    "test_microsoft.py::test_the_standard_form_says_the_same[QLinearConv-",
    "test_microsoft.py::test_the_standard_form_says_the_same[QAttention-",
    "test_microsoft.py::test_onnx_runtime_agrees[QLinearConv-",
    "test_microsoft.py::test_onnx_runtime_agrees[QAttention-",
    "test_microsoft.py::test_onnx_runtime_agrees[DynamicQuantizeLSTM-1]",
    "test_ops.py::test_onnx_runtime_agrees[MatMulInteger-",
    "test_ops.py::test_onnx_runtime_agrees[QLinearConv-2]",
    "test_quantised_training.py::test_what_was_learned_leaves_as_integers",
    "test_quantised_training.py::test_a_file_that_onnx_runtime_quantised_trains",
    "test_quantize.py::test_digits_in_8_bits_are_read_alike_in_onnx_runtime",
    "test_quantize.py::test_every_layer_of_resnet50_is_equal_in_onnx_runtime_to_one_step",
    "test_quantize.py::test_operands_of_every_kind_in_onnx_runtime",
    "test_random_models.py::test_random_models[contrib.channels_last]",
    "test_random_models.py::test_random_models[contrib.dynamic]",
    "test_random_models.py::test_random_models[contrib.quantized_attention]",
    "test_random_models.py::test_random_models[contrib.quantized_lstm]",
    "test_torch_exports.py::test_transformer_quantised_dynamically[int8]",
    "test_torch_exports.py::test_digits_quantised_with_calibration",
    "test_coverage.py::test_a_fifth_runs_as_the_table_says[1]",
)


def saturated(test: str) -> bool:
    """Return True for a test whose referee is not right on this processor."""
    return not adds_bytes_without_loss() and any(name in test for name in SATURATED)


native_bfloat16 = pytest.mark.skipif(not computes_bfloat16(), reason="this machine computes no bfloat16")
