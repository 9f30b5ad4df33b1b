"""Values of attributes that the schemas document, and which of them no sample shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import onnx
import onnx.helper

from ..ops import Sample

Pair = tuple[tuple[str, Any], tuple[str, Any]]
Tries = Callable[[Sample], Iterable[Mapping[str, Any]]]  # attributes that a sample could have besides

AUTO_PAD = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
DIRECTIONS = ("forward", "reverse", "bidirectional")
REDUCTIONS = ("none", "add", "mul", "max", "min")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
ACTIVATIONS = "Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign Softplus".split()
MODES = "BRANCH_LEQ BRANCH_LT BRANCH_GTE BRANCH_GT BRANCH_EQ BRANCH_NEQ LEAF".split()

# The values that an attribute may have, where its description lists them; by operator and attribute.
VALUES: dict[str, tuple[Any, ...]] = {
    **{f"{op}.auto_pad": AUTO_PAD for op in
       ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "ConvInteger", "QLinearConv")},
    **{f"{op}.direction": DIRECTIONS for op in ("RNN", "GRU", "LSTM")},
    **{f"{op}.reduction": REDUCTIONS for op in ("ScatterND", "ScatterElements")},
    **{f"{op}.reduction": ("none", "sum", "mean") for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")},
    **{f"{op}.mode": ("DCR", "CRD") for op in ("DepthToSpace", "SpaceToDepth")},
    **{f"{op}.round_mode": ("up", "down", "nearest") for op in ("Cast", "CastLike")},
    **{f"{kind}{what}.post_transform": POST for kind in ("Linear", "SVM", "TreeEnsemble")
       for what in ("Classifier", "Regressor")},
    **{f"{op}.kernel_type": KERNELS for op in ("SVMClassifier", "SVMRegressor")},
    "BitShift.direction": ("LEFT", "RIGHT"),
    "CastMap.cast_to": ("TO_FLOAT", "TO_STRING", "TO_INT64"),
    "CastMap.map_form": ("DENSE", "SPARSE"),
    "CausalConvWithState.activation": ("none", "silu", "swish"),
    "Gelu.approximate": ("none", "tanh"),
    "GridSample.mode": ("linear", "nearest", "cubic"),
    "GridSample.padding_mode": ("zeros", "border", "reflection"),
    "ImageDecoder.pixel_format": ("RGB", "BGR", "Grayscale"),
    "LinearAttention.update_rule": ("linear", "gated", "delta", "gated_delta"),
    "Momentum.mode": ("nesterov", "standard"),
    "Normalizer.norm": ("MAX", "L1", "L2"),
    "Pad.mode": ("constant", "reflect", "edge", "wrap"),
    "Resize.coordinate_transformation_mode": (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_crop_and_resize"),
    "Resize.keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "Resize.mode": ("nearest", "linear", "cubic"),
    "Resize.nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "RoiAlign.coordinate_transformation_mode": ("half_pixel", "output_half_pixel"),
    "RoiAlign.mode": ("avg", "max"),
    "StringNormalizer.case_change_action": ("LOWER", "UPPER", "NONE"),
    "TensorScatter.mode": ("linear", "circular"),
    "TfIdfVectorizer.mode": ("TF", "IDF", "TFIDF"),
    "Upsample.mode": ("nearest", "linear"),
    "TreeEnsembleRegressor.aggregate_function": AGGREGATES,
    "TreeEnsemble.aggregate_function": (0, 1, 2, 3),
    "TreeEnsemble.post_transform": (0, 1, 2, 3, 4),
    "Attention.qk_matmul_output_mode": (0, 1, 2, 3),
    "LpNormalization.p": (1, 2),
}  # fmt: skip
# Lists, each entry of which is one of these.
ENTRIES: dict[str, Sequence[Any]] = {
    **{f"{op}.activations": ACTIVATIONS for op in ("RNN", "GRU", "LSTM")},
    **{f"{op}.nodes_modes": MODES for op in ("TreeEnsembleClassifier", "TreeEnsembleRegressor")},
}
# Whole numbers that stand for yes and no.
FLAGS = set(
    """is_causal saturate interleaved center_point_box fmod detect_negative detect_positive storage_order ceil_mode
    count_include_pad align_corners transA transB layout linear_before_reset input_forget is_case_sensitive zeros
    multi_class one_class allowzero upper training_mode new_axis keepdims noop_with_empty_axes select_last_index
    exclusive reverse largest sorted antialias exclude_outside onesided inverse periodic""".split()
)
# Values to try for attributes that no sample has.
OTHERS: dict[str, tuple[Any, ...]] = {
    "Adam.epsilon": (0.1,),
    "ConvInteger.kernel_shape": ((2, 2), (3, 3)),
    "ConvTranspose.kernel_shape": ((2, 2), (3, 3), (3,)),
    "GroupNormalization.stash_type": (1, 11),
    "LabelEncoder.default_string": ("other",),
    "LayerNormalization.stash_type": (1, 16),
    "LinearAttention.chunk_size": (2,),
    "Multinomial.seed": (3.0,),
    "QLinearConv.dilations": ((2, 2),),
    "QLinearConv.kernel_shape": ((1, 1), (2, 2), (3, 3)),
    "RMSNormalization.stash_type": (1, 11),
    "RandomUniformLike.high": (3.0,),
    "Range.stash_type": (1, 11),
}


def documented(op: str, schema: Any) -> dict[str, tuple[Any, ...]]:
    """The values that attributes may have, by attribute, of those that have few."""
    values = {a: VALUES[f"{op}.{a}"] for a in schema.attributes if f"{op}.{a}" in VALUES}
    return values | {a: (0, 1) for a, s in schema.attributes.items() if a in FLAGS and _is_int(s) and a not in values}


def _is_int(attribute: Any) -> bool:
    return bool(attribute.type == onnx.defs.OpSchema.AttrType.INT)


def gaps(op: str, schema: Any, samples: Sequence[Sample]) -> dict[str, Tries]:
    """The attributes, and the documented values of attributes, that no sample shows: in words, and what a sample could
    be given to show them."""
    few = documented(op, schema)
    missing = dict[str, Tries]()
    for name in schema.attributes:
        key = f"{op}.{name}"
        given = [s.attrs.get(name) for s in samples if s.attrs.get(name) is not None]
        if name in few:
            seen = {_value(s.attrs, name, schema) for s in samples}
            missing |= {f"{name}={v}": _given({name: v}) for v in few[name] if v not in seen}
        elif key in ENTRIES:
            within = {entry for value in given for entry in value or ()}
            missing |= {f"{name}: {v}": _entry(name, v, op) for v in ENTRIES[key] if v not in within}
        elif not given:
            missing[name] = (
                _tensor(name) if name.endswith("_as_tensor") else _given(*({name: v} for v in OTHERS.get(key, ())))
            )
    return missing


def _given(*values: dict[str, Any]) -> Tries:
    """The sample with further attributes."""
    return lambda sample: [{**sample.attrs, **v} for v in values]


def _entry(name: str, entry: str, op: str) -> Tries:
    """The sample with a list in which this stands wherever it may."""
    if name == "activations":
        count = {"RNN": 1, "GRU": 2, "LSTM": 3}[op]
        return _given({name: [entry] * count})
    return lambda s: [{**s.attrs, name: tuple(entry if m.startswith("BRANCH") else m for m in s.attrs.get(name, ()))}]


def _tensor(name: str) -> Tries:
    """The sample with a list of numbers as a tensor."""
    plain = name.removesuffix("_as_tensor")

    def tries(sample: Sample) -> list[dict[str, Any]]:
        others = {a: v for a, v in sample.attrs.items() if a != plain}
        return [{**others, name: np.array(sample.attrs[plain], np.float32)}] if plain in sample.attrs else []

    return tries


def _value(attrs: Mapping[str, Any], name: str, schema: Any) -> Any:
    """The value of an attribute, or its default."""
    if name in attrs:
        return attrs[name]
    default = schema.attributes[name].default_value
    value = onnx.helper.get_attribute_value(default) if default.type else None
    return value.decode() if isinstance(value, bytes) else value


def pairs(op: str, schema: Any) -> list[Pair]:
    """Return every pair of documented values of two attributes."""
    few = documented(op, schema)
    return [((a, v), (b, w)) for a, b in combinations(few, 2) for v, w in product(few[a], few[b])]


def shown(pair: Pair, schema: Any, samples: Iterable[Sample]) -> bool:
    """True if one sample has both values of the pair."""
    return any(all(_value(s.attrs, a, schema) == v for a, v in pair) for s in samples)


def with_pair(pair: Pair) -> Tries:
    """The sample with both values."""
    return _given(dict(pair))
