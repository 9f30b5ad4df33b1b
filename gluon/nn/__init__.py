"""Layers. Each is a hybrid block; sizes that are left out are inferred from the first input."""

from .activations import ELU, GELU, SELU, Activation, LeakyReLU, PReLU, SiLU, Swish
from .attention import MultiHeadAttention
from .basic import (
    Dense,
    Dropout,
    Embedding,
    Flatten,
    HybridLambda,
    HybridSequential,
    Identity,
    Lambda,
    Sequential,
)  # fmt: skip
from .conv import (
    AvgPool1D,
    AvgPool2D,
    AvgPool3D,
    Conv1D,
    Conv1DTranspose,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Conv3DTranspose,
    GlobalAvgPool1D,
    GlobalAvgPool2D,
    GlobalAvgPool3D,
    GlobalMaxPool1D,
    GlobalMaxPool2D,
    GlobalMaxPool3D,
    MaxPool1D,
    MaxPool2D,
    MaxPool3D,
)  # fmt: skip
from .norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from .resize import (
    AdaptiveAvgPool1D,
    AdaptiveAvgPool2D,
    AdaptiveAvgPool3D,
    AdaptiveMaxPool1D,
    AdaptiveMaxPool2D,
    AdaptiveMaxPool3D,
    PixelShuffle1D,
    PixelShuffle2D,
    PixelShuffle3D,
    ReflectionPad2D,
    Upsample,
)
from .sync import SyncBatchNorm
from .transformer import PositionalEncoding, TransformerDecoderLayer, TransformerEncoderLayer

__all__ = [
    "ELU", "GELU", "SELU", "Activation", "AdaptiveAvgPool1D", "AdaptiveAvgPool2D", "AdaptiveAvgPool3D",
    "AdaptiveMaxPool1D", "AdaptiveMaxPool2D", "AdaptiveMaxPool3D", "AvgPool1D", "AvgPool2D", "AvgPool3D", "BatchNorm",
    "Conv1D", "Conv1DTranspose", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose", "Dense", "Dropout",
    "Embedding", "Flatten", "GlobalAvgPool1D", "GlobalAvgPool2D", "GlobalAvgPool3D", "GlobalMaxPool1D",
    "GlobalMaxPool2D", "GlobalMaxPool3D", "GroupNorm", "HybridLambda", "HybridSequential", "Identity", "InstanceNorm",
    "Lambda", "LayerNorm", "LeakyReLU", "MaxPool1D", "MaxPool2D", "MaxPool3D", "MultiHeadAttention", "PReLU",
    "PixelShuffle1D", "PixelShuffle2D", "PixelShuffle3D", "PositionalEncoding", "RMSNorm", "ReflectionPad2D",
    "Sequential", "SiLU", "Swish", "SyncBatchNorm", "TransformerDecoderLayer", "TransformerEncoderLayer", "Upsample",
]  # fmt: skip
