"""An operator as a user registers it from outside, a model with it, and the same computed by NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx

import mezzo as mz
from mezzo.ops import OPS, Op, Sample, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.devices import DEVICES

from .models import model, node, value

DOMAIN, SCALE = "org.example", 0.5
DRAWN = np.random.default_rng(0)
X, A, W = (DRAWN.uniform(0.5, 1.5, shape).astype(np.float32) for shape in ((3, 5), (5, 4), (4,)))


def toy(**traits: Any) -> Op:
    """The weighted sum of squares of each row."""

    @mz.op("SquaredSum", domain=DOMAIN, since=2, kind="reduction", **traits, samples=[
        Sample([f32(3, 4), f32(4)]),
        Sample([f32(2, 3, 4), f32(3, 4)], {"scale": SCALE}),
    ])  # fmt: skip
    def squared_sum(k: Any, X: Any, W: Any, *, scale: float = 1.0) -> Any:
        wide = (k.xp.asarray(X, np.float32) * k.xp.asarray(W, np.float32)) ** 2
        return (wide.sum(-1) * np.float32(scale)).astype(X.dtype)

    @squared_sum.infer
    def _(X: Tensor, W: Tensor, *, scale: float = 1.0) -> Tensor:
        return X.of(X.shape[:-1])

    @squared_sum.grad
    def _(g: Any, dys: Any, ys: Any, xs: Any, *, scale: float = 1.0) -> tuple[Any, Any]:
        x, w = xs
        slope = g.Mul(g.Unsqueeze(dys[0], g.const([-1])), g.scalar(2 * scale, x))
        both = g.Mul(slope, g.Mul(x, w))
        return g.Mul(both, w), g.sum_to(g.Mul(both, x), w)

    @squared_sum.body
    def _(g: Any, xs: Any, types: Any, *, scale: float = 1.0) -> Any:
        total = g.ReduceSumSquare(g.Mul(*xs), g.const([-1]), keepdims=0)
        return g.Mul(total, g.const(scale, types[0].dtype))

    return squared_sum


def forward(x: Any, a: Any = A, w: Any = W, scale: float = SCALE) -> Any:
    """The model below, and its gradient with respect to `a` and `w` where the sum of its outputs is to fall."""
    h = (x @ a).astype(np.float64)
    return scale * ((h * w) ** 2).sum(-1), scale * 2 * x.T @ (h * w**2), scale * 2 * (h**2 * w).sum(0)


def proto(rows: int | str = "n") -> onnx.ModelProto:
    nodes = [node("MatMul", "x a", "h"), node("SquaredSum", "h w", "s", domain=DOMAIN, scale=SCALE)]
    nodes.append(node("Neg", "s", "y"))
    return model(nodes, [value("x", rows, 5)], [value("y", rows)], initializers={"a": A, "w": W}, domains={DOMAIN: 2})


def close(found: Any, want: Any, tolerance: float = 1e-5) -> None:
    found = np.asarray(found)
    assert found.dtype == np.float32
    assert found.shape == np.shape(want)
    assert np.abs(found - want).max() <= tolerance * np.abs(want).max()


@contextmanager
def registered_for_now() -> Iterator[Op]:
    """The operator; what is registered until then is gone after it, kernels too."""
    before = dict(OPS)
    try:
        yield toy()
    finally:
        OPS.clear()
        OPS.update(before)
        for device in DEVICES.values():
            device.target.registered.clear()
        mz.caches().clear()
