"""Whole models: the stored outputs of onnx's own, and agreement with ONNX Runtime on those inside other packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.importers import load_onnx
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.interpreter import evaluate
from mezzo.runtime.memory.plan import Strategy

from .graphs import in_float64, wide
from .models import LIGHT, OTHERS, Array, Real, ort_run, real_models
from .peers import peer
from .test_program import poisoned

TOLERANCE = 1e-3


def assert_close(got: dict[str, Any], want: dict[str, Any], tolerance: float = TOLERANCE) -> None:
    """max|a-b| <= tol * max|b|, per tensor."""
    assert list(got) == list(want)
    for name, y in want.items():
        assert got[name].shape == y.shape, name
        assert got[name].dtype == y.dtype, name
        worst = np.abs(got[name].astype(np.float64) - y).max(initial=0)
        assert worst <= tolerance * np.abs(y.astype(np.float64)).max(initial=0), name


def distance(a: Any, b: Any) -> float:
    """max|a-b| / max|b|."""
    return float(np.abs(a.astype(np.float64) - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-300))


def assert_agrees(session: Session, feeds: dict[str, Array], want: dict[str, Array]) -> None:
    """Close to ONNX Runtime; where ONNX Runtime is itself further from float64 than the tolerance (its sigmoid loses
    small values), close to float64 instead."""
    got = session.run(feeds)
    if all(distance(got[n], y) <= TOLERANCE for n, y in want.items()):
        assert_close(got, want)
        return
    exact = evaluate(in_float64(session.graph), {n: wide(x) for n, x in feeds.items()})
    for name, y in exact.items():
        assert distance(got[name], y) <= TOLERANCE / 10, name
        assert distance(want[name], y) > TOLERANCE or distance(got[name], want[name]) <= TOLERANCE, name


@pytest.mark.parametrize("real", LIGHT, ids=lambda r: r.name)
def test_stored_outputs(real: Real) -> None:
    session = Session(load_onnx(real.path()))
    got = session.run(real.feeds())
    assert_close(got, dict(zip(got, real.expected(), strict=True)))


# Inputs as the models meet them in use


def page(height: int, width: int) -> Array:
    """A white page with printed words, normalised as PP-OCR takes it."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(image)
    for y in range(4, height - 12, 28):
        pen.text((6, y), "Mezzo reads 0123456789 and words", "black", ImageFont.load_default(size=20))
    return np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1


def photo(height: int, width: int) -> Array:
    """A real photograph, 0 to 1."""
    from PIL import Image

    datasets = peer("sklearn.datasets")
    image = Image.fromarray(datasets.load_sample_image("china.jpg")).resize((width, height))
    return np.asarray(image, np.float32).transpose(2, 0, 1) / 255


def voice(samples: int, rate: int, seed: int) -> Array:
    """Vowel-like sound: harmonics of a gliding pitch under a slow envelope, and a little noise."""
    t = np.arange(samples) / rate
    pitch = 110 + 40 * np.sin(2 * np.pi * (t + seed))
    order = np.arange(1, 12)[:, None]
    tone = (np.sin(2 * np.pi * order * pitch * t) / order).sum(0)
    noise = 0.01 * np.random.default_rng(seed).standard_normal(samples)
    return np.asarray(0.2 * tone + noise, np.float32)


def file_bytes(length: int) -> Array:
    """The beginning of this file, as magika takes it (256 pads)."""
    text = Path(__file__).read_bytes()[:length]
    return np.array([*text, *[256] * (length - len(text))], np.int32)


def real_looking(real: Real) -> Iterator[dict[str, Array]]:
    """Feeds of at least two shapes, where the model takes more than one."""
    if "det" in real.file:
        yield from ({"x": page(h, w)[None]} for h, w in ((96, 320), (192, 160)))
    elif "_rec_" in real.file:
        yield from ({"x": np.stack([page(48, w)] * n)} for n, w in ((1, 320), (2, 160)))
    elif "_cls_" in real.file:
        yield from ({"x": np.stack([page(48, 192)] * n)} for n in (1, 3))
    elif real.package == "nudenet":
        yield from ({"images": photo(h, w)[None]} for h, w in ((320, 320), (192, 256)))
    elif real.package == "magika":
        yield from ({"bytes": np.stack([file_bytes(2048)] * n)} for n in (1, 3))
    else:
        yield from speech(real)


def speech(real: Real) -> Iterator[dict[str, Array]]:
    zeros = np.zeros((2, 1, 128), np.float32)
    if real.name.endswith("sequence"):
        for n in (1, 7):
            sound = np.stack([voice(576, 16000, i) for i in range(n)])
            yield {"input": sound, "h": zeros[:1], "c": zeros[:1]}
        return
    rates = (16000, 8000) if real.name in ("silero_vad", "silero_vad_op18_ifless") else (16000,)
    counts = (1,) if real.name.endswith("openvino_16k") else (1, 2)
    for rate in rates:
        for n in counts:
            sound = np.stack([voice(576 * rate // 16000, rate, i) for i in range(n)])
            feeds = {"input": sound, "state": np.zeros((2, n, 128), np.float32), "sr": np.array(rate)}
            if ("16k" in real.name and "op15" not in real.name) or real.name.endswith("half"):
                del feeds["sr"]
            yield feeds


def resized(feeds: dict[str, Array], seed: int) -> dict[str, Array]:
    """Random elements in the same shapes."""
    rng = np.random.default_rng(seed)

    def one(name: str, x: Array) -> Array:
        if name == "sr":
            return x
        if x.dtype.kind in "iu":
            return np.asarray(rng.integers(0, 256, x.shape, x.dtype))
        return np.asarray(rng.standard_normal(x.shape), x.dtype)

    return {n: one(n, x) for n, x in feeds.items()}


@pytest.mark.parametrize("real", OTHERS, ids=lambda r: r.name)
def test_agrees_with_onnxruntime(real: Real) -> None:
    session = Session(load_onnx(real.path()))
    shapes = 0
    for seed, looking in enumerate(real_looking(real)):
        shapes += 1
        for feeds in (looking, resized(looking, seed)):
            assert_agrees(session, feeds, ort_run(real.path(), feeds))
    assert shapes == session.stats().planned
    assert shapes >= 2 or all(p.type.static for p in session.inputs if hasattr(p.type, "static"))


@real_models
def test_strategies_answer_alike_in_the_papers_order(real: Real) -> None:
    graph, feeds = load_onnx(real.path()), real.feeds()
    sizes, answers = {}, []
    for strategy in Strategy:
        session = Session(graph, strategy=strategy)
        answers.append(session.run(feeds))
        sizes[strategy] = session.plan.size
        assert sizes[strategy] >= session.plan.bound or strategy is not Strategy.BOTH
    for other in answers[1:]:
        for name, y in answers[0].items():
            np.testing.assert_array_equal(other[name], y)
    assert sizes[Strategy.NONE] >= sizes[Strategy.INPLACE] >= sizes[Strategy.BOTH]
    assert sizes[Strategy.NONE] >= sizes[Strategy.SHARING] >= sizes[Strategy.BOTH]


@real_models
def test_steps_keep_to_their_bytes(real: Real) -> None:
    graph, feeds = load_onnx(real.path()), real.feeds()
    got, _ = poisoned(graph, feeds)
    for name, y in Session(graph, strategy=Strategy.NONE).run(feeds).items():
        np.testing.assert_array_equal(got[name], y)


def test_resnet_arena_is_at_the_bound() -> None:
    real = next(r for r in LIGHT if r.name.endswith("resnet50"))
    plan = Session(load_onnx(real.path())).plan
    assert plan.size <= 1.05 * plan.bound
    assert plan.bound < plan.total() / 6
