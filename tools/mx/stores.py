"""`mx.kv.create`: stores whose optimizers are MXNet's, with what those do to gradients before a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

from ... import kvstore
from ...ops.errors import InputError
from . import optimizers


def create(name: str = "local") -> Any:
    """A store by its kind; `set_optimizer` takes optimizers of MXNet's names."""
    store = kvstore.create(name)
    ours = store.set_optimizer
    calls = {verb: getattr(store, verb) for verb in ("push", "pushpull")}

    def set_optimizer(optimizer: Any) -> None:
        chosen = optimizers.create(optimizer)
        if chosen.clip_gradient is not None and store.num_workers > 1:
            raise InputError(
                "clip_gradient where several workers give a gradient", where="set_optimizer",
                hint="clip the gradients before they are pushed",
            )  # fmt: skip
        ours(chosen.rule)
        for verb, call in calls.items():
            setattr(store, verb, _prepared(call, chosen))

    store.set_optimizer = set_optimizer  # type: ignore[method-assign]
    store._set_updater, store.type = store.set_updater, name  # type: ignore[attr-defined]
    return store


def _prepared(call: Callable[..., Any], optimizer: optimizers.Optimizer) -> Callable[..., Any]:
    """A verb that multiplies and clips what it gives to the optimizer: of several arrays of a key their sum."""

    def ready(key: Any, value: Any) -> Any:
        if isinstance(key, list | tuple):
            return [ready(k, v) for k, v in zip(key, value, strict=True)]
        return optimizer.ready(reduce(add, value) if isinstance(value, list | tuple) else value)

    def called(key: Any, value: Any, *args: Any, **how: Any) -> Any:
        return call(key, ready(key, value), *args, **how)

    return called


__all__ = ["create"]
