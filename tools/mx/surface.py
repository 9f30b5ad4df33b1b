"""The modules of `mxnet`, as a program imports them: `mx.nd`, `mxnet.gluon.nn`, `from mxnet import autograd`.

`install()` enters them under the name mxnet, so that programs run unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from ... import kvstore
from ... import nd as our_nd
from ...gluon import data as gluon_data
from ...gluon.data import vision as gluon_vision
from ...nd import autograd as our_autograd
from ...ops.errors import InputError
from .. import profiler
from .. import viz as our_viz
from . import (
    absent,
    arrays,
    batches,
    blocks,
    callbacks,
    cells,
    contexts,
    control,
    custom,
    datasets,
    draws,
    initializers,
    losses,
    metrics,
    modules,
    names,
    operators,
    optimizers,
    pictures,
    records,
    recurrent,
    stores,
    symbols,
    updates,
)
from .ndarray import owned


def _module(name: str, *parts: Any, **names: Any) -> ModuleType:
    """A module with the public names of others."""
    namespace = ModuleType(f"mxnet.{name}", f"mxnet.{name}: see mezzo.compat.mxnet")
    for part in parts:
        namespace.__dict__.update({n: v for n, v in vars(part).items() if not n.startswith("_")})
        if hasattr(part, "__getattr__"):
            namespace.__getattr__ = part.__getattr__  # type: ignore[method-assign]
    namespace.__dict__.update(names)
    return namespace


def assert_almost_equal(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-20, **_: Any) -> None:
    one, two = (x.asnumpy() if hasattr(x, "asnumpy") else x for x in (a, b))
    np.testing.assert_allclose(one, two, rtol=rtol, atol=atol)


def list_gpus() -> range:
    """Numbers of the GPUs that are here."""
    return range(contexts.num_gpus())


def plot_network(symbol: Any, title: str = "plot", save_format: str = "svg", shape: Any = None, **_: Any) -> str:
    """The network as an SVG; how Graphviz would draw it has no meaning."""
    return our_viz.plot_network(symbol, shapes={**symbol.ranks(), **(shape or {})})


def print_summary(symbol: Any, shape: Any = None, line_length: int = 120, positions: Any = None) -> None:
    """Print the network as a table."""
    print(our_viz.print_summary(symbol, {**symbol.ranks(), **(shape or {})}))


def _family(name: str, prefix: str, find: Callable[..., Any], *parts: Any, **names: Any) -> ModuleType:
    """A module of operators whose names in MXNet's registry begin with a prefix."""
    namespace = _module(name, *parts, **names)

    def resolve(wanted: str) -> Any:
        function = None if wanted.startswith("__") else find(f"{prefix}{wanted}")
        if function is None:
            raise AttributeError(f"module {namespace.__name__!r} has no attribute {wanted!r}")
        setattr(namespace, wanted, function)
        return function

    namespace.__getattr__ = resolve  # type: ignore[method-assign]
    return namespace


autograd = _module("autograd", our_autograd, Function=custom.Function, grad=owned(our_autograd.grad))
random = _module("random", draws)
contrib = _family("nd.contrib", "_contrib_", operators.function, control)
families = {
    "contrib": contrib, "linalg": _family("nd.linalg", "_linalg_", operators.function),
    "image": _family("nd.image", "_image_", operators.function), "random": random,
}  # fmt: skip
nd = _module(
    "nd", arrays, **families, uniform=draws.uniform, normal=draws.normal, random_uniform=draws.uniform,
    random_normal=draws.normal, random_randint=draws.randint, random_exponential=draws.exponential,
    random_gamma=draws.gamma, random_poisson=draws.poisson, sample_uniform=draws.uniform, sample_normal=draws.normal,
    sample_exponential=draws.exponential, sample_gamma=draws.gamma, sample_poisson=draws.poisson,
    sample_multinomial=draws.multinomial, shuffle=draws.shuffle,
)  # fmt: skip
vars(arrays).update({n: v for n, v in vars(nd).items() if n in families or n.startswith(("sample_", "random_"))})
vars(arrays).update(uniform=draws.uniform, normal=draws.normal, shuffle=draws.shuffle)
nd.op = arrays.op = nd  # type: ignore[attr-defined]
vars(nd).update({n: getattr(updates, n) for n in updates.__all__})
vars(arrays).update({n: getattr(updates, n) for n in updates.__all__})
ndarray = nd
parts_of = {n: _family(f"sym.{n}", f"_{n}_", symbols.found) for n in ("contrib", "linalg", "image", "random")}
sym = _module("sym", symbols, **parts_of)
vars(symbols).update(parts_of)
symbol = sym
both_contrib = {"ndarray": contrib, "nd": contrib, "symbol": parts_of["contrib"], "sym": parts_of["contrib"]}
contrib_module = _module("contrib", **both_contrib)
io = _module("io", batches)
metric = _module("metric", metrics)
init = _module("init", initializers)
initializer = init
optimizer = _module("optimizer", optimizers)
lr_scheduler = _module("lr_scheduler", optimizers)
callback = _module("callback", callbacks)
mod = _module("mod", modules)
module = mod
model = _module("model", modules)
context = _module("context", contexts)
name_module = _module("name", names)
attribute = _module("attribute", AttrScope=names.AttrScope)
AttrScope = names.AttrScope
kv = _module("kv", kvstore, create=stores.create)
recordio = _module("recordio", records)
image = _module("image", pictures)
operator = _module("operator", custom)
nd.Custom = arrays.Custom = custom.Custom  # type: ignore[attr-defined]
io.ImageRecordIter = pictures.ImageRecordIter  # type: ignore[attr-defined]
test_utils = _module("test_utils", assert_almost_equal=assert_almost_equal, list_gpus=list_gpus,
                      download=datasets.download)  # fmt: skip
visualization = viz = _module("viz", our_viz, plot_network=plot_network, print_summary=print_summary)
cell_module = _module("rnn", **{n: getattr(cells, n) for n in cells.__all__})
nn = _module("gluon.nn", **blocks.LAYER_KINDS, Block=blocks.Block, HybridBlock=blocks.HybridBlock)
rnn = _module("gluon.rnn", **{**blocks.RECURRENT, **{n: getattr(recurrent, n) for n in recurrent.__all__}})
utils = _module(
    "gluon.utils",
    **{n: getattr(blocks, n) for n in ("split_data", "split_and_load", "clip_global_norm")},
    download=datasets.download,
)
loss = _module("gluon.loss", **{**blocks.LOSSES, **losses.OWN, "Loss": blocks.OwnLoss})
pictures_of = {n: getattr(datasets, n) for n in ("MNIST", "FashionMNIST", "CIFAR10", "CIFAR100", "ImageRecordDataset",
                                                 "ImageFolderDataset")}  # fmt: skip
data_vision = _module("gluon.data.vision", gluon_vision, **pictures_of)
data_vision.datasets = data_vision  # type: ignore[attr-defined]
data = _module("gluon.data", gluon_data, DataLoader=datasets.DataLoader, vision=data_vision)
for part in ("dataset", "sampler", "dataloader"):
    setattr(data, part, data)
zoo_vision = datasets.vision()
model_zoo = _module("gluon.model_zoo", vision=zoo_vision, get_model=datasets.get_model)
gluon = _module("gluon", blocks, nn=nn, rnn=rnn, utils=utils, data=data, loss=loss, model_zoo=model_zoo)
MXNetError = InputError
for refused, at in (
    ("mod", mod), ("sym", sym), ("rnn", cell_module), ("optimizer", optimizer), ("image", image), ("io", io),
    ("metric", metric), ("gluon", gluon),
):  # fmt: skip
    absent.refusing(at, refused)


def waitall() -> None:
    our_nd.waitall()


def install(name: str = "mxnet") -> None:
    """Let `import mxnet` of this process import this surface. Raises InputError where a real one is imported."""
    here = sys.modules[f"{__name__.partition('.')[0]}.compat.mxnet"]
    there = sys.modules.get(name)
    if there not in (None, here):
        raise InputError(f"a real {name} is imported already", where="install", hint="call install() first")
    sys.modules[name] = here
    parts = {
        "nd": nd, "ndarray": nd, "sym": sym, "symbol": sym, "io": io, "metric": metric, "init": init,
        "initializer": init, "optimizer": optimizer, "lr_scheduler": lr_scheduler, "callback": callback, "mod": mod,
        "module": mod, "model": model, "context": context, "kv": kv, "kvstore": kv, "random": random,
        "recordio": recordio, "name": name_module, "attribute": attribute, "test_utils": test_utils,
        "visualization": viz, "viz": viz, "profiler": profiler, "operator": operator,
        "autograd": autograd, "gluon": gluon, "gluon.nn": nn, "gluon.rnn": rnn, "gluon.utils": utils,
        "gluon.loss": loss, "gluon.data": data, "gluon.data.vision": data_vision, "gluon.data.dataset": data,
        "gluon.data.sampler": data, "gluon.data.dataloader": data, "gluon.data.vision.datasets": data_vision,
        "gluon.data.vision.transforms": gluon_vision.transforms, "gluon.model_zoo": model_zoo,
        "gluon.model_zoo.vision": zoo_vision, "image": image, "rnn": cell_module, "contrib": contrib_module,
        "contrib.ndarray": contrib, "contrib.nd": contrib, "contrib.symbol": parts_of["contrib"],
        "contrib.sym": parts_of["contrib"],
    }  # fmt: skip
    sys.modules.update({f"{name}.{part}": of for part, of in parts.items()})
