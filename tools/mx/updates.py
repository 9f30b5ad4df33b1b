"""`mx.nd.sgd_update` and its like: steps of weights and their states, in place.

A gradient is multiplied by `rescale_grad` and clipped, and decays the weight, in the order that each has in MXNet.
"""

from __future__ import annotations

from typing import Any

from ...nd import autograd
from ...nd.running import assign
from . import arrays


def _scaled(grad: Any, rescale: float, clip: float) -> Any:
    grad = grad * rescale
    return arrays.clip(grad, -clip, clip) if clip > 0 else grad


def _written(out: Any, weight: Any, value: Any) -> Any:
    target = weight if out is None else out
    with autograd.pause():
        assign(target, value)
    return target


def sgd_update(
    weight: Any, grad: Any, lr: float, wd: float = 0.0, rescale_grad: float = 1.0, clip_gradient: float = -1.0,
    lazy_update: bool = True, out: Any = None,
) -> Any:  # fmt: skip
    g = _scaled(grad, rescale_grad, clip_gradient)
    return _written(out, weight, weight * (1 - lr * wd) - g * lr)


def sgd_mom_update(
    weight: Any, grad: Any, mom: Any, lr: float, momentum: float = 0.0, wd: float = 0.0, rescale_grad: float = 1.0,
    clip_gradient: float = -1.0, lazy_update: bool = True, out: Any = None,
) -> Any:  # fmt: skip
    g = _scaled(grad, rescale_grad, clip_gradient)
    _written(None, mom, mom * momentum - (weight * wd + g) * lr)
    return _written(out, weight, weight + mom)


def nag_mom_update(
    weight: Any, grad: Any, mom: Any, lr: float, momentum: float = 0.0, wd: float = 0.0, rescale_grad: float = 1.0,
    clip_gradient: float = -1.0, out: Any = None,
) -> Any:  # fmt: skip
    g = _scaled(grad, rescale_grad, clip_gradient)
    step = (g + weight * wd) * lr
    ahead = weight + (mom * momentum - step) * momentum - step
    decayed = ahead if out is None or out is weight else weight  # MXNet has written the weight by then
    _written(None, mom, mom * momentum - (g + decayed * wd) * lr)
    return _written(out, weight, ahead)


def adam_update(
    weight: Any, grad: Any, mean: Any, var: Any, lr: float, beta1: float = 0.9, beta2: float = 0.999,
    epsilon: float = 1e-8, wd: float = 0.0, rescale_grad: float = 1.0, clip_gradient: float = -1.0,
    lazy_update: bool = True, out: Any = None,
) -> Any:  # fmt: skip
    g = _scaled(grad * rescale_grad + weight * wd, 1.0, clip_gradient)
    _written(None, mean, mean * beta1 + g * (1 - beta1))
    _written(None, var, var * beta2 + arrays.square(g) * (1 - beta2))
    return _written(out, weight, weight - mean * lr / (arrays.sqrt(var) + epsilon))


def rmsprop_update(
    weight: Any, grad: Any, n: Any, lr: float, gamma1: float = 0.95, epsilon: float = 1e-8, wd: float = 0.0,
    rescale_grad: float = 1.0, clip_gradient: float = -1.0, clip_weights: float = -1.0, out: Any = None,
) -> Any:  # fmt: skip
    g = _scaled(grad * rescale_grad + weight * wd, 1.0, clip_gradient)
    _written(None, n, arrays.square(g) * (1 - gamma1) + n * gamma1)
    return _written(out, weight, _scaled(weight - g * lr / arrays.sqrt(n + epsilon), 1.0, clip_weights))


def ftrl_update(
    weight: Any, grad: Any, z: Any, n: Any, lr: float, lamda1: float = 0.01, beta: float = 1.0, wd: float = 0.0,
    rescale_grad: float = 1.0, clip_gradient: float = -1.0, out: Any = None,
) -> Any:  # fmt: skip
    g = _scaled(grad, rescale_grad, clip_gradient)
    more = n + arrays.square(g)
    _written(None, z, z + g - (arrays.sqrt(more) - arrays.sqrt(n)) * weight / lr)
    _written(None, n, more)
    reached = arrays.abs(z) > lamda1
    value = (arrays.sign(z) * lamda1 - z) / ((arrays.sqrt(n) + beta) / lr + wd) * reached
    return _written(out, weight, value)


def signsgd_update(
    weight: Any, grad: Any, lr: float, wd: float = 0.0, rescale_grad: float = 1.0, clip_gradient: float = -1.0,
    out: Any = None,
) -> Any:  # fmt: skip
    g = _scaled(grad, rescale_grad, clip_gradient)
    return _written(out, weight, weight * (1 - lr * wd) - arrays.sign(g) * lr)


def signum_update(
    weight: Any, grad: Any, mom: Any, lr: float, momentum: float = 0.0, wd: float = 0.0, rescale_grad: float = 1.0,
    clip_gradient: float = -1.0, wd_lh: float = 0.0, out: Any = None,
) -> Any:  # fmt: skip
    g = _scaled(grad, rescale_grad, clip_gradient)
    _written(None, mom, mom * momentum - (weight * wd + g) * (1 - momentum))
    return _written(out, weight, weight * (1 - lr * wd_lh) + arrays.sign(mom) * lr)


__all__ = [
    "adam_update", "ftrl_update", "nag_mom_update", "rmsprop_update", "sgd_mom_update", "sgd_update", "signsgd_update",
    "signum_update",
]  # fmt: skip
