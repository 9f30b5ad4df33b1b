"""`mx.operator` and `mx.autograd.Function`: operations of the program's own, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...nd import autograd
from ...nd.autograd import is_training
from ...nd.running import assign
from ...ops.errors import InputError
from . import arrays
from .ndarray import own

KINDS: dict[str, Callable[..., CustomOpProp]] = {}


class Function(autograd.Function):
    """An operation in array code, with its gradient: `forward` and `backward` are given MXNet's arrays."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("forward", "backward"):
            if name in cls.__dict__:
                setattr(cls, name, _given_own(cls.__dict__[name]))

    def __call__(self, *inputs: Any) -> Any:
        return own(super().__call__(*inputs))


def _given_own(method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **options: method(self, *own(args), **options)


class CustomOp:
    """Base of operations: `forward` and `backward` write their results by `assign`."""

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        raise NotImplementedError

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        raise NotImplementedError

    def assign(self, dst: Any, req: str, src: Any) -> None:
        """Write a result as it is asked for: not at all, in place of what is there, or added to it."""
        if req in ("write", "inplace"):
            assign(dst, arrays.array(src) if isinstance(src, np.ndarray) else src)
        elif req == "add":
            dst += src


class CustomOpProp:
    """Operands and results of an operation; `create_operator` makes one."""

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def list_arguments(self) -> list[str]:
        return ["data"]

    def list_outputs(self) -> list[str]:
        return ["output"]

    def list_auxiliary_states(self) -> list[str]:
        return []

    def infer_shape(self, in_shape: Sequence[Any]) -> Any:
        return in_shape, [in_shape[0]] * len(self.list_outputs()), []

    def infer_type(self, in_type: Sequence[Any]) -> Any:
        return in_type, [in_type[0]] * len(self.list_outputs()), [in_type[0]] * len(self.list_auxiliary_states())

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> CustomOp:
        raise NotImplementedError


def register(reg_name: str) -> Callable[[type[CustomOpProp]], type[CustomOpProp]]:
    """Enter an operation under a name, for `nd.Custom(..., op_type=name)`."""

    def enter(kind: type[CustomOpProp]) -> type[CustomOpProp]:
        KINDS[reg_name] = kind
        return kind

    return enter


def Custom(*data: Any, op_type: str, **settings: Any) -> Any:  # noqa: N802
    """Run an operation that was registered; its settings reach its class as texts, as in MXNet."""
    if op_type not in KINDS:
        raise InputError(f"there is no operation {op_type!r}", where="nd.Custom", hint="mx.operator.register")
    names = KINDS[op_type](**_texts(settings, ())).list_arguments() if settings else []
    given = [*data, *(settings.pop(n) for n in names if n in settings)]
    return _Run(KINDS[op_type](**_texts(settings, ("name",))))(*given)


def _texts(settings: dict[str, Any], without: Sequence[str]) -> dict[str, str]:
    return {k: str(v) for k, v in settings.items() if k not in without and not hasattr(v, "asnumpy")}


class _Run(Function):
    def __init__(self, prop: CustomOpProp) -> None:
        self.prop, self.count = prop, len(prop.list_arguments())

    def forward(self, *given: Any) -> Any:
        self.inputs, self.aux = list(given[: self.count]), list(given[self.count :])
        shapes = [list(x.shape) for x in self.inputs]
        kinds = [x.dtype.type for x in self.inputs]
        outs, types = self.prop.infer_shape(shapes)[1], self.prop.infer_type(kinds)[1]
        self.op = self.prop.create_operator(given[0].context, shapes, kinds)
        results = [arrays.zeros(tuple(s), dtype=t) for s, t in zip(outs, types, strict=True)]
        self.op.forward(is_training(), ["write"] * len(results), self.inputs, results, self.aux)
        self.results = results
        return results[0] if len(results) == 1 else tuple(results)

    def backward(self, *dys: Any) -> Any:
        gradients = [arrays.zeros(x.shape, dtype=x.dtype) for x in self.inputs]
        self.op.backward(["write"] * len(gradients), list(dys), self.inputs, self.results, gradients, self.aux)
        return (*gradients, *[None] * len(self.aux))


__all__ = ["CustomOp", "CustomOpProp", "register"]
