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


def normal(*shape: int) -> Draw:
    return lambda r: r.standard_normal(shape).astype(np.float32)


def doubles(*shape: int) -> Draw:
    """In float64: MXNet's own kernels, where its oneDNN refuses."""
    return lambda r: r.standard_normal(shape)


def positive(*shape: int) -> Draw:
    """Positive numbers."""
    return lambda r: r.uniform(0.2, 3, shape).astype(np.float32)


def uniform(*shape: int, low: float = -0.9, high: float = 0.9) -> Draw:
    return lambda r: r.uniform(low, high, shape).astype(np.float32)


def whole(high: int, *shape: int, low: int = 0, dtype: str = "float32") -> Draw:
    return lambda r: r.integers(low, high, shape).astype(dtype)


def array(values: Any, dtype: str = "float32") -> Draw:
    return lambda r: np.array(values, dtype)


def symmetric(n: int, *batch: int) -> Draw:
    """Symmetric, positive definite matrices."""

    def draw(r: np.random.Generator) -> Any:
        a = r.standard_normal((*batch, n, n))
        return (a @ np.swapaxes(a, -1, -2) + n * np.eye(n)).astype(np.float32)

    return draw


def lower(n: int, *batch: int) -> Draw:
    """Lower triangles with a strong diagonal."""
    return lambda r: (np.tril(r.standard_normal((*batch, n, n))) + 3 * np.eye(n)).astype(np.float32)


def boxes(*shape: int, size: float = 1.0) -> Draw:
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
    if "symbol" in attrs:
        return attrs["symbol"]
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
    case(_op, _op, normal(3, 5))
for _op in "sqrt rsqrt log log10 log2 log1p square cbrt rcbrt".split():
    case(_op, _op, positive(3, 5))
for _op in "arcsin arccos arctan arcsinh arctanh expm1 erfinv".split():
    case(_op, _op, uniform(3, 5))
case("arccosh", "arccosh", uniform(3, 5, low=1.1, high=4))
for _op in "round rint fix trunc".split():
    case(_op, _op, array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.4, -2.6, 0.0, 7.0]))
for _op in "gamma gammaln".split():
    case(_op, _op, array([0.1, 0.5, 0.9, 1.0, 1.1, 1.7, 2.0, 2.2, 3.5, 7.25, -0.3, -1.5, -2.7, 12.0]))
for _op in "degrees radians logical_not _copy BlockGrad make_loss zeros_like ones_like _contrib_round_ste".split():
    case(_op, _op, normal(3, 5))
case("sign ste", "_contrib_sign_ste", normal(3, 5))
case("gradient multiplier", "_contrib_gradientmultiplier", normal(3, 5), scalar=2.0)
case("div sqrt dim", "_contrib_div_sqrt_dim", normal(3, 5))
for _op in (
    "add sub mul div maximum minimum power mod hypot equal not_equal greater greater_equal lesser lesser_equal "
    "logical_and logical_or logical_xor".split()
):
    _pair = (
        (positive(3, 4, 5), positive(1, 4, 1))
        if _op == "power"
        else (whole(3, 3, 4, 5, low=-2), whole(3, 1, 4, 1, low=-2))
    )
    case(f"broadcast {_op}", f"broadcast_{_op}", *_pair)
for _op in (
    "_maximum _minimum _power _mod _hypot _equal _not_equal _greater _greater_equal _lesser _lesser_equal "
    "_logical_and _logical_or _logical_xor elemwise_add elemwise_sub elemwise_mul elemwise_div "
    "_grad_add".split()
):
    case(f"same {_op}", _op, positive(3, 4), positive(3, 4))
for _op in (
    "_plus _minus _rminus _mul _div _rdiv _mod _rmod _power _rpower _maximum _minimum _hypot _equal _not_equal "
    "_greater _greater_equal _lesser _lesser_equal _logical_and _logical_or _logical_xor".split()
):
    case(f"scalar {_op}", f"{_op}_scalar", positive(3, 4), scalar=1.5, is_int=False)
case("mod of negatives", "_mod_scalar", array([-3.5, -1.0, 0.0, 2.5, 4.0]), scalar=-1.5, is_int=False)
case("mod by zero", "broadcast_mod", array([1.0, -2.0, 3.0]), array([0.0, 2.0, -2.0]))
case("scalar of integers", "_plus_scalar", whole(9, 3, 4, dtype="int32"), scalar=2, is_int=True)
case("add_n", "add_n", normal(3, 4), normal(3, 4), normal(3, 4), num_args=3)
case("clip", "clip", normal(3, 4), a_min=-0.5, a_max=0.5)
case("smooth l1", "smooth_l1", normal(3, 4), scalar=2.0)
case("hard sigmoid", "hard_sigmoid", normal(3, 4), alpha=0.3, beta=0.4)
case("quadratic", "_contrib_quadratic", normal(3, 4), a=2.0, b=3.0, c_=-1.0)
case("cast to int", "Cast", array([1.5, -1.5, 3.0]), dtype="int32")
case("cast to float64", "Cast", normal(3), dtype="float64")
for _act in "relu sigmoid tanh softrelu softsign".split():
    case(f"activation {_act}", "Activation", normal(3, 4), act_type=_act)
for _act in "leaky elu selu gelu rrelu".split():
    case(f"leaky relu {_act}", "LeakyReLU", normal(3, 4), act_type=_act, slope=0.3)
case("prelu of one", "LeakyReLU", normal(3, 4, 5), positive(1), act_type="prelu")
case("prelu of channels", "LeakyReLU", normal(3, 4, 5), positive(4), act_type="prelu")
case("all finite", "all_finite", array([1.0, np.inf, 2.0]))
case("allclose", "_contrib_allclose", array([1.0, 2.0]), array([1.0, 2.0 + 1e-7]))

# Reductions

for _op in "sum mean prod max min nansum nanprod norm".split():
    case(f"{_op} of all", _op, positive(2, 3, 4))
    case(f"{_op} of an axis", _op, positive(2, 3, 4), axis=1)
    case(f"{_op} kept", _op, positive(2, 3, 4), axis=(0, 2), keepdims=True)
for _op in "sum mean prod max min nansum nanprod".split():
    case(f"{_op} of others", _op, positive(2, 3, 4), axis=(-1,), exclude=True)
case("nansum with nan", "nansum", array([[1.0, np.nan], [2.0, 3.0]]), axis=1)
case("norm of order 1", "norm", normal(2, 3), ord=1, axis=1)
case("norm of two axes", "norm", normal(2, 3, 4), ord=2, axis=(1, 2))
case("moments", "moments", normal(2, 3, 4), axes=(0, 2), outs=2)
for _op in ("argmax", "argmin"):
    case(f"{_op} of all", _op, normal(2, 3))
    case(f"{_op} of an axis", _op, normal(2, 3), axis=1)
    case(f"{_op} kept", _op, normal(2, 3), axis=0, keepdims=True)
case("argmax of ties", "argmax", array([[1, 3, 3], [2, 2, 2]]), axis=1)
case("argmax channel", "argmax_channel", normal(3, 5))
case("sort", "sort", normal(3, 5), axis=0)
case("sort down", "sort", normal(3, 5), is_ascend=False)
case("sort flat", "sort", normal(3, 5), axis=None)
case("argsort", "argsort", normal(3, 5), axis=-1)
case("argsort down", "argsort", normal(3, 5), axis=0, is_ascend=False, dtype="int32")
for _kind in "value indices mask both".split():
    case(f"topk {_kind}", "topk", normal(3, 5), k=2, ret_typ=_kind, outs=1 + (_kind == "both"))
    case(
        f"topk {_kind} up", "topk", normal(3, 5), k=2, ret_typ=_kind, is_ascend=True, axis=0, outs=1 + (_kind == "both")
    )
case("topk flat", "topk", normal(3, 5), k=3, ret_typ="value", axis=None)
for _op in "softmax log_softmax softmin".split():
    case(f"{_op} of an axis", _op, normal(2, 3, 4), axis=1)
    case(f"{_op} at a temperature", _op, normal(2, 3, 4), temperature=2.5)
case("softmax with lengths", "softmax", normal(2, 5), array([2, 4], "int32"), use_length=True, axis=1)
case("softmax cross entropy", "softmax_cross_entropy", normal(3, 4), whole(4, 3))

# Shapes

for _shape in [
    "(-1,)",
    "(0,-1)",
    "(-2,)",
    "(2,-2)",
    "(-3,0)",
    "(0,-3)",
    "(-4,1,2,-2)",
    "(-4,2,-1,-2)",
    "(0,0,-4,-1,2)",
    "(-3,-1)",
    "(4,-1,2)",
    "(0,-4,3,-1,0)",
]:
    case(f"reshape {_shape}", "Reshape", normal(2, 3, 4), shape=_shape)
for _shape in ["(-1,0)", "(0,-3)", "(0,0,0)", "(-1,0,0)"]:
    case(f"reshape reversed {_shape}", "Reshape", normal(2, 4, 6), shape=_shape, reverse=True)
case("reshape target", "Reshape", normal(2, 3, 4), target_shape="(2,0)")
case("flatten", "Flatten", normal(2, 3, 4))
case("expand dims", "expand_dims", normal(2, 3), axis=-1)
case("squeeze all", "squeeze", normal(2, 1, 3, 1))
case("squeeze one", "squeeze", normal(2, 1, 3, 1), axis=1)
case("transpose back", "transpose", normal(2, 3, 4))
case("transpose", "transpose", normal(2, 3, 4), axes=(1, 0, 2))
case("swapaxes", "SwapAxis", normal(2, 3, 4), dim1=0, dim2=2)
case("slice", "slice", normal(4, 5), begin=(1, None), end=(3, 4))
case("slice back", "slice", normal(4, 5), begin=(3, None), end=(None, None), step=(-1, -2))
case("slice axis", "slice_axis", normal(4, 5), axis=1, begin=-3, end=None)
case("slice like", "slice_like", normal(4, 5), normal(2, 3))
case("slice like of an axis", "slice_like", normal(4, 5), normal(2, 3), axes=(1,))
case("crop to size", "Crop", normal(1, 2, 6, 7), num_args=1, offset=(1, 2), h_w=(3, 4))
case("crop like", "Crop", normal(1, 2, 6, 7), normal(1, 1, 3, 4), num_args=2, center_crop=True)
case("split", "SliceChannel", normal(2, 6), num_outputs=3, outs=3)
case("split squeezed", "SliceChannel", normal(2, 3), num_outputs=3, squeeze_axis=True, outs=3)
case("split v2", "_split_v2", normal(6, 2), indices=(0, 2, 3), axis=0, outs=3)
case("split v2 in sections", "_split_v2", normal(6, 2), indices="()", sections=3, axis=0, outs=3)
case("concat", "Concat", normal(2, 3), normal(2, 4), num_args=2, dim=1)
case("stack", "stack", normal(2, 3), normal(2, 3), num_args=2, axis=-1)
case("tile", "tile", normal(2, 3), reps=(2, 1, 3))
case("tile short", "tile", normal(2, 3), reps=(2,))
case("repeat", "repeat", normal(2, 3), repeats=2, axis=1)
case("repeat flat", "repeat", normal(2, 3), repeats=2)
case("reverse two", "reverse", normal(2, 3, 4), axis=(0, 2))
case("pad constant", "Pad", normal(1, 2, 3, 4), mode="constant", pad_width=(0, 0, 0, 0, 1, 2, 2, 0), constant_value=1.5)
case("pad edge", "Pad", normal(1, 2, 3, 4), mode="edge", pad_width=(0, 0, 0, 0, 1, 2, 2, 0))
case("broadcast to", "broadcast_to", normal(2, 1, 3), shape=(0, 4, 0))
case("broadcast axis", "broadcast_axis", normal(2, 1, 1), axis=(1, 2), size=(3, 2))
case("broadcast like axes", "broadcast_like", normal(2, 1, 3), normal(5, 4), lhs_axes=(1,), rhs_axes=(1,))
case("reshape like", "reshape_like", normal(2, 6), normal(3, 4))
case(
    "reshape like parts", "reshape_like", normal(6, 4), normal(2, 3, 5), lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2
)
case("shape array", "shape_array", normal(2, 3))
case("size array", "size_array", normal(2, 3))
case("space to depth", "space_to_depth", normal(1, 2, 4, 6), block_size=2)
case("diag of a vector", "diag", normal(4), k=1)
case("diag of a matrix", "diag", normal(4, 5), k=-1)
case("diag of axes", "diag", normal(2, 3, 4), k=1, axis1=0, axis2=2)
case("zeros", "_zeros", shape=(2, 3), dtype="int32")
case("ones", "_ones", shape=(2, 3))
case("full", "_full", shape=(2, 3), value=2.5)
case("arange", "_arange", start=1.0, stop=4.0, step=0.5, repeat=2)
case("arange to", "_arange", start=4.0)
case("eye", "_eye", N=3, M=4, k=1)
case("linspace", "_linspace", start=0.0, stop=1.0, num=5, endpoint=True)
case("arange like", "_contrib_arange_like", normal(2, 3), start=1.0, step=2.0)
case("index array", "_contrib_index_array", normal(2, 3))
case("index array of axes", "_contrib_index_array", normal(2, 3, 2), axes=(2, 0))

# Indices

case("embedding", "Embedding", whole(7, 2, 3, low=-1), normal(5, 4), input_dim=5, output_dim=4)
case("take", "take", normal(5, 4), whole(6, 2, 3, low=-1), axis=0)
case("take around", "take", normal(5, 4), whole(9, 2, 3, low=-5), axis=1, mode="wrap")
case("batch take", "batch_take", normal(5, 4), whole(4, 5, dtype="int32"))
case("pick", "pick", normal(3, 4), whole(4, 3), axis=1)
case("pick kept", "pick", normal(3, 4), whole(3, 1, 4), axis=0, keepdims=True)
case("gather nd", "gather_nd", normal(3, 4, 2), array([[0, 2, 1], [1, 3, 0]]))
case("scatter nd", "scatter_nd", normal(3, 2), array([[0, 2, 1], [1, 3, 0]]), shape=(3, 4, 2))
case("one hot", "one_hot", whole(6, 2, 3, low=-1), depth=4, on_value=2.0, off_value=-1.0)
case("where", "where", whole(2, 3, 4), normal(3, 4), normal(3, 4))
case("where by rows", "where", whole(2, 3), normal(3, 4), normal(3, 4))
case("boolean mask", "_contrib_boolean_mask", normal(4, 3), array([1, 0, 1, 1]))
case("index copy", "_contrib_index_copy", normal(5, 3), array([0, 4, 2], "int64"), normal(3, 3))
case("ravel", "_ravel_multi_index", array([[3, 6, 6], [4, 5, 1]]), shape=(7, 6))
case("unravel", "_unravel_index", array([22, 41, 37]), shape=(7, 6))
case("slice assign", "_slice_assign", normal(4, 5), normal(2, 3), begin=(1, 0), end=(3, 5), step=(1, 2))
case("slice assign scalar", "_slice_assign_scalar", normal(4, 5), begin=(1, 0), end=(3, 5), step=(1, 2), scalar=3.0)
case("sequence mask", "SequenceMask", normal(4, 2, 3), array([2, 3]), use_sequence_length=True, value=-1.0)
case("sequence mask of axis 1", "SequenceMask", normal(2, 4, 3), array([2, 3]), use_sequence_length=True, axis=1)
case("sequence last", "SequenceLast", normal(4, 2, 3), array([2, 4]), use_sequence_length=True)
case("sequence last of all", "SequenceLast", normal(4, 2, 3))
case("sequence reverse", "SequenceReverse", normal(4, 2, 3), array([2, 3]), use_sequence_length=True)
case("sequence reverse of all", "SequenceReverse", normal(4, 2, 3))

# Algebra

case("dot of vectors", "dot", normal(4), normal(4))
case("dot of cubes", "dot", normal(2, 3, 4), normal(4, 5))
case("dot with cubes", "dot", normal(3, 4), normal(4, 2, 5))
case("dot transposed", "dot", normal(4, 3), normal(5, 4), transpose_a=True, transpose_b=True)
case("dot of a matrix and a vector", "dot", normal(3, 4), normal(4))
case("batch dot", "batch_dot", normal(2, 3, 4), normal(2, 4, 5))
case("batch dot transposed", "batch_dot", normal(2, 4, 3), normal(2, 5, 4), transpose_a=True, transpose_b=True)
case("khatri rao", "khatri_rao", normal(2, 3), normal(4, 3), num_args=2)
case("gemm", "_linalg_gemm", normal(2, 3, 4), normal(2, 4, 5), normal(2, 3, 5), alpha=2.0, beta=0.5)
case("gemm of rows elsewhere", "_linalg_gemm2", normal(3, 2, 4), normal(4, 2, 5), axis=0)
case("gemm2 transposed", "_linalg_gemm2", normal(4, 3), normal(5, 4), transpose_a=True, transpose_b=True)
case("potrf", "_linalg_potrf", symmetric(3, 2))
case("potri", "_linalg_potri", lower(3, 2))
case("trmm", "_linalg_trmm", lower(3), normal(3, 4), alpha=2.0)
case("trmm right transposed", "_linalg_trmm", lower(3), normal(4, 3), rightside=True, transpose=True)
for _right in (False, True):
    for _turn in (False, True):
        _b = normal(4, 3) if _right else normal(3, 4)
        case(f"trsm {_right} {_turn}", "_linalg_trsm", lower(3), _b, rightside=_right, transpose=_turn, alpha=2.0)
case("sumlogdiag", "_linalg_sumlogdiag", symmetric(3, 2))
case("sumlogdiag of one", "_linalg_sumlogdiag", symmetric(3))
case("extractdiag", "_linalg_extractdiag", normal(2, 4, 4), offset=1)
case("makediag", "_linalg_makediag", normal(2, 3), offset=-1)
case("extracttrian", "_linalg_extracttrian", normal(2, 4, 4), lower=True)
case("extracttrian off", "_linalg_extracttrian", normal(2, 4, 4), offset=1)
case("extracttrian upper", "_linalg_extracttrian", normal(4, 4), lower=False)
case("maketrian", "_linalg_maketrian", normal(2, 6), lower=True)
case("maketrian off", "_linalg_maketrian", normal(2, 6), offset=-1)
case("inverse", "_linalg_inverse", symmetric(3, 2))
case("inverse of one", "_linalg_inverse", symmetric(3))
case("det", "_linalg_det", symmetric(3, 2))
case("det of one", "_linalg_det", symmetric(3))
case("slogdet", "_linalg_slogdet", symmetric(3, 2), outs=2)
case("gelqf", "_linalg_gelqf", normal(2, 3, 5), outs=2)


def add_symbol(name: str, symbol: dict[str, Any], *inputs: Draw) -> None:
    """A case that is a whole symbol, of which the variables are x0, x1, ...."""
    assert name not in CASES, name
    CASES[name] = "", {"symbol": json.dumps(symbol)}, list(inputs), len(symbol["heads"])


def nodes_of(variables: int, *uses: tuple[str, list[int], dict[str, Any]], names: str = "v") -> list[dict[str, Any]]:
    """Variables, and uses of operators of what stands before them, by its number."""
    nodes: list[dict[str, Any]] = [{"op": "null", "name": f"{names}{i}", "inputs": []} for i in range(variables)]
    for i, (op, inputs, attrs) in enumerate(uses):
        texts = {k: str(v) for k, v in attrs.items() if k != "subgraphs"}
        node = {"op": op, "name": f"{names}n{i}", "attrs": texts, "inputs": [[j, 0, 0] for j in inputs]}
        nodes.append(node | ({"subgraphs": attrs["subgraphs"]} if "subgraphs" in attrs else {}))
    return nodes


def graph(nodes: list[dict[str, Any]], *heads: list[int]) -> dict[str, Any]:
    """A symbol, or a subgraph of one."""
    arguments = [i for i, n in enumerate(nodes) if n["op"] == "null"]
    return {
        "nodes": nodes, "arg_nodes": arguments, "node_row_ptr": list(range(len(nodes) + 1)), "heads": list(heads),
        "attrs": {"mxnet_version": ["int", 10901]},
    }  # fmt: skip


# Control flow

_step = graph(
    nodes_of(3, ("elemwise_mul", [0, 1], {}), ("elemwise_add", [3, 2], {}), ("_plus_scalar", [4], {"scalar": 1})),
    [4, 0, 0],
    [5, 0, 0],
)  # of x, w, s: w x + s, and that plus 1
_foreach = {
    "in_data_locs": "[0]", "in_state_locs": "[2]", "remain_locs": "[1]", "num_args": 4, "num_out_data": 1,
    "num_outputs": 2, "subgraphs": [_step],
}  # fmt: skip
add_symbol("foreach", graph(nodes_of(3, ("_foreach", [0, 1, 2], _foreach), names="x"), [3, 0, 0], [3, 1, 0]),
           normal(4, 2), normal(2), normal(2))  # fmt: skip
_holds = graph(nodes_of(1, ("_lesser_scalar", [0], {"scalar": 4})), [1, 0, 0])
_go = graph(
    nodes_of(3, ("elemwise_mul", [0, 1], {}), ("_plus_scalar", [0], {"scalar": 1}), ("elemwise_add", [2, 3], {})),
    [3, 0, 0],
    [4, 0, 0],
    [5, 0, 0],
)  # of i, w, a: w i; i + 1, a + w i
_while = {
    "cond_input_locs": "[0]", "func_input_locs": "[0, 1, 2]", "func_var_locs": "[0, 2]", "num_args": 5,
    "num_out_data": 1, "num_outputs": 3, "subgraphs": [_holds, _go],
}  # fmt: skip
for _most in (3, 2):  # steps that MXNet leaves out are not set
    _whole = nodes_of(3, ("_while_loop", [0, 1, 2], {**_while, "max_iterations": _most}), names="x")
    add_symbol(f"while of {_most}", graph(_whole, [3, 0, 0], [3, 1, 0], [3, 2, 0]), array([1.0]), normal(1), normal(1))
_yes = graph(nodes_of(2, ("elemwise_mul", [0, 1], {})), [2, 0, 0])
_no = graph(nodes_of(2, ("elemwise_sub", [0, 1], {})), [2, 0, 0])
_same = graph(nodes_of(1, ("_copy", [0], {})), [1, 0, 0])
_cond = {
    "cond_input_locs": "[0]", "then_input_locs": "[1, 2]", "else_input_locs": "[1, 2]", "num_args": 6, "num_outputs": 1,
    "subgraphs": [_same, _yes, _no],
}  # fmt: skip
for _truth in (0.0, 1.0):
    _whole = nodes_of(3, ("_cond", [0, 1, 2], _cond), names="x")
    add_symbol(f"cond {_truth:.0f}", graph(_whole, [3, 0, 0]), array([_truth]), normal(2, 3), normal(2, 3))

# Densities

case("pdf uniform", "_random_pdf_uniform", uniform(2, 4), array([-1.0, -2.0]), array([1.0, 1.5]))
case("pdf normal", "_random_pdf_normal", normal(2, 4), normal(2), positive(2))
case("pdf normal log", "_random_pdf_normal", normal(2, 4), normal(2), positive(2), is_log=True)
case("pdf exponential", "_random_pdf_exponential", positive(2, 4), positive(2))
case("pdf gamma", "_random_pdf_gamma", positive(2, 4), positive(2), positive(2))
case("pdf poisson", "_random_pdf_poisson", whole(6, 2, 4), positive(2))
case("pdf negative binomial", "_random_pdf_negative_binomial", whole(6, 2, 4), positive(2), uniform(2, low=0.2))
case("pdf general", "_random_pdf_generalized_negative_binomial", whole(6, 2, 4), positive(2), positive(2))
case("pdf dirichlet", "_random_pdf_dirichlet", lambda r: r.dirichlet([1, 2, 3], (2, 4)).astype("float32"),
     positive(2, 3))  # fmt: skip
