"""Where a training program is split for a KVStore: what goes to others, and what comes back.

Both are the identity: in a program without a store, in an exported model, and for derivatives. With a store, an Emit
says that a value is final, so that it travels while the steps behind it run, and an Await waits for what the store
makes of it. Which verbs that are is the affair of whoever gives the program its store (train/exchange.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .op import Builder, Context, Sample, Value, op
from .types import Array, Tensor, Type, f32

DOMAIN, EMIT, AWAIT = "mezzo", "Emit", "Await"
SAMPLES = [Sample([f32(2, 3)], {"key": "weight"}), Sample([np.ones((2, 2))], {"key": "bias"})]


@op(EMIT, domain=DOMAIN, samples=SAMPLES)
def emit(k: Context, X: Array, *, key: str) -> Array:
    """X, which is final and goes to the store under `key`."""
    return k.xp.array(X)


@op(AWAIT, domain=DOMAIN, samples=[*SAMPLES, Sample([f32(3), f32(3)], {"key": "weight"})])
def await_(k: Context, X: Array, Emitted: Array | None = None, *, key: str) -> Array:
    """What the store has under `key`, and X where there is no store. `Emitted` has to be on its way before."""
    return k.xp.array(X)


@emit.infer
def _(X: Tensor, *, key: str) -> Type:
    return X.forget()


@await_.infer
def _(X: Tensor, Emitted: Tensor | None = None, *, key: str) -> Type:
    return X.forget()


@emit.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value, ...]:
    return (dys[0],)


@await_.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    return (dys[0], None)[: len(xs)]


@emit.body
def _(g: Builder, xs: Any, types: Any, **attrs: Any) -> tuple[Value, ...]:
    return (g.Identity(xs[0]),)


@await_.body
def _(g: Builder, xs: Any, types: Any, **attrs: Any) -> tuple[Value, ...]:
    return (g.Identity(xs[0]),)
