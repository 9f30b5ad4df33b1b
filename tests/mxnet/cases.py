"""Uses of MXNet's operators beyond those in ../shared: the operator, its attributes, its operands.

NumPy alone is needed here, so that MXNet's own environment can import it (see answers.py).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

Draw = Callable[[np.random.Generator], Any]
CASES: dict[str, tuple[str, dict[str, str], list[Draw], int]] = {}  # operator, attributes, operands, results


def F(*shape: int) -> Draw:
    return lambda r: r.standard_normal(shape).astype(np.float32)


def D(*shape: int) -> Draw:
    """In float64: MXNet's own kernels, where its oneDNN refuses."""
    return lambda r: r.standard_normal(shape)


def P(*shape: int) -> Draw:
    """Positive numbers."""
    return lambda r: r.uniform(0.2, 3, shape).astype(np.float32)


def U(*shape: int, low: float = -0.9, high: float = 0.9) -> Draw:
    return lambda r: r.uniform(low, high, shape).astype(np.float32)


def I(high: int, *shape: int, low: int = 0, dtype: str = "float32") -> Draw:  # noqa: E743
    return lambda r: r.integers(low, high, shape).astype(dtype)


def A(values: Any, dtype: str = "float32") -> Draw:
    return lambda r: np.array(values, dtype)


def S(n: int, *batch: int) -> Draw:
    """Symmetric, positive definite matrices."""

    def draw(r: np.random.Generator) -> Any:
        a = r.standard_normal((*batch, n, n))
        return (a @ np.swapaxes(a, -1, -2) + n * np.eye(n)).astype(np.float32)

    return draw


def L(n: int, *batch: int) -> Draw:
    """Lower triangles with a strong diagonal."""
    return lambda r: (np.tril(r.standard_normal((*batch, n, n))) + 3 * np.eye(n)).astype(np.float32)


def B(*shape: int, size: float = 1.0) -> Draw:
    """Boxes as corners."""

    def draw(r: np.random.Generator) -> Any:
        start = r.uniform(0, 0.6 * size, (*shape, 2))
        return np.concatenate([start, start + r.uniform(0.1 * size, 0.4 * size, (*shape, 2))], -1).astype(np.float32)

    return draw


def case(name: str, op: str, *inputs: Draw, outs: int = 1, **attrs: Any) -> None:
    assert name not in CASES, name
    CASES[name] = op, {k.rstrip("_"): str(v) for k, v in attrs.items()}, list(inputs), outs


def symbol_of(name: str) -> str:
    """The JSON of a symbol with one operator."""
    op, attrs, inputs, outs = CASES[name]
    count = len(inputs)
    nodes: list[dict[str, Any]] = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(count)]
    nodes.append({"op": op, "name": "n", "attrs": attrs, "inputs": [[i, 0, 0] for i in range(count)]})
    return json.dumps({
        "nodes": nodes, "arg_nodes": list(range(count)), "node_row_ptr": list(range(count + 2)),
        "heads": [[count, i, 0] for i in range(outs)], "attrs": {"mxnet_version": ["int", 10901]},
    })  # fmt: skip


def operands(name: str) -> dict[str, Any]:
    """The operands of a case, the same at each call."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return {f"x{i}": draw(rng) for i, draw in enumerate(CASES[name][2])}


# Element by element

for _op in "abs ceil floor exp negative relu reciprocal sigmoid softsign sign erf sin cos tan sinh cosh tanh".split():
    case(_op, _op, F(3, 5))
for _op in "sqrt rsqrt log log10 log2 log1p square cbrt rcbrt".split():
    case(_op, _op, P(3, 5))
for _op in "arcsin arccos arctan arcsinh arctanh expm1 erfinv".split():
    case(_op, _op, U(3, 5))
case("arccosh", "arccosh", U(3, 5, low=1.1, high=4))
for _op in "round rint fix trunc".split():
    case(_op, _op, A([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.4, -2.6, 0.0, 7.0]))
for _op in "gamma gammaln".split():
    case(_op, _op, A([0.1, 0.5, 0.9, 1.0, 1.1, 1.7, 2.0, 2.2, 3.5, 7.25, -0.3, -1.5, -2.7, 12.0]))
for _op in "degrees radians logical_not _copy BlockGrad make_loss zeros_like ones_like _contrib_round_ste".split():
    case(_op, _op, F(3, 5))
case("sign ste", "_contrib_sign_ste", F(3, 5))
case("gradient multiplier", "_contrib_gradientmultiplier", F(3, 5), scalar=2.0)
case("div sqrt dim", "_contrib_div_sqrt_dim", F(3, 5))
for _op in "add sub mul div maximum minimum power mod hypot equal not_equal greater greater_equal lesser lesser_equal " \
           "logical_and logical_or logical_xor".split():
    _pair = (P(3, 4, 5), P(1, 4, 1)) if _op == "power" else (I(3, 3, 4, 5, low=-2), I(3, 1, 4, 1, low=-2))
    case(f"broadcast {_op}", f"broadcast_{_op}", *_pair)
for _op in "_maximum _minimum _power _mod _hypot _equal _not_equal _greater _greater_equal _lesser _lesser_equal " \
           "_logical_and _logical_or _logical_xor elemwise_add elemwise_sub elemwise_mul elemwise_div _grad_add".split():
    case(f"same {_op}", _op, P(3, 4), P(3, 4))
for _op in "_plus _minus _rminus _mul _div _rdiv _mod _rmod _power _rpower _maximum _minimum _hypot _equal _not_equal " \
           "_greater _greater_equal _lesser _lesser_equal _logical_and _logical_or _logical_xor".split():
    case(f"scalar {_op}", f"{_op}_scalar", P(3, 4), scalar=1.5, is_int=False)
case("mod of negatives", "_mod_scalar", A([-3.5, -1.0, 0.0, 2.5, 4.0]), scalar=-1.5, is_int=False)
case("mod by zero", "broadcast_mod", A([1.0, -2.0, 3.0]), A([0.0, 2.0, -2.0]))
case("scalar of integers", "_plus_scalar", I(9, 3, 4, dtype="int32"), scalar=2, is_int=True)
case("add_n", "add_n", F(3, 4), F(3, 4), F(3, 4), num_args=3)
case("clip", "clip", F(3, 4), a_min=-0.5, a_max=0.5)
case("smooth l1", "smooth_l1", F(3, 4), scalar=2.0)
case("hard sigmoid", "hard_sigmoid", F(3, 4), alpha=0.3, beta=0.4)
case("quadratic", "_contrib_quadratic", F(3, 4), a=2.0, b=3.0, c_=-1.0)
case("cast to int", "Cast", A([1.5, -1.5, 3.0]), dtype="int32")
case("cast to float64", "Cast", F(3), dtype="float64")
for _act in "relu sigmoid tanh softrelu softsign".split():
    case(f"activation {_act}", "Activation", F(3, 4), act_type=_act)
for _act in "leaky elu selu gelu rrelu".split():
    case(f"leaky relu {_act}", "LeakyReLU", F(3, 4), act_type=_act, slope=0.3)
case("prelu of one", "LeakyReLU", F(3, 4, 5), P(1), act_type="prelu")
case("prelu of channels", "LeakyReLU", F(3, 4, 5), P(4), act_type="prelu")
case("all finite", "all_finite", A([1.0, np.inf, 2.0]))
case("allclose", "_contrib_allclose", A([1.0, 2.0]), A([1.0, 2.0 + 1e-7]))

# Reductions

for _op in "sum mean prod max min nansum nanprod norm".split():
    case(f"{_op} of all", _op, P(2, 3, 4))
    case(f"{_op} of an axis", _op, P(2, 3, 4), axis=1)
    case(f"{_op} kept", _op, P(2, 3, 4), axis=(0, 2), keepdims=True)
for _op in "sum mean prod max min nansum nanprod".split():
    case(f"{_op} of others", _op, P(2, 3, 4), axis=(-1,), exclude=True)
case("nansum with nan", "nansum", A([[1.0, np.nan], [2.0, 3.0]]), axis=1)
case("norm of order 1", "norm", F(2, 3), ord=1, axis=1)
case("norm of two axes", "norm", F(2, 3, 4), ord=2, axis=(1, 2))
case("moments", "moments", F(2, 3, 4), axes=(0, 2), outs=2)
for _op in ("argmax", "argmin"):
    case(f"{_op} of all", _op, F(2, 3))
    case(f"{_op} of an axis", _op, F(2, 3), axis=1)
    case(f"{_op} kept", _op, F(2, 3), axis=0, keepdims=True)
case("argmax of ties", "argmax", A([[1, 3, 3], [2, 2, 2]]), axis=1)
case("argmax channel", "argmax_channel", F(3, 5))
case("sort", "sort", F(3, 5), axis=0)
case("sort down", "sort", F(3, 5), is_ascend=False)
case("sort flat", "sort", F(3, 5), axis=None)
case("argsort", "argsort", F(3, 5), axis=-1)
case("argsort down", "argsort", F(3, 5), axis=0, is_ascend=False, dtype="int32")
for _kind in "value indices mask both".split():
    case(f"topk {_kind}", "topk", F(3, 5), k=2, ret_typ=_kind, outs=1 + (_kind == "both"))
    case(f"topk {_kind} up", "topk", F(3, 5), k=2, ret_typ=_kind, is_ascend=True, axis=0, outs=1 + (_kind == "both"))
case("topk flat", "topk", F(3, 5), k=3, ret_typ="value", axis=None)
for _op in "softmax log_softmax softmin".split():
    case(f"{_op} of an axis", _op, F(2, 3, 4), axis=1)
    case(f"{_op} at a temperature", _op, F(2, 3, 4), temperature=2.5)
case("softmax with lengths", "softmax", F(2, 5), A([2, 4], "int32"), use_length=True, axis=1)
case("softmax cross entropy", "softmax_cross_entropy", F(3, 4), I(4, 3))

# Shapes

for _shape in ["(-1,)", "(0,-1)", "(-2,)", "(2,-2)", "(-3,0)", "(0,-3)", "(-4,1,2,-2)", "(-4,2,-1,-2)", "(0,0,-4,-1,2)",
               "(-3,-1)", "(4,-1,2)", "(0,-4,3,-1,0)"]:
    case(f"reshape {_shape}", "Reshape", F(2, 3, 4), shape=_shape)
for _shape in ["(-1,0)", "(0,-3)", "(0,0,0)", "(-1,0,0)"]:
    case(f"reshape reversed {_shape}", "Reshape", F(2, 4, 6), shape=_shape, reverse=True)
case("reshape target", "Reshape", F(2, 3, 4), target_shape="(2,0)")
case("flatten", "Flatten", F(2, 3, 4))
case("expand dims", "expand_dims", F(2, 3), axis=-1)
case("squeeze all", "squeeze", F(2, 1, 3, 1))
case("squeeze one", "squeeze", F(2, 1, 3, 1), axis=1)
case("transpose back", "transpose", F(2, 3, 4))
case("transpose", "transpose", F(2, 3, 4), axes=(1, 0, 2))
case("swapaxes", "SwapAxis", F(2, 3, 4), dim1=0, dim2=2)
case("slice", "slice", F(4, 5), begin=(1, None), end=(3, 4))
case("slice back", "slice", F(4, 5), begin=(3, None), end=(None, None), step=(-1, -2))
case("slice axis", "slice_axis", F(4, 5), axis=1, begin=-3, end=None)
case("slice like", "slice_like", F(4, 5), F(2, 3))
case("slice like of an axis", "slice_like", F(4, 5), F(2, 3), axes=(1,))
case("crop to size", "Crop", F(1, 2, 6, 7), num_args=1, offset=(1, 2), h_w=(3, 4))
case("crop like", "Crop", F(1, 2, 6, 7), F(1, 1, 3, 4), num_args=2, center_crop=True)
case("split", "SliceChannel", F(2, 6), num_outputs=3, outs=3)
case("split squeezed", "SliceChannel", F(2, 3), num_outputs=3, squeeze_axis=True, outs=3)
case("split v2", "_split_v2", F(6, 2), indices=(0, 2, 3), axis=0, outs=3)
case("split v2 in sections", "_split_v2", F(6, 2), indices="()", sections=3, axis=0, outs=3)
case("concat", "Concat", F(2, 3), F(2, 4), num_args=2, dim=1)
case("stack", "stack", F(2, 3), F(2, 3), num_args=2, axis=-1)
case("tile", "tile", F(2, 3), reps=(2, 1, 3))
case("tile short", "tile", F(2, 3), reps=(2,))
case("repeat", "repeat", F(2, 3), repeats=2, axis=1)
case("repeat flat", "repeat", F(2, 3), repeats=2)
case("reverse two", "reverse", F(2, 3, 4), axis=(0, 2))
case("pad constant", "Pad", F(1, 2, 3, 4), mode="constant", pad_width=(0, 0, 0, 0, 1, 2, 2, 0), constant_value=1.5)
case("pad edge", "Pad", F(1, 2, 3, 4), mode="edge", pad_width=(0, 0, 0, 0, 1, 2, 2, 0))
case("broadcast to", "broadcast_to", F(2, 1, 3), shape=(0, 4, 0))
case("broadcast axis", "broadcast_axis", F(2, 1, 1), axis=(1, 2), size=(3, 2))
case("broadcast like axes", "broadcast_like", F(2, 1, 3), F(5, 4), lhs_axes=(1,), rhs_axes=(1,))
case("reshape like", "reshape_like", F(2, 6), F(3, 4))
case("reshape like parts", "reshape_like", F(6, 4), F(2, 3, 5), lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2)
case("shape array", "shape_array", F(2, 3))
case("size array", "size_array", F(2, 3))
case("space to depth", "space_to_depth", F(1, 2, 4, 6), block_size=2)
case("diag of a vector", "diag", F(4), k=1)
case("diag of a matrix", "diag", F(4, 5), k=-1)
case("diag of axes", "diag", F(2, 3, 4), k=1, axis1=0, axis2=2)
case("zeros", "_zeros", shape=(2, 3), dtype="int32")
case("ones", "_ones", shape=(2, 3))
case("full", "_full", shape=(2, 3), value=2.5)
case("arange", "_arange", start=1.0, stop=4.0, step=0.5, repeat=2)
case("arange to", "_arange", start=4.0)
case("eye", "_eye", N=3, M=4, k=1)
case("linspace", "_linspace", start=0.0, stop=1.0, num=5, endpoint=True)
case("arange like", "_contrib_arange_like", F(2, 3), start=1.0, step=2.0)
case("index array", "_contrib_index_array", F(2, 3))
case("index array of axes", "_contrib_index_array", F(2, 3, 2), axes=(2, 0))

# Indices

case("embedding", "Embedding", I(7, 2, 3, low=-1), F(5, 4), input_dim=5, output_dim=4)
case("take", "take", F(5, 4), I(6, 2, 3, low=-1), axis=0)
case("take around", "take", F(5, 4), I(9, 2, 3, low=-5), axis=1, mode="wrap")
case("batch take", "batch_take", F(5, 4), I(4, 5, dtype="int32"))
case("pick", "pick", F(3, 4), I(4, 3), axis=1)
case("pick kept", "pick", F(3, 4), I(3, 1, 4), axis=0, keepdims=True)
case("gather nd", "gather_nd", F(3, 4, 2), A([[0, 2, 1], [1, 3, 0]]))
case("scatter nd", "scatter_nd", F(3, 2), A([[0, 2, 1], [1, 3, 0]]), shape=(3, 4, 2))
case("one hot", "one_hot", I(6, 2, 3, low=-1), depth=4, on_value=2.0, off_value=-1.0)
case("where", "where", I(2, 3, 4), F(3, 4), F(3, 4))
case("where by rows", "where", I(2, 3), F(3, 4), F(3, 4))
case("boolean mask", "_contrib_boolean_mask", F(4, 3), A([1, 0, 1, 1]))
case("index copy", "_contrib_index_copy", F(5, 3), A([0, 4, 2], "int64"), F(3, 3))
case("ravel", "_ravel_multi_index", A([[3, 6, 6], [4, 5, 1]]), shape=(7, 6))
case("unravel", "_unravel_index", A([22, 41, 37]), shape=(7, 6))
case("slice assign", "_slice_assign", F(4, 5), F(2, 3), begin=(1, 0), end=(3, 5), step=(1, 2))
case("slice assign scalar", "_slice_assign_scalar", F(4, 5), begin=(1, 0), end=(3, 5), step=(1, 2), scalar=3.0)
case("sequence mask", "SequenceMask", F(4, 2, 3), A([2, 3]), use_sequence_length=True, value=-1.0)
case("sequence mask of axis 1", "SequenceMask", F(2, 4, 3), A([2, 3]), use_sequence_length=True, axis=1)
case("sequence last", "SequenceLast", F(4, 2, 3), A([2, 4]), use_sequence_length=True)
case("sequence last of all", "SequenceLast", F(4, 2, 3))
case("sequence reverse", "SequenceReverse", F(4, 2, 3), A([2, 3]), use_sequence_length=True)
case("sequence reverse of all", "SequenceReverse", F(4, 2, 3))

# Algebra

case("dot of vectors", "dot", F(4), F(4))
case("dot of cubes", "dot", F(2, 3, 4), F(4, 5))
case("dot with cubes", "dot", F(3, 4), F(4, 2, 5))
case("dot transposed", "dot", F(4, 3), F(5, 4), transpose_a=True, transpose_b=True)
case("dot of a matrix and a vector", "dot", F(3, 4), F(4))
case("batch dot", "batch_dot", F(2, 3, 4), F(2, 4, 5))
case("batch dot transposed", "batch_dot", F(2, 4, 3), F(2, 5, 4), transpose_a=True, transpose_b=True)
case("khatri rao", "khatri_rao", F(2, 3), F(4, 3), num_args=2)
case("gemm", "_linalg_gemm", F(2, 3, 4), F(2, 4, 5), F(2, 3, 5), alpha=2.0, beta=0.5)
case("gemm of rows elsewhere", "_linalg_gemm2", F(3, 2, 4), F(4, 2, 5), axis=0)
case("gemm2 transposed", "_linalg_gemm2", F(4, 3), F(5, 4), transpose_a=True, transpose_b=True)
case("potrf", "_linalg_potrf", S(3, 2))
case("potri", "_linalg_potri", L(3, 2))
case("trmm", "_linalg_trmm", L(3), F(3, 4), alpha=2.0)
case("trmm right transposed", "_linalg_trmm", L(3), F(4, 3), rightside=True, transpose=True)
for _right in (False, True):
    for _turn in (False, True):
        _b = F(4, 3) if _right else F(3, 4)
        case(f"trsm {_right} {_turn}", "_linalg_trsm", L(3), _b, rightside=_right, transpose=_turn, alpha=2.0)
case("sumlogdiag", "_linalg_sumlogdiag", S(3, 2))
case("sumlogdiag of one", "_linalg_sumlogdiag", S(3))
case("extractdiag", "_linalg_extractdiag", F(2, 4, 4), offset=1)
case("makediag", "_linalg_makediag", F(2, 3), offset=-1)
case("extracttrian", "_linalg_extracttrian", F(2, 4, 4), lower=True)
case("extracttrian off", "_linalg_extracttrian", F(2, 4, 4), offset=1)
case("extracttrian upper", "_linalg_extracttrian", F(4, 4), lower=False)
case("maketrian", "_linalg_maketrian", F(2, 6), lower=True)
case("maketrian off", "_linalg_maketrian", F(2, 6), offset=-1)
case("inverse", "_linalg_inverse", S(3, 2))
case("inverse of one", "_linalg_inverse", S(3))
case("det", "_linalg_det", S(3, 2))
case("det of one", "_linalg_det", S(3))
case("slogdet", "_linalg_slogdet", S(3, 2), outs=2)
case("gelqf", "_linalg_gelqf", F(2, 3, 5), outs=2)

# Layers

case("dense", "FullyConnected", F(2, 3, 4), F(5, 12), F(5), num_hidden=5)
case("dense of the last axis", "FullyConnected", F(2, 3, 4), F(5, 4), F(5), num_hidden=5, flatten=False)
case("conv of one axis", "Convolution", F(2, 4, 9), F(6, 2, 3), F(6), kernel=(3,), num_filter=6, num_group=2, stride=(2,), pad=(1,))
case("conv", "Convolution", F(2, 3, 7, 8), F(4, 3, 3, 2), kernel=(3, 2), num_filter=4, no_bias=True, stride=(2, 1), pad=(1, 0))
case("deconv grouped", "Deconvolution", F(2, 4, 5, 6), F(4, 3, 3, 3), kernel=(3, 3), num_filter=6, num_group=2, stride=(2, 2), pad=(1, 1), adj=(1, 1))
case("deconv to a size", "Deconvolution", D(1, 2, 4, 4), D(2, 3, 4, 4), kernel=(4, 4), num_filter=3, stride=(2, 2), target_shape=(7, 8))
case("deconv with a bias", "Deconvolution", F(1, 2, 4), F(2, 3, 3), F(3), kernel=(3,), num_filter=3, no_bias=False)
for _kind in "max avg sum".split():
    case(f"pool {_kind} full", "Pooling", P(1, 2, 7, 8), kernel=(3, 3), stride=(2, 2), pool_type=_kind, pooling_convention="full")
    case(f"pool {_kind} full padded", "Pooling", P(1, 2, 6, 7), kernel=(2, 2), stride=(2, 2), pad=(1, 1), pool_type=_kind, pooling_convention="full")
    case(f"pool {_kind} far", "Pooling", P(1, 2, 8, 9), kernel=(2, 2), stride=(3, 3), pool_type=_kind, pooling_convention="full")
    case(f"pool {_kind} of one axis", "Pooling", P(1, 2, 9), kernel=(3,), stride=(2,), pad=(1,), pool_type=_kind)
    case(f"pool {_kind} global", "Pooling", P(1, 2, 5, 6), kernel=(1, 1), global_pool=True, pool_type=_kind)
case("pool avg without padding", "Pooling", P(1, 2, 7, 8), kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg", count_include_pad=False)
case("pool avg full without padding", "Pooling", P(1, 2, 6, 7), kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg", count_include_pad=False, pooling_convention="full")
for _power in (1, 2, 3):
    case(f"pool lp {_power}", "Pooling", P(1, 2, 7, 8), kernel=(3, 3), stride=(2, 2), pool_type="lp", p_value=_power)
case("pool adaptive", "_contrib_AdaptiveAvgPooling2D", F(1, 2, 7, 8), output_size=(3, 5))
case("batch norm of an axis", "BatchNorm", F(2, 3, 4), P(4), F(4), F(4), P(4), axis=-1, fix_gamma=False)
case("batch norm with eps", "BatchNorm", F(2, 3), P(3), F(3), F(3), P(3), eps=0.1, fix_gamma=False)
case("batch norm global", "BatchNorm", F(2, 3, 4), P(3), F(3), F(3), P(3), use_global_stats=True)
case("batch norm with relu", "_contrib_BatchNormWithReLU", F(2, 3, 4, 4), P(3), F(3), F(3), P(3), fix_gamma=False)
case("layer norm", "LayerNorm", F(2, 3, 4), P(4), F(4))
case("layer norm of axis 1", "LayerNorm", F(2, 3, 4), P(3), F(3), axis=1)
case("instance norm", "InstanceNorm", F(2, 3, 4, 5), P(3), F(3))
for _mode in "instance channel spatial".split():
    case(f"l2 {_mode}", "L2Normalization", F(2, 3, 4, 5), mode=_mode)
case("dropout", "Dropout", F(2, 3), p=0.3)
case("dropout of axes", "Dropout", F(2, 3), p=0.3, axes=(1,))
case("softmax output", "SoftmaxOutput", F(2, 5), I(5, 2))
case("softmax output flat", "SoftmaxOutput", F(2, 3, 4), I(5, 2, 3))
case("softmax output kept", "SoftmaxOutput", F(2, 3, 4), I(4, 2, 3), preserve_shape=True)
case("softmax activation", "SoftmaxActivation", F(2, 3, 4), mode="channel")
case("logistic", "LogisticRegressionOutput", F(2, 3), F(2, 3))
case("mae", "MAERegressionOutput", F(2, 3), F(2, 3))
case("selfatt qk", "_contrib_interleaved_matmul_selfatt_qk", F(5, 2, 24), heads=2)
case("selfatt valatt", "_contrib_interleaved_matmul_selfatt_valatt", F(5, 2, 24), F(4, 5, 5), heads=2)
case("encdec qk", "_contrib_interleaved_matmul_encdec_qk", F(3, 2, 8), F(5, 2, 16), heads=2)
case("encdec valatt", "_contrib_interleaved_matmul_encdec_valatt", F(5, 2, 16), F(4, 3, 5), heads=2)


def _blob(mode: str, inputs: int, hidden: int, layers: int, directions: int) -> int:
    gates = {"lstm": 4, "gru": 3}.get(mode, 1)
    sizes = [inputs, *[hidden * directions] * (layers - 1)]
    return sum(directions * gates * hidden * (s + hidden + 2) for s in sizes)


for _mode in "rnn_relu rnn_tanh lstm gru".split():
    for _layers, _two in ((1, False), (2, True)):
        _both = 1 + _two
        _more = [F(_layers * _both, 3, 5)] if _mode == "lstm" else []
        case(f"rnn {_mode} {_layers}", "RNN", F(4, 3, 6), U(_blob(_mode, 6, 5, _layers, _both)), F(_layers * _both, 3, 5), *_more,
             mode=_mode, num_layers=_layers, state_size=5, bidirectional=_two, state_outputs=True, outs=2 + (_mode == "lstm"))

# Images and boxes

case("upsampling of two", "UpSampling", F(1, 2, 4, 4), F(1, 3, 2, 2), num_args=2, scale=2, sample_type="nearest")
case("upsampling bilinear", "UpSampling", F(1, 2, 4, 5), F(2, 1, 4, 4), num_args=2, scale=2, sample_type="bilinear", num_filter=2)
case("resize", "_contrib_BilinearResize2D", F(1, 2, 4, 5), height=7, width=9)
case("resize half pixel", "_contrib_BilinearResize2D", F(1, 2, 4, 5), height=8, width=10, align_corners=False)
case("resize by scale", "_contrib_BilinearResize2D", F(1, 2, 4, 5), scale_height=2.0, scale_width=3.0)
case("grid warp", "GridGenerator", F(1, 2, 4, 5), transform_type="warp")
case("sampler", "BilinearSampler", F(1, 2, 4, 5), U(1, 2, 3, 3, low=-1.2, high=1.2))
case("spatial transformer", "SpatialTransformer", F(2, 2, 4, 5), U(2, 6), sampler_type="bilinear", transform_type="affine", target_shape=(3, 6))
case("roi pooling", "ROIPooling", F(2, 3, 8, 8), A([[0, 0, 0, 5, 6], [1, 2, 1, 7, 7]]), pooled_size=(2, 3), spatial_scale=1.0)
case("roi align", "_contrib_ROIAlign", F(2, 3, 8, 8), A([[0, 0.5, 0, 5, 6], [1, 2, 1, 7, 7.5]]), pooled_size=(2, 3), spatial_scale=0.7, sample_ratio=2)
case("roi align aligned", "_contrib_ROIAlign", F(2, 3, 8, 8), A([[0, 0.5, 0, 5, 6], [1, 2, 1, 7, 7.5]]), pooled_size=(2, 3), spatial_scale=0.7, aligned=True)
case("deformable", "_contrib_DeformableConvolution", F(1, 2, 5, 6), U(1, 18, 5, 6), F(3, 2, 3, 3), kernel=(3, 3), num_filter=3, pad=(1, 1), no_bias=True)
case("deformable modulated", "_contrib_ModulatedDeformableConvolution", F(1, 2, 5, 6), U(1, 18, 5, 6), P(1, 9, 5, 6), F(3, 2, 3, 3), F(3), kernel=(3, 3), num_filter=3, pad=(1, 1))
case("correlation of differences", "Correlation", F(1, 3, 8, 9), F(1, 3, 8, 9), max_displacement=2, stride2=2, pad_size=2, is_multiply=False)
case("correlation of patches", "Correlation", F(1, 3, 10, 9), F(1, 3, 10, 9), kernel_size=3, max_displacement=2, stride1=2, pad_size=3)
case("prior boxes", "_contrib_MultiBoxPrior", F(1, 2, 3, 5), sizes=(0.3, 0.6), ratios=(1, 2, 0.5), clip=True, offsets=(0.4, 0.6))
case("iou", "_contrib_box_iou", B(3), B(2, 2))
case("iou of centres", "_contrib_box_iou", P(3, 4), P(2, 4), format="center")
case("box decode", "_contrib_box_decode", F(2, 3, 4), B(1, 3), std0=0.1, std1=0.2, std2=0.3, std3=0.2, format="corner")
case("box decode of centres", "_contrib_box_decode", F(2, 3, 4), P(1, 3, 4), clip=0.5)


def _scored(classes: int, *shape: int) -> Draw:
    """[class, score, corners], all scores different."""

    def draw(r: np.random.Generator) -> Any:
        count = int(np.prod(shape))
        scores = (r.permutation(count) + 0.5) / count
        parts = [r.integers(0, classes, count), scores, *np.moveaxis(B(count)(r), 1, 0)]
        return np.stack(parts, 1).reshape(*shape, 6).astype(np.float32)

    return draw


case("nms", "_contrib_box_nms", _scored(2, 2, 12), overlap_thresh=0.3, coord_start=2, score_index=1, id_index=0)
case("nms by force", "_contrib_box_nms", _scored(2, 12), overlap_thresh=0.3, force_suppress=True, id_index=0, valid_thresh=0.2)
case("nms of few", "_contrib_box_nms", _scored(2, 2, 12), overlap_thresh=0.3, topk=5)
case("nms without background", "_contrib_box_nms", _scored(3, 2, 12), overlap_thresh=0.3, id_index=0, background_id=1, out_format="center")
case("detection", "_contrib_MultiBoxDetection", lambda r: np.moveaxis(r.dirichlet(np.ones(3), (2, 8)), 2, 1).astype(np.float32),
     lambda r: (0.3 * r.standard_normal((2, 32))).astype(np.float32), B(1, 8), nms_threshold=0.4)
case("image normalise", "_image_normalize", U(3, 4, 5), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
case("image to tensor", "_image_to_tensor", I(255, 4, 5, 3, dtype="uint8"))
case("image flip", "_image_flip_left_right", F(4, 6, 3))  # MXNet blanks the middle of odd widths
case("image flip down", "_image_flip_top_bottom", F(4, 5, 3))
case("image crop", "_image_crop", F(4, 5, 3), x=1, y=1, width=3, height=2)
case("im2col", "im2col", F(1, 2, 5, 6), kernel=(3, 2), stride=(2, 1), pad=(1, 0))
case("col2im", "col2im", F(1, 12, 9), output_size=(5, 4), kernel=(3, 2), stride=(1, 1))
