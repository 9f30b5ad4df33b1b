"""`mx.image` and `mx.io.ImageRecordIter`: pictures in MXNet's words, over ours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...data import RecordFile
from ...data.draws import generator
from ...data.images import crop, decode, image_of, resize, resized
from ...nd.array import Array
from ...ops.errors import InputError
from . import arrays
from .batches import DataBatch, DataDesc, DataIter
from .records import unpack

Size = tuple[int, int]  # width, height


def _numpy(x: Any) -> Any:
    return x.asnumpy() if isinstance(x, Array) else np.asarray(x)


def _array(x: Any, like: Any = None) -> Array:
    return arrays.array(np.ascontiguousarray(x), dtype=x.dtype)


def imdecode(buf: Any, flag: int = 1, to_rgb: int = 1, out: Any = None, **_: Any) -> Array:
    """The picture in the bytes of a file: uint8 [height, width, channels], red first if `to_rgb`."""
    content = buf if isinstance(buf, bytes | bytearray | memoryview) else _numpy(buf).tobytes()
    pixels = np.asarray(decode(bytes(content), 3 if flag else 1))
    return _array(pixels if to_rgb or not flag else pixels[..., ::-1])


def imread(filename: str | os.PathLike[str], flag: int = 1, to_rgb: int = 1) -> Array:
    with open(filename, "rb") as file:
        return imdecode(file.read(), flag, to_rgb)


def imresize(src: Any, w: int, h: int, interp: int = 1) -> Array:
    return _array(np.asarray(resize(_numpy(src), (h, w))))


def resize_short(src: Any, size: int, interp: int = 2) -> Array:
    """The shorter side has this size then."""
    pixels = _numpy(src)
    h, w = pixels.shape[:2]
    new_h, new_w = (size * h // w, size) if h > w else (size, size * w // h)
    return _array(np.asarray(resize(pixels, (new_h, new_w))))


def fixed_crop(src: Any, x0: int, y0: int, w: int, h: int, size: Size | None = None, interp: int = 2) -> Array:
    """The part from (x0, y0), resized if `size` is another."""
    part = np.asarray(crop(_numpy(src), y0, x0, h, w))
    return imresize(part, *size, interp) if size is not None and tuple(size) != (w, h) else _array(part)


def scale_down(src_size: Size, size: Size) -> Size:
    """The largest part of these proportions that fits."""
    (sw, sh), (w, h) = src_size, map(float, size)
    if sh < h:
        w, h = w * sh / h, float(sh)
    if sw < w:
        w, h = float(sw), h * sw / w
    return int(w), int(h)


def center_crop(src: Any, size: Size, interp: int = 2) -> tuple[Array, tuple[int, int, int, int]]:
    pixels = _numpy(src)
    h, w = pixels.shape[:2]
    new_w, new_h = scale_down((w, h), size)
    x0, y0 = (w - new_w) // 2, (h - new_h) // 2
    return fixed_crop(pixels, x0, y0, new_w, new_h, size, interp), (x0, y0, new_w, new_h)


def random_crop(src: Any, size: Size, interp: int = 2) -> tuple[Array, tuple[int, int, int, int]]:
    pixels = _numpy(src)
    h, w = pixels.shape[:2]
    new_w, new_h = scale_down((w, h), size)
    x0, y0 = int(generator().integers(0, w - new_w + 1)), int(generator().integers(0, h - new_h + 1))
    return fixed_crop(pixels, x0, y0, new_w, new_h, size, interp), (x0, y0, new_w, new_h)


def color_normalize(src: Any, mean: Any, std: Any = None) -> Array:
    """Less the mean, over the deviation of each channel."""
    pixels = _numpy(src).astype(np.float32) - _numpy(mean)
    return _array((pixels if std is None else pixels / _numpy(std)).astype(np.float32))


class ImageRecordIter(DataIter):
    """Batches [batch, channels, height, width] of float32 from a file of image records: the middle, or a part at
    random, of each picture; the rows behind the last one come from the beginning (`round_batch`)."""

    def __init__(
        self, path_imgrec: str, data_shape: Sequence[int], batch_size: int, path_imgidx: str | None = None,
        label_width: int = 1, shuffle: bool = False, resize: int = -1, rand_crop: bool = False,
        rand_mirror: bool = False, mean_r: float = 0, mean_g: float = 0, mean_b: float = 0, std_r: float = 1,
        std_g: float = 1, std_b: float = 1, scale: float = 1, round_batch: bool = True, seed: int = 0,
        data_name: str = "data", label_name: str = "softmax_label", dtype: Any = "float32",
        preprocess_threads: int = 4, prefetch_buffer: int = 4, verbose: bool = True, **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(batch_size)
        if more:
            hint = "mz.data.ImageRecordDataset with mz.data.transforms has more changes of images"
            raise InputError(f"{', '.join(sorted(more))}", where="ImageRecordIter", hint=hint)
        self._records = RecordFile(path_imgrec, path_imgidx or None)
        self._shape, self._width, self._resize = tuple(data_shape), label_width, resize
        self._crops, self._mirrors, self._shuffles, self._round = rand_crop, rand_mirror, shuffle, round_batch
        self._mean = np.array([mean_r, mean_g, mean_b], np.float32)[: data_shape[0]].reshape(-1, 1, 1)
        self._std = np.array([std_r, std_g, std_b], np.float32)[: data_shape[0]].reshape(-1, 1, 1)
        self._scale, self._dtype, self._random = scale, np.dtype(dtype), np.random.default_rng(seed)
        self._names = data_name, label_name
        self._order, self._at, self._over = np.arange(0), 0, 0
        self.reset()

    @property
    def provide_data(self) -> list[DataDesc]:
        return [DataDesc(self._names[0], (self.batch_size, *self._shape), self._dtype)]

    @property
    def provide_label(self) -> list[DataDesc]:
        sizes = (self.batch_size,) if self._width == 1 else (self.batch_size, self._width)
        return [DataDesc(self._names[1], sizes)]

    def reset(self) -> None:
        order = np.arange(len(self._records))
        if self._shuffles:
            self._random.shuffle(order)
        self._order, self._at = order, self._over  # behind the rows that filled up the last batch

    def _picture(self, content: bytes) -> Any:
        channels, height, width = self._shape
        pixels = np.asarray(decode(content, channels))
        if self._resize > 0:
            pixels = resize_short(pixels, self._resize).asnumpy()
        if pixels.shape[0] < height or pixels.shape[1] < width:
            pixels = np.asarray(resized(image_of(pixels), (max(height, pixels.shape[0]), max(width, pixels.shape[1]))))
            pixels = pixels.reshape(*pixels.shape[:2], channels)
        free = pixels.shape[0] - height, pixels.shape[1] - width
        top, left = (int(self._random.integers(0, f + 1)) if self._crops else f // 2 for f in free)
        part = pixels[top : top + height, left : left + width]
        if self._mirrors and self._random.random() < 0.5:
            part = part[:, ::-1]
        scaled = (part.transpose(2, 0, 1).astype(np.float32) - self._mean) / self._std * self._scale
        return scaled.astype(self._dtype)

    def next(self) -> DataBatch:
        count = len(self._order)
        if self._at >= count or (not self._round and self._at + self.batch_size > count):
            raise StopIteration
        wanted = range(self._at, self._at + self.batch_size)
        self._at += self.batch_size
        self._over = max(0, self._at - count)
        rows = [unpack(bytes(self._records[int(self._order[i % count])])) for i in wanted]
        data = np.stack([self._picture(content) for _, content in rows])
        labels = np.stack([np.atleast_1d(np.asarray(h.label, np.float32))[: self._width] for h, _ in rows])
        label = arrays.array(labels[:, 0] if self._width == 1 else labels)
        index = np.array([self._order[i % count] for i in wanted])
        return DataBatch([arrays.array(data, dtype=self._dtype)], [label], max(0, self._at - count), index,
                         None, self.provide_data, self.provide_label)  # fmt: skip

    def __iter__(self) -> Iterator[DataBatch]:
        return self


__all__ = [
    "ImageRecordIter", "center_crop", "color_normalize", "fixed_crop", "imdecode", "imread", "imresize", "random_crop",
    "resize_short", "scale_down",
]  # fmt: skip
