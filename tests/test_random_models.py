"""One-node models at random, 200 for each module of operators: as in ONNX Runtime, or as in the reference evaluator,
or refused by an error of ours. Nothing else: no other exception, no crash, no hang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mezzo.importers import load_onnx
from mezzo.ops import DType, MezzoError
from mezzo.ops.budget import Budget
from mezzo.runtime.execution.session import Session

from .peers import peer
from .random_answers import Either, Refusal
from .random_differs import operators, row_of
from .random_models import NEWEST, Case, cases, modules
from .referee import Referee

SMALL = Budget(tensor_elements=1 << 20, fold_elements=1 << 20, dynamic_bytes=1 << 26, steps=1 << 12)
EXAMPLES = 200
TOLERANCE = {DType.DOUBLE: 1e-6, DType.FLOAT16: 1e-2, DType.BFLOAT16: 4e-2}  # of the largest element; others: below
FLOAT_TOLERANCE, NARROW_TOLERANCE = 1e-4, 0.26


@pytest.fixture(scope="module")
def referee() -> Iterator[Referee]:
    peer("onnxruntime")
    made = Referee()
    yield made
    made.close()


def ours(case: Case) -> list[Any] | MezzoError:
    """What we answer."""
    try:
        session = Session(load_onnx(case.model, budget=SMALL), budget=SMALL, instances=1)
        return list(session.run(case.feeds, deadline=10).values())
    except MezzoError as error:
        return error


def judged(case: Case, referee: Referee) -> str:
    """Empty if we answer as we should; else, what is wrong."""
    got = ours(case)
    wrong = against_referees(case, got, referee)
    row = row_of(case) if wrong else None
    if row is None:
        return wrong
    right = row.right(case, referee)
    if isinstance(right, Refusal):
        return "" if isinstance(got, MezzoError) else f"{got} instead of a refusal, since {row.reason}\n{wrong}"
    if isinstance(right, Either) and not isinstance(got, MezzoError):
        at = (got[0] == right.low) | (got[0] == right.high)
        return "" if at.all() else f"{got[0]} instead of {right}, although {row.reason}"
    found = (
        "no other answer is known"
        if right is None or isinstance(right, Either)
        else differences(case, got, right, least=FLOAT_TOLERANCE)
    )
    return f"{found}, although {row.reason}\n{wrong}" if found else ""


def against_referees(case: Case, got: list[Any] | MezzoError, referee: Referee) -> str:
    """Empty if we answer as either referee does, or refuse what both refuse; else, the differences."""
    if not case.valid:
        return ""  # no runtime has to take it, so that any answer or refusal of ours does
    runtime, reason = referee.ask("runtime", case.model, dict(case.feeds))
    if runtime is not None and not differences(case, got, runtime):
        return ""
    if case.op.domain == "com.microsoft":
        return differences(case, got, runtime) if runtime is not None else ""
    reference, why = referee.ask("reference", case.model, dict(case.feeds))
    if reference is not None and not differences(case, got, reference):
        return ""
    if runtime is None and (reference is None or (isinstance(got, MezzoError) and not lacks(reason))):
        return ""  # both runtimes refuse; the reference evaluator checks next to nothing
    return "\n".join(
        f"{who}: {differences(case, got, found) if found is not None else f'refuses: {reason}'}"
        for who, found, reason in (("ONNX Runtime", runtime, reason), ("the reference", reference, why))
    )


def lacks(reason: str) -> bool:
    """Whether ONNX Runtime refuses for want of a kernel or of an opset, and not for what the model says."""
    return (
        "NotImplemented" in reason or "Unsupported model" in reason or "is till opset" in reason or "it " in reason[:3]
    )


def differences(case: Case, got: list[Any] | MezzoError, theirs: list[Any], least: float = 0.0) -> str:
    """How results differ, by more than their tolerance and `least`; empty if they do not."""
    if isinstance(got, MezzoError):
        return f"we refuse: {got}"
    for i, (y, like) in enumerate(zip(got, theirs, strict=True)):
        dtype = case.dtypes[i] if i < len(case.dtypes) else None
        found = difference(y, like, dtype, exact=case.op.deterministic, least=least)
        if found:
            return f"output {i}: {found}"
    return ""


def difference(y: Any, like: Any, dtype: DType | None, *, exact: bool, least: float = 0.0) -> str:
    """How one value differs from another; empty if it does not."""
    if isinstance(like, (list, tuple)) or isinstance(y, list):
        if not isinstance(y, list) or not isinstance(like, (list, tuple)) or len(y) != len(like):
            return f"{y} instead of {like}"
        return next(
            filter(None, (difference(a, b, dtype, exact=exact, least=least) for a, b in zip(y, like, strict=True))), ""
        )
    if isinstance(like, dict):
        return "" if isinstance(y, dict) and y.keys() == like.keys() and all(
            np.allclose(y[k], like[k], rtol=1e-4) if not isinstance(like[k], str) else y[k] == like[k] for k in like
        ) else f"{y} instead of {like}"  # fmt: skip
    if like is None or y is None:
        return "" if like is y else f"{y} instead of {like}"
    y, like = np.asarray(y), np.asarray(like)
    if y.shape != like.shape:
        return f"{y.dtype}{list(y.shape)} instead of {like.dtype}{list(like.shape)}"
    if like.dtype.kind in "OUS" or y.dtype.kind in "OUS":
        return "" if y.astype(str).tolist() == like.astype(str).tolist() else f"{y} instead of {like}"
    if y.dtype != like.dtype:
        return f"{y.dtype} instead of {like.dtype}"
    if not exact:
        return ""
    if y.dtype.kind not in "fc":
        return "" if np.array_equal(y, like) else f"{y} instead of {like}"
    return "" if equal(y, like, dtype, least) else f"{y} instead of {like}"


def equal(y: Any, like: Any, dtype: DType | None, least: float = 0.0) -> bool:
    """Equal floats: NaN and infinite where the other is, and else apart by less than a part of the largest."""
    with np.errstate(all="ignore"):
        odd = ~np.isfinite(like)
        if not np.array_equal(y[odd], like[odd], equal_nan=True):
            return False
        a, b = y[~odd], like[~odd]
        kind = dtype or DType.of(like.dtype)
        tolerance = max(least, TOLERANCE.get(kind, NARROW_TOLERANCE if kind.bits <= 8 else FLOAT_TOLERANCE))
        return not b.size or bool(
            np.abs(a - b).max() <= tolerance * max(np.abs(b).max(), 0.1)
        )  # tiny ones are differences of ones


@pytest.mark.parametrize("module", sorted(modules()))
def test_random_models(module: str, referee: Referee) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        case = data.draw(cases(module))
        wrong = judged(case, referee)
        assert not wrong, f"{case}\n{wrong}"

    check()


def test_the_newest_opsets_are_covered() -> None:
    assert {o.domain for made in modules().values() for o in made} >= NEWEST.keys()


def test_rows_name_operators() -> None:
    assert operators() <= {o.name for made in modules().values() for o in made}
