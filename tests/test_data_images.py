"""Images: decoding, and transforms that are right, deterministic, and the same for any number of workers."""

from __future__ import annotations

import colorsys
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mezzo.data import images
from mezzo.data import transforms as T  # noqa: N812 (as its users write it)
from mezzo.data.dataset import SimpleDataset
from mezzo.data.draws import drawing
from mezzo.data.loader import DataLoader
from mezzo.ops.errors import InputError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (40, 60, 3), np.uint8)
SMOOTH = np.stack(np.broadcast_arrays(np.arange(200)[:, None], np.arange(240)[None], np.full((1, 1), 90)), -1).astype(
    np.uint8
)
RANDOM: list[Any] = [
    T.RandomCrop(20, pad=4),
    T.RandomResizedCrop((16, 24)),
    T.RandomFlipLeftRight(),
    T.RandomFlipTopBottom(),
    T.RandomRotation(30),
    T.RandomBrightness(0.4),
    T.RandomContrast(0.4),
    T.RandomSaturation(0.4),
    T.RandomHue(0.2),
    T.RandomColorJitter(0.3, 0.3, 0.3, 0.1),
    T.RandomLighting(0.5),
    T.RandomGray(),
    T.RandomErasing(0.9),
    T.RandomApply(T.Resize(8)),
]


def file(kind: str, pixels: Any = PIXELS, **how: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **how)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "PPM", "JPEG", "GIF", "TIFF"])
def test_decoding(kind: str, tmp_path: Path) -> None:
    data = file(kind, **({"lossless": True} if kind == "WEBP" else {}))
    (tmp_path / "x").write_bytes(data)
    found = images.decode(data)
    assert found.shape == PIXELS.shape
    assert found.dtype == np.uint8
    assert np.array_equal(found, images.decode(tmp_path / "x"))
    assert np.array_equal(found, images.decode(memoryview(data)))
    if kind not in ("JPEG", "GIF"):
        assert np.array_equal(found, PIXELS)
    assert images.decode(data, 1).shape == (40, 60, 1)
    assert images.decode(data, 4).shape == (40, 60, 4)


def test_a_jpeg_is_read_at_a_fraction_of_its_size() -> None:
    """Within the noise of two filters; pixels that were not asked for are not computed."""
    data = file("JPEG", SMOOTH, quality=95)
    small = images.decode(data, size=(50, 60))
    reference = np.asarray(Image.fromarray(SMOOTH).resize((60, 50), Image.Resampling.BILINEAR))
    assert small.shape == (50, 60, 3)
    assert np.abs(small.astype(int) - reference).mean() < 2
    assert images.pixels(data, least=(50, 60)).size == (60, 50)
    assert images.pixels(data, least=(51, 60)).size == (120, 100)
    assert images.pixels(data).size == (240, 200)


def test_cameras_are_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = file("JPEG", SMOOTH, exif=exif.tobytes())
    assert images.decode(data).shape == (240, 200, 3)
    assert images.decode(data, upright=False).shape == (200, 240, 3)
    assert images.pixels(data, least=(120, 100)).size == (100, 120)


def test_bad_images_are_named(tmp_path: Path) -> None:
    data = file("JPEG", SMOOTH)
    for end in (0, 1, 100, len(data) // 2):
        with pytest.raises(InputError, match=r"here: no image that can be read"):
            images.decode(data[:end], where="here")
    with pytest.raises(InputError, match="more than 8 bits"):
        images.decode(file("PNG", np.zeros((4, 4), np.uint16)))
    with pytest.raises(InputError, match="can be read"):
        images.decode(tmp_path / "none.png")
    with pytest.raises(InputError, match="no pixels"):
        images.resize(np.zeros((4, 4, 3), np.float32), 2)
    with pytest.raises(InputError, match="crop"):
        images.crop(PIXELS, 30, 0, 20, 20)


def test_every_flip_in_a_png_is_pixels_or_an_error() -> None:
    data = file("PNG", PIXELS[:6, :6])
    for at in range(len(data)):
        broken = data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]
        try:
            found = images.decode(broken)
        except InputError:
            continue
        assert found.dtype == np.uint8
        assert found.ndim == 3


def test_sizes() -> None:
    assert images.resize(PIXELS, 20, keep=True).shape == (20, 30, 3)
    assert images.resize(PIXELS.transpose(1, 0, 2), 20, keep=True).shape == (30, 20, 3)
    assert T.Resize((7, 9))(PIXELS).shape == (7, 9, 3)
    assert T.Resize(7)(PIXELS[..., :1]).shape == (7, 7, 1)
    assert np.array_equal(T.CenterCrop(20)(PIXELS), PIXELS[10:30, 20:40])
    assert T.CenterCrop(50)(PIXELS).shape == (50, 50, 3)
    assert np.array_equal(T.CropResize(5, 6, 7, 8)(PIXELS), PIXELS[6:14, 5:12])
    assert T.CropResize(5, 6, 7, 8, 3)(PIXELS).shape == (3, 3, 3)
    assert T.RandomCrop(50)(PIXELS).shape == (50, 50, 3)
    expected = Image.fromarray(PIXELS).resize((30, 20), Image.Resampling.BILINEAR)
    assert np.array_equal(images.resize(PIXELS, (20, 30)), expected)


def test_tensors_and_normalisation() -> None:
    made = T.ToTensor()(PIXELS)
    assert made.dtype == np.float32
    assert np.allclose(made, PIXELS.transpose(2, 0, 1) / 255, atol=1e-6)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    expected = (PIXELS / 255 - mean) / std
    assert np.allclose(T.Normalize(mean, std)(made), expected.transpose(2, 0, 1), atol=1e-5)
    assert np.allclose(T.ToNormalized(mean, std)(PIXELS), expected.transpose(2, 0, 1), atol=1e-5)
    assert np.allclose(T.ToNormalized()(Image.fromarray(PIXELS)), made, atol=1e-6)
    batch = T.StackNormalized(mean, std)([PIXELS, PIXELS[:, ::-1], Image.fromarray(PIXELS)])
    assert np.allclose(batch[1], expected.transpose(2, 0, 1)[:, :, ::-1], atol=1e-5)
    assert np.array_equal(batch[0], batch[2])
    with pytest.raises(InputError, match="ToTensor"):
        T.Normalize(0, 1)(PIXELS)
    assert T.Cast("float16")(made).dtype == np.float16


def test_colours() -> None:
    assert np.array_equal(images.brightness(PIXELS, 1), PIXELS)
    assert np.array_equal(images.contrast(PIXELS, 1), PIXELS)
    assert np.array_equal(images.saturation(PIXELS, 1), PIXELS)
    assert images.brightness(PIXELS, 0).max() == 0
    assert (images.brightness(PIXELS, 2) == np.minimum(PIXELS.astype(int) * 2, 255)).all()
    gray = images.gray(PIXELS)
    assert np.abs(gray[..., 0].astype(int) - np.asarray(Image.fromarray(PIXELS).convert("L"))).max() <= 1
    assert np.array_equal(images.saturation(PIXELS, 0), gray)
    flat = images.contrast(PIXELS, 0)
    assert flat.min() == flat.max()
    turned = images.hue(PIXELS, 1 / 3)
    for pixel, found in zip(PIXELS[::13, ::17].reshape(-1, 3), turned[::13, ::17].reshape(-1, 3), strict=True):
        h, s, v = colorsys.rgb_to_hsv(*(pixel / 255))
        expected = np.array(colorsys.hsv_to_rgb((h + 1 / 3) % 1, s, v)) * 255
        assert np.abs(expected - found).max() < 14  # Pillow has 8 bits for each of h, s and v


@pytest.mark.parametrize("step", RANDOM, ids=lambda step: type(step).__name__)
def test_random_transforms_follow_from_the_key_alone(step: Any) -> None:
    def made(key: int) -> Any:
        with drawing(key):
            return step(PIXELS)

    assert all(np.array_equal(made(key), made(key)) for key in range(3))
    assert len({made(key).tobytes() for key in range(24)}) > 1
    assert PIXELS.sum() == np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8).sum()  # left as they were


def test_the_parts_that_are_drawn() -> None:
    """Shares of the area and ratios fill their ranges evenly."""
    part = T.RandomResizedCrop(8, (0.2, 0.8), (0.5, 2.0))
    shares, ratios, lefts = [], [], []
    for key in range(800):
        with drawing(key):
            left, top, right, bottom = part.box(1000, 1000)
        assert 0 <= left < right <= 1000
        assert 0 <= top < bottom <= 1000
        shares.append((right - left) * (bottom - top) / 1e6)
        ratios.append(np.log((right - left) / (bottom - top)))
        lefts.append(left)
    assert abs(np.mean(shares) - 0.45) < 0.05  # large ones do not fit with long ratios
    assert abs(np.mean(ratios)) < 0.06
    assert min(shares) > 0.19
    assert max(shares) < 0.81
    assert min(lefts) < 10
    flips = 0
    for key in range(400):
        with drawing(key):
            flips += np.array_equal(T.RandomFlipLeftRight(0.25)(PIXELS), PIXELS[:, ::-1])
    assert 70 < flips < 130


def test_mixing_images_and_labels() -> None:
    pictures = RNG.random((6, 3, 4, 4)).astype(np.float32)
    samples = [(p, i % 3) for i, p in enumerate(pictures)]
    with drawing(1):
        mixed, labels = T.MixUp(3, 0.4)(samples)
    with drawing(1):
        again, _ = T.MixUp(3, 0.4)(samples)
    assert np.array_equal(mixed, again)
    assert np.allclose(labels.sum(1), 1)
    share = labels.max(1).min()
    assert 0 < share <= 1
    assert not np.array_equal(mixed, pictures)
    assert np.allclose(mixed.mean(0), pictures.mean(0), atol=1e-5)  # partners are a permutation
    loader = DataLoader(SimpleDataset(samples), 3, batchify_fn=T.MixUp(3), seed=2)
    other = DataLoader(SimpleDataset(samples), 3, batchify_fn=T.MixUp(3), seed=2, workers=2, threads=True)
    for one, two in zip(loader, other, strict=True):
        assert np.array_equal(one[0], two[0])


def test_wrong_settings() -> None:
    for make in (
        lambda: T.RandomFlipLeftRight(2),
        lambda: T.RandomResizedCrop(0),
        lambda: T.RandomResizedCrop(4, (0.5, 0.1)),
        lambda: T.Normalize(0, 0),
        lambda: T.RandomHue(-1),
        lambda: T.MixUp(3, 0),
        lambda: T.Resize((3, 0)),
    ):
        with pytest.raises(InputError):
            make()
