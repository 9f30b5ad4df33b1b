"""`mx.gluon.data` and `mx.gluon.model_zoo`: datasets, loaders and networks of ours in MXNet's words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import numpy as np

from ... import models
from ...data.classic import CIFAR10 as our_CIFAR10  # noqa: N811
from ...data.classic import CIFAR100 as our_CIFAR100  # noqa: N811
from ...data.classic import MNIST as our_MNIST  # noqa: N811
from ...data.dataset import Dataset
from ...data.image_sets import ImageFolderDataset as our_folder  # noqa: N813
from ...data.image_sets import ImageRecordDataset as our_records  # noqa: N813
from ...gluon import data as ours
from ...ops.errors import InputError
from ...runtime.files import replace_file
from . import arrays, blocks
from .ndarray import own

HOME = "~/.mxnet/datasets"


class DataLoader(ours.DataLoader):
    """Batches of MXNet's arrays."""

    def __iter__(self) -> Iterator[Any]:
        return (own(batch) for batch in super().__iter__())


class _Examples(Dataset):
    """Pairs of a picture and a label, the picture an array, changed by `transform(picture, label)`."""

    def __init__(self, inner: Any, transform: Callable[..., Any] | None) -> None:
        self._inner, self._transform = inner, transform

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, number: int) -> Any:
        picture, label = self._inner[number]
        image = arrays.array(np.asarray(picture), dtype=np.asarray(picture).dtype)
        return (image, label) if self._transform is None else self._transform(image, label)


def MNIST(root: str = f"{HOME}/mnist", train: bool = True, transform: Any = None) -> _Examples:  # noqa: N802
    return _Examples(our_MNIST(_local(root), train), transform)


def FashionMNIST(  # noqa: N802
    root: str = f"{HOME}/fashion-mnist", train: bool = True, transform: Any = None
) -> _Examples:
    return MNIST(root, train, transform)


def CIFAR10(root: str = f"{HOME}/cifar10", train: bool = True, transform: Any = None) -> _Examples:  # noqa: N802
    return _Examples(our_CIFAR10(_local(root), train), transform)


def CIFAR100(  # noqa: N802
    root: str = f"{HOME}/cifar100", fine_label: bool = False, train: bool = True, transform: Any = None
) -> _Examples:
    return _Examples(our_CIFAR100(_local(root), train, fine_label), transform)


def ImageRecordDataset(filename: str, flag: int = 1, transform: Any = None) -> _Examples:  # noqa: N802
    return _Examples(our_records(filename, 3 if flag else 1), transform)


def ImageFolderDataset(root: str, flag: int = 1, transform: Any = None) -> Any:  # noqa: N802
    """Pictures by folders; `synsets` are the names of the classes."""
    inner = our_folder(_local(root), 3 if flag else 1)
    dataset = _Examples(inner, transform)
    dataset.synsets = list(inner.classes)  # type: ignore[attr-defined]
    return dataset


def _local(root: str) -> str:
    return str(Path(root).expanduser())


def download(url: str, path: str | None = None, overwrite: bool = False, sha1_hash: str | None = None, **_: Any) -> str:
    """Fetch a file, unless it is there; returns where it lies. Raises InputError for what is not as the sum says."""
    name = url.rstrip("/").rpartition("/")[2]
    file = Path(name if path is None else Path(path, name) if Path(path).is_dir() else path).expanduser()
    if overwrite or not file.exists():
        with urlopen(url, timeout=60) as answer:
            content = answer.read()
        if sha1_hash and hashlib.sha1(content).hexdigest() != sha1_hash:
            raise InputError("its sum is another one", where=url, hint="is it the file that was meant?")
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, [content])
    return str(file)


# MXNet's names of networks of ours, and their options.
ZOO: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"resnet{n}_v{v}": (f"resnet{n}_v2" if v == 2 else f"resnet{n}", {}) for n in (18, 34, 50, 101, 152)
       for v in (1, 2)},
    **{f"vgg{n}": (f"vgg{n}", {}) for n in (11, 13, 16, 19)},
    "alexnet": ("alexnet_owt", {}), "densenet121": ("densenet121", {}), "inceptionv3": ("inception_v3", {}),
    "squeezenet1.0": ("squeezenet1_0", {}), "squeezenet1.1": ("squeezenet1_1", {}),
    **{f"mobilenet{w}": ("mobilenet_v1", {"width": float(w)}) for w in ("1.0", "0.75", "0.5", "0.25")},
    **{f"mobilenetv2_{w}": ("mobilenet_v2", {"width": float(w)}) for w in ("1.0", "0.75", "0.5", "0.25")},
}  # fmt: skip


def get_model(name: str, pretrained: bool = False, classes: int = 1000, **_: Any) -> Any:
    """A network of the zoo by its name. Raises InputError for trained weights, which were MXNet's to download."""
    known = ZOO.get(name.lower())
    if known is None:
        raise InputError(f"there is no model {name!r}", where="model_zoo", hint=", ".join(sorted(ZOO)))
    if pretrained:
        hint = "mz.mxnet.load reads what MXNet has exported; load_parameters reads files of this network"
        raise InputError("trained weights are not there", where=f"model_zoo: {name}", hint=hint)
    return blocks.adopted(models.get(known[0], classes=classes, **known[1]))


def _maker(name: str) -> Callable[..., Any]:
    return lambda pretrained=False, ctx=None, root=None, **options: get_model(name, pretrained, **options)


def vision() -> ModuleType:
    """The module `model_zoo.vision`."""
    module = ModuleType("mxnet.gluon.model_zoo.vision", "Networks of ours under MXNet's names.")
    module.__dict__.update({n.replace("v2_", "_v2_").replace(".", "_"): _maker(n) for n in ZOO}, get_model=get_model)
    module.__dict__["inception_v3"] = _maker("inceptionv3")
    return module


__all__ = ["DataLoader", "get_model", "vision"]
