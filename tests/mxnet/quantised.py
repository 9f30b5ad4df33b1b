"""Cases of quantised operators; see cases.py."""

from __future__ import annotations

from .cases import array, case, normal, positive, whole

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
