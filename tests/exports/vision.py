"""Architectures that read images, from transformers, made small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .answers import answers
from .architecture import EXPORTERS, Architecture, Read, Sizes

SQUARES = ({"height": 64, "width": 64}, {"height": 96, "width": 64}, {"height": 64, "width": 128})
# the first is the exporter's example, which takes sides for one dim where they are equal
SIXTEENS = ({"height": 96, "width": 48}, {"height": 48, "width": 48}, {"height": 32, "width": 64})
FOURTEENS = ({"height": 84, "width": 56}, {"height": 56, "width": 56}, {"height": 42, "width": 98})


def sees(
    name: str, make: Callable[[Any], Any], *returns: str, sizes: tuple[Sizes, ...] = SQUARES, side: int = 0,
    no_dynamo: str = "", **always: Any,
) -> Architecture:  # fmt: skip
    """An architecture that reads `pixel_values` of any size, or of `side` alone; `no_dynamo` says why the newer
    exporter cannot write it."""

    def build() -> Any:
        import transformers

        return answers(make(transformers), ("pixel_values",), returns, **always)

    dims = ("batch", 3, side, side) if side else ("batch", 3, "height", "width")
    exporters = ("torchscript",) if no_dynamo else EXPORTERS
    reads = (Read("pixel_values", dims),)
    return Architecture(name, build, reads, returns, ({},) if side else sizes, exporters, no_dynamo)


def segformer(t: Any) -> Any:
    return t.SegformerForSemanticSegmentation(
        t.SegformerConfig(
            num_encoder_blocks=3, depths=[1, 2, 1], sr_ratios=[4, 2, 1], hidden_sizes=[16, 32, 48],
            patch_sizes=[7, 3, 3], strides=[4, 2, 2], num_attention_heads=[1, 2, 4], mlp_ratios=[2, 2, 2],
            decoder_hidden_size=32, num_labels=6,
        )
    )  # fmt: skip


def convnext(t: Any) -> Any:
    return t.ConvNextForImageClassification(
        t.ConvNextConfig(hidden_sizes=[16, 24, 32], depths=[1, 2, 1], num_stages=3, num_labels=6)
    )


def convnext_v2(t: Any) -> Any:
    return t.ConvNextV2ForImageClassification(
        t.ConvNextV2Config(hidden_sizes=[16, 24, 32], depths=[1, 2, 1], num_stages=3, num_labels=6)
    )


def resnet(t: Any) -> Any:
    return t.ResNetForImageClassification(
        t.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64], depths=[1, 2, 1], num_labels=6)
    )


def regnet(t: Any) -> Any:
    return t.RegNetForImageClassification(
        t.RegNetConfig(embedding_size=16, hidden_sizes=[16, 32, 48], depths=[1, 2, 1], groups_width=8, num_labels=6)
    )


def mobilenet(t: Any) -> Any:
    return t.MobileNetV2ForImageClassification(t.MobileNetV2Config(depth_multiplier=0.25, num_labels=6))


def efficientnet(t: Any) -> Any:
    return t.EfficientNetForImageClassification(
        t.EfficientNetConfig(
            width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320, num_labels=6, in_channels=[32, 16, 24],
            out_channels=[16, 24, 40], kernel_sizes=[3, 3, 5], strides=[1, 2, 2], num_block_repeats=[1, 2, 2],
            expand_ratios=[1, 6, 6], depthwise_padding=[],
        )
    )  # fmt: skip


WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def vit(t: Any) -> Any:
    return t.ViTForImageClassification(t.ViTConfig(**WIDTHS, image_size=48, patch_size=16, num_labels=6))


def beit(t: Any) -> Any:
    return t.BeitForImageClassification(
        t.BeitConfig(
            **WIDTHS, image_size=48, patch_size=16, num_labels=6, use_relative_position_bias=True,
            use_absolute_position_embeddings=True, layer_scale_init_value=1.0, out_indices=[1],
        )
    )  # fmt: skip


def dinov2(t: Any) -> Any:
    return t.Dinov2Model(
        t.Dinov2Config(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2, image_size=56, patch_size=14
        )
    )


def swin(t: Any) -> Any:
    return t.SwinForImageClassification(
        t.SwinConfig(
            image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=6
        )
    )


def mobilevit(t: Any) -> Any:
    return t.MobileViTForImageClassification(
        t.MobileViTConfig(
            image_size=64, hidden_sizes=[32, 40, 48], neck_hidden_sizes=[8, 16, 24, 32, 40, 48, 64], num_labels=6,
            num_attention_heads=4,
        )
    )  # fmt: skip


def poolformer(t: Any) -> Any:
    return t.PoolFormerForImageClassification(
        t.PoolFormerConfig(
            depths=[1, 1, 1], hidden_sizes=[16, 24, 32], num_encoder_blocks=3, patch_sizes=[7, 3, 3],
            strides=[4, 2, 2], padding=[2, 1, 1], layer_scale_init_value=1.0, num_labels=6,
        )
    )  # fmt: skip


def pvt(t: Any) -> Any:
    return t.PvtV2ForImageClassification(
        t.PvtV2Config(
            hidden_sizes=[16, 32], depths=[1, 1], num_encoder_blocks=2, num_attention_heads=[1, 2], sr_ratios=[4, 2],
            mlp_ratios=[2, 2], patch_sizes=[7, 3], strides=[4, 2], num_labels=6,
        )
    )  # fmt: skip


def depth(t: Any) -> Any:
    backbone = t.Dinov2Config(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=4, mlp_ratio=2, image_size=56, patch_size=14,
        out_indices=[1, 2, 3, 4], reshape_hidden_states=False,
    )  # fmt: skip
    return t.DepthAnythingForDepthEstimation(
        t.DepthAnythingConfig(
            backbone_config=backbone, reassemble_hidden_size=32, patch_size=14, neck_hidden_sizes=[8, 12, 16, 16],
            fusion_hidden_size=16, head_hidden_size=8,
        )
    )  # fmt: skip


def detr(t: Any) -> Any:
    backbone = t.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    return t.DetrForObjectDetection(
        t.DetrConfig(
            use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone,
            d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=48, decoder_ffn_dim=48, num_queries=7, num_labels=6,
        )
    )  # fmt: skip


def yolos(t: Any) -> Any:
    return t.YolosForObjectDetection(
        t.YolosConfig(**WIDTHS, image_size=[64, 64], patch_size=16, num_detection_tokens=5, num_labels=6)
    )


def swin2sr(t: Any) -> Any:
    return t.Swin2SRForImageSuperResolution(
        t.Swin2SRConfig(
            image_size=16, patch_size=1, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4, upscale=2
        )
    )


VISION = (
    sees("SegFormer", segformer, "logits"),
    sees("ConvNeXt", convnext, "logits"),
    sees("ConvNeXt V2", convnext_v2, "logits"),
    sees("ResNet", resnet, "logits"),
    sees("RegNet", regnet, "logits"),
    sees("MobileNet V2", mobilenet, "logits"),
    sees("EfficientNet", efficientnet, "logits"),
    sees("ViT", vit, "logits", sizes=SIXTEENS, interpolate_pos_encoding=True),
    sees(
        "BEiT", beit, "logits", sizes=SIXTEENS, interpolate_pos_encoding=True,
        no_dynamo="it declares sizes as free and writes those of its example into a Reshape",
    ),
    sees("DINOv2", dinov2, "last_hidden_state", "pooler_output", sizes=FOURTEENS),
    sees("Swin", swin, "logits"),
    sees("MobileViT", mobilevit, "logits", side=64),
    sees("PoolFormer", poolformer, "logits"),
    sees("PVT v2", pvt, "logits"),
    sees("Depth Anything", depth, "predicted_depth", sizes=FOURTEENS),
    sees("DETR", detr, "logits", "pred_boxes"),
    sees("YOLOS", yolos, "logits", "pred_boxes"),
    sees("Swin2SR", swin2sr, "reconstruction", side=16),
)  # fmt: skip
