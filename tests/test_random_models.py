"""One-node models at random, 200 for each module of operators: as in ONNX Runtime, or as in the reference evaluator,
or refused by an error of ours. Nothing else: no other exception, no crash, no hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mezzo.importers import load_onnx
from mezzo.ops import DType, MezzoError
from mezzo.ops.budget import Budget
from mezzo.runtime.session import Session

from .random_models import NEWEST, Case, cases, modules
from .referee import Referee

SMALL = Budget(tensor_elements=1 << 20, fold_elements=1 << 20, dynamic_bytes=1 << 26, steps=1 << 12)
EXAMPLES = 200
TOLERANCE = {DType.DOUBLE: 1e-6, DType.FLOAT16: 1e-2, DType.BFLOAT16: 4e-2}  # of the largest element; others: below
FLOAT_TOLERANCE, NARROW_TOLERANCE = 1e-4, 0.26

# Where the referees differ from us for a reason: operators, a condition on the case, the reason.
DIFFERS: list[tuple[str, Callable[[Case], bool], str]] = [
    ("FlexAttention", lambda c: narrow(c), "the reference rounds every step to the narrow type"),
    ("GridSample", lambda c: True, "the reference reckons in the element type, or cuts whole numbers off"),
    ("Scan", lambda c: True, "the runtime hands out memory that it never wrote; the reference has no axes"),
    ("Conv ConvInteger QLinearConv", lambda c: not fits(c), "the runtime and we refuse windows larger than the image"),
    ("NonMaxSuppression", lambda c: any(np.size(x) != 1 for x in c.xs[2:]), "any count passes for one"),
    (
        "MaxPool AveragePool LpPool",
        lambda c: "SAME" in c.sample.attrs.get("auto_pad", ""),
        "the runtime shifts such windows",
    ),
    ("MaxPool AveragePool LpPool", lambda c: not fits(c), "without any window we refuse, they answer without pixels"),
    ("Unique", lambda c: not np.size(c.xs[0]), "the reference keeps all empty slices, and counts them as one"),
    ("RNN GRU LSTM", lambda c: c.dtypes[0] is not DType.FLOAT, "the reference lacks bidirectional ones and lengths"),
    ("RNN GRU LSTM", lambda c: "hidden_size" not in c.sample.attrs, "the runtime wants it; the reference lacks modes"),
    ("RNN GRU LSTM", lambda c: bool(c.sample.attrs.get("layout")), "the runtime has no layout 1"),
    ("Adam Adagrad Momentum", lambda c: kinds(c) > 1, "the reference promotes where the schema names the type"),
    (
        "Squeeze Unsqueeze ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
        "ReduceLogSumExp ReduceSumSquare",
        lambda c: len(c.xs) > 1 and c.xs[1] is not None and repeats(c),
        "the runtime takes an axis named twice",
    ),
    ("DFT", lambda c: pointless(c), "the runtime transforms no points; the reference and we refuse"),
    ("Optional", lambda c: c.dtypes[0] is None, "the reference wraps the value in a list"),
    ("LinearClassifier", lambda c: True, "the runtime wants intercepts, and leaves over coefficients that do not fit"),
    ("Compress", lambda c: True, "the runtime takes conditions longer than the axis"),
    ("SpaceToDepth", lambda c: not np.size(c.xs[0]), "the reference does not divide nothing"),
    ("GatherND", lambda c: not np.size(c.xs[1]), "without indices the runtime looks at no batch"),
    ("TfIdfVectorizer", lambda c: {"pool_strings", "pool_int64s"} <= c.sample.attrs.keys(), "one pool is allowed"),
    ("LRN", lambda c: c.dtypes[0] is DType.DOUBLE, "the reference adds in float32"),
    ("QuantizeLinear", lambda c: True, "the runtime lacks whole scales; the reference takes their type for y's"),
    ("QLinearMatMul QLinearConv", lambda c: narrow(c), "the reference rounds every step to the narrow type"),
    ("TreeEnsemble TreeEnsembleRegressor TreeEnsembleClassifier", lambda c: True, "transforms: ORT_DIFFERS says why"),
    ("CenterCropPad Pad", lambda c: c.dtypes[0] is DType.STRING, "the reference pads texts with zeros"),
    ("StringNormalizer", lambda c: True, "the runtime wants a locale; the reference drops empty texts"),
    ("Tokenizer", lambda c: not np.size(c.xs[0]), "no texts: the runtime drops the axis of the texts"),
    (
        "MultiHeadAttention",
        lambda c: bool(c.sample.attrs.get("unidirectional")),
        "a causal mask of more keys than queries is the runtime's own",
    ),
]


def pointless(case: Case) -> bool:
    """Whether a transform has no points: none go in, or half of a spectrum of none."""
    both = bool(case.sample.attrs.get("inverse") and case.sample.attrs.get("onesided"))
    return not np.size(case.xs[0]) or (both and 1 in np.shape(case.xs[0]))


def kinds(case: Case) -> int:
    """How many element types of floats go in."""
    return len({x.dtype for x in case.xs if isinstance(x, np.ndarray) and DType.of(x.dtype).floating})


def narrow(case: Case) -> bool:
    """Whether floats of 16 bits or less go in."""
    return any(DType.of(x.dtype).narrow for x in case.xs if isinstance(x, np.ndarray))


def fits(case: Case) -> bool:
    """Whether the window of a convolution is no larger than its image."""
    image = np.shape(case.xs[0])[2:]
    window = case.sample.attrs.get("kernel_shape")
    if window is None:
        window = np.shape(case.xs[3 if case.op.name == "QLinearConv" else 1])[2:]
    return all(b <= a for a, b in zip(image, window, strict=False))


def repeats(case: Case) -> bool:
    """Whether axes name one axis twice."""
    axes = np.asarray(case.xs[1]).tolist()
    return len({a % max(np.ndim(case.xs[0]), 1) for a in axes}) < len(axes)


@pytest.fixture(scope="module")
def referee() -> Iterator[Referee]:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is the referee: make install PEERS=1")
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
    by_runtime = differences(case, got, runtime) if runtime is not None else f"refuses: {reason}"
    by_reference = differences(case, got, reference) if reference is not None else f"refuses: {why}"
    return f"ONNX Runtime: {by_runtime}\nthe reference: {by_reference}"


def lacks(reason: str) -> bool:
    """Whether ONNX Runtime refuses for want of a kernel or of an opset, and not for what the model says."""
    return (
        "NotImplemented" in reason or "Unsupported model" in reason or "is till opset" in reason or "it " in reason[:3]
    )


def differences(case: Case, got: list[Any] | MezzoError, theirs: list[Any]) -> str:
    """How results differ; empty if they do not."""
    if isinstance(got, MezzoError):
        return f"we refuse: {got}"
    for i, (y, like) in enumerate(zip(got, theirs, strict=True)):
        dtype = case.dtypes[i] if i < len(case.dtypes) else None
        found = difference(y, like, dtype, exact=case.op.deterministic)
        if found:
            return f"output {i}: {found}"
    return ""


def difference(y: Any, like: Any, dtype: DType | None, *, exact: bool) -> str:
    """How one value differs from another; empty if it does not."""
    if isinstance(like, (list, tuple)) or isinstance(y, list):
        if not isinstance(y, list) or not isinstance(like, (list, tuple)) or len(y) != len(like):
            return f"{y} instead of {like}"
        return next(filter(None, (difference(a, b, dtype, exact=exact) for a, b in zip(y, like, strict=True))), "")
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
    return "" if equal(y, like, dtype) else f"{y} instead of {like}"


def equal(y: Any, like: Any, dtype: DType | None) -> bool:
    """Equal floats: NaN and infinite where the other is, and else apart by less than a part of the largest."""
    with np.errstate(all="ignore"):
        odd = ~np.isfinite(like)
        if not np.array_equal(y[odd], like[odd], equal_nan=True):
            return False
        a, b = y[~odd], like[~odd]
        kind = dtype or DType.of(like.dtype)
        tolerance = TOLERANCE.get(kind, NARROW_TOLERANCE if kind.bits <= 8 else FLOAT_TOLERANCE)
        return not b.size or bool(
            np.abs(a - b).max() <= tolerance * max(np.abs(b).max(), 0.1)
        )  # tiny ones are differences of ones


def known(case: Case) -> str:
    """The reason why the referees differ here; empty if they should not."""
    return next((why for names, holds, why in DIFFERS if case.op.name in names.split() and holds(case)), "")


@pytest.mark.parametrize("module", sorted(modules()))
def test_random_models(module: str, referee: Referee) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        case = data.draw(cases(module))
        wrong = judged(case, referee)
        assert not wrong or known(case), f"{case}\n{wrong}"

    check()


def test_the_newest_opsets_are_covered() -> None:
    assert {o.domain for made in modules().values() for o in made} >= NEWEST.keys()
