"""The gradient of a part of the enclosing graph, which the node's attributes name.

https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Gradient.html
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ShapeError
from ..op import Context, op
from ..types import Array, Tensor, Type


@op("Gradient", domain="ai.onnx.preview.training", outputs=("Outputs*",))
def gradient(
    k: Context, *Inputs: Array, xs: Sequence[str], y: str, zs: Sequence[str] | None = None
) -> tuple[Array, ...]:
    raise ShapeError(
        "a Gradient alone has no graph to differentiate", hint="compile the graph that it stands in (mezzo.load)"
    )


@gradient.infer
def _(
    *Inputs: Tensor, xs: Sequence[str], zs: Sequence[str] | None = None, wanted: tuple[bool, ...] = (True,)
) -> tuple[Type, ...]:
    named = [*xs, *(zs or ())]
    if len(named) != len(Inputs) or len(set(named)) < len(named) or len(wanted) > len(xs):
        raise ShapeError(
            f"a Gradient to {list(xs)}, given {list(zs or ())}, has {len(Inputs)} inputs and {len(wanted)} outputs",
            hint="name each value once; there is one input for each of xs and zs, and one output for each of xs",
        )
    for name, known in zip(xs, Inputs, strict=False):
        if not known.dtype.floating:
            raise ShapeError(f"{name!r} is {known}", hint="only floats have gradients")
    return tuple(known.forget() for known in Inputs[: len(xs)])
