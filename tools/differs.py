"""Known gaps and deviations from the standard of ONNX Runtime and ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from ..ops import DType, Sample, Tensor
from ..ops.types import f32

RUNTIME, EVALUATOR = "ONNX Runtime", "the reference evaluator"
Row = tuple[str, Callable[[Sample], bool], str]  # operators, a condition on the sample, the reason


def fractional_corners(s: Sample) -> bool:
    """True if the scales ask for a fractional size under `align_corners`."""
    scales = s.inputs[2] if len(s.inputs) == 3 else None
    if s.attrs.get("coordinate_transformation_mode") != "align_corners" or not isinstance(scales, np.ndarray):
        return False
    assert isinstance(s.inputs[0], Tensor)
    return any(abs(n * f - round(n * f)) > 1e-3 for n, f in zip(s.inputs[0].sizes, scales.tolist(), strict=True))


# ONNX Runtime.
RUNTIME_DIFFERS: list[Row] = [
    ("RNN GRU LSTM", lambda s: bool(s.attrs.get("layout")), "it has no layout 1"),
    ("GRU LSTM", lambda s: s.inputs[0] in (f32(0, 2, 3), f32(4, 0, 3)), "it aborts the process where X is empty"),
    ("Unique", lambda s: bool(s.attrs) and not np.size(s.inputs[0]), "it aborts where slices are empty"),  # type: ignore[arg-type]
    (
        "ReduceMax ReduceMin",
        lambda s: isinstance(s.inputs[0], np.ndarray) and not s.inputs[0].size,
        "it refuses to reduce no bools",
    ),
    ("GroupNormalization", lambda s: s.inputs[0] == f32(0, 4, 2), "its function body cannot reshape no elements"),
    ("RMSNormalization", lambda s: getattr(s.inputs[1], "dtype", None) == np.float16, "it lacks mixed element types"),
    ("Attention", lambda s: s.inputs[0] == f32(0, 2, 3, 4), "it refuses an empty batch"),
    (
        "Attention",
        lambda s: len(s.inputs) == 7 or str(s.inputs[-1]) == "float32[4,5]",
        "it refuses a mask that ends early",
    ),
    ("Attention", lambda s: "left_window_size" in s.attrs, "it has no windows"),
    ("Attention", lambda s: s.attrs.get("qk_matmul_output_mode") == 2, "it shows hidden scores as the lowest float"),
    ("Resize", fractional_corners, "it aligns corners with whole sizes, the official vectors with fractional ones"),
    (
        "Resize",
        lambda s: (
            s.attrs.get("mode") in ("linear", "cubic")
            and isinstance(s.inputs[0], np.ndarray)
            and s.inputs[0].dtype.kind in "iu"
        ),
        "it cuts integers off and does not round them",
    ),
    ("DeformConv", lambda s: s.inputs[0] == f32(1, 1, 6), "it knows two spatial axes only"),
    ("ConvTranspose", lambda s: s.attrs.get("output_padding") == [1], "it refuses what a dilation allows"),
    ("MaxUnpool", lambda s: len(s.inputs) == 3, "it counts places in the size asked for"),
    ("BitCast", lambda s: getattr(s.inputs[0], "dtype", None) == np.complex128, "it has no complex numbers"),
    ("GridSample", lambda s: isinstance(s.inputs[0], np.ndarray), "it has no texts"),
    ("GridSample", lambda s: s.inputs[0] == f32(2, 1, 5), "it knows two and three spatial axes only"),
    ("GridSample", lambda s: s.inputs[0] == f32(1, 2, 0, 3), "it refuses an image without pixels"),
    (
        "TfIdfVectorizer",
        lambda s: {"pool_strings", "pool_int64s"} <= s.attrs.keys() and not isinstance(s.inputs[0][0], str),  # type: ignore[index]
        "of two pools it takes the texts",
    ),
    ("STFT", lambda s: len(s.inputs) == 2, "it needs a window or a frame_length"),
    (
        "CenterCropPad",
        lambda s: getattr(s.inputs[1], "dtype", None) == np.int32,
        "its function body joins int32 to int64",
    ),
    ("StringNormalizer", lambda s: not s.attrs.get("is_case_sensitive"), "it wants the locale en_US on the machine"),
    ("StringSplit", lambda s: bool(s.attrs.get("delimiter")), "it makes no part of an empty text"),
    ("LabelEncoder", lambda s: s.attrs.get("keys_int64s") == (1, 1), "the first of equal keys counts"),
    ("Scaler", lambda s: not s.attrs, "it wants all attributes"),
    ("LinearClassifier", lambda s: "intercepts" not in s.attrs, "it wants all attributes"),
    ("TreeEnsembleRegressor", lambda s: "post_transform" in s.attrs, "it does not transform a single score"),
    ("TreeEnsembleClassifier", lambda s: len(s.attrs.get("base_values", ())) == 2, "it takes only one of two bases"),
    ("QuantizeLinear", lambda s: s.attrs.get("output_dtype") == DType.FLOAT4E2M1.onnx, "it has no float4"),
    (
        "QuantizeLinear",
        lambda s: getattr(s.inputs[0], "dtype", None) == np.int32,
        "it wants x and the scale of one type",
    ),
    ("Bernoulli", lambda s: True, "its function body draws 1 with the probability of 0"),
    ("Einsum", lambda s: s.inputs[0] == f32(3, 4) and "..." in s.attrs["equation"], "it wants ellipses of one rank"),
    ("SVMRegressor", lambda s: "post_transform" in s.attrs, "it does not transform a single score"),
    ("ScanRows", lambda s: s.inputs[0] is not None, "it leaves what is behind the end of a sequence as it was"),
    ("TreeEnsemble", lambda s: "post_transform" in s.attrs, "it counts the transforms in another order"),
    ("MatMulInteger", lambda s: len(s.inputs) > 2 and np.size(s.inputs[2]) > 1, "it has no zero points by row"),  # type: ignore[arg-type]
    ("MatMulInteger", lambda s: not np.size(s.inputs[0]), "it leaves sums of nothing as they are"),  # type: ignore[arg-type]
    ("QLinearMatMul", lambda s: np.size(s.inputs[1]) > 1, "it has no scales by row"),  # type: ignore[arg-type]
    ("MeanVarianceNormalization", lambda s: not isinstance(s.inputs[0], Tensor), "it divides 0 by 0"),
]

# The reference evaluator.
EVALUATOR_DIFFERS: list[Row] = [
    ("ReduceLogSumExp", lambda s: isinstance(s.inputs[0], np.ndarray), "it makes no number of infinities"),
]


def differing(op: str, sample: Sample) -> dict[str, str]:
    """The referees that do not decide about a sample of an operator, and why."""
    reasons = dict[str, str]()
    for referee, rows in ((RUNTIME, RUNTIME_DIFFERS), (EVALUATOR, EVALUATOR_DIFFERS)):
        for names, holds, reason in rows:
            if op in names.split():
                with suppress(ValueError):  # a condition on types, and arrays are given
                    if holds(sample):
                        reasons.setdefault(referee, reason)
    return reasons
