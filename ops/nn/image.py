"""ImageDecoder: the bytes of an image file as pixels (https://onnx.ai/onnx/operators/onnx__ImageDecoder.html).

Pillow decodes, and is loaded by the first image.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ..errors import BudgetError, MissingPackage, ShapeError
from ..op import Context, Sample, op
from ..types import Array, Tensor

MODES = {"RGB": ("RGB", 3), "BGR": ("RGB", 3), "Grayscale": ("L", 1)}


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingPackage("ImageDecoder needs Pillow", hint="pip install pillow") from error
    return PIL.Image


# A bitmap of two rows of three pixels: red, green, blue; white, grey, black.
HEADER = "424d4e00000000000000360000002800000003000000020000000100180000000000180000000000000000000000" + 16 * "0"
BITMAP = np.frombuffer(bytes.fromhex(f"{HEADER}ffffff8080800000000000000000ff00ff00ff0000000000"), np.uint8)


@op(
    "ImageDecoder",
    since=20,
    outputs=("image",),
    samples=[*(Sample([BITMAP], {"pixel_format": f}) for f in MODES), Sample([np.arange(9, dtype=np.uint8)])],
)
def image_decoder(k: Context, encoded_stream: Array, *, pixel_format: str = "RGB") -> Array:
    mode, channels = _mode(pixel_format)
    pillow = _pillow()
    try:
        with pillow.open(io.BytesIO(np.asarray(encoded_stream).tobytes())) as image:
            pixels = np.asarray(image.convert(mode))
    except pillow.DecompressionBombError as error:
        raise BudgetError(str(error), hint="raise PIL.Image.MAX_IMAGE_PIXELS if you trust the image") from error
    except Exception:  # whatever a decoder says of a damaged file: the operator answers with no pixels
        return k.xp.zeros((0, 0, channels), np.uint8)
    pixels = pixels.reshape(*pixels.shape[:2], channels)
    return k.xp.array(pixels[:, :, ::-1] if pixel_format == "BGR" else pixels, order="C")


def _mode(pixel_format: str) -> tuple[str, int]:
    if pixel_format not in MODES:
        raise ShapeError(f"pixel_format {pixel_format!r} is none of {', '.join(MODES)}")
    return MODES[pixel_format]


@image_decoder.infer
def _(encoded_stream: Tensor, *, pixel_format: str = "RGB") -> Tensor:
    return encoded_stream.of((None, None, _mode(pixel_format)[1]))
