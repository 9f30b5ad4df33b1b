"""Optionals: a value, or None (https://onnx.ai/onnx/operators/onnx__Optional.html)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ShapeError
from ..op import Builder, Context, Held, Sample, Value, op
from ..types import Array, DType, Optional, Sequence, Tensor, Type, f32, i64
from .sequence import copied, held

NOTHING = Held(None, Optional(f32(2)))
SOME = Held(np.array([1, 2], np.float32), Optional(f32(2)))
LIST = Held([np.array([1, 2, 3])], Optional(Sequence(i64(3))))
ROWS = Held([np.array([1, 2], np.float32), np.array([3, 4], np.float32)], Optional(Sequence(f32(2))))


@op(
    "Optional",
    complex_numbers="taken",
    since=28,
    outputs=("output",),
    samples=[
        Sample([f32(2)]),
        Sample([Held(LIST.value, Sequence(i64(3)))]),
        Sample([], {"type": f32(2)}),
        Sample([Held(ROWS.value, Sequence(f32(2)))]),
    ],
)
def optional(k: Context, input: Any = None, *, type: Type | None = None) -> Any:
    return copied(input)


@optional.infer
def _(input: Type | None = None, *, type: Type | None = None) -> Optional:
    if input is None and type is None:
        raise ShapeError("an empty optional needs the attribute `type`")
    return Optional(_inside(input if input is not None else type))


@optional.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, type: Type | None = None) -> tuple[Value | None, ...]:
    return (None if xs[0] is None else g.OptionalGetElement(dys[0]),)


def _inside(type: Any) -> Type:
    """The element of an optional, or the type itself: both stand for a value that is there."""
    return type.element if isinstance(type, Optional) else held(type)


@op(
    "OptionalGetElement",
    complex_numbers="taken",
    since=28,
    outputs=("output",),
    samples=[Sample([SOME]), Sample([LIST]), Sample([f32(2)]), Sample([ROWS])],
)
def optional_get_element(k: Context, input: Any) -> Any:
    if input is None:
        raise ShapeError("an empty optional has no element", hint="ask OptionalHasElement first")
    return copied(input)


@optional_get_element.infer
def _(input: Type) -> Type:
    return _inside(input)


@optional_get_element.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Optional(dys[0]) if isinstance(g.type_of(xs[0]), Optional) else dys[0],)


@op(
    "OptionalHasElement",
    complex_numbers="unchecked",
    since=28,
    outputs=("output",),
    samples=[Sample([SOME]), Sample([NOTHING]), Sample([LIST]), Sample([f32(2)]), Sample([])],
)
def optional_has_element(k: Context, input: Any = None) -> Array:
    return k.xp.asarray(input is not None)


@optional_has_element.infer
def _(input: Type | None = None) -> Tensor:
    if isinstance(input, Optional):
        return Tensor(DType.BOOL, ())
    return Tensor(DType.BOOL, (), np.asarray(input is not None))
