"""Trained parameters: the dims that operators ask of them, from what is known of the dims of all inputs.

A rule takes the dims of each input (None where unknown) and the attributes, and returns what the operator asks of each
input: dims, of which single ones may be unknown, or None where it asks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Asked = Sequence[Sequence[int | None] | None]
WeightsRule = Callable[[Sequence[Any], Mapping[str, Any]], Asked]


def gemm(xs: Sequence[Any], attrs: Mapping[str, Any]) -> Asked:
    """A matrix, perhaps transposed, and a bias for each of its columns."""
    x, w = xs[0], xs[1]
    inner = None if x is None else x[0 if attrs.get("transA") else 1]
    outer = None if w is None else w[0 if attrs.get("transB") else 1]
    return [None, (outer, inner) if attrs.get("transB") else (inner, outer), (outer,)]


def matmul(xs: Sequence[Any], attrs: Mapping[str, Any]) -> Asked:
    """Matrices of as many rows as the first operand has columns."""
    x, w = xs[0], xs[1]
    return [None, None if x is None else (*(w[:-2] if w else ()), x[-1], w[-1] if w else None)]


def conv(xs: Sequence[Any], attrs: Mapping[str, Any]) -> Asked:
    """Filters [count, channels / group, *kernel], and a bias for each."""
    x, w = xs[0], xs[1]
    kernel = attrs.get("kernel_shape") or (w[2:] if w else (None,) * (len(x) - 2 if x else 0))
    groups = attrs.get("group", 1)
    count = w[0] if w else None
    channels = x[1] // groups if x is not None and x[1] is not None else None
    return [None, (count, channels, *kernel), (count,)]


def conv_transpose(xs: Sequence[Any], attrs: Mapping[str, Any]) -> Asked:
    """Filters [channels, count / group, *kernel], and a bias for each."""
    x, w = xs[0], xs[1]
    kernel = attrs.get("kernel_shape") or (w[2:] if w else (None,) * (len(x) - 2 if x else 0))
    part = w[1] if w else None
    return [None, (x[1] if x else None, part, *kernel), (part and part * attrs.get("group", 1),)]


def channels(xs: Sequence[Any], attrs: Mapping[str, Any]) -> Asked:
    """One number for each channel."""
    return [None, *[None if xs[0] is None else (xs[0][1],)] * (len(xs) - 1)]


def trailing(xs: Sequence[Any], attrs: Mapping[str, Any]) -> Asked:
    """The dims of the first input from `axis` on."""
    return [None, *[None if xs[0] is None else xs[0][attrs.get("axis", -1) :]] * (len(xs) - 1)]


def labels(xs: Sequence[Any], attrs: Mapping[str, Any]) -> Asked:
    """A class for each sample and place."""
    return [None, None if xs[0] is None else (*xs[0][:1], *xs[0][2:]), None]


def alike(xs: Sequence[Any], attrs: Mapping[str, Any]) -> Asked:
    """Operands of unknown dims have those of the first known one."""
    known = next((x for x in xs if x is not None), None)
    return [known if x is None else None for x in xs]


def recurrent(gates: int) -> WeightsRule:
    """Weights, biases and states of a recurrent network of so many gates."""

    def rule(xs: Sequence[Any], attrs: Mapping[str, Any]) -> Asked:
        hidden = attrs.get("hidden_size")
        wide = None if hidden is None else gates * hidden
        directions = 2 if attrs.get("direction") == "bidirectional" else 1
        features = xs[0][-1] if xs[0] is not None else None
        batch = xs[0][0 if attrs.get("layout") else 1] if xs[0] is not None else None
        state = (batch, directions, hidden) if attrs.get("layout") else (directions, batch, hidden)
        biases = None if wide is None else 2 * wide
        return [None, (directions, wide, features), (directions, wide, hidden), (directions, biases), (batch,), state,
                state][: len(xs)]  # fmt: skip

    return rule
