"""MXNet's signatures of what ours call otherwise: positions, names and defaults, as a table.

An entry is a word by parameter, in MXNet's order: `name`, `name>ours` where ours has another name, `name:value` where
ours has another default, and `name=value` where ours has none: another value than that is an error.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from ...ops.errors import InputError

_SCALED = "epsilon center scale beta_initializer='zeros' gamma_initializer='ones' in_channels"
_BATCH = (
    "axis=1 momentum epsilon center scale use_global_stats beta_initializer='zeros' gamma_initializer='ones' "
    "running_mean_initializer='zeros' running_variance_initializer='ones' in_channels"
)
_CONV = "channels kernel_size strides padding {}dilation groups layout='{}' activation use_bias weight_initializer "
_CONV += "bias_initializer in_channels"
_INNER = "i2h_weight_initializer=None h2h_weight_initializer=None i2h_bias_initializer='zeros' "
_INNER += "h2h_bias_initializer='zeros'"
_FUSED = "i2h_weight_initializer h2h_weight_initializer i2h_bias_initializer h2h_bias_initializer"
_SEQUENCE = "layout dropout bidirectional"
LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
LAYERS: dict[str, str] = {
    "BatchNorm": _BATCH,
    "SyncBatchNorm": f"in_channels num_devices=None {_BATCH.removesuffix(' in_channels').removeprefix('axis=1 ')}",
    "InstanceNorm": f"axis=1 {_SCALED.replace('scale', 'scale:False')}",
    "LayerNorm": f"axis=-1 {_SCALED}",
    "GroupNorm": f"num_groups {_SCALED}",
    "PReLU": "alpha_initializer in_channels",
    "Dense": "units activation use_bias flatten dtype weight_initializer bias_initializer in_units",
    "Embedding": "input_dim output_dim dtype weight_initializer sparse_grad",
    **{f"Conv{n}D": _CONV.format("", at) for n, at in LAYOUTS.items()},
    **{f"Conv{n}DTranspose": _CONV.format("output_padding ", at) for n, at in LAYOUTS.items()},
    **{f"MaxPool{n}D": f"pool_size strides padding layout='{LAYOUTS[n]}' ceil_mode" for n in (1, 2)},
    "MaxPool3D": "pool_size strides padding ceil_mode layout='NCDHW'",
    "AvgPool1D": "pool_size strides padding layout='NCW' ceil_mode count_include_pad",
    **{f"AvgPool{n}D": f"pool_size strides padding ceil_mode layout='{LAYOUTS[n]}' count_include_pad" for n in (2, 3)},
    **{f"Global{kind}Pool{n}D": f"layout='{at}'" for kind in ("Max", "Avg") for n, at in LAYOUTS.items()},
    "RNNCell": f"hidden_size activation {_INNER} input_size",
    "LSTMCell": f"hidden_size {_INNER} input_size activation='tanh' recurrent_activation='sigmoid'",
    "GRUCell": f"hidden_size {_INNER} input_size",
    "BidirectionalCell": "l_cell r_cell output_prefix='bi_'",
    "PoissonNLLLoss": "weight from_logits batch_axis=0 compute_full",
}
LAYERS.update(
    Dropout="rate axes",
    RNN=f"hidden_size num_layers activation {_SEQUENCE} {_FUSED} input_size dtype='float32'",
    LSTM=f"hidden_size num_layers {_SEQUENCE} input_size {_FUSED} projection_size=None "
    "h2r_weight_initializer=None state_clip_min=None state_clip_max=None state_clip_nan=False dtype='float32'",
    GRU=f"hidden_size num_layers {_SEQUENCE} input_size {_FUSED} dtype='float32'",
)


def arranged(name: str, signature: str, args: Sequence[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A call in MXNet's manner as settings of ours. Raises InputError for what ours does not have.

    >>> arranged("RNN", "hidden_size activation:'relu' dtype='float32'", [8], {"dtype": "float32"})
    {'hidden_size': 8, 'activation': 'relu'}
    """
    words = signature.split()
    if len(args) > len(words):
        raise InputError(f"{len(args)} arguments in their order, of at most {len(words)}", where=name)
    given = {k: v for k, v in settings.items() if k not in ("prefix", "params") and not (k == "weight" and v is None)}
    plain = [w.partition("=")[0].partition(":")[0].partition(">")[0] for w in words]
    for key, value in zip(plain, args, strict=False):
        if key in given:
            raise InputError(f"{key} is given twice", where=name)
        given[key] = value
    ours: dict[str, Any] = {}
    for key, word in zip(plain, words, strict=True):
        if ":" in word:
            ours[key] = ast.literal_eval(word.partition(":")[2])
        if key not in given:
            continue
        value = given.pop(key)
        if "=" not in word:
            ours[word.partition(">")[2] or key] = value
        elif value != ast.literal_eval(word.partition("=")[2]) and not (value is None and "initializer" in key):
            raise InputError(f"{key}={value!r} is not there", where=name, hint=f"leave it out: {word}")
    return {**ours, **given}


__all__ = ["LAYERS", "arranged"]
