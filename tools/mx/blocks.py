"""`mx.gluon`: blocks with what MXNet's have beside ours: prefixes, name scopes, `hybrid_forward`, `.params` files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ... import nd as arrays_of_ours
from ...gluon import fit, loss, nn, rnn
from ...gluon.block import Block as OurBlock
from ...gluon.hybrid import HybridBlock as OurHybridBlock
from ...gluon.parameter import Parameter
from ...gluon.symbol_block import SymbolBlock
from ...gluon.trainer import Trainer as OurTrainer
from ...nd.array import Array
from ...nd.place import Place
from ...ops.errors import InputError
from . import arrays, initializers, optimizers


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a layer: MXNet's initialisers as ours, names and prefixes left out."""
    kept = {k: v for k, v in settings.items() if k not in ("prefix", "params")}
    return {
        k: initializers.of_gluon(initializers.create(v)) if k.endswith("initializer") else v for k, v in kept.items()
    }


class ParameterDict(dict[str, Parameter]):
    """Parameters by name, with what can be done to all at once."""

    def initialize(self, init: Any = None, ctx: Any = None, verbose: bool = False, force_reinit: bool = False) -> None:
        for name, p in self.items():
            p.name = name
            usual = initializers.of_gluon(initializers.create(init)) or "uniform"
            p.initialize(None, _place(ctx), default_init=usual, force_reinit=force_reinit)

    def zero_grad(self) -> None:
        for p in self.values():
            p.zero_grad()

    def setattr(self, name: str, value: Any) -> None:
        for p in self.values():
            setattr(p, name, value)

    def reset_ctx(self, ctx: Any) -> None:
        for p in self.values():
            p.reset_ctx(_place(ctx) or "cpu")

    def save(self, filename: str, strip_prefix: str = "") -> None:
        arrays.save(filename, {n.removeprefix(strip_prefix): p.data() for n, p in self.items()})


def _place(ctx: Any) -> Place | None:
    place: Place | None = ctx[0] if isinstance(ctx, list | tuple) else ctx
    return place


class _Own:
    """The `params` of a block: `get` makes one, which an attribute then holds."""

    def get(
        self, name: str, shape: Any = None, init: Any = None, allow_deferred_init: bool = True, **settings: Any
    ) -> Parameter:
        kept = {k: v for k, v in settings.items() if k in ("dtype", "lr_mult", "wd_mult", "grad_req")}
        sizes = (shape,) if isinstance(shape, int) else tuple(shape or ())
        return Parameter(name, shape=sizes or None, init=initializers.of_gluon(initializers.create(init)), **kept)


class MXNetBlock(OurBlock):
    """Base of blocks of MXNet's kind, with what ours do without."""

    @contextmanager
    def name_scope(self) -> Iterator[MXNetBlock]:
        """Names come from attributes here: nothing is to be opened."""
        yield self

    @property
    def params(self) -> _Own:
        return _Own()

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    prefix = ""

    def initialize(  # type: ignore[override]
        self, init: Any = None, ctx: Any = None, verbose: bool = False, force_reinit: bool = False
    ) -> Any:
        super().initialize(initializers.of_gluon(initializers.create(init)), _place(ctx), force_reinit)

    def hybridize(self, active: bool = True, **how: Any) -> Any:
        super().hybridize(active, **how)

    def collect_params(self, select: str | None = None) -> ParameterDict:
        return ParameterDict(super().collect_params(select))

    def save_parameters(self, path: str | os.PathLike[str], deduplicate: bool = False) -> None:
        """Write all parameters: as MXNet's `.params`, or by the ending in a format of ours."""
        if str(path).endswith((".safetensors", ".npz")):
            super().save_parameters(path)
        else:
            arrays.save(path, {n: p.data().detach() for n, p in self.collect_params().items()})

    def load_parameters(
        self, path: str | os.PathLike[str], ctx: Any = None, *, allow_missing: bool = False, ignore_extra: bool = False,
        **_: Any,
    ) -> Any:  # fmt: skip
        if str(path).endswith((".safetensors", ".npz")):
            return super().load_parameters(path, allow_missing=allow_missing, ignore_extra=ignore_extra)
        stored = arrays.load(path, _place(ctx))
        mine = self.collect_params()
        missing, extra = [n for n in mine if n not in stored], [n for n in stored if n not in mine]
        if (missing and not allow_missing) or (extra and not ignore_extra):
            raise InputError(f"the file lacks {missing}, the block has no {extra}", where=str(path),
                             hint="allow_missing=, ignore_extra=")  # fmt: skip
        for name in mine.keys() - missing:
            mine[name].name = name
            mine[name].set_data(stored[name])
        return self

    save_params, load_params = save_parameters, load_parameters


class Block(MXNetBlock):
    """A block of yours, with `forward`."""

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        super().__init__()


class HybridBlock(MXNetBlock, OurHybridBlock):
    """A block of yours, with `forward`, or `hybrid_forward(F, x, **parameters)`."""

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        OurHybridBlock.__init__(self)

    def forward(self, *args: Any, **options: Any) -> Any:
        write = getattr(self, "hybrid_forward", None)
        if write is None:
            return super().forward(*args, **options)
        own = {n: p.data() for n, p in self._params.items()}
        return write(arrays, *args, **own, **options)


def layer(kind: type[Any]) -> type[Any]:
    """A layer of ours with MXNet's settings."""

    def start(self: Any, *args: Any, **settings: Any) -> None:
        kind.__init__(self, *args, **_settings(settings))

    return type(kind.__name__, (MXNetBlock, kind), {"__init__": start, "__doc__": kind.__doc__, "__module__": __name__})


def _layers(module: Any) -> dict[str, Any]:
    classes = {n: v for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, OurBlock)}
    return {n: layer(v) for n, v in classes.items() if v not in (OurBlock, OurHybridBlock)}


class Trainer(OurTrainer):
    """Ours, with optimizers and schedules of MXNet's names."""

    def __init__(
        self, params: Any, optimizer: Any, optimizer_params: Mapping[str, Any] | None = None, kvstore: Any = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        chosen = optimizers.create(optimizer, **(optimizer_params or {}))
        store = None if kvstore in (None, "device", "local") else kvstore
        known = {k: v for k, v in settings.items() if k in ("update_on_kvstore",) and v is not None}
        super().__init__(params, chosen.rule, None, store, clip_value=chosen.clip_gradient, **known)


def split_data(data: Array, num_slice: int, batch_axis: int = 0, even_split: bool = True) -> list[Array]:
    return list(arrays_of_ours.split(data, num_slice, axis=batch_axis)) if num_slice > 1 else [data]


def split_and_load(data: Any, ctx_list: Sequence[Place], batch_axis: int = 0, even_split: bool = True) -> list[Array]:
    """Slices of a batch, each on one of the devices."""
    whole = data if isinstance(data, Array) else arrays.array(data)
    parts = split_data(whole, len(ctx_list), batch_axis, even_split)
    return [p.as_in_context(c) for p, c in zip(parts, ctx_list, strict=True)]


LAYERS, RECURRENT = _layers(nn), _layers(rnn)

__all__ = ["Block", "HybridBlock", "Parameter", "ParameterDict", "SymbolBlock", "Trainer", "fit", "loss"]
