"""Optimizers: one step for one tensor, as several scalar expressions of it, its gradient and its states.

Each is an operator of the domain `mezzo`: `(W, dW, rate, scalars..., states...) -> (W, states...)`. Rates and other
scalars have rank 0 and the element type of W. Reference, inference, standard form and kernel come from the expressions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import expr
from .errors import ShapeError
from .expr import Expr, Expressions
from .op import Builder, Context, Op, Sample, Value, op
from .standard import written
from .types import Array, DType, Tensor, Type, f32

Rule = Callable[..., tuple[Expr, ...]]
RULES: dict[str, Rule] = {}  # by operator: the expressions of its outputs
STATES: dict[str, int] = {}  # by operator: how many states a tensor has
_ONE = np.array([0.7, -0.2, 1.5], np.float32)


def trees(name: str, dtypes: Sequence[DType], attrs: Mapping[str, Any]) -> tuple[Expr, ...]:
    """The expressions of an update's outputs for these element types. Narrow floats are computed in float32."""
    leaves = [leaf for leaf in expr.inputs(dtypes) if leaf is not None]
    wide = [expr.E.cast(leaf, DType.FLOAT) if leaf.dtype.narrow else leaf for leaf in leaves]
    kept = [leaves[0], *leaves[len(leaves) - STATES[name] :]]
    made = RULES[name](expr.E, *wide, **attrs)
    return tuple(expr.E.cast(m, k.dtype) for m, k in zip(made, kept, strict=True))


def update(
    name: str, *, states: Sequence[str], scalars: int = 0, attrs: Sequence[Mapping[str, Any]] = ({},)
) -> Callable[[Rule], Op]:
    """Define an optimizer from its rule `(e, W, dW, rate, *scalars, *states, **attrs) -> expressions`.

    `scalars` counts the ones after the rate; `attrs` are attribute sets that the samples show.
    """

    def define(rule: Rule) -> Op:
        RULES[name] = rule
        STATES[name] = len(states)
        given: list[Any] = [f32(3), f32(3), np.float32(0.1), *[np.float32(0.3)] * scalars]
        held = [_ONE**2] * len(states)
        samples = [Sample([*given, *held], a, 1 + len(states)) for a in attrs]

        def reference(k: Context, *xs: Array, **given: Any) -> tuple[Array, ...]:
            made = trees(name, [DType.of(x.dtype) for x in xs], given)
            return tuple(k.xp.array(expr.evaluate(t, k.xp, xs)) for t in made)

        shown = [p for p in inspect.signature(rule).parameters.values() if p.name != "e"]
        first = inspect.Parameter("k", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        reference.__signature__ = inspect.Signature([first, *shown])  # type: ignore[attr-defined]
        reference.__doc__ = rule.__doc__
        made = op(name, domain="mezzo", outputs=("W_new", *(f"{s}_new" for s in states)), samples=samples)(reference)

        @made.infer
        def _(*types: Tensor, **attrs: Any) -> tuple[Type, ...]:
            W, held = types[0], types[len(types) - len(states) :]
            for t in (types[1], *held):
                if t.dims is not None and W.dims is not None and len(t.dims) != len(W.dims):
                    raise ShapeError(f"{name} of {W} with {t}")
            return tuple(t.forget() for t in (W, *held))

        @made.body
        def _(g: Builder, xs: Any, types: Any, **attrs: Any) -> tuple[Value, ...] | None:
            if any(t is None for t in types):
                return None
            return written(g, trees(name, [t.dtype for t in types], attrs), xs)

        return made

    return define


_DECAY: tuple[dict[str, Any], ...] = ({}, {"weight_decay": 0.1})


@update("SGD", states=(), attrs=_DECAY)
def sgd(e: Expressions, W: Expr, dW: Expr, rate: Expr, *, weight_decay: float = 0.0) -> tuple[Expr, ...]:
    """Robbins and Monro 1951: against the gradient."""
    return (W - rate * _decayed(W, dW, weight_decay),)


def _decayed(W: Expr, dW: Expr, weight_decay: float) -> Expr:
    """The gradient with that of weight_decay / 2 times the squared norm."""
    return dW + W * weight_decay if weight_decay else dW


@update("Momentum", states=("V",), attrs=[*_DECAY, {"nesterov": 1, "momentum": 0.8}])
def momentum_(
    e: Expressions,
    W: Expr,
    dW: Expr,
    rate: Expr,
    V: Expr,
    *,
    momentum: float = 0.9,
    nesterov: int = 0,
    weight_decay: float = 0.0,
) -> tuple[Expr, ...]:
    """Polyak 1964, and Nesterov 1983 as Sutskever et al. 2013 write it: the rate is outside of the velocity."""
    return _with_velocity(W, _decayed(W, dW, weight_decay), rate, V, momentum, nesterov, None)


@update("DampenedMomentum", states=("V",), scalars=1, attrs=[*_DECAY, {"nesterov": 1, "momentum": 0.8}])
def dampened_momentum(
    e: Expressions,
    W: Expr,
    dW: Expr,
    rate: Expr,
    share: Expr,
    V: Expr,
    *,
    momentum: float = 0.9,
    nesterov: int = 0,
    weight_decay: float = 0.0,
) -> tuple[Expr, ...]:
    """Momentum into whose velocity only a share of the gradient goes: 1 at the first step, as in ONNX's Momentum
    (https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Momentum.html) and in PyTorch."""
    return _with_velocity(W, _decayed(W, dW, weight_decay), rate, V, momentum, nesterov, share)


def _with_velocity(
    W: Expr, slope: Expr, rate: Expr, V: Expr, momentum: float, nesterov: int, share: Expr | None
) -> tuple[Expr, ...]:
    v = V * momentum + (slope if share is None else slope * share)
    return W - rate * (slope + v * momentum if nesterov else v), v


@update("Adam", states=("M", "V"), scalars=2, attrs=[*_DECAY, {"weight_decay": 0.1, "decoupled": 1}])
def adam(
    e: Expressions,
    W: Expr,
    dW: Expr,
    rate: Expr,
    unbias1: Expr,
    unbias2: Expr,
    M: Expr,
    V: Expr,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: int = 0,
) -> tuple[Expr, ...]:
    """Kingma and Ba 2014 (arXiv 1412.6980); with `decoupled` AdamW, Loshchilov and Hutter 2017 (arXiv 1711.05101).

    `unbias1` and `unbias2` are 1 - beta1^t and the root of 1 - beta2^t at step t.
    """
    slope = dW if decoupled else _decayed(W, dW, weight_decay)
    m = M * beta1 + slope * (1 - beta1)
    v = V * beta2 + slope * slope * (1 - beta2)
    moved = m * (rate / unbias1) / (e.sqrt(v) / unbias2 + epsilon)
    kept = W - W * (rate * weight_decay) if decoupled and weight_decay else W
    return kept - moved, m, v


@update("Adagrad", states=("S",), attrs=_DECAY)
def adagrad(
    e: Expressions, W: Expr, dW: Expr, rate: Expr, S: Expr, *, epsilon: float = 1e-10, weight_decay: float = 0.0
) -> tuple[Expr, ...]:
    """Duchi, Hazan and Singer 2011."""
    slope = _decayed(W, dW, weight_decay)
    s = S + slope * slope
    return W - rate * slope / (e.sqrt(s) + epsilon), s


def _rms_prop(
    e: Expressions,
    W: Expr,
    dW: Expr,
    rate: Expr,
    S: Expr,
    A: Expr | None,
    V: Expr | None,
    alpha: float,
    epsilon: float,
    momentum: float,
    weight_decay: float,
) -> tuple[Expr, ...]:
    slope = _decayed(W, dW, weight_decay)
    s = S * alpha + slope * slope * (1 - alpha)
    a = None if A is None else A * alpha + slope * (1 - alpha)
    step = slope / (e.sqrt(s if a is None else s - a * a) + epsilon)
    v = step if V is None else V * momentum + step
    return W - rate * v, s, *((a,) if a is not None else ()), *((v,) if V is not None else ())


@update("RMSprop", states=("S",), attrs=_DECAY)
def rms_prop(
    e: Expressions,
    W: Expr,
    dW: Expr,
    rate: Expr,
    S: Expr,
    *,
    alpha: float = 0.99,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
) -> tuple[Expr, ...]:
    """Tieleman and Hinton 2012."""
    return _rms_prop(e, W, dW, rate, S, None, None, alpha, epsilon, 0, weight_decay)


@update("CenteredRMSprop", states=("S", "A"), attrs=_DECAY)
def centered_rms_prop(
    e: Expressions,
    W: Expr,
    dW: Expr,
    rate: Expr,
    S: Expr,
    A: Expr,
    *,
    alpha: float = 0.99,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
) -> tuple[Expr, ...]:
    """Graves 2013 (arXiv 1308.0850): A is the running mean of gradients."""
    return _rms_prop(e, W, dW, rate, S, A, None, alpha, epsilon, 0, weight_decay)


@update("RMSpropMomentum", states=("S", "V"), attrs=_DECAY)
def rms_prop_momentum(
    e: Expressions,
    W: Expr,
    dW: Expr,
    rate: Expr,
    S: Expr,
    V: Expr,
    *,
    alpha: float = 0.99,
    epsilon: float = 1e-8,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
) -> tuple[Expr, ...]:
    """RMSprop whose steps gather in a velocity."""
    return _rms_prop(e, W, dW, rate, S, None, V, alpha, epsilon, momentum, weight_decay)


@update("CenteredRMSpropMomentum", states=("S", "A", "V"), attrs=_DECAY)
def centered_rms_prop_momentum(
    e: Expressions,
    W: Expr,
    dW: Expr,
    rate: Expr,
    S: Expr,
    A: Expr,
    V: Expr,
    *,
    alpha: float = 0.99,
    epsilon: float = 1e-8,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
) -> tuple[Expr, ...]:
    """Centered RMSprop whose steps gather in a velocity."""
    return _rms_prop(e, W, dW, rate, S, A, V, alpha, epsilon, momentum, weight_decay)


@update("Adadelta", states=("S", "D"), attrs=_DECAY)
def adadelta(
    e: Expressions,
    W: Expr,
    dW: Expr,
    rate: Expr,
    S: Expr,
    D: Expr,
    *,
    rho: float = 0.9,
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
) -> tuple[Expr, ...]:
    """Zeiler 2012 (arXiv 1212.5701): S and D are running means of squared gradients and of squared steps."""
    slope = _decayed(W, dW, weight_decay)
    s = S * rho + slope * slope * (1 - rho)
    step = e.sqrt(D + epsilon) / e.sqrt(s + epsilon) * slope
    return W - rate * step, s, D * rho + step * step * (1 - rho)


@update("Lion", states=("M",), attrs=_DECAY)
def lion(
    e: Expressions,
    W: Expr,
    dW: Expr,
    rate: Expr,
    M: Expr,
    *,
    beta1: float = 0.9,
    beta2: float = 0.99,
    weight_decay: float = 0.0,
) -> tuple[Expr, ...]:
    """Chen et al. 2023 (arXiv 2302.06675); its weight decay is decoupled."""
    step = e.sign(M * beta1 + dW * (1 - beta1))
    kept = W - W * (rate * weight_decay) if weight_decay else W
    return kept - rate * step, M * beta2 + dW * (1 - beta2)


@op(
    "LAMB",
    domain="mezzo",
    outputs=("W_new", "M_new", "V_new"),
    samples=[
        Sample([f32(3), f32(3), np.float32(0.1), np.float32(0.3), np.float32(0.3), _ONE, _ONE**2], a, 3) for a in _DECAY
    ],
)
def lamb(
    k: Context,
    W: Array,
    dW: Array,
    rate: Array,
    unbias1: Array,
    unbias2: Array,
    M: Array,
    V: Array,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
) -> tuple[Array, ...]:
    """You et al. 2019 (arXiv 1904.00962): Adam's direction, as long as the tensor it moves."""
    m = M * W.dtype.type(beta1) + dW * W.dtype.type(1 - beta1)
    v = V * W.dtype.type(beta2) + dW * dW * W.dtype.type(1 - beta2)
    way = m / unbias1 / (k.xp.sqrt(v) / unbias2 + W.dtype.type(epsilon)) + W * W.dtype.type(weight_decay)
    long, short = _norm(k, W), _norm(k, way)
    trust = k.xp.where((long > 0) & (short > 0), long / k.xp.where(short > 0, short, 1), 1).astype(W.dtype)
    return W - way * (rate * trust), m, v


def _norm(k: Context, x: Array) -> Array:
    return k.xp.sqrt((x * x).sum())


def _if_both(g: Builder, a: Value, b: Value, value: Value) -> Value:
    """The value where both norms are above zero, else 1."""
    zero = g.scalar(0, a)
    return g.Where(g.And(g.Greater(a, zero), g.Greater(b, zero)), value, g.scalar(1, a))


@lamb.infer
def _(*types: Tensor, **attrs: Any) -> tuple[Type, ...]:
    return tuple(types[i].forget() for i in (0, 5, 6))


@lamb.body
def _(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
) -> tuple[Value, ...]:
    W, dW, rate, unbias1, unbias2, M, V = xs
    m = g.Add(g.Mul(M, g.scalar(beta1, W)), g.Mul(dW, g.scalar(1 - beta1, W)))
    v = g.Add(g.Mul(V, g.scalar(beta2, W)), g.Mul(g.Mul(dW, dW), g.scalar(1 - beta2, W)))
    way = g.Div(g.Div(m, unbias1), g.Add(g.Div(g.Sqrt(v), unbias2), g.scalar(epsilon, W)))
    way = g.Add(way, g.Mul(W, g.scalar(weight_decay, W))) if weight_decay else way
    long, short = g.ReduceL2(W, keepdims=0), g.ReduceL2(way, keepdims=0)
    trust = _if_both(g, long, short, g.Div(long, short))
    return g.Sub(W, g.Mul(way, g.Mul(rate, trust))), m, v


@op(
    "LARS",
    domain="mezzo",
    outputs=("W_new", "V_new"),
    samples=[Sample([f32(3), f32(3), np.float32(0.1), _ONE], a, 2) for a in _DECAY],
)
def lars(
    k: Context,
    W: Array,
    dW: Array,
    rate: Array,
    V: Array,
    *,
    momentum: float = 0.9,
    trust: float = 0.001,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
) -> tuple[Array, ...]:
    """You, Gitman and Ginsburg 2017 (arXiv 1708.03888): each tensor's rate follows its norm and its gradient's."""
    of = W.dtype.type
    long, steep = _norm(k, W), _norm(k, dW)
    whole = steep + of(weight_decay) * long + of(epsilon)
    own = k.xp.where((long > 0) & (steep > 0), of(trust) * long / whole, 1).astype(W.dtype)
    v = V * of(momentum) + (dW + W * of(weight_decay)) * (rate * own)
    return W - v, v


@lars.infer
def _(*types: Tensor, **attrs: Any) -> tuple[Type, ...]:
    return types[0].forget(), types[3].forget()


@lars.body
def _(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    momentum: float = 0.9,
    trust: float = 0.001,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
) -> tuple[Value, ...]:
    W, dW, rate, V = xs
    long, steep = g.ReduceL2(W, keepdims=0), g.ReduceL2(dW, keepdims=0)
    whole = g.Add(g.Add(steep, g.Mul(long, g.scalar(weight_decay, W))), g.scalar(epsilon, W))
    own = _if_both(g, long, steep, g.Div(g.Mul(long, g.scalar(trust, W)), whole))
    slope = g.Add(dW, g.Mul(W, g.scalar(weight_decay, W))) if weight_decay else dW
    v = g.Add(g.Mul(V, g.scalar(momentum, W)), g.Mul(slope, g.Mul(rate, own)))
    return g.Sub(W, v), v
