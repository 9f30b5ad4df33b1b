"""Cases of quantised operators; see cases.py."""

from __future__ import annotations

import json
from typing import Any

from .cases import Draw, array, case, normal, positive, whole

case("quantize", "_contrib_quantize", normal(2, 5), array([-2.0]), array([3.0]), out_type="uint8", outs=3)
case("quantize int8", "_contrib_quantize", normal(2, 5), array([-2.0]), array([3.0]), out_type="int8", outs=3)
for _kind in ("int8", "uint8", "auto"):
    case(f"quantize v2 {_kind}", "_contrib_quantize_v2", positive(2, 5), out_type=_kind, min_calib_range=0.0,
         max_calib_range=2.5, outs=3)  # fmt: skip
case("quantize v2 signed", "_contrib_quantize_v2", normal(2, 5), out_type="auto", min_calib_range=-1.5,
     max_calib_range=1.0, outs=3)  # fmt: skip
case("quantize v2 measured", "_contrib_quantize_v2", normal(2, 5), out_type="int8", outs=3)
case("dequantize", "_contrib_dequantize", whole(127, 2, 5, low=-127, dtype="int8"), array([-2.0]), array([1.0]))
case("dequantize uint8", "_contrib_dequantize", whole(255, 2, 5, dtype="uint8"), array([0.0]), array([3.0]))
case("requantize", "_contrib_requantize", whole(1 << 20, 2, 5, low=-(1 << 20), dtype="int32"), array([-3000.0]),
     array([3000.0]), min_calib_range=-1.0, max_calib_range=1.5, outs=3)  # fmt: skip
# small enough for processors whose sums of two products saturate
case("quantized conv", "_contrib_quantized_conv", whole(60, 1, 4, 6, 6, dtype="uint8"),
     whole(60, 4, 4, 3, 3, low=-60, dtype="int8"), array([0.0]), array([2.0]), array([-1.0]), array([1.0]),
     kernel=(3, 3), num_filter=4, no_bias=True, pad=(1, 1), outs=3)  # fmt: skip
case("quantized dense", "_contrib_quantized_fully_connected", whole(60, 3, 8, low=-60, dtype="int8"),
     whole(60, 5, 8, low=-60, dtype="int8"), array([-2.0]), array([2.0]), array([-1.0]), array([1.0]),
     num_hidden=5, no_bias=True, outs=3)  # fmt: skip
case("quantized dense with a bias", "_contrib_quantized_fully_connected", whole(60, 3, 8, dtype="int8"),
     whole(60, 5, 8, low=-60, dtype="int8"), whole(60, 5, low=-60, dtype="int8"), array([-2.0]), array([2.0]),
     array([-1.0]), array([1.0]), array([-0.5]), array([0.5]), num_hidden=5, outs=3)  # fmt: skip
case("quantized relu", "_contrib_quantized_act", whole(100, 1, 2, 3, 3, low=-100, dtype="int8"), array([-1.0]),
     array([1.0]), act_type="relu", outs=3)  # fmt: skip
case("quantized pooling", "_contrib_quantized_pooling", whole(100, 1, 2, 6, 6, low=-100, dtype="int8"), array([-1.0]),
     array([1.0]), kernel=(2, 2), stride=(2, 2), pool_type="max", outs=3)  # fmt: skip
case("quantized flatten", "_contrib_quantized_flatten", whole(100, 2, 3, 2, low=-100, dtype="int8"), array([-1.0]),
     array([1.0]), outs=3)  # fmt: skip
_ends = [array([-2.0]), array([1.0]), array([-1.5]), array([3.0])]


def signed(*shape: int) -> Draw:
    return whole(127, *shape, low=-127, dtype="int8")


case("quantized concat", "_contrib_quantized_concat", signed(2, 3), whole(255, 2, 4, dtype="uint8"), array([-2.0]),
     array([1.0]), array([0.0]), array([3.0]), num_args=2, dim=1, outs=3)  # fmt: skip
case("quantized add", "_contrib_quantized_elemwise_add", signed(3, 4), signed(3, 4), *_ends, outs=3)
case("quantized add measured", "_contrib_quantized_elemwise_add", signed(3, 4), signed(3, 4), *_ends,
     min_calib_range=-3.0, max_calib_range=4.3, outs=3)  # fmt: skip
case("quantized mul", "_contrib_quantized_elemwise_mul", signed(3, 4), signed(3, 4), *_ends, outs=3)
case("quantized mul measured", "_contrib_quantized_elemwise_mul", signed(3, 4), signed(3, 4), *_ends,
     min_calib_range=-5.0, max_calib_range=6.0, outs=3)  # fmt: skip
case("quantized mul as floats", "_contrib_quantized_elemwise_mul", signed(3, 4), signed(3, 4), *_ends,
     enable_float_output=True)  # fmt: skip
case("quantized embedding", "_contrib_quantized_embedding", whole(7, 2, 3), signed(7, 4), array([-2.0]), array([1.0]),
     input_dim=7, output_dim=4, outs=3)  # fmt: skip
case("quantized batch norm", "_contrib_quantized_batch_norm", signed(2, 4, 3, 3), positive(4), normal(4), normal(4),
     positive(4), array([-2.0]), array([1.0]), eps=1e-3, min_calib_range=-4.0, max_calib_range=3.0, outs=3)  # fmt: skip
for _kind in ("int8", "uint8"):
    case(f"requantize much {_kind}", "_contrib_requantize", whole(1 << 20, 2, 300, low=-(1 << 20), dtype="int32"),
         array([-3000.0]), array([3000.0]), min_calib_range=-1.0, max_calib_range=1.5, out_type=_kind,
         outs=3)  # fmt: skip
case("requantize much measured", "_contrib_requantize", whole(1 << 20, 2, 300, low=-(1 << 20), dtype="int32"),
     array([-3000.0]), array([3000.0]), outs=3)  # fmt: skip
case("quantized dense of uint8", "_contrib_quantized_fully_connected", whole(60, 3, 8, dtype="uint8"),
     whole(60, 5, 8, low=-60, dtype="int8"), whole(60, 5, low=-60, dtype="int8"), array([0.0]), array([2.0]),
     array([-1.0]), array([1.0]), array([-0.5]), array([0.5]), num_hidden=5, outs=3)  # fmt: skip
case("quantized mean of windows", "_contrib_quantized_pooling", whole(100, 1, 2, 6, 6, low=-100, dtype="int8"),
     array([-1.0]), array([1.0]), kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg", layout="NCHW",
     count_include_pad=False, outs=3)  # fmt: skip

# Layers that oneDNN's backend fused


def fused(name: str, op: str, layers: list[tuple[str, str, dict[str, Any]]], *inputs: Draw, outs: int = 3,
          **attrs: Any) -> None:  # fmt: skip
    """A case of layers as one operator: each reads the one before, then new operands, which have these letters."""
    inner: list[dict[str, Any]] = []
    heads: list[list[int]] = []

    def node(op: str, name: str, inputs: list[list[int]], given: dict[str, Any]) -> list[int]:
        texts = {k: str(v) for k, v in given.items()}
        inner.append({"op": op, "name": name, "attrs": texts, "inputs": inputs})
        return [len(inner) - 1, 0, 0]

    for i, (layer, operands, given) in enumerate(layers):
        more = [node("null", f"{layer}{i}_{k}", [], {}) for k in operands]
        heads = [node(layer, f"{layer}{i}", heads + more, given)]
    arguments = [i for i, n in enumerate(inner) if n["op"] == "null"]
    part = {"nodes": inner, "arg_nodes": arguments, "node_row_ptr": [*range(len(inner) + 1)], "heads": heads}
    count = len(inputs)
    nodes: list[dict[str, Any]] = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(count)]
    nodes.append({"op": op, "name": "n", "attrs": {k: str(v) for k, v in attrs.items()}, "subgraphs": [part],
                  "inputs": [[i, 0, 0] for i in range(count)]})  # fmt: skip
    whole = {"nodes": nodes, "arg_nodes": [*range(count)], "node_row_ptr": [*range(count + 2)],
             "heads": [[count, i, 0] for i in range(outs)], "attrs": {"mxnet_version": ["int", 10901]}}  # fmt: skip
    case(name, op, *inputs, outs=outs, symbol=json.dumps(whole))


_conv = ("Convolution", "dwb", {"kernel": (3, 3), "num_filter": 6, "pad": (1, 1)})
_norm, _relu = ("BatchNorm", "gbmv", {"fix_gamma": False, "eps": 1e-5}), ("Activation", "", {"act_type": "relu"})
_sum: tuple[str, str, dict[str, Any]] = ("elemwise_add", "s", {})
_dense = ("FullyConnected", "dwb", {"num_hidden": 5})
_weights, _statistics = [normal(6, 4, 3, 3), normal(6)], [normal(6), normal(6), normal(6), positive(6)]
_measured: dict[str, Any] = {"quantized": True, "min_calib_range": -3.0, "max_calib_range": 12.0}
_one, _two = [array([-2.0]), array([1.5])], [array([0.0]), array([3.0])]
fused("fused conv", "_sg_mkldnn_conv", [_conv, _norm, _relu], normal(2, 4, 6, 5), *_weights, *_statistics,
      with_bn=True, with_act=True, outs=1)  # fmt: skip
fused("fused conv of bytes", "_sg_mkldnn_conv", [_conv, _norm, _relu], signed(1, 4, 4, 3), *_weights, *_statistics,
      *_one, with_bn=True, with_relu=True, **_measured)  # fmt: skip
fused("fused conv of sums", "_sg_mkldnn_conv", [_conv, _norm], signed(1, 4, 4, 3), *_weights, *_statistics, *_one,
      with_bn=True, quantized=True)  # fmt: skip
fused("fused conv and sum", "_sg_mkldnn_conv", [_conv, _sum, _relu], whole(255, 1, 4, 4, 3, dtype="uint8"), *_weights,
      whole(255, 1, 6, 4, 3, dtype="uint8"), *_two, *_two, with_sum=True, with_postsum_act=True,
      **_measured)  # fmt: skip
_bytes = [signed(3, 8), signed(5, 8), signed(5)]
_ranges = [array([v]) for v in (-2.0, 1.0, -1.0, 1.0, -0.5, 0.5)]
fused("fused dense of bytes", "_sg_mkldnn_fully_connected", [_dense, _relu], *_bytes, *_ranges, with_eltwise=True,
      **_measured)  # fmt: skip
fused("fused dense of sums", "_sg_mkldnn_fully_connected", [_dense], *_bytes, *_ranges, quantized=True)
fused("fused dense to floats", "_sg_mkldnn_fully_connected", [_dense], *_bytes, *_ranges, quantized=True,
      enable_float_output=True, outs=1)  # fmt: skip
fused("fused dense by channels", "_sg_mkldnn_fully_connected", [_dense], signed(3, 8), normal(5, 8), normal(5), *_one,
      channel_wise_quantize=True, **_measured)  # fmt: skip
_scores = [("_contrib_interleaved_matmul_selfatt_qk", "d", {"heads": 2})]
_values = [("_contrib_interleaved_matmul_selfatt_valatt", "da", {"heads": 2})]
_shares = [signed(4, 2, 24), whole(60, 4, 4, 4, dtype="uint8"), *_one, array([0.0]), array([1.0])]
_ways: list[tuple[str, int, dict[str, Any]]] = [
    ("to floats", 1, {"enable_float_output": True}),
    ("of bytes", 3, {"min_calib_range": -9.0, "max_calib_range": 8.0}),
]
for _name, _outs, _way in _ways:
    _way |= {"heads": 2, "quantized": True}
    fused(f"fused scores {_name}", "_sg_mkldnn_selfatt_qk", _scores, signed(4, 2, 24), *_one, outs=_outs, **_way)
    fused(f"fused values {_name}", "_sg_mkldnn_selfatt_valatt", _values, *_shares, outs=_outs, **_way)
fused("fused scores", "_sg_mkldnn_selfatt_qk", _scores, normal(4, 2, 24), heads=2, outs=1)
fused("fused values", "_sg_mkldnn_selfatt_valatt", _values, normal(4, 2, 24), normal(4, 4, 4), heads=2, outs=1)
