"""`mx.gluon`: blocks with what MXNet's have beside ours: prefixes, name scopes, `hybrid_forward`, `.params` files."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from ... import nd as arrays_of_ours
from ...gluon import fit, loss, nn, rnn
from ...gluon.block import Block as OurBlock
from ...gluon.hybrid import HybridBlock as OurHybridBlock
from ...gluon.parameter import Parameter as OurParameter
from ...gluon.trainer import Trainer as OurTrainer
from ...nd.array import Array
from ...nd.place import Place
from ...ops.errors import InputError
from ...runtime.optimizer import schedule
from . import arrays, initializers, optimizers, symbols
from .exports import SymbolBlock, exported
from .ndarray import own
from .signatures import LAYERS, arranged


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a layer: MXNet's initialisers as ours, names and prefixes left out."""
    kept = {k: v for k, v in settings.items() if k not in ("prefix", "params")}
    return {
        k: initializers.of_gluon(initializers.create(v)) if k.endswith("initializer") else v for k, v in kept.items()
    }


class Parameter(OurParameter):
    """A parameter, with MXNet's arrays, initialisers and devices."""

    def __init__(
        self, name: str = "weight", grad_req: str = "write", shape: Any = None, dtype: Any = "float32",
        lr_mult: float = 1.0, wd_mult: float = 1.0, init: Any = None, allow_deferred_init: bool = False,
        differentiable: bool = True, stype: str = "default", grad_stype: str = "default",
    ) -> None:  # fmt: skip
        sizes = (shape,) if isinstance(shape, int) else None if shape is None else tuple(shape)
        super().__init__(
            name, shape=sizes, dtype=dtype, init=initializers.of_gluon(initializers.create(init)),
            grad_req=grad_req if differentiable else "null", lr_mult=lr_mult, wd_mult=wd_mult, grad_stype=grad_stype,
        )  # fmt: skip

    def data(self, ctx: Any = None) -> Array:
        return own(super().data())

    def grad(self, ctx: Any = None) -> Any:
        return own(super().grad())

    def list_ctx(self) -> list[Place]:
        return [self.data().device]

    def initialize(
        self, init: Any = None, ctx: Any = None, default_init: Any = "uniform", force_reinit: bool = False
    ) -> None:
        chosen, usual = (initializers.of_gluon(initializers.create(i)) for i in (init, default_init))
        super().initialize(chosen, _place(ctx), usual or "uniform", force_reinit)

    def var(self) -> Any:
        """The symbol that stands for it."""
        return symbols.Variable(self.name, shape=self.shape, dtype=self.dtype)


class Constant(Parameter):
    """Numbers that do not learn."""

    def __init__(self, name: str, value: Any) -> None:
        held = value if isinstance(value, Array) else arrays.array(value)
        super().__init__(name, grad_req="null", shape=held.shape, dtype=held.dtype, init=initializers.Zero())
        self.value = held
        self.set_data(held)


class ParameterDict(dict[str, OurParameter]):
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
    """The `params` of a block: `get` makes one, which an attribute then holds, or gives one of a block that shares."""

    def __init__(self, block: OurBlock) -> None:
        self._block = block

    def get(
        self, name: str, shape: Any = None, init: Any = None, allow_deferred_init: bool = True, **settings: Any
    ) -> Any:
        if (shared := SHARED.get(self._block, {}).get(name)) is not None:
            return shared
        return Parameter(name, shape=shape or None, init=init, **settings)

    def get_constant(self, name: str, value: Any = None) -> Constant:
        return Constant(name, value)


SHARED: WeakKeyDictionary[Any, Mapping[str, OurParameter]] = WeakKeyDictionary()  # by block what `params=` gave it


def share(block: OurBlock, params: Any) -> None:
    """Let a block have the parameters of another one, whose `params` these are, in the place of its own."""
    if params is None:
        return
    given: Mapping[str, OurParameter] = params._block._params if isinstance(params, _Own) else params
    SHARED[block] = given
    for name in given.keys() & block._params.keys():
        mine, theirs = block._params[name], given[name]
        if mine.known and theirs.known and mine.shape != theirs.shape:
            raise InputError(f"{name!r} is {mine.shape}, and the shared one {theirs.shape}", where="params=")
        setattr(block, name, theirs)


CALLED: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()  # by block the kinds of its first inputs, for exports


class MXNetBlock(OurBlock):
    """Base of blocks of MXNet's kind, with what ours do without."""

    def __setattr__(self, name: str, value: Any) -> None:
        if type(value) is OurParameter:
            value.__class__ = Parameter
        super().__setattr__(name, value)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self not in CALLED and all(isinstance(x, Array) for x in args):
            CALLED[self] = [(x.shape, x.dtype) for x in args]
        return own(super().__call__(*args, **options))

    @contextmanager
    def name_scope(self) -> Iterator[MXNetBlock]:
        """Names come from attributes here: nothing is to be opened."""
        yield self

    @property
    def params(self) -> _Own:
        return _Own(self)

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

    def export(self, path: str | os.PathLike[str], *inputs: Any, epoch: int = 0, **options: Any) -> Any:
        """Write a symbol and parameters, as MXNet does; `.onnx` and `.mezzo` files as blocks of ours do."""
        if str(path).endswith((".onnx", ".mezzo")):
            return super().export(path, *inputs, **options)  # type: ignore[misc]
        if self not in CALLED:
            raise InputError("the block was never called", where="export", hint="call it on an input first")
        return exported(self, path, inputs[0] if inputs else epoch, [arrays.zeros(s, dtype=t) for s, t in CALLED[self]])

    save_params, load_params = save_parameters, load_parameters


class Block(MXNetBlock):
    """A block of yours, with `forward`."""

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        super().__init__()
        share(self, params)


class HybridBlock(MXNetBlock, OurHybridBlock):
    """A block of yours, with `forward`, or `hybrid_forward(F, x, **parameters)`."""

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        OurHybridBlock.__init__(self)
        share(self, params)

    def forward(self, *args: Any, **options: Any) -> Any:
        write = getattr(self, "hybrid_forward", None)
        if write is None:
            return super().forward(*args, **options)
        if any(isinstance(x, symbols.Symbol) for x in args):
            return write(symbols, *args, **{n: _symbol_of(p) for n, p in self._params.items()}, **options)
        if not all(p.known for p in self._params.values()):
            self._ask(write, args, options)
        weights = {n: p.data() for n, p in self._params.items()}
        return write(arrays, *own(args), **weights, **options)

    def _ask(self, write: Any, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Learn the sizes of parameters from those of the inputs: by symbols, as MXNet does."""
        given = [symbols.Variable(f"input{i}", shape=x.shape) for i, x in enumerate(args)]
        weights = {n: symbols.Variable(f"own_{n}", shape=p.shape) for n, p in self._params.items()}
        answer = write(symbols, *given, **weights, **options)
        whole = answer if isinstance(answer, symbols.Symbol) else symbols.Group(list(answer))
        shapes = dict(zip(whole.list_arguments(), whole.infer_shape_partial()[0], strict=True))
        for name, p in self._params.items():
            if shapes.get(f"own_{name}") is not None and not p.known:
                p.finish(shapes[f"own_{name}"])


def _symbol_of(p: OurParameter) -> Any:
    return symbols.Variable(p.name, shape=p.shape, dtype=p.dtype)


def layer_settings(name: str, args: Sequence[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A call of a layer as settings of ours."""
    return _settings(arranged(name, LAYERS[name], args, settings))


def layer(kind: type[Any]) -> type[Any]:
    """A layer of ours with MXNet's settings."""

    name = kind.__name__.lstrip("_")
    signature = LAYERS.get(name)

    @functools.wraps(kind.__init__)
    def start(self: Any, *args: Any, **settings: Any) -> None:
        shared = settings.get("params")
        if signature is not None:
            args, settings = (), arranged(name, signature, args, settings)
        settings = {k: v for k, v in settings.items() if k != "weight" or v is not None}
        kind.__init__(self, *args, **_settings(settings))
        share(self, shared)

    return type(name, (MXNetBlock, kind), {"__init__": start, "__doc__": kind.__doc__, "__module__": __name__})


def adopted(net: Any) -> Any:
    """A network of ours with what MXNet's blocks have, and so are all blocks below it."""
    for _, block in net.named_blocks():
        kind = type(block)
        if not issubclass(kind, MXNetBlock):
            block.__class__ = _KINDS.setdefault(
                kind, type(kind.__name__, (MXNetBlock, kind), {"__doc__": kind.__doc__})
            )
        for p in block._params.values():
            if type(p) is OurParameter:
                p.__class__ = Parameter
    return net


_KINDS: dict[type[Any], type[Any]] = {}


def _layers(module: Any) -> dict[str, Any]:
    classes = {n: v for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, OurBlock)}
    return {n: layer(v) for n, v in classes.items() if v not in (OurBlock, OurHybridBlock)}


class OwnLoss(HybridBlock):
    """Base of losses of yours, with `hybrid_forward`."""

    def __init__(self, weight: float | None, batch_axis: int | None, **_: Any) -> None:
        super().__init__()
        self._weight, self._batch_axis = weight, batch_axis


class Trainer(OurTrainer):
    """Ours, with optimizers and schedules of MXNet's names."""

    def __init__(
        self, params: Any, optimizer: Any, optimizer_params: Mapping[str, Any] | None = None, kvstore: Any = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        chosen = optimizers.create(optimizer, **(optimizer_params or {}))
        store = None if kvstore in (None, "device", "local") else kvstore
        known = {k: v for k, v in settings.items() if k in ("update_on_kvstore",) and v is not None}
        named = params if isinstance(params, Mapping) else {p.name: p for p in params}
        super().__init__(
            named if len(named) == len(params) else params,
            chosen.rule,
            None,
            store,
            clip_value=chosen.clip_gradient,
            **known,
        )
        self._chosen, self._count = chosen, 0

    def step(self, batch_size: int = 1, ignore_stale_grad: bool = False) -> None:
        if self._on_store:  # else `_update` asks, which this calls
            self._told()
        super().step(batch_size, ignore_stale_grad)

    def _update(self, batch_size: int) -> None:
        self._told()
        super()._update(batch_size)

    def _told(self) -> None:
        """Ask a schedule of the program's own for the rate of the update to come."""
        self._count += 1
        if self._chosen.asked is not None:
            self.set_learning_rate(float(self._chosen.asked(self._count)))

    @property
    def learning_rate(self) -> float:
        """The rate of the last update, as MXNet tells it; before the first one, of that."""
        return schedule.at(self._step.optimizer.rate, max(self.updates - 1, 0))

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.set_learning_rate(rate)

    def set_learning_rate(self, lr: Any) -> None:
        super().set_learning_rate(lr)

    def allreduce_grads(self) -> None:
        """The sum over workers; one alone has it already."""
        if self._kv is not None or self._on_store:
            super().allreduce_grads()


def split_data(data: Array, num_slice: int, batch_axis: int = 0, even_split: bool = True) -> list[Array]:
    """Slices along an axis. Raises InputError for a size that does not divide, unless they may be uneven."""
    size = data.shape[batch_axis]
    if even_split and size % num_slice:
        raise InputError(f"{size} do not divide into {num_slice}", where="split_data", hint="even_split=False")
    if num_slice == 1:
        return [data]
    step, more = divmod(size, num_slice)  # the first ones have one more
    ends = [step * i + min(i, more) for i in range(1, num_slice)]
    bounds = zip([0, *ends], [*ends, size], strict=True)
    return own([arrays.slice_axis(data, axis=batch_axis, begin=a, end=b) for a, b in bounds])


def clip_global_norm(arrays_: Sequence[Array], max_norm: float, check_isfinite: bool = True) -> Any:
    """Scale arrays in place so that all together are no longer than `max_norm`; returns how long they were."""
    total = arrays_of_ours.sqrt(sum((arrays_of_ours.sum(x * x) for x in arrays_), start=arrays_of_ours.zeros(())))
    scale = arrays_of_ours.minimum(total * 0 + 1, max_norm / (total + 1e-8))
    for x in arrays_:
        x *= scale
    return float(total) if check_isfinite else own(total.reshape((1,)))


def split_and_load(data: Any, ctx_list: Sequence[Place], batch_axis: int = 0, even_split: bool = True) -> list[Array]:
    """Slices of a batch, each on one of the devices."""
    whole = data if isinstance(data, Array) else arrays.array(data)
    parts = split_data(whole, len(ctx_list), batch_axis, even_split)
    return [p.as_in_context(c) for p, c in zip(parts, ctx_list, strict=True)]


LAYER_KINDS, RECURRENT, LOSSES = _layers(nn), _layers(rnn), _layers(loss)


class HybridLambda(HybridBlock):
    """A function as a block: `function(F, x)`, or an operator by its name."""

    def __init__(self, function: Any, prefix: str | None = None) -> None:
        super().__init__()
        self._function = function

    def hybrid_forward(self, F: Any, x: Any, *args: Any) -> Any:
        return getattr(F, self._function)(x, *args) if isinstance(self._function, str) else self._function(F, x, *args)


class Lambda(Block):
    """A function as a block: `function(x)`, or a function of `nd` by its name."""

    def __init__(self, function: Any, prefix: str | None = None) -> None:
        super().__init__()
        self._function = getattr(arrays, function) if isinstance(function, str) else function

    def forward(self, *args: Any) -> Any:
        return self._function(*own(args))


LAYER_KINDS |= {"HybridLambda": HybridLambda, "Lambda": Lambda}

__all__ = ["Block", "HybridBlock", "Parameter", "ParameterDict", "SymbolBlock", "Trainer", "fit", "loss"]
