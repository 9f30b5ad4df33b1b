"""The zoo as data: what each network is called, how it is made, how many parameters it has, what it reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatch
from inspect import signature
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...gluon.block import Block
from ...ops.errors import InputError
from . import weights as files
from .attention import GPT2, Bert, Llama, ViT
from .classic import SqueezeNet, alexnet, alexnet_owt, lenet, vgg
from .inception import googlenet, inception_bn, inception_v3
from .mobile import MobileNet
from .pixels import SSD, UNet
from .resnet import DenseNet, ResNet, ResNetV2
from .tables import Factorisation, LanguageModel
from .weights import Names

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """A network of the zoo: `build(**options)` makes it. `parameters` is how many numbers it learns as the literature
    tells, `reads` images, tokens or pairs, and `side` the pixels or tokens of an example of usual size. `small` are
    options of the same network for a test, and `small_side` the size of its examples."""

    name: str
    build: Callable[..., Block]
    parameters: int
    options: Options = field(default_factory=dict[str, Any])
    reads: str = "images"
    side: int = 224
    small: Options = field(default_factory=dict[str, Any])
    small_side: int = 32
    names: Names = field(default=files.TORCH, repr=False)

    @property
    def takes(self) -> dict[str, Any]:
        """Its options with their usual values."""
        usual = {n: p.default for n, p in signature(self.build).parameters.items()}
        return {**usual, **self.options}

    def examples(self, batch: int = 1, *, seed: int = 0, side: int | None = None, **options: Any) -> list[NDArray[Any]]:
        """Inputs of random numbers, for a network with these options."""
        rng, has, size = np.random.default_rng(seed), {**self.takes, **options}, side or options.get("image", self.side)
        if self.reads == "tokens":
            return [rng.integers(0, has["vocabulary"], (batch, size))]
        if self.reads == "pairs":
            return [rng.integers(0, has[n], batch) for n in ("users", "items")]
        return [rng.standard_normal((batch, has.get("channels", 3), size, size), np.float32)]


def _residual(version: str, build: Callable[..., Block], counts: Mapping[int, int]) -> list[Model]:
    small = {"width": 1 / 8, "depths": (1, 1, 2, 1), "classes": 10}
    return [Model(f"resnet{n}{version}", build, c, {"layers": n}, small=small) for n, c in counts.items()]


def _vit(name: str, parameters: int, units: int, layers: int, heads: int) -> Model:
    options = {"units": units, "layers": layers, "heads": heads}
    small = {"units": 32, "layers": 2, "heads": 4, "image": 32, "patch": 8, "classes": 10}
    return Model(f"vit_{name}", ViT, parameters, options, small=small)


def _text(
    name: str, build: Callable[..., Block], parameters: int, names: Names, small: Options, **options: Any
) -> Model:
    few = {"vocabulary": 50, **small}
    return Model(name, build, parameters, options, "tokens", 32, few, small_side=9, names=names)


_NARROW = {"width": 1 / 16, "classes": 10}
_FEW = {"units": 32, "layers": 2, "heads": 4}
_GROUPED = {**_FEW, "groups": 2, "hidden": 48, "size": None}
_SMALL_SSD = {"width": 1 / 8, "classes": 4, "image": 268}
_MODELS = (
    Model("lenet", lenet, 61_706, side=28, small_side=28),
    Model("alexnet", alexnet, 60_965_224, side=227, small={**_NARROW, "width": 1 / 8, "image": 67}, small_side=67),
    Model("alexnet_owt", alexnet_owt, 61_100_840, small={**_NARROW, "image": 64}, small_side=64),
    *(
        Model(f"vgg{n}", vgg, count, {"layers": n}, small={**_NARROW, "image": 32}, names=files.VGG)
        for n, count in {11: 132_863_336, 16: 138_357_544, 19: 143_667_240}.items()
    ),
    Model("googlenet", googlenet, 6_998_552, small={**_NARROW, "width": 1 / 8}),
    Model("inception_bn", inception_bn, 11_295_240, small={**_NARROW, "width": 1 / 8}),
    Model("inception_v3", inception_v3, 23_834_568, side=299, small=_NARROW, small_side=75, names=files.INCEPTION),
    *_residual("", ResNet, {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}),
    *_residual("_v2", ResNetV2, {18: 11_687_720, 34: 21_795_880, 50: 25_549_352, 101: 44_541_480, 152: 60_185_128}),
    *(
        Model(f"mobilenet_{v}", MobileNet, count, {"version": v}, small={"width": 1 / 8, "classes": 10})
        for v, count in {"v1": 4_231_976, "v2": 3_504_872, "v3_large": 5_483_032, "v3_small": 2_542_856}.items()
    ),
    Model("densenet121", DenseNet, 7_978_856, small={"growth": 8, "depths": (2, 2, 3, 2), "classes": 10}),
    *(
        Model(f"squeezenet{v.replace('.', '_')}", SqueezeNet, count, {"version": v}, small={**_NARROW, "width": 1 / 2})
        for v, count in {"1.0": 1_248_424, "1.1": 1_235_496}.items()
    ),
    Model("unet", UNet, 31_037_698, small={"width": 1 / 8}, names=files.UNET),
    Model("ssd300", SSD, 26_285_486, side=300, small=_SMALL_SSD, small_side=268, names=files.SSD),
    _vit("tiny", 5_717_416, 192, 12, 3),
    _vit("small", 22_050_664, 384, 12, 6),
    _vit("base", 86_567_656, 768, 12, 12),
    _vit("large", 304_326_632, 1024, 24, 16),
    _text("bert_base", Bert, 109_482_240, files.BERT, _FEW),
    _text("bert_large", Bert, 335_141_888, files.BERT, _FEW, units=1024, layers=24, heads=16),
    _text("gpt2", GPT2, 124_439_808, files.GPT2, _FEW),
    _text("gpt2_medium", GPT2, 354_823_168, files.GPT2, _FEW, units=1024, layers=24, heads=16),
    _text("gpt2_large", GPT2, 774_030_080, files.GPT2, _FEW, units=1280, layers=36, heads=20),
    _text("gpt2_xl", GPT2, 1_557_611_200, files.GPT2, _FEW, units=1600, layers=48, heads=25),
    _text("llama2_7b", Llama, 6_738_415_616, files.LLAMA, _GROUPED),
    _text(
        "llama3_8b", Llama, 8_030_261_248, files.LLAMA, _GROUPED, groups=8, hidden=14336, vocabulary=128256, base=5e5,
    ),
    _text(
        "llama3_2_1b", Llama, 1_235_814_400, files.LLAMA_TIED, _GROUPED, units=2048, layers=16, groups=8, hidden=8192,
        vocabulary=128256, base=5e5, tied=True, factor=32.0,
    ),
    _text("tinyllama", Llama, 1_100_048_384, files.LLAMA, _GROUPED, units=2048, layers=22, groups=4, hidden=5632),
    _text("lstm_medium", LanguageModel, 19_780_400, files.LSTM, {"units": 16}),
    _text("lstm_large", LanguageModel, 66_034_000, files.LSTM, {"units": 16}, units=1500, drop=0.65),
    Model("factorisation", Factorisation, 170_626, reads="pairs", small={"users": 20, "items": 30, "factors": 4}),
)  # fmt: skip
MODELS: Mapping[str, Model] = MappingProxyType({m.name: m for m in _MODELS})


def model(name: str) -> Model:
    """The record of a network. Raises InputError for a name that is not in the zoo."""
    if name in MODELS:
        return MODELS[name]
    near = get_close_matches(str(name), MODELS, 3)
    hint = f"is it {' or '.join(near)}?" if near else "mz.models.list() has all names"
    raise InputError(f"there is no model {name!r}", where="models", hint=hint)


def names(pattern: str = "*") -> list[str]:
    """The names that match a pattern as a shell has them."""
    return [n for n in MODELS if fnmatch(n, pattern)]


def get(
    name: str, weights: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None, **options: Any
) -> Block:
    """A network that has no numbers yet, so that it takes no memory: `initialize()` it, or give `weights`, safetensors
    files (one, several, or the index of several) under the names of torchvision, timm or Hugging Face.

    With weights for other `classes`, the head waits for `initialize()`. Raises InputError for names and options that
    there are none of, and for weights that do not fit, ModelError for files that cannot be read.
    """
    entry = model(name)
    takes = entry.takes
    if unknown := [n for n in options if n not in takes]:
        raise InputError(
            f"{name} has no option {', '.join(map(repr, unknown))}",
            where="models.get",
            hint=f"it has {', '.join(takes)}",
        )
    net = entry.build(**{**entry.options, **options})
    if weights is not None:
        files.load(net, weights, entry.names, fresh_head="classes" in options)
    return net


def count(net: Block) -> int:
    """The numbers that a network learns: those of its parameters but for running statistics."""
    sizes = [p.shape for p in net.collect_params().values() if p.grad_req != "null"]
    if not all(s is not None and all(s) for s in sizes):
        raise InputError("sizes wait for the first input", where="models.count", hint="run the network once before")
    return sum(int(np.prod(s, dtype=np.int64)) for s in sizes if s is not None)
