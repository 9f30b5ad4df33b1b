"""The modules of `mxnet`, as a program imports them: `mx.nd`, `mxnet.gluon.nn`, `from mxnet import autograd`.

`install()` enters them under the name mxnet, so that programs run unchanged.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

from ... import gluon as our_gluon
from ... import kvstore
from ... import nd as our_nd
from ...data import IRHeader, RecordFile, RecordWriter
from ...data import pack as pack_record
from ...gluon import data as gluon_data
from ...nd import autograd
from ...nd import random as our_random
from ...ops.errors import InputError
from .. import profiler
from .. import viz as our_viz
from . import arrays, batches, blocks, callbacks, contexts, control, initializers, metrics, modules, optimizers, symbols


def _module(name: str, *parts: Any, **names: Any) -> ModuleType:
    """A module with the public names of others."""
    made = ModuleType(f"mxnet.{name}", f"mxnet.{name}: see mezzo.compat.mxnet")
    for part in parts:
        made.__dict__.update({n: v for n, v in vars(part).items() if not n.startswith("_")})
        if hasattr(part, "__getattr__"):
            made.__getattr__ = part.__getattr__  # type: ignore[method-assign]
    made.__dict__.update(names)
    return made


def seed(seed_state: int, ctx: Any = "all") -> None:
    """Begin all random numbers anew."""
    our_random.seed(seed_state, ctx)


def _uniform(low: float = 0, high: float = 1, shape: Any = (1,), dtype: Any = None, ctx: Any = None, **_: Any) -> Any:
    return our_random.uniform(low, high, shape, ctx=ctx)


def _normal(loc: float = 0, scale: float = 1, shape: Any = (1,), dtype: Any = None, ctx: Any = None, **_: Any) -> Any:
    return our_random.normal(shape, loc=loc, scale=scale, ctx=ctx)


def _randint(low: int, high: int, shape: Any = (1,), dtype: Any = "int32", ctx: Any = None, **_: Any) -> Any:
    return our_random.randint(low, high, shape, dtype=dtype or "int32", ctx=ctx)


def kv_create(name: str = "local") -> Any:
    """A store by its kind; `set_optimizer` takes optimizers of MXNet's names."""
    store = kvstore.create(name)
    ours = store.set_optimizer

    def set_optimizer(optimizer: Any) -> None:
        chosen = optimizers.create(optimizer)
        ours(chosen.rule)

    store.set_optimizer = set_optimizer  # type: ignore[method-assign]
    store._set_updater = store.set_updater  # type: ignore[attr-defined]
    return store


def assert_almost_equal(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-20, **_: Any) -> None:
    one, two = (x.asnumpy() if hasattr(x, "asnumpy") else x for x in (a, b))
    np.testing.assert_allclose(one, two, rtol=rtol, atol=atol)


def list_gpus() -> range:
    """Numbers of the GPUs that are here."""
    return range(contexts.num_gpus())


def plot_network(symbol: Any, title: str = "plot", save_format: str = "svg", shape: Any = None, **_: Any) -> str:
    """The network as an SVG; how Graphviz would draw it has no meaning."""
    return our_viz.plot_network(symbol, shapes=shape)


random = _module("random", our_random, seed=seed, uniform=_uniform, normal=_normal, randint=_randint)
contrib = _module("nd.contrib", control)
nd = _module(
    "nd", arrays, random=random, contrib=contrib, uniform=_uniform, normal=_normal, random_uniform=_uniform,
    random_normal=_normal, random_randint=_randint,
)  # fmt: skip
arrays.contrib, arrays.uniform, arrays.normal = contrib, _uniform, _normal
ndarray = nd
sym = _module("sym", symbols)
symbol = sym
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
kv = _module("kv", kvstore, create=kv_create)
recordio = _module("recordio", IRHeader=IRHeader, MXRecordIO=RecordFile, MXIndexedRecordIO=RecordFile, pack=pack_record,
                   RecordWriter=RecordWriter)  # fmt: skip
test_utils = _module("test_utils", assert_almost_equal=assert_almost_equal, list_gpus=list_gpus)
visualization = viz = _module("viz", our_viz, plot_network=plot_network)
nn = _module("gluon.nn", **blocks.LAYERS, Block=blocks.Block, HybridBlock=blocks.HybridBlock)
rnn = _module("gluon.rnn", **blocks.RECURRENT)
utils = _module("gluon.utils", split_data=blocks.split_data, split_and_load=blocks.split_and_load)
gluon = _module("gluon", blocks, nn=nn, rnn=rnn, utils=utils, data=gluon_data, loss=our_gluon.loss)
MXNetError = InputError


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
        "recordio": recordio, "test_utils": test_utils, "visualization": viz, "viz": viz, "profiler": profiler,
        "autograd": autograd, "gluon": gluon, "gluon.nn": nn, "gluon.rnn": rnn, "gluon.utils": utils,
        "gluon.loss": our_gluon.loss, "gluon.data": gluon_data,
    }  # fmt: skip
    sys.modules.update({f"{name}.{part}": of for part, of in parts.items()})
