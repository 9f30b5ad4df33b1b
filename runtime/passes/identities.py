"""Removal of nodes that return their first input unchanged, as rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...ops import Op
from .rewrite import Leaf, Match, Pattern, Replacement, Rule


def _first_input(m: Match) -> Replacement:
    return Replacement({m.root.outputs[0]: m.input(0)})


def _drops(op: Any, check: Callable[[Match], str | None], domain: str = "", name: str = "") -> Rule:
    return Rule(f"drop {name or op}", Pattern(op, (Leaf("x"),), domain=domain), check, _first_input)


def _always(m: Match) -> str | None:
    return None


def _same_type(m: Match) -> str | None:
    before, after = m.type(m.input(0)), m.type(m.root.outputs[0])
    return None if before == after else f"{before} becomes {after}"


def _same_dims(m: Match) -> str | None:
    """Static and equal dims; elements stay in place for the operators that use this check."""
    before, after = m.tensor(m.input(0)), m.tensor(m.root.outputs[0])
    if before is None or after is None or not before.static:
        return "the dims are not known"
    return None if before == after else f"{before} becomes {after}"


def _inference(m: Match) -> str | None:
    if len(m.root.outputs) > 1 and m.root.outputs[1]:
        return "its mask is used"
    training = m.input(2)
    if not training:
        return None
    value = m.constant(training)
    if value is None:
        return "training_mode is not known"
    return "it is in training mode" if np.asarray(value).any() else None


def _keeps_order(m: Match) -> str | None:
    x = m.tensor(m.input(0))
    if x is None or x.dims is None:
        return "the rank is not known"
    order = m.attr("perm") or tuple(reversed(range(len(x.dims))))
    # axes of size 1 may move freely as long as the others keep their order
    moving = [a for a in order if x.dims[a] != 1]
    return _same_type(m) if moving == sorted(moving) else "axes change places"


def _combines(op: Op) -> bool:
    """True if an operator of any number of operands returns a single one as it is: Concat, Sum, Max, Min, Mean."""
    return bool(op.inputs) and op.inputs[0].variadic and (op.elementwise or op.moves == "join")


def _one_operand(m: Match) -> str | None:
    return None if len(m.root.inputs) == 1 else f"{len(m.root.inputs)} operands"


def _no_padding(m: Match) -> str | None:
    pads = m.constant(m.input(1))
    if pads is None:
        return "the pads are not known"
    return "it pads" if np.asarray(pads).any() else _same_dims(m)


def _forward(m: Match) -> str | None:
    steps = m.input(4)
    if steps and (m.constant(steps) is None or (np.asarray(m.constant(steps)) < 0).any()):
        return "it may run backwards"
    return _same_dims(m)


def _known_type(m: Match) -> str | None:
    return None if m.tensor(m.root.outputs[0]) is not None else "the element type is not known"


def _as_cast(m: Match) -> Replacement:
    known = m.tensor(m.root.outputs[0])
    assert known is not None
    cast = replace(m.root, op="Cast", inputs=m.root.inputs[:1], attrs={**m.root.attrs, "to": known.dtype.onnx})
    return Replacement({}, (cast,))


def _other_way(op: str, after: str) -> Rule:
    """Return the rule that removes an operator that joins the parts of complex numbers after one that splits them, or
    the reverse."""
    inner = Pattern(after, (Leaf("x"),), domain="mezzo")

    def back(m: Match) -> str | None:
        before, result = m.tensor(m.values["x"]), m.tensor(m.root.outputs[0])
        return (
            None
            if before is not None and result is not None and before.dtype is result.dtype
            else "element types differ"
        )

    return Rule(
        f"{op} of {after}", Pattern(op, (inner,), domain="mezzo"), back,
        lambda m: Replacement({m.root.outputs[0]: m.values["x"]}),
    )  # fmt: skip


PAIRS: tuple[Rule, ...] = (_other_way("RealImag", "Complex"), _other_way("Complex", "RealImag"))
RULES: tuple[Rule, ...] = (
    *PAIRS,
    _drops("Identity", _always),
    _drops("StopGradient", _always, "mezzo"),
    Rule("CastLike as Cast", Pattern("CastLike", (Leaf("x"), Leaf("like"))), _known_type, _as_cast),
    _drops("Dropout", _inference),
    _drops(("Cast", "CastLike"), _same_type, name="Cast"),
    _drops(lambda op: op.moves in ("view", "repeat"), _same_dims, name="Reshape"),
    _drops("Pad", _no_padding),
    _drops("Slice", _forward),
    _drops("Transpose", _keeps_order),
    _drops(_combines, _one_operand, name="Concat"),
)
