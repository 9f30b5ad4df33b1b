"""oneDNN's C functions and the constants that their arguments take, by name.

Names and numbers as in dnnl.h, dnnl_types.h and dnnl_common_types.h of version 3; they are part of its stable ABI.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from array import array
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from functools import cache
from itertools import chain
from typing import Any, Final

from ....ops import DType
from ....ops.errors import MissingPackage
from ..machine.routines import Row, address_of
from .library import find, library

MAX_DIMS: Final = 12
Dims = c_int64 * MAX_DIMS

DTYPES: Final = {
    DType.FLOAT16: 1, DType.BFLOAT16: 2, DType.FLOAT: 3, DType.INT32: 4, DType.INT8: 5, DType.UINT8: 6,
}  # fmt: skip
# blocked layouts of activations; weights take theirs from the primitive
TAGS: Final = {
    "aBc16b": 56, "aBcd16b": 78, "aBcde16b": 121, "aBc8b": 69, "aBcd8b": 102, "aBcde8b": 142, "aBc4b": 60,
    "aBcd4b": 84, "aBcde4b": 128,
}  # fmt: skip
TAG_ANY: Final = 1

CPU, SCRATCHPAD_USER, FORMAT_BLOCKED = 1, 1, 2
FORWARD_TRAINING, FORWARD_INFERENCE, BACKWARD, BACKWARD_DATA = 64, 96, 128, 160
MATH: Final = {"strict": 0, "bf16": 1}

SRC, SRC_1, DST, DST_1, DST_2, WEIGHTS, WEIGHTS_1, WEIGHTS_2, BIAS = 1, 2, 17, 18, 19, 33, 34, 35, 41
SRC_2, MEAN, VARIANCE, SCALE, SHIFT, WORKSPACE, SCRATCHPAD = 3, 49, 50, 51, 52, 64, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS, DIFF_SCALE, DIFF_SHIFT = 129, 145, 161, 255, 256
MULTIPLE_SRC, ATTR_SCALES, ATTR_ZERO_POINTS, ATTR_POST_OP = 1024, 4096, 8192, 32768

ALGORITHMS: Final = {
    "convolution_direct": 1, "deconvolution_direct": 10,
    "pooling_max": 511, "pooling_avg_include_padding": 767, "pooling_avg_exclude_padding": 1023,
    "lrn_across_channels": 2815, "softmax_accurate": 196608, "softmax_log": 196609,
    "vanilla_rnn": 8191, "resampling_nearest": 196592, "resampling_linear": 196593,
    "reduction_max": 196594, "reduction_min": 196595, "reduction_sum": 196596, "reduction_mul": 196597,
    "reduction_mean": 196598,
    "binary_add": 131056, "binary_mul": 131057, "binary_max": 131058, "binary_min": 131059, "binary_div": 131060,
    "binary_sub": 131061,
    "eltwise_relu": 32, "eltwise_tanh": 33, "eltwise_elu": 34, "eltwise_square": 35, "eltwise_abs": 36,
    "eltwise_sqrt": 37, "eltwise_linear": 38, "eltwise_hardsigmoid": 40,
    "eltwise_logistic": 41, "eltwise_exp": 42, "eltwise_gelu_tanh": 43, "eltwise_swish": 44, "eltwise_log": 45,
    "eltwise_clip": 46, "eltwise_pow": 48, "eltwise_gelu_erf": 49, "eltwise_round": 50, "eltwise_mish": 51,
    "eltwise_hardswish": 52,
    # the gradient from the result of the forward primitive
    "eltwise_relu_use_dst": 256, "eltwise_tanh_use_dst": 257, "eltwise_elu_use_dst": 258,
    "eltwise_logistic_use_dst": 260,
}  # fmt: skip

QUERY_IMPL, QUERY_STRIDES, QUERY_EXEC_ARG = 8, 14, 255
QUERY_NDIMS, QUERY_DTYPE, QUERY_PADDED, QUERY_FORMAT, QUERY_INNER, QUERY_BLOCKS, QUERY_BLOCK_DIMS = (
    256, 258, 260, 262, 263, 264, 265,
)  # fmt: skip

STATUS: Final = {1: "out of memory", 2: "invalid arguments", 3: "not implemented", 5: "runtime error"}

_P, _I, _F, _D, _PP = c_void_p, c_int, c_float, POINTER(c_int64), POINTER(c_void_p)
_WINDOWED = (_P, _I, _I, _P, _P, _P, _P, _D, _D, _D, _D, _P)
_RECURRENT = (_P, _P, _P, _P, _P, _P, _P)
# what follows the pointer to the result in dnnl_..._primitive_desc_create
DESCRIPTORS: Final = {
    "reorder": (_P, _P, _P, _P, _P),
    "concat": (_P, _P, _I, _I, _PP, _P),
    "binary": (_P, _I, _P, _P, _P, _P),
    "convolution_forward": _WINDOWED,
    "deconvolution_forward": _WINDOWED,
    "eltwise_forward": (_P, _I, _I, _P, _P, _F, _F, _P),
    "softmax_forward": (_P, _I, _I, _P, _P, _I, _P),
    "pooling_forward": (_P, _I, _I, _P, _P, _D, _D, _D, _D, _D, _P),
    "prelu_forward": (_P, _I, _P, _P, _P, _P),
    "lrn_forward": (_P, _I, _I, _P, _P, c_int64, _F, _F, _F, _P),
    "layer_normalization_forward": (_P, _I, _P, _P, _P, _F, c_uint, _P),
    "matmul": (_P, _P, _P, _P, _P, _P),
    "inner_product_forward": (_P, _I, _P, _P, _P, _P, _P),
    "resampling_forward": (_P, _I, _I, POINTER(c_float), _P, _P, _P),
    "reduction": (_P, _I, _P, _P, _F, _F, _P),
    "vanilla_rnn_forward": (_P, _I, _I, _I, *_RECURRENT, c_uint, _F, _F, _P),
    "sum": (_P, _P, _I, POINTER(c_float), _PP, _P),
    "lstm_forward": (_P, _I, _I, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, c_uint, _P),
    "gru_forward": (_P, _I, _I, *_RECURRENT, c_uint, _P),
    "lbr_gru_forward": (_P, _I, _I, *_RECURRENT, c_uint, _P),
    "convolution_backward_data": (_P, _I, _P, _P, _P, _D, _D, _D, _D, _P, _P),
    "convolution_backward_weights": (_P, _I, _P, _P, _P, _P, _D, _D, _D, _D, _P, _P),
    "pooling_backward": (_P, _I, _P, _P, _D, _D, _D, _D, _D, _P, _P),
    "batch_normalization_forward": (_P, _I, _P, _P, _F, c_uint, _P),
    "batch_normalization_backward": (_P, _I, _P, _P, _P, _F, c_uint, _P, _P),
    "layer_normalization_backward": (_P, _I, _P, _P, _P, _P, _F, c_uint, _P, _P),
    "softmax_backward": (_P, _I, _P, _P, _P, _I, _P, _P),
    "eltwise_backward": (_P, _I, _P, _P, _P, _F, _F, _P, _P),
    "lrn_backward": (_P, _I, _P, _P, _P, c_int64, _F, _F, _F, _P, _P),
}  # fmt: skip
_OTHERS: Final = {
    "engine_create": (_PP, _I, c_size_t),
    "stream_create": (_PP, _P, c_uint),
    "memory_desc_create_with_tag": (_PP, _I, _D, _I, _I),
    "memory_desc_create_with_strides": (_PP, _I, _D, _I, _D),
    "memory_desc_create_submemory": (_PP, _P, _D, _D),
    "memory_desc_clone": (_PP, _P),
    "memory_desc_destroy": (_P,),
    "memory_desc_query": (_P, _I, _P),
    "memory_create": (_PP, _P, _P, _P),
    "memory_set_data_handle": (_P, _P),
    "memory_destroy": (_P,),
    "primitive_create": (_PP, _P),
    "primitive_destroy": (_P,),
    "primitive_desc_query": (_P, _I, _I, _P),
    "primitive_desc_destroy": (_P,),
    "primitive_attr_create": (_PP,),
    "primitive_attr_destroy": (_P,),
    "primitive_attr_set_scratchpad_mode": (_P, _I),
    "primitive_attr_set_fpmath_mode": (_P, _I),
    "primitive_attr_set_post_ops": (_P, _P),
    "primitive_attr_set_scales_mask": (_P, _I, _I),
    "primitive_attr_set_zero_points_mask": (_P, _I, _I),
    "post_ops_create": (_PP,),
    "post_ops_destroy": (_P,),
    "post_ops_append_eltwise": (_P, _I, _F, _F),
    "post_ops_append_binary": (_P, _I, _P),
    "post_ops_append_sum": (_P, _F, c_int32, _I),
    "post_ops_append_prelu": (_P, _I),
}


_LENGTHY: Final = ("engine_create", "stream_create", "primitive_create")


class Refused(Exception):
    """A call of oneDNN failed; the message has the call and the reason."""


def arguments(pairs: Sequence[tuple[int, int]]) -> array[int]:
    """Numbers of arguments and their memories as the C API takes them: an array of dnnl_exec_arg_t."""
    return array("b", struct.pack("iP" * len(pairs), *chain.from_iterable(pairs)))


@cache
def function(name: str) -> Any:
    """A function of the library that returns a status, with its argument types; Refused is raised for a bad status."""
    loaded = library()
    if loaded is None:
        raise MissingPackage(f"oneDNN is not available: {find()}", hint="pip install onednn-cpu-gomp")
    if name in DESCRIPTORS:
        entry = getattr(loaded.handle, f"dnnl_{name}_primitive_desc_create")
        entry.argtypes = (_PP, *DESCRIPTORS[name])
    else:
        entry = getattr(loaded.handle if name in _LENGTHY else loaded.held, f"dnnl_{name}")
        entry.argtypes = _OTHERS[name]
    entry.restype, entry.errcheck = c_int, _checked
    return entry


def _checked(status: int, function: Any, arguments: Any) -> None:
    if status:
        raise Refused(f"{function.__name__}: {STATUS.get(status, status)}")


@cache
def getter(name: str) -> Any:
    """A function of the library that answers with a value rather than a status."""
    answers: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "memory_desc_get_size": (c_size_t, (_P,)),
        "memory_desc_equal": (_I, (_P, _P)),
        "primitive_desc_query_md": (_P, (_P, _I, _I)),
    }
    loaded = library()
    assert loaded is not None
    entry = getattr(loaded.held, f"dnnl_{name}")
    entry.restype, entry.argtypes = answers[name]
    return entry


_making = threading.RLock()  # one engine and one stream for all: threads that come at once must not make two


def execution(primitive: int, count: int, arguments: int, short: bool = False) -> tuple[Any, ...]:
    """The function that runs a primitive, and what it takes: the primitive, the stream, `count` arguments that lie at
    an address. It answers the status.

    Ready-made ctypes arguments are copied as they are: boxed numbers would be unpacked at each call, and declared types
    looked at, which took a tenth and a third of a small call. A `short` call keeps Python's lock: to give it back and
    to take it again would be another tenth.
    """
    with _making:
        functions, stream, _ = _executor()
    take = c_void_p.from_param
    return functions[short], take(primitive), stream, c_int.from_param(count), take(arguments)


def native_execution(primitive: int, count: int, arguments: int) -> Row:
    """The same call for machine code."""
    with _making:
        _, _, (function, stream) = _executor()
    return function, primitive, stream, count, arguments, -1


@cache
def _executor() -> tuple[tuple[Any, Any], Any, tuple[int, int]]:
    """The function that runs a primitive, releasing or holding Python's lock; the stream; the addresses of both."""
    loaded = library()
    assert loaded is not None
    released, held = loaded.handle.dnnl_primitive_execute, loaded.held.dnnl_primitive_execute
    released.restype = held.restype = c_int
    stream = create("stream_create", engine(), 1)
    return (released, held), c_void_p.from_param(stream), (address_of(released), stream)


def engine() -> int:
    """The engine of this machine's processors."""
    with _making:
        return _engine()


@cache
def _engine() -> int:
    return create("engine_create", CPU, 0)


def create(name: str, *arguments: Any) -> int:
    """Call a function that makes an object; returns its handle."""
    handle = c_void_p()
    function(name)(ctypes.byref(handle), *arguments)
    assert handle.value is not None
    return handle.value


def dims(values: Sequence[int]) -> Any:
    """Sizes as the C API takes them."""
    return Dims(*values)


def text(descriptor: int, what: int) -> str:
    """A string that a primitive descriptor tells about itself."""
    result = c_char_p()
    function("primitive_desc_query")(descriptor, what, 0, ctypes.cast(ctypes.byref(result), c_void_p))
    return (result.value or b"").decode()
