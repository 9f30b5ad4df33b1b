"""MatMul and Gemm through numpy's BLAS, written into their slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops import DType, Tensor, Type
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed

BLAS = (DType.FLOAT, DType.DOUBLE)


def _why_not(inputs: Sequence[Type | None]) -> str | None:
    for t in inputs[:2]:
        if not isinstance(t, Tensor) or t.dtype not in BLAS:
            return f"BLAS has no {t.dtype if isinstance(t, Tensor) else t}"
    return None


class MatMul(Listed):
    """`np.matmul(a, b, out=)`; batched and broadcast as in ONNX."""

    name = "numpy.matmul"
    operators = listed("MatMul")
    remembers = True

    def select(self, request: KernelRequest) -> Choice | Declined:
        reason = _why_not(request.inputs)
        return Declined(reason) if reason else Choice(self.name)

    def prepare(self, args: KernelArgs) -> Call:
        a, b = args.inputs
        (out,) = args.outputs
        assert a is not None and b is not None
        if a.ndim == 1 and b.ndim == 1:
            return lambda: np.dot(a, b, out=out)
        return lambda: np.matmul(a, b, out=out)


class Gemm(Listed):
    """`alpha * A' B' + beta * C`: one matmul into the slot, then in place."""

    name = "numpy.gemm"
    operators = listed("Gemm")
    remembers = True

    def select(self, request: KernelRequest) -> Choice | Declined:
        inputs, node = request.inputs, request.node
        reason = _why_not(inputs)
        if reason:
            return Declined(reason)
        bias = inputs[2] if len(inputs) > 2 else None
        scaled = isinstance(bias, Tensor) and node.attrs.get("beta", 1.0) != 1.0
        if scaled and not (isinstance(bias, Tensor) and bias.static):
            return Declined("beta scales an operand of unknown size")
        return Choice(self.name, workspace=bias.nbytes if scaled and isinstance(bias, Tensor) else 0)

    def prepare(self, args: KernelArgs) -> Call:
        a, b, c = (*args.inputs, None)[:3]
        (out,) = args.outputs
        attrs = {**args.node.record.attrs, **args.node.attrs}
        assert a is not None and b is not None and out is not None
        left: Any = a.T if attrs["transA"] else a
        right: Any = b.T if attrs["transB"] else b
        alpha, beta = out.dtype.type(attrs["alpha"]), out.dtype.type(attrs["beta"])
        bias: Any = c if beta else None  # what is taken zero times is not read, as in BLAS
        scaled = args.scratch(DType.of(bias.dtype), bias.shape) if bias is not None and beta != 1 else None

        def run() -> None:
            np.matmul(left, right, out=out)
            if alpha != 1:
                np.multiply(out, alpha, out=out)
            if scaled is not None:
                np.multiply(bias, beta, out=scaled)
                np.add(out, scaled, out=out)
            elif bias is not None:
                np.add(out, bias, out=out)

        return run
