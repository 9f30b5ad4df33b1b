"""Cases of layers, images and boxes; see cases.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cases import Draw, array, boxes, case, doubles, normal, positive, uniform, whole

# Layers

case("dense", "FullyConnected", normal(2, 3, 4), normal(5, 12), normal(5), num_hidden=5)
case("dense of the last axis", "FullyConnected", normal(2, 3, 4), normal(5, 4), normal(5), num_hidden=5, flatten=False)
case(
    "conv of one axis",
    "Convolution",
    normal(2, 4, 9),
    normal(6, 2, 3),
    normal(6),
    kernel=(3,),
    num_filter=6,
    num_group=2,
    stride=(2,),
    pad=(1,),
)
case(
    "conv",
    "Convolution",
    normal(2, 3, 7, 8),
    normal(4, 3, 3, 2),
    kernel=(3, 2),
    num_filter=4,
    no_bias=True,
    stride=(2, 1),
    pad=(1, 0),
)
case(
    "deconv grouped",
    "Deconvolution",
    normal(2, 4, 5, 6),
    normal(4, 3, 3, 3),
    kernel=(3, 3),
    num_filter=6,
    num_group=2,
    stride=(2, 2),
    pad=(1, 1),
    adj=(1, 1),
)
case(
    "deconv to a size",
    "Deconvolution",
    doubles(1, 2, 4, 4),
    doubles(2, 3, 4, 4),
    kernel=(4, 4),
    num_filter=3,
    stride=(2, 2),
    target_shape=(7, 8),
)
case(
    "deconv with a bias",
    "Deconvolution",
    normal(1, 2, 4),
    normal(2, 3, 3),
    normal(3),
    kernel=(3,),
    num_filter=3,
    no_bias=False,
)
for _kind in "max avg sum".split():
    case(
        f"pool {_kind} full",
        "Pooling",
        positive(1, 2, 7, 8),
        kernel=(3, 3),
        stride=(2, 2),
        pool_type=_kind,
        pooling_convention="full",
    )
    case(
        f"pool {_kind} full padded",
        "Pooling",
        positive(1, 2, 6, 7),
        kernel=(2, 2),
        stride=(2, 2),
        pad=(1, 1),
        pool_type=_kind,
        pooling_convention="full",
    )
    case(
        f"pool {_kind} far",
        "Pooling",
        positive(1, 2, 8, 9),
        kernel=(2, 2),
        stride=(3, 3),
        pool_type=_kind,
        pooling_convention="full",
    )
    case(f"pool {_kind} of one axis", "Pooling", positive(1, 2, 9), kernel=(3,), stride=(2,), pad=(1,), pool_type=_kind)
    case(f"pool {_kind} global", "Pooling", positive(1, 2, 5, 6), kernel=(1, 1), global_pool=True, pool_type=_kind)
case(
    "pool avg without padding",
    "Pooling",
    positive(1, 2, 7, 8),
    kernel=(3, 3),
    stride=(2, 2),
    pad=(1, 1),
    pool_type="avg",
    count_include_pad=False,
)
case(
    "pool avg full without padding",
    "Pooling",
    positive(1, 2, 6, 7),
    kernel=(3, 3),
    stride=(2, 2),
    pad=(1, 1),
    pool_type="avg",
    count_include_pad=False,
    pooling_convention="full",
)
for _power in (1, 2, 3):
    case(
        f"pool lp {_power}",
        "Pooling",
        positive(1, 2, 7, 8),
        kernel=(3, 3),
        stride=(2, 2),
        pool_type="lp",
        p_value=_power,
    )
case("pool adaptive", "_contrib_AdaptiveAvgPooling2D", normal(1, 2, 7, 8), output_size=(3, 5))
case(
    "batch norm of an axis",
    "BatchNorm",
    normal(2, 3, 4),
    positive(4),
    normal(4),
    normal(4),
    positive(4),
    axis=-1,
    fix_gamma=False,
)
case(
    "batch norm with eps",
    "BatchNorm",
    normal(2, 3),
    positive(3),
    normal(3),
    normal(3),
    positive(3),
    eps=0.1,
    fix_gamma=False,
)
case(
    "batch norm global",
    "BatchNorm",
    normal(2, 3, 4),
    positive(3),
    normal(3),
    normal(3),
    positive(3),
    use_global_stats=True,
)
case(
    "batch norm with relu",
    "_contrib_BatchNormWithReLU",
    normal(2, 3, 4, 4),
    positive(3),
    normal(3),
    normal(3),
    positive(3),
    fix_gamma=False,
)
case("layer norm", "LayerNorm", normal(2, 3, 4), positive(4), normal(4))
case("layer norm of axis 1", "LayerNorm", normal(2, 3, 4), positive(3), normal(3), axis=1)
case("instance norm", "InstanceNorm", normal(2, 3, 4, 5), positive(3), normal(3))
for _mode in "instance channel spatial".split():
    case(f"l2 {_mode}", "L2Normalization", normal(2, 3, 4, 5), mode=_mode)
case("dropout", "Dropout", normal(2, 3), p=0.3)
case("dropout of axes", "Dropout", normal(2, 3), p=0.3, axes=(1,))
case("softmax output", "SoftmaxOutput", normal(2, 5), whole(5, 2))
case("softmax output flat", "SoftmaxOutput", normal(2, 3, 4), whole(5, 2, 3))
case("softmax output kept", "SoftmaxOutput", normal(2, 3, 4), whole(4, 2, 3), preserve_shape=True)
case("softmax activation", "SoftmaxActivation", normal(2, 3, 4), mode="channel")
case("logistic", "LogisticRegressionOutput", normal(2, 3), normal(2, 3))
case("mae", "MAERegressionOutput", normal(2, 3), normal(2, 3))
case("selfatt qk", "_contrib_interleaved_matmul_selfatt_qk", normal(5, 2, 24), heads=2)
case("selfatt valatt", "_contrib_interleaved_matmul_selfatt_valatt", normal(5, 2, 24), normal(4, 5, 5), heads=2)
case("encdec qk", "_contrib_interleaved_matmul_encdec_qk", normal(3, 2, 8), normal(5, 2, 16), heads=2)
case("encdec valatt", "_contrib_interleaved_matmul_encdec_valatt", normal(5, 2, 16), normal(4, 3, 5), heads=2)


def _blob(mode: str, inputs: int, hidden: int, layers: int, directions: int) -> int:
    gates = {"lstm": 4, "gru": 3}.get(mode, 1)
    sizes = [inputs, *[hidden * directions] * (layers - 1)]
    return sum(directions * gates * hidden * (s + hidden + 2) for s in sizes)


for _mode in "rnn_relu rnn_tanh lstm gru".split():
    for _layers, _two in ((1, False), (2, True)):
        _both = 1 + _two
        _more = [normal(_layers * _both, 3, 5)] if _mode == "lstm" else []
        case(
            f"rnn {_mode} {_layers}",
            "RNN",
            normal(4, 3, 6),
            uniform(_blob(_mode, 6, 5, _layers, _both)),
            normal(_layers * _both, 3, 5),
            *_more,
            mode=_mode,
            num_layers=_layers,
            state_size=5,
            bidirectional=_two,
            state_outputs=True,
            outs=2 + (_mode == "lstm"),
        )

# Images and boxes

case(
    "upsampling of two",
    "UpSampling",
    normal(1, 2, 4, 4),
    normal(1, 3, 2, 2),
    num_args=2,
    scale=2,
    sample_type="nearest",
)
case(
    "upsampling bilinear",
    "UpSampling",
    normal(1, 2, 4, 5),
    normal(2, 1, 4, 4),
    num_args=2,
    scale=2,
    sample_type="bilinear",
    num_filter=2,
)
case("resize", "_contrib_BilinearResize2D", normal(1, 2, 4, 5), height=7, width=9)
case("resize half pixel", "_contrib_BilinearResize2D", normal(1, 2, 4, 5), height=8, width=10, align_corners=False)
case("resize by scale", "_contrib_BilinearResize2D", normal(1, 2, 4, 5), scale_height=2.0, scale_width=3.0)
case("grid warp", "GridGenerator", normal(1, 2, 4, 5), transform_type="warp")
case("sampler", "BilinearSampler", normal(1, 2, 4, 5), uniform(1, 2, 3, 3, low=-1.2, high=1.2))
case(
    "spatial transformer",
    "SpatialTransformer",
    normal(2, 2, 4, 5),
    uniform(2, 6),
    sampler_type="bilinear",
    transform_type="affine",
    target_shape=(3, 6),
)
case(
    "roi pooling",
    "ROIPooling",
    normal(2, 3, 8, 8),
    array([[0, 0, 0, 5, 6], [1, 2, 1, 7, 7]]),
    pooled_size=(2, 3),
    spatial_scale=1.0,
)
case(
    "roi align",
    "_contrib_ROIAlign",
    normal(2, 3, 8, 8),
    array([[0, 0.5, 0, 5, 6], [1, 2, 1, 7, 7.5]]),
    pooled_size=(2, 3),
    spatial_scale=0.7,
    sample_ratio=2,
)
case(
    "roi align aligned",
    "_contrib_ROIAlign",
    normal(2, 3, 8, 8),
    array([[0, 0.5, 0, 5, 6], [1, 2, 1, 7, 7.5]]),
    pooled_size=(2, 3),
    spatial_scale=0.7,
    aligned=True,
)
case(
    "deformable",
    "_contrib_DeformableConvolution",
    normal(1, 2, 5, 6),
    uniform(1, 18, 5, 6),
    normal(3, 2, 3, 3),
    kernel=(3, 3),
    num_filter=3,
    pad=(1, 1),
    no_bias=True,
)
case(
    "deformable modulated",
    "_contrib_ModulatedDeformableConvolution",
    normal(1, 2, 5, 6),
    uniform(1, 18, 5, 6),
    positive(1, 9, 5, 6),
    normal(3, 2, 3, 3),
    normal(3),
    kernel=(3, 3),
    num_filter=3,
    pad=(1, 1),
)
case(
    "correlation of differences",
    "Correlation",
    normal(1, 3, 8, 9),
    normal(1, 3, 8, 9),
    max_displacement=2,
    stride2=2,
    pad_size=2,
    is_multiply=False,
)
case(
    "correlation of patches",
    "Correlation",
    normal(1, 3, 10, 9),
    normal(1, 3, 10, 9),
    kernel_size=3,
    max_displacement=2,
    stride1=2,
    pad_size=3,
)
case(
    "prior boxes",
    "_contrib_MultiBoxPrior",
    normal(1, 2, 3, 5),
    sizes=(0.3, 0.6),
    ratios=(1, 2, 0.5),
    clip=True,
    offsets=(0.4, 0.6),
)
case("iou", "_contrib_box_iou", boxes(3), boxes(2, 2))
case("iou of centres", "_contrib_box_iou", positive(3, 4), positive(2, 4), format="center")
case(
    "box decode",
    "_contrib_box_decode",
    normal(2, 3, 4),
    boxes(1, 3),
    std0=0.1,
    std1=0.2,
    std2=0.3,
    std3=0.2,
    format="corner",
)
case("box decode of centres", "_contrib_box_decode", normal(2, 3, 4), positive(1, 3, 4), clip=0.5)


def _scored(classes: int, *shape: int) -> Draw:
    """[class, score, corners], all scores different."""

    def draw(r: np.random.Generator) -> Any:
        count = int(np.prod(shape))
        scores = (r.permutation(count) + 0.5) / count
        parts = [r.integers(0, classes, count), scores, *np.moveaxis(boxes(count)(r), 1, 0)]
        return np.stack(parts, 1).reshape(*shape, 6).astype(np.float32)

    return draw


case("nms", "_contrib_box_nms", _scored(2, 2, 12), overlap_thresh=0.3, coord_start=2, score_index=1, id_index=0)
case(
    "nms by force",
    "_contrib_box_nms",
    _scored(2, 12),
    overlap_thresh=0.3,
    force_suppress=True,
    id_index=0,
    valid_thresh=0.2,
)
case("nms of few", "_contrib_box_nms", _scored(2, 2, 12), overlap_thresh=0.3, topk=5)
case(
    "nms without background",
    "_contrib_box_nms",
    _scored(3, 2, 12),
    overlap_thresh=0.3,
    id_index=0,
    background_id=1,
    out_format="center",
)
case(
    "detection",
    "_contrib_MultiBoxDetection",
    lambda r: np.moveaxis(r.dirichlet(np.ones(3), (2, 8)), 2, 1).astype(np.float32),
    lambda r: (0.3 * r.standard_normal((2, 32))).astype(np.float32),
    boxes(1, 8),
    nms_threshold=0.4,
)
case(
    "detection of few",
    "_contrib_MultiBoxDetection",
    lambda r: np.moveaxis(r.dirichlet(np.ones(3), (2, 8)), 2, 1).astype(np.float32),
    lambda r: (0.3 * r.standard_normal((2, 32))).astype(np.float32),
    boxes(1, 8),
    nms_threshold=0.4,
    nms_topk=3,
    threshold=0.3,
)
case("image normalise", "_image_normalize", uniform(3, 4, 5), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
case("image to tensor", "_image_to_tensor", whole(255, 4, 5, 3, dtype="uint8"))
case("image flip", "_image_flip_left_right", normal(4, 6, 3))  # MXNet blanks the middle of odd widths
case("image flip down", "_image_flip_top_bottom", normal(4, 5, 3))
case("image crop", "_image_crop", normal(4, 5, 3), x=1, y=1, width=3, height=2)
case("im2col", "im2col", normal(1, 2, 5, 6), kernel=(3, 2), stride=(2, 1), pad=(1, 0))
case("col2im", "col2im", normal(1, 12, 9), output_size=(5, 4), kernel=(3, 2), stride=(1, 1))


# Losses of sequences, targets, regions


def _texts(blank: int, *lengths: int, most: int = 4, letters: int = 6) -> Draw:
    """Labels of so many letters, with the padding behind them; a letter that repeats is among them."""

    def draw(r: np.random.Generator) -> Any:
        rows = np.full((len(lengths), most), 0 if blank == 0 else -1, np.float32)
        for row, n in zip(rows, lengths, strict=True):
            row[:n] = r.integers(1 if blank == 0 else 0, letters - (blank != 0), n)
            row[1 : min(n, 2)] = row[0]
        return rows

    return draw


def _numbers(*values: float) -> Draw:
    return array(np.array(values, np.float32))


case("ctc", "CTCLoss", normal(9, 3, 6), _texts(0, 4, 2, 1))
case("ctc, blank last", "_contrib_CTCLoss", normal(9, 3, 6), _texts(5, 3, 4, 1), blank_label="last")
case(
    "ctc of lengths", "CTCLoss", normal(9, 3, 6), _texts(0, 4, 4, 4), _numbers(9, 6, 7), _numbers(2, 4, 3),
    use_data_lengths=True, use_label_lengths=True,
)  # fmt: skip
case("ctc of frames", "CTCLoss", normal(7, 2, 6), _texts(0, 3, 2), _numbers(5, 7), use_data_lengths=True)
case("ctc of no letters", "CTCLoss", normal(5, 2, 6), _texts(0, 0, 2))
case("ctc that does not fit", "CTCLoss", normal(4, 2, 6), _texts(0, 4, 3))


def _labelled(*counts: int, most: int = 3) -> Draw:
    """[class, corners] of so many objects, -1 behind them."""

    def draw(r: np.random.Generator) -> Any:
        rows = np.full((len(counts), most, 5), -1, np.float32)
        for row, n in zip(rows, counts, strict=True):
            row[:n] = np.concatenate([r.integers(0, 2, (n, 1)), boxes(n)(r)], 1)
        return rows

    return draw


_target = (boxes(1, 12), _labelled(3, 0, 1), normal(3, 3, 12))
case("targets", "_contrib_MultiBoxTarget", *_target, outs=3)
case(
    "targets of little overlap",
    "_contrib_MultiBoxTarget",
    *_target,
    outs=3,
    overlap_threshold=0.1,
    variances=(1, 1, 1, 1),
)
case(
    "targets with mining", "_contrib_MultiBoxTarget", *_target, outs=3, overlap_threshold=0.2,
    negative_mining_ratio=1.5,
    negative_mining_thresh=0.5, ignore_label=-2,
)  # fmt: skip
case("targets of the best alone", "_contrib_MultiBoxTarget", *_target, outs=3, overlap_threshold=-1)


def _chances(*shape: int) -> Draw:
    return lambda r: ((r.permutation(int(np.prod(shape))) + 0.5) / np.prod(shape)).reshape(shape).astype(np.float32)


def _shifts(*shape: int) -> Draw:
    return lambda r: (0.3 * r.standard_normal(shape)).astype(np.float32)


_few: dict[str, Any] = {"scales": (1, 2), "ratios": (0.5, 1, 2), "feature_stride": 8, "rpn_min_size": 6}
case(
    "proposals", "_contrib_Proposal", _chances(1, 12, 5, 6), _shifts(1, 24, 5, 6), array([[40, 48, 1]]),
    **_few, rpn_pre_nms_top_n=60, rpn_post_nms_top_n=20, threshold=0.5, output_score=True, outs=2,
)  # fmt: skip
case(
    "proposals that repeat", "_contrib_Proposal", _chances(1, 12, 3, 4), _shifts(1, 24, 3, 4),
    array([[20, 30, 1.5]]), **_few, rpn_pre_nms_top_n=30, rpn_post_nms_top_n=40, threshold=0.2,
)  # fmt: skip
case(
    "proposals of several", "_contrib_MultiProposal", _chances(2, 12, 4, 4), _shifts(2, 24, 4, 4),
    array([[32, 30, 1], [25, 32, 1]]), **_few, rpn_post_nms_top_n=12, output_score=True, outs=2,
)  # fmt: skip
case(
    "proposals by corners", "_contrib_Proposal", _chances(1, 12, 3, 4), normal(1, 24, 3, 4),
    array([[24, 32, 1]]), **_few, rpn_post_nms_top_n=15, iou_loss=True,
)  # fmt: skip


def _regions(count: int, size: float) -> Draw:
    """[picture, corners in pixels]."""
    return lambda r: np.concatenate(
        [r.integers(0, 2, (count, 1)), np.sort(r.uniform(-2, size, (count, 2, 2)), 1).reshape(count, 4)], 1
    ).astype(np.float32)


case("pool by position", "_contrib_PSROIPooling", normal(2, 18, 7, 8), _regions(6, 30.0), spatial_scale=0.25,
     output_dim=2, pooled_size=3)  # fmt: skip
case("pool by fewer groups", "_contrib_PSROIPooling", normal(2, 12, 7, 8), _regions(6, 30.0), spatial_scale=0.25,
     output_dim=3, pooled_size=4, group_size=2)  # fmt: skip
_shifted: dict[str, dict[str, Any]] = {
    "": {}, " with parts": {"part_size": 2, "sample_per_part": 3}, " of one group": {"group_size": 1},
}  # fmt: skip
for _name, _given in _shifted.items():
    _shift_attrs: dict[str, Any] = {
        "spatial_scale": 0.25, "output_dim": 4, "group_size": 3, "pooled_size": 3, "trans_std": 0.1,
        "sample_per_part": 2, **_given,
    }  # fmt: skip
    _depth, _part = 4 * _shift_attrs["group_size"] ** 2, _shift_attrs.get("part_size", 3)
    case(f"pool by shifted position{_name}", "_contrib_DeformablePSROIPooling", normal(2, _depth, 7, 8),
         _regions(6, 30.0), normal(6, 4, _part, _part), **_shift_attrs)  # fmt: skip
case("pool by samples of position", "_contrib_DeformablePSROIPooling", normal(2, 36, 7, 8), _regions(6, 40.0),
     spatial_scale=0.25, output_dim=4, group_size=3, pooled_size=3, no_trans=True, sample_per_part=4)  # fmt: skip
case("align by position", "_contrib_ROIAlign", normal(2, 18, 7, 8), _regions(6, 30.0), spatial_scale=0.25,
     pooled_size=(3, 3), sample_ratio=2, position_sensitive=True)  # fmt: skip


def _turned(count: int, size: float) -> Draw:
    """Pictures, middles, sizes, degrees."""

    def draw(r: np.random.Generator) -> Any:
        columns = [r.integers(0, 2, count), *r.uniform(0, size, (2, count)), *r.uniform(2, size, (2, count)),
                   r.uniform(-180, 180, count)]  # fmt: skip
        return np.stack(columns, 1).astype(np.float32)

    return draw


case("align turned", "_contrib_RROIAlign", normal(2, 3, 9, 8), _turned(6, 30.0), pooled_size=(3, 2), spatial_scale=0.25,
     sampling_ratio=2)  # fmt: skip

# Targets of boxes

_paired: dict[str, dict[str, Any]] = {
    "": {}, " of few": {"topk": 2}, " of low": {"is_ascend": True, "threshold": 0.7},
}  # fmt: skip
for _name, _given in _paired.items():
    case(f"pairs{_name}", "_contrib_bipartite_matching", uniform(2, 5, 3, low=0, high=1), outs=2,
         **{"threshold": 0.3, **_given})  # fmt: skip
case("pairs of equals", "_contrib_bipartite_matching", whole(3, 6, 4), threshold=0.5, outs=2)
case("pairs of batches", "_contrib_bipartite_matching", normal(2, 2, 3, 4), threshold=-0.5, outs=2)
case("box encode", "_contrib_box_encode", whole(2, 2, 6, low=-1), whole(4, 2, 6), boxes(2, 6), boxes(2, 4),
     array([0.1, 0, 0, 0.2]), array([0.1, 0.1, 0.2, 0.2]), outs=2)  # fmt: skip

# Histograms

case("histogram", "_histogram", normal(4, 50), bin_cnt=7, range=(-1.5, 2.0), outs=2)
case("histogram of ends", "_histogram", whole(6, 40), bin_cnt=5, range=(0, 5), outs=2)
case("histogram of whole numbers", "_histogram", whole(9, 40, dtype="int32"), bin_cnt=4, range=(1, 7), outs=2)
case("histogram of one", "_histogram", whole(3, 20), bin_cnt=4, range=(1, 1), outs=2)
case("histogram by bounds", "_histogram", normal(60), array([-1.0, -0.5, 0.25, 2.0]), outs=2)
