"""Every gradient rule over its operator's samples: against finite differences in float64, in graphs with and without
known sizes and on an eager tape."""

from __future__ import annotations

from typing import Any

import pytest

from mezzo.ops import OPS, Op, Sample
from mezzo.runtime.infer import infer

from . import gradients as check

# Inputs that a derivative would exist to, and that no rule gives: operator, number of the input, the reason.
NOT_TO: dict[tuple[str, int], str] = {
    ("Resize", 1): "the part of an image that is looked at is given, not learnt",
    ("Resize", 2): "factors are given, not learnt",
    ("ResizeGrad", 2): "the part of an image that is looked at is given, not learnt",
    ("ResizeGrad", 3): "factors are given, not learnt",
    ("NegativeLogLikelihoodLoss", 2): "weights of classes are given, not learnt; PyTorch has none either",
    ("SoftmaxCrossEntropyLoss", 2): "weights of classes are given, not learnt; PyTorch has none either",
}


def cases() -> list[Any]:
    return [
        pytest.param(o, s, id=f"{o.name}-{i}")
        for o in OPS.values()
        for i, s in enumerate(o.samples)
        if o.grad_rule is not None
    ]


@pytest.mark.parametrize(("o", "sample"), cases())
def test_rules_agree_with_finite_differences(o: Op, sample: Sample) -> None:
    c = check.case(o, sample)
    if c is None:
        return  # integers have no gradients
    wanted = tuple(n for n in c.wrt if (o.name, int(n.removeprefix("x"))) not in NOT_TO)
    c = check.Case(c.graph, c.feeds, c.dys, wanted)
    found = {
        "in a graph": check.by_graph(c, infer(c.graph)),
        "without sizes": check.by_graph(c, check.ranks_only(c.graph)),
        "on the tape": check.by_tape(c),
    }
    for name in wanted:
        differences = check.numeric(c.graph, c.feeds, c.dys, name)
        for how, grads in found.items():
            problem = check.disagreement(c, grads, name, differences)
            assert not problem, f"{how}: {problem}"
