"""`mx.mod` and `mx.model`: Module, BucketingModule and FeedForward over executors of symbols."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import nd
from ...nd.array import Array
from ...ops.errors import InputError
from . import arrays, initializers, metrics, optimizers, symbols
from .batches import DataDesc, DataIter, NDArrayIter
from .ndarray import own

Params = dict[str, Array]


class BatchEndParam(NamedTuple):
    """Facts that callbacks are told after a batch."""

    epoch: int
    nbatch: int
    eval_metric: Any
    locals: Any


def save_checkpoint(
    prefix: str, epoch: int, symbol: Any, arg_params: Mapping[str, Array], aux_params: Mapping[str, Array],
    remove_amp_cast: bool = True,
) -> None:  # fmt: skip
    """Write `prefix-symbol.json` and `prefix-0001.params`."""
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json")
    named = {f"arg:{n}": v for n, v in arg_params.items()} | {f"aux:{n}": v for n, v in aux_params.items()}
    arrays.save(f"{prefix}-{epoch:04d}.params", named)


def load_params(prefix: str, epoch: int) -> tuple[Params, Params]:
    held = arrays.load(f"{prefix}-{epoch:04d}.params")
    args, aux = ({n.split(":", 1)[1]: v for n, v in held.items() if n.startswith(k)} for k in ("arg:", "aux:"))
    return args, aux


def load_checkpoint(prefix: str, epoch: int) -> tuple[Any, Params, Params]:
    """The symbol, its parameters and auxiliary states, of files that `save_checkpoint` or MXNet wrote."""
    return (symbols.load(f"{prefix}-symbol.json"), *load_params(prefix, epoch))


def _described(given: Any) -> dict[str, tuple[int, ...]]:
    return {d[0]: tuple(d[1]) for d in given or ()}


def _each(callbacks: Any) -> list[Callable[..., Any]]:
    return [] if callbacks is None else list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]


class BaseModule:
    """Base of modules: fit, score and predict over iterators, in terms of forward, backward and update."""

    binded = params_initialized = optimizer_initialized = for_training = False
    symbol: Any

    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger

    # Kinds of modules write these

    def bind(self, data_shapes: Any, label_shapes: Any = None, **_: Any) -> None:
        raise NotImplementedError

    init_params: Callable[..., None]
    init_optimizer: Callable[..., None]

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        raise NotImplementedError

    def backward(self, out_grads: Any = None) -> None:
        raise NotImplementedError

    def update(self) -> None:
        raise NotImplementedError

    def get_outputs(self, merge_multi_context: bool = True) -> list[Array]:
        raise NotImplementedError

    def get_params(self) -> tuple[Params, Params]:
        raise NotImplementedError

    # What follows

    def forward_backward(self, data_batch: Any) -> None:
        self.forward(data_batch, is_train=True)
        self.backward()

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        eval_metric.update(labels, self.get_outputs())

    def prepare(self, data_batch: Any) -> None:
        """Get ready for a batch of other sizes."""

    def fit(
        self, train_data: Any, eval_data: Any = None, eval_metric: Any = "acc", epoch_end_callback: Any = None,
        batch_end_callback: Any = None, kvstore: Any = "local", optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),), eval_end_callback: Any = None,
        eval_batch_end_callback: Any = None, initializer: Any = None, arg_params: Any = None, aux_params: Any = None,
        allow_missing: bool = False, force_rebind: bool = False, force_init: bool = False, begin_epoch: int = 0,
        num_epoch: int | None = None, validation_metric: Any = None, monitor: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        """Train on an iterator, as MXNet's `fit` does: metrics are logged after each epoch."""
        if num_epoch is None:
            raise InputError("num_epoch has to be told", where="fit")
        self.bind(train_data.provide_data, train_data.provide_label, for_training=True, force_rebind=force_rebind)
        self.init_params(initializer or initializers.Uniform(0.01), arg_params=arg_params, aux_params=aux_params,
                         allow_missing=allow_missing, force_init=force_init)  # fmt: skip
        self.init_optimizer(kvstore=kvstore, optimizer=optimizer, optimizer_params=optimizer_params)
        measure = metrics.create(eval_metric)
        for epoch in range(begin_epoch, num_epoch):
            measure.reset()
            for nbatch, batch in enumerate(train_data):
                self.prepare(batch)
                self.forward_backward(batch)
                self.update()
                self.update_metric(measure, batch.label)
                for call in _each(batch_end_callback):
                    call(BatchEndParam(epoch, nbatch, measure, locals()))
            for name, value in measure.get_name_value():
                self.logger.info("Epoch[%d] Train-%s=%f", epoch, name, value)
            args, aux = self.get_params()
            for call in _each(epoch_end_callback):
                call(epoch, self.symbol, args, aux)
            if eval_data is not None:
                self.score(eval_data, validation_metric or eval_metric, score_end_callback=eval_end_callback,
                           batch_end_callback=eval_batch_end_callback, epoch=epoch)  # fmt: skip
            train_data.reset()  # as MXNet does, whose shuffles are so many

    def score(
        self, eval_data: Any, eval_metric: Any, num_batch: int | None = None, batch_end_callback: Any = None,
        score_end_callback: Any = None, reset: bool = True, epoch: int = 0, **_: Any,
    ) -> list[tuple[str, float]]:  # fmt: skip
        """Metrics over an iterator. Rows that fill up the last batch count, as they do in MXNet."""
        measure = metrics.create(eval_metric)
        measure.reset()
        if reset:
            eval_data.reset()
        nbatch = -1
        for nbatch, batch in enumerate(eval_data):
            if nbatch == num_batch:
                break
            self.prepare(batch)
            self.forward(batch, is_train=False)
            self.update_metric(measure, batch.label)
            for call in _each(batch_end_callback):
                call(BatchEndParam(epoch, nbatch, measure, locals()))
        for call in _each(score_end_callback):
            call(BatchEndParam(epoch, nbatch, measure, locals()))
        for name, value in measure.get_name_value():
            self.logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)
        return measure.get_name_value()

    def iter_predict(self, eval_data: Any, num_batch: int | None = None, reset: bool = True) -> Any:
        """Yield (outputs, number of the batch, batch), without the rows that fill up."""
        if reset:
            eval_data.reset()
        for nbatch, batch in enumerate(eval_data):
            if nbatch == num_batch:
                return
            self.prepare(batch)
            self.forward(batch, is_train=False)
            pad = batch.pad or 0
            yield [own(o[: o.shape[0] - pad]) for o in self.get_outputs()], nbatch, batch

    def predict(
        self, eval_data: Any, num_batch: int | None = None, merge_batches: bool = True, reset: bool = True,
        always_output_list: bool = False,
    ) -> Any:  # fmt: skip
        if isinstance(eval_data, Array | np.ndarray):
            eval_data = NDArrayIter(eval_data, batch_size=eval_data.shape[0])
        batches = [outputs for outputs, _, _ in self.iter_predict(eval_data, num_batch, reset)]
        if not merge_batches:
            return batches
        merged = [own(nd.concat(list(parts), axis=0)) for parts in zip(*batches, strict=True)]
        return merged[0] if len(merged) == 1 and not always_output_list else merged

    def save_params(self, fname: str) -> None:
        args, aux = self.get_params()
        arrays.save(fname, {f"arg:{n}": v for n, v in args.items()} | {f"aux:{n}": v for n, v in aux.items()})

    def load_params(self, fname: str) -> None:
        held = arrays.load(fname)
        args, aux = ({n[4:]: v for n, v in held.items() if n.startswith(k)} for k in ("arg:", "aux:"))
        self.set_params(args, aux)

    def set_params(self, arg_params: Any, aux_params: Any, allow_missing: bool = False, force_init: bool = True,
                   allow_extra: bool = False) -> None:  # fmt: skip
        self.init_params(None, arg_params=arg_params, aux_params=aux_params, allow_missing=allow_missing,
                         force_init=force_init)  # fmt: skip


class Module(BaseModule):
    """A symbol with parameters and an optimizer."""

    def __init__(
        self, symbol: Any, data_names: Sequence[str] | None = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",), logger: Any = logging, context: Any = None,
        work_load_list: Any = None, fixed_param_names: Sequence[str] | None = None, state_names: Any = None,
        group2ctxs: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__(logger)
        self._groups = group2ctxs[0] if isinstance(group2ctxs, list | tuple) else group2ctxs
        self.symbol, self._context = symbol, context[0] if isinstance(context, list | tuple) else context
        arguments = symbol.list_arguments()
        self.data_names = list(data_names or ())
        self.label_names = [n for n in label_names or () if n in arguments]
        self._fixed = set(fixed_param_names or ())
        fed = {*self.data_names, *self.label_names}
        self._learnt = [n for n in arguments if n not in fed]
        self._executor: Any = None
        self._optimizer: optimizers.Optimizer | None = None
        self._store: Any = None
        self._preloaded: tuple[Params, Params] | None = None

    @staticmethod
    def load(prefix: str, epoch: int, load_optimizer_states: bool = False, **options: Any) -> Module:
        if load_optimizer_states:
            raise InputError(
                "states of optimizers of MXNet are not taken up",
                where="Module.load",
                hint="train on from the parameters; mz.mxnet.read_states reads them, mz.Trainer.save keeps states",
            )
        symbol, args, aux = load_checkpoint(prefix, epoch)
        module = Module(symbol, **options)
        module._preloaded = args, aux
        return module

    def save_checkpoint(self, prefix: str, epoch: int, save_optimizer_states: bool = False) -> None:
        save_checkpoint(prefix, epoch, self.symbol, *self.get_params())
        if save_optimizer_states and self._store is not None:
            self._store.save_optimizer_states(f"{prefix}-{epoch:04d}.states")

    @property
    def output_names(self) -> list[str]:
        return list(self.symbol.list_outputs())

    @property
    def data_shapes(self) -> list[DataDesc]:
        return self._data_shapes

    @property
    def label_shapes(self) -> list[DataDesc]:
        return self._label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        shapes = self.symbol.infer_shape(**_described([*self._data_shapes, *self._label_shapes]))[1]
        return list(zip(self.output_names, shapes, strict=True))

    def bind(
        self, data_shapes: Any, label_shapes: Any = None, for_training: bool = True, inputs_need_grad: bool = False,
        force_rebind: bool = False, shared_module: Any = None, grad_req: Any = "write", **_: Any,
    ) -> None:  # fmt: skip
        if self.binded and not force_rebind:
            return
        self._data_shapes = [DataDesc(*d[:2]) for d in data_shapes]
        self._label_shapes = [DataDesc(*d[:2]) for d in label_shapes or () if d[0] in self.label_names]
        self.for_training, self.inputs_need_grad, self.binded = for_training, inputs_need_grad, True
        wanted = dict.fromkeys(self.symbol.list_arguments(), "null")
        if for_training:
            wanted |= {n: grad_req for n in self._learnt if n not in self._fixed}
            wanted |= dict.fromkeys(self.data_names, grad_req) if inputs_need_grad else {}
        self._wanted = wanted
        self._executor = self._bound(_described([*self._data_shapes, *self._label_shapes]))
        if self._preloaded is not None:
            self.init_params()
        if shared_module is not None and shared_module.params_initialized:
            self._executor.copy_params_from(*shared_module.get_params())
            self.params_initialized = True

    def _bound(self, shapes: Mapping[str, Sequence[int]]) -> Any:
        """An executor. A label has the shape that its loss asks for: [n, 1] where an iterator gives [n]."""
        known = {n: s for n, s in shapes.items() if n not in self.label_names}
        partial = self.symbol.infer_shape_partial(**known)[0]
        asked = dict(zip(self.symbol.list_arguments(), partial, strict=True))
        more = {n: s for n, s in shapes.items() if n in self.label_names and (not asked[n] or None in asked[n])}
        return self.symbol.simple_bind(self._context, self._wanted, group2ctx=self._groups, **known, **more)

    def init_params(
        self, initializer: Any = None, arg_params: Any = None, aux_params: Any = None, allow_missing: bool = False,
        force_init: bool = False, allow_extra: bool = False,
    ) -> None:  # fmt: skip
        if self.params_initialized and not force_init:
            return
        if arg_params is None and self._preloaded is not None:
            arg_params, aux_params = self._preloaded
        init = initializers.create(initializer) or initializers.Uniform(0.01)
        given = {**(arg_params or {}), **(aux_params or {})}
        auxiliary = self._executor.aux_dict
        attrs = self.symbol.attr_dict() if hasattr(self.symbol, "attr_dict") else {}
        for name, array in {**{n: self._executor.arg_dict[n] for n in self._learnt}, **auxiliary}.items():
            if name in given:
                array[:] = given[name]
            elif arg_params is not None and not allow_missing:
                raise InputError(
                    f"{name!r} is not among the parameters", where="init_params", hint="allow_missing=True"
                )
            else:
                initializers.first(name, attrs.get(name, {}).get("init"), init, array)
        self.params_initialized = True

    def init_optimizer(
        self, kvstore: Any = "local", optimizer: Any = "sgd", optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:  # fmt: skip
        if self.optimizer_initialized and not force_init:
            return
        from ...kvstore import create

        settings = {"rescale_grad": 1.0 / self._data_shapes[0].shape[0], **dict(optimizer_params)}
        chosen = (
            optimizers.create(optimizer, **settings) if isinstance(optimizer, str) else optimizers.create(optimizer)
        )
        self._optimizer = chosen
        self._store = create(kvstore or "local") if isinstance(kvstore, str | None) else kvstore
        if chosen.asked is not None:
            raise InputError(
                "a schedule of the program's own does not run on a store", where="init_optimizer",
                hint="mx.lr_scheduler has schedules; gluon.Trainer takes any",
            )  # fmt: skip
        attrs = self.symbol.attr_dict() if hasattr(self.symbol, "attr_dict") else None
        self._store.set_optimizer(optimizers.weighed(chosen.rule, self._learnt, attrs))
        for name in self._steps():
            self._store.init(name, self._executor.arg_dict[name])
        self.optimizer_initialized = True

    def _steps(self) -> list[str]:
        return [n for n in self._learnt if n in self._executor.grad_dict]

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        feeds = dict(zip((d.name for d in self._data_shapes), data_batch.data, strict=False))
        if data_batch.label:  # in the order that they were bound in, which is that of the iterator
            feeds |= dict(zip((d.name for d in self._label_shapes), data_batch.label, strict=False))
        held = self._executor.arg_dict
        if any(v.shape[0] != held[n].shape[0] or v.size != held[n].size for n, v in feeds.items()):
            self._resized({n: v.shape for n, v in feeds.items()})
            held = self._executor.arg_dict
        feeds = {n: v if v.shape == held[n].shape else v.reshape(held[n].shape) for n, v in feeds.items()}
        train = self.for_training if is_train is None else is_train
        self._executor.forward(is_train=train, **feeds)

    def _resized(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """An executor for other sizes, with the same parameters."""
        held = self._executor
        self._executor = self._bound(shapes)
        self._executor.copy_params_from({n: held.arg_dict[n] for n in self._learnt}, held.aux_dict)

    def backward(self, out_grads: Any = None) -> None:
        self._executor.backward(out_grads)

    def update(self) -> None:
        assert self._optimizer is not None
        for name in self._steps():
            weight = self._executor.arg_dict[name]
            self._store.push(name, self._optimizer.ready(self._executor.grad_dict[name]))
            self._store.pull(name, out=weight)

    def get_outputs(self, merge_multi_context: bool = True) -> list[Array]:
        return own(list(self._executor.outputs))

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Array]:
        return own([self._executor.grad_dict[n] for n in self.data_names])

    def get_params(self) -> tuple[Params, Params]:
        return own({n: self._executor.arg_dict[n] for n in self._learnt}), own(dict(self._executor.aux_dict))

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        self._data_shapes = [DataDesc(*d[:2]) for d in data_shapes]
        self._label_shapes = [DataDesc(*d[:2]) for d in label_shapes or ()]
        self._resized(_described([*self._data_shapes, *self._label_shapes]))

    def borrow_optimizer(self, shared_module: Module) -> None:
        self._optimizer, self._store, self.optimizer_initialized = shared_module._optimizer, shared_module._store, True


class BucketingModule(BaseModule):
    """Modules of one set of parameters, one for each key that batches have: `sym_gen(key)` returns the symbol, and the
    names of data and labels."""

    def __init__(self, sym_gen: Callable[[Any], tuple[Any, Any, Any]], default_bucket_key: Any = None,
                 logger: Any = logging, context: Any = None, **_: Any) -> None:  # fmt: skip
        super().__init__(logger)
        self._sym_gen, self._default, self._context = sym_gen, default_bucket_key, context
        self._modules: dict[Any, Module] = {}
        self._key = default_bucket_key

    @property
    def _module(self) -> Module:
        return self._modules[self._key]

    @property
    def symbol(self) -> Any:
        return self._module.symbol

    def _make(self, key: Any, data_shapes: Any, label_shapes: Any) -> Module:
        symbol, data_names, label_names = self._sym_gen(key)
        module = Module(symbol, data_names, label_names, self.logger, self._context)
        module.bind(data_shapes, label_shapes, self.for_training)
        return module

    def bind(self, data_shapes: Any, label_shapes: Any = None, for_training: bool = True, **_: Any) -> None:
        if self.binded:
            return
        self.for_training, self.binded = for_training, True
        self._modules[self._default] = self._make(self._default, data_shapes, label_shapes)

    def switch_bucket(self, bucket_key: Any, data_shapes: Any, label_shapes: Any = None) -> None:
        """Go on with the module of a key: parameters are those of the last one."""
        if bucket_key == self._key:
            return
        last = self._module
        if bucket_key not in self._modules:
            module = self._modules[bucket_key] = self._make(bucket_key, data_shapes, label_shapes)
            if last.optimizer_initialized:
                module.borrow_optimizer(last)
        module = self._modules[bucket_key]
        if last.params_initialized:
            module._executor.copy_params_from(*last.get_params())
            module.params_initialized = True
        if last.optimizer_initialized and not module.optimizer_initialized:
            module.borrow_optimizer(last)
        self._key = bucket_key

    def prepare(self, data_batch: Any) -> None:
        if data_batch.bucket_key is not None:
            self.switch_bucket(data_batch.bucket_key, data_batch.provide_data, data_batch.provide_label)

    def init_params(self, initializer: Any = None, **options: Any) -> None:
        self._module.init_params(initializer, **options)
        self.params_initialized = True

    def init_optimizer(self, **options: Any) -> None:
        self._module.init_optimizer(**options)
        self.optimizer_initialized = True

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        self.prepare(data_batch)
        self._module.forward(data_batch, is_train)

    def backward(self, out_grads: Any = None) -> None:
        self._module.backward(out_grads)

    def update(self) -> None:
        self._module.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[Array]:
        return self._module.get_outputs()

    def get_params(self) -> tuple[Params, Params]:
        return self._module.get_params()


class FeedForward:
    """The interface of MXNet's first releases: a symbol that fits arrays."""

    def __init__(
        self, symbol: Any, ctx: Any = None, num_epoch: int | None = None, epoch_size: int | None = None,
        optimizer: Any = "sgd", initializer: Any = None, numpy_batch_size: int = 128, arg_params: Any = None,
        aux_params: Any = None, allow_extra_params: bool = False, begin_epoch: int = 0, **settings: Any,
    ) -> None:  # fmt: skip
        self.symbol, self.ctx, self.num_epoch, self.optimizer = symbol, ctx, num_epoch, optimizer
        self.initializer, self.numpy_batch_size = initializer or initializers.Uniform(0.01), numpy_batch_size
        self.arg_params, self.aux_params, self.begin_epoch = arg_params, aux_params, begin_epoch
        self._settings = settings

    @staticmethod
    def create(
        symbol: Any, X: Any, y: Any = None, ctx: Any = None, num_epoch: int | None = None, **options: Any
    ) -> FeedForward:
        fitting = {k: options.pop(k) for k in ("eval_data", "eval_metric", "epoch_end_callback", "batch_end_callback",
                                               "kvstore", "logger") if k in options}  # fmt: skip
        model = FeedForward(symbol, ctx, num_epoch, **options)
        model.fit(X, y, **fitting)
        return model

    @staticmethod
    def load(prefix: str, epoch: int, ctx: Any = None, **options: Any) -> FeedForward:
        symbol, args, aux = load_checkpoint(prefix, epoch)
        return FeedForward(symbol, ctx, arg_params=args, aux_params=aux, begin_epoch=epoch, **options)

    def save(self, prefix: str, epoch: int | None = None) -> None:
        number = self.num_epoch if epoch is None else epoch
        save_checkpoint(prefix, number or 0, self.symbol, self.arg_params, self.aux_params)

    def _iterated(self, X: Any, y: Any = None, *, shuffle: bool = False) -> DataIter:
        if isinstance(X, DataIter) or hasattr(X, "provide_data"):
            return X  # type: ignore[no-any-return]
        label = np.zeros(len(X), np.float32) if y is None else y
        return NDArrayIter(X, label, min(len(X), self.numpy_batch_size), shuffle, "roll_over" if shuffle else "pad",
                           label_name=self._labels()[0] if self._labels() else "softmax_label")  # fmt: skip

    def _labels(self) -> list[str]:
        return [n for n in self.symbol.list_arguments() if n.endswith("label")]

    def _module(self, rows: Any) -> Module:
        names = [d[0] for d in rows.provide_data]
        return Module(self.symbol, names, [d[0] for d in rows.provide_label] or self._labels(), context=self.ctx)

    def fit(
        self, X: Any, y: Any = None, eval_data: Any = None, eval_metric: Any = "acc", epoch_end_callback: Any = None,
        batch_end_callback: Any = None, kvstore: Any = "local", logger: Any = None, **_: Any,
    ) -> FeedForward:  # fmt: skip
        rows = self._iterated(X, y, shuffle=True)
        held = self._iterated(*eval_data) if isinstance(eval_data, tuple | list) else eval_data
        module = self._module(rows)
        rows.reset()  # as MXNet does here, and in Module.fit does not
        module.fit(
            rows, held, eval_metric, epoch_end_callback, batch_end_callback, kvstore, self.optimizer,
            {"learning_rate": 0.01, **self._settings}, initializer=self.initializer, arg_params=self.arg_params,
            aux_params=self.aux_params, begin_epoch=self.begin_epoch, num_epoch=self.num_epoch, allow_missing=True,
        )  # fmt: skip
        self.arg_params, self.aux_params = module.get_params()
        return self

    def _bound(self, rows: Any) -> Module:
        module = self._module(rows)
        module.bind(rows.provide_data, rows.provide_label, for_training=False)
        module.set_params(self.arg_params, self.aux_params)
        return module

    def predict(self, X: Any, num_batch: int | None = None, return_data: bool = False, reset: bool = True) -> Any:
        rows = self._iterated(X)
        answers = self._bound(rows).predict(rows, num_batch, reset=reset)
        return [a.asnumpy() for a in answers] if isinstance(answers, list) else answers.asnumpy()

    def score(self, X: Any, y: Any = None, eval_metric: Any = "acc", **_: Any) -> float:
        rows = self._iterated(X, y)
        return self._bound(rows).score(rows, eval_metric)[0][1]


__all__ = ["BaseModule", "BucketingModule", "FeedForward", "Module", "load_checkpoint",
           "load_params", "save_checkpoint"]  # fmt: skip
