"""Cases of operators in NumPy's style (`_np_`, `_npi_`, `_npx_`), which gluon models use since 1.6; see cases.py."""

from __future__ import annotations

from typing import Any

from .cases import Draw, array, case, normal, positive, symmetric, uniform, whole


def several(names: str, *inputs: Draw, kind: str = "", outs: int = 1, **attrs: Any) -> None:
    """One case for each of the names, which the case is called by."""
    for name in names.split():
        case(f"{name} {kind}".strip(), name, *inputs, outs=outs, **attrs)


BITS = "_npi_bitwise_and _npi_bitwise_or _npi_bitwise_xor"
COMPARED = "equal not_equal greater greater_equal less less_equal"
PAIRS = "_npi_add _npi_subtract _npi_multiply _npi_true_divide _npi_power _npi_mod _npi_maximum _npi_minimum"
SCALARS = "_npi_add _npi_subtract _npi_rsubtract _npi_multiply _npi_true_divide _npi_rtrue_divide _npi_power "
SCALARS += "_npi_rpower _npi_mod _npi_rmod _npi_maximum _npi_minimum"
NAMES = "absolute ceil floor exp negative reciprocal sign sin cos tan sinh cosh tanh expm1 square trunc fix rint "
NAMES += "degrees radians"

# Element by element

several(" ".join(f"_npi_{n}" for n in NAMES.split()), normal(2, 3))
several("_npi_sqrt _npi_log _npi_log10 _npi_log2 _npi_log1p _npi_cbrt", positive(2, 3))
several("_npi_arcsin _npi_arccos _npi_arctan _npi_arcsinh _npi_arctanh", uniform(2, 3))
several("_npi_arccosh", uniform(2, 3, low=1.1, high=4))
several("_npi_exp _npi_sqrt _npi_sin _npi_log1p", whole(5, 2, 3, low=1, dtype="int32"), kind="of integers")
several("_npi_logical_not _npi_isnan _npi_isinf _npi_isfinite _npi_isposinf _npi_isneginf _np_copy",
        array([[0, 1, float("inf")], [float("-inf"), float("nan"), -2]]))  # fmt: skip
several("_npi_bitwise_not", whole(9, 2, 3, dtype="int32"))
several("_npi_bitwise_not", array([True, False], "bool"), kind="of truths")
for _decimals in (0, 2, -1):
    case(f"around {_decimals}", "_npi_around", array([0.5, 1.5, -2.5, 12.345, -0.125, 17.0, 25.0]), decimals=_decimals)
case("nan to num", "_npi_nan_to_num", array([1, float("nan"), float("inf"), float("-inf")]), nan=2.0, posinf=9.0)
several(PAIRS, positive(2, 3, 4), positive(3, 1))
several(PAIRS, whole(4, 2, 3, low=1, dtype="int32"), whole(4, 1, 3, low=1, dtype="int32"), kind="of integers")
several("_npi_add _npi_subtract _npi_multiply _npi_true_divide _npi_power", positive(2, 3),
        whole(4, 3, low=1, dtype="int32"), kind="of two kinds")  # fmt: skip
several("_npi_add _npi_multiply _npi_true_divide", whole(4, 3, low=1, dtype="int32"), positive(2, 3), kind="turned")
several("_npi_arctan2 _npi_copysign _npi_hypot", normal(2, 3, 4), normal(3, 1))
several("_npi_ldexp", normal(2, 3), array([0, 1, -2]))
several("_npi_lcm", whole(12, 2, 3, low=1, dtype="int32"), whole(12, 3, low=1, dtype="int32"))
several(BITS, whole(9, 2, 3, dtype="int32"), whole(9, 1, 3, dtype="int32"))
several(BITS, array([True, False, True], "bool"), array([True, False, False], "bool"), kind="of truths")
several(" ".join(f"_npi_{n}" for n in COMPARED.split()), whole(3, 2, 3), whole(3, 1, 3))
for _kind in ("float32", "int32"):
    _whole = whole(4, 2, 3, low=1, dtype=_kind)
    several(" ".join(f"{n}_scalar" for n in SCALARS.split()), _whole, kind=_kind, scalar=2.0, is_int=True)
    several(" ".join(f"_npi_{n}_scalar" for n in COMPARED.split()), _whole, kind=_kind, scalar=2.0, is_int=True)
several(" ".join(f"{n}_scalar" for n in SCALARS.split() if "imum" not in n), whole(4, 2, 3, low=1, dtype="int32"),
        kind="of a fraction", scalar=2.5, is_int=False)  # fmt: skip
several(" ".join(f"{n}_scalar" for n in BITS.split()), whole(9, 2, 3, dtype="int32"), scalar=5.0, is_int=True)
several("_npi_arctan2_scalar _npi_rarctan2_scalar _npi_copysign_scalar _npi_rcopysign_scalar _npi_hypot_scalar",
        normal(2, 3), scalar=-1.5, is_int=False)  # fmt: skip
several("_npi_ldexp_scalar _npi_rldexp_scalar", array([[0, 1, -2]]), scalar=3.0, is_int=False)
several("_npi_lcm_scalar", whole(12, 2, 3, low=1, dtype="int32"), scalar=6.0, is_int=True)
several("_npi_where", whole(2, 2, 3), normal(2, 3), normal(3))
several("_npi_where_lscalar _npi_where_rscalar", whole(2, 2, 3), normal(3), scalar=2.5)
several("_npi_where_scalar2", whole(2, 2, 3), x=2.5, y=-1.0)
several("_npi_clip", normal(2, 3), a_min=-0.5, a_max=0.5)

# Reductions

REDUCED = "_np_sum _np_prod _np_max _np_min _npi_mean _npi_std _npi_var"
several(REDUCED, positive(2, 3, 4), kind="of all")
several(REDUCED, positive(2, 3, 4), kind="of axes", axis=(0, -1))
several(REDUCED, positive(2, 3, 4), kind="kept", axis=1, keepdims=True)
several("_np_sum _np_prod _npi_mean", whole(5, 2, 3, dtype="int32"), kind="of integers", axis=0)
several("_np_sum", array([True, False, True], "bool"), kind="of truths")
several("_np_sum _npi_mean", normal(2, 3), kind="in float64", dtype="float64", axis=0)
several("_npi_std _npi_var", normal(4, 3), kind="of a sample", ddof=1, axis=0)
several("_np_any _np_all", whole(2, 3, 4), kind="of an axis", axis=1)
several("_np_any _np_all", whole(2, 3, 4), kind="of all", keepdims=True)
several("_npi_argmax _npi_argmin", normal(3, 4), kind="of all")
several("_npi_argmax _npi_argmin", normal(3, 4), kind="of an axis", axis=1, keepdims=True)
case("average", "_npi_average", normal(2, 3), positive(3), axis=1, weighted=True)
case("average of all", "_npi_average", normal(2, 3), weighted=False)
case("np cumsum", "_np_cumsum", normal(2, 3), axis=1)
case("np cumsum of all", "_np_cumsum", whole(5, 2, 3, dtype="int32"), dtype="int64")
case("np trace", "_np_trace", normal(3, 4, 2), offset=1)
for _way in "linear lower higher midpoint nearest".split():
    case(f"percentile {_way}", "_npi_percentile", normal(4, 5), axis=1, interpolation=_way, q_scalar=35.0)
case("percentiles", "_npi_percentile", normal(4, 5), array([10.0, 90.0]), axis=0, keepdims=True)
case("np sort", "_npi_sort", normal(2, 3))
case("np argsort", "_npi_argsort", normal(2, 3), dtype="int64")
case("bincount", "_npi_bincount", whole(5, 9, dtype="int32"), minlength=7)
case("bincount weighted", "_npi_bincount", array([0, 1, 1, 3], "int32"), positive(4), has_weights=True)
case("diff", "_npi_diff", normal(3, 5), n=2, axis=0)
case("ediff1d", "_npi_ediff1d", normal(2, 3), to_begin_scalar=1.0, to_end_scalar=-1.0)
case("unique", "_npi_unique", whole(4, 9))
case("unique with all", "_npi_unique", whole(4, 9), return_index=True, return_inverse=True, return_counts=True, outs=4)
case("nonzero", "_npx_nonzero", whole(2, 3, 4))

# Shapes

several("_np_atleast_1d _np_atleast_2d _np_atleast_3d", array(2.0), kind="of a number", num_args=1)
several("_np_atleast_1d _np_atleast_2d _np_atleast_3d", normal(4), normal(2, 3), num_args=2, outs=2)
case("np diag", "_np_diag", normal(4, 5), k=1)
case("diagflat", "_np_diagflat", normal(2, 2), k=-1)
case("np diagonal", "_np_diagonal", normal(2, 3, 4), offset=1, axis1=0, axis2=2)
case("moveaxis", "_np_moveaxis", normal(2, 3, 4), source=(0, 1), destination=(-1, 0))
case("np reshape", "_np_reshape", normal(2, 3, 4), newshape=(-1, 6), order="C")
for _shape in "(-2,-1) (-5,-4) (-6,1,-1,-4) (2,-1) (-2,-6,-1,3,-2)".split():
    case(f"npx reshape {_shape}", "_npx_reshape", normal(2, 3, 4), newshape=_shape)
case("npx reshape dropped", "_npx_reshape", normal(2, 1, 4), newshape="(-2,-3,-1)")
case("npx reshape reversed", "_npx_reshape", normal(2, 3, 4), newshape="(-1,-2)", reverse=True)
case("roll", "_np_roll", normal(3, 4), shift=2, axis=1)
case("roll of axes", "_np_roll", normal(3, 4), shift=(1, -1), axis=(0, 1))
case("roll of all", "_np_roll", normal(3, 4), shift=5)
case("np transpose", "_np_transpose", normal(2, 3, 4))
case("np transpose of axes", "_np_transpose", normal(2, 3, 4), axes=(1, 0, 2))
case("np squeeze", "_np_squeeze", normal(2, 1, 3))
case("np expand dims", "_npi_expand_dims", normal(2, 3), axis=1)
case("np swapaxes", "_npi_swapaxes", normal(2, 3, 4), dim1=0, dim2=2)
several("_npi_column_stack _npi_hstack _npi_vstack _npi_dstack", normal(3), normal(3), kind="of vectors", num_args=2)
several("_npi_column_stack _npi_hstack _npi_vstack _npi_dstack", normal(2, 3), normal(2, 3), num_args=2)
case("np concatenate", "_npi_concatenate", normal(2, 3), normal(2, 4), num_args=2, axis=1)
case("np stack", "_npi_stack", normal(2, 3), normal(2, 3), num_args=2, axis=1)
case("np split", "_npi_split", normal(6, 2), indices=(0, 2, 3), axis=0, outs=3)
case("hsplit", "_npi_hsplit", normal(2, 6), indices="()", sections=3, outs=3)
case("hsplit at", "_npi_hsplit", normal(2, 6), indices=(0, 2, 3), outs=3)
case("dsplit", "_npi_dsplit", normal(2, 2, 4), indices="()", sections=2, axis=2, outs=2)
case("np tile", "_npi_tile", normal(2, 3), reps=(2, 1))
case("np repeat", "_np_repeat", normal(2, 3), repeats=2, axis=0)
case("np flip", "_npi_flip", normal(2, 3), axis=1)
for _k in (1, 2, 3):
    case(f"rot90 {_k}", "_npi_rot90", normal(2, 3, 4), k=_k, axes=(0, 2))
case("np full like", "_npi_full_like", normal(2, 3), fill_value=2.5)
case("np tril", "_npi_tril", normal(2, 3, 4), k=1)
case("np broadcast to", "_npi_broadcast_to", normal(2, 1, 3), shape=(2, 4, 3))
for _mode in "constant edge reflect symmetric maximum minimum".split():
    case(f"np pad {_mode}", "_npi_pad", normal(3, 4), mode=_mode, pad_width="((1, 2), (0, 2))", constant_value=1.5)
case("delete one", "_npi_delete", normal(3, 4), int_ind=1, axis=1)
case("delete slice", "_npi_delete", normal(5, 4), start=0, stop=4, step=2, axis=0)
case("delete some", "_npi_delete", normal(3, 4), array([0, 2], "int32"), axis=1)
case("insert one", "_npi_insert_scalar", normal(3, 4), normal(3), int_ind=1, axis=1)
case("insert slice", "_npi_insert_slice", normal(4, 3), normal(2, 3), start=0, stop=4, step=2, axis=0)
case("insert some", "_npi_insert_tensor", normal(3, 4), normal(3, 2), array([0, 2], "int64"), axis=1)
case("np take", "_npi_take", normal(5, 4), whole(5, 2, 3, dtype="int32"), axis=0)
case("np gather nd", "_npx_gather_nd", normal(3, 4), array([[0, 2], [1, 3]], "int64"))
case("np one hot", "_npx_one_hot", whole(4, 3, dtype="int32"), depth=5)
case("np pick", "_npx_pick", normal(3, 4), whole(4, 3), axis=1)
case("np boolean mask", "_npi_boolean_mask", normal(4, 3), array([1, 0, 1, 1], "bool"))
case("np diag indices", "_npi_diag_indices_from", normal(3, 3))

# Fills

case("indices", "_npi_indices", dimensions=(2, 3))
several("_npi_blackman _npi_hamming _npi_hanning", M=7)
case("logspace", "_npi_logspace", start=0.0, stop=2.0, num=5)
case("np zeros", "_npi_zeros", shape=(2, 3))
case("np ones of no axes", "_npi_ones", shape="()")
case("np arange", "_npi_arange", start=1.0, stop=7.0, step=2.0, dtype="int64")
case("np linspace", "_npi_linspace", start=0.0, stop=1.0, num=5)
case("np eye", "_npi_eye", N=3, M=4, k=1)
case("np identity", "_npi_identity", shape=(3, 3))

# Algebra

for _a, _b in [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 2)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
]:
    case(f"np dot {_a} {_b}", "_np_dot", normal(*_a), normal(*_b))
    case(f"np matmul {_a} {_b}", "_npi_matmul", normal(*_a), normal(*_b))
case("np dot by a number", "_np_dot", normal(2, 3), array(2.0))
case("tensordot", "_npi_tensordot", normal(2, 3, 4), normal(4, 3, 5), a_axes_summed=(1, 2), b_axes_summed=(1, 0))
case("tensordot of axes", "_npi_tensordot_int_axes", normal(2, 3, 4), normal(3, 4, 5), axes=2)
case("tensordot outer", "_npi_tensordot_int_axes", normal(2, 3), normal(4), axes=0)
case("einsum", "_npi_einsum", normal(2, 3, 4), normal(2, 4, 5), num_args=2, subscripts="bij,bjk->bik")
case("einsum of a diagonal", "_npi_einsum", normal(3, 3), num_args=1, subscripts="ii")
case("np cholesky", "_npi_cholesky", symmetric(3, 2))
case("np eigvalsh", "_npi_eigvalsh", symmetric(3, 2))
case("np solve", "_npi_solve", symmetric(3, 2), normal(2, 3, 4))
case("np solve of a vector", "_npi_solve", symmetric(3), normal(3))
case("np inv", "_npi_inv", symmetric(3, 2))
case("np det", "_npi_det", symmetric(3))
case("np slogdet", "_npi_slogdet", symmetric(3, 2), outs=2)
case("pinv", "_npi_pinv_scalar_rcond", normal(2, 4, 3))
case("tensorinv", "_npi_tensorinv", normal(2, 3, 6), ind=2)
case("tensorsolve", "_npi_tensorsolve", normal(2, 3, 6), normal(2, 3))
case("polyval", "_npi_polyval", normal(4), normal(2, 3))

# Layers

case("npx dense", "_npx_fully_connected", normal(2, 3, 4), normal(5, 4), normal(5), num_hidden=5, flatten=False)
case("npx conv", "_npx_convolution", normal(2, 3, 7, 8), normal(4, 3, 3, 2), normal(4), kernel=(3, 2), num_filter=4)
case("npx pooling", "_npx_pooling", normal(2, 3, 7, 8), kernel=(2, 2), stride=(2, 2), pool_type="max")
case("npx batch norm", "_npx_batch_norm", normal(2, 3, 4, 4), positive(3), normal(3), normal(3), positive(3),
     fix_gamma=False)  # fmt: skip
case("npx layer norm", "_npx_layer_norm", normal(2, 3, 4), positive(4), normal(4))
several("_npx_relu _npx_sigmoid _npx_erf _npx_softmax _npx_log_softmax", normal(2, 3))
several("_npx_erfinv", uniform(2, 3))
several("_npx_gamma _npx_gammaln", positive(2, 3))
case("npx activation", "_npx_activation", normal(2, 3), act_type="softrelu")
case("npx leaky relu", "_npx_leaky_relu", normal(2, 3), act_type="gelu")
case("npx embedding", "_npx_embedding", whole(5, 2, 3), normal(5, 4), input_dim=5, output_dim=4)
case("npx topk", "_npx_topk", normal(3, 5), k=2, ret_typ="value")
case("npx batch dot", "_npx_batch_dot", normal(2, 3, 4), normal(2, 5, 4), transpose_b=True)
case("npx batch flatten", "_npx_batch_flatten", normal(2, 3, 4))
case("npx sequence mask", "_npx_sequence_mask", normal(4, 2, 3), array([2, 3]), use_sequence_length=True)
case("npx smooth l1", "_npx_smooth_l1", normal(2, 3), scalar=1.0)
case("npx arange like", "_npx_arange_like", normal(2, 3), axis=1)
case("npx shape array", "_npx_shape_array", normal(2, 3))
case("npx reshape like", "_npx_reshape_like", normal(2, 6), normal(3, 4))
case("np norm of all", "_npi_norm", normal(2, 3), ord=2, flag=-2)
case("np norm of an axis", "_npi_norm", normal(2, 3), axis=1, ord=2, flag=1, keepdims=True)
