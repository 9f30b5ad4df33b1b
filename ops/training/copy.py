"""Copies from device to device: what planning puts where a step reads a value of another device."""

from __future__ import annotations

from typing import Any

from ..op import Builder, Context, Sample, Value, op
from ..types import Array, Tensor, Type, f32

DOMAIN, COPY = "mezzo", "Copy"


@op("Copy", domain="mezzo", complex_numbers="taken", samples=[Sample([f32(2, 3)], {"key": "x", "device": "cpu:1"})])
def copy(k: Context, X: Array, *, key: str, device: str = "") -> Array:
    """X. Planned over several devices it is two steps, which meet by `key`: one says on X's device that X is there,
    the other brings it to `device`."""
    return k.xp.array(X)


@copy.infer
def _(X: Tensor, *, key: str, device: str = "") -> Type:
    return X.forget()


@copy.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value, ...]:
    return (dys[0],)


@copy.body
def _(g: Builder, xs: Any, types: Any, *, key: str, device: str = "") -> tuple[Value, ...]:
    return (g.Identity(xs[0]),)
