"""Rows that say where referees differ on models at random: conditions on a case, and what is right there.

A row has operators, a condition on the case, the reason, and the answer that ours is compared with: that of a referee
to the same question in words that it understands, a closed form, or a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mezzo.ops import DType, Sample

from .closed_forms import softmax
from .random_models import BUILT_IN, Case, finished, schema_of
from .referee import Referee


@dataclass(frozen=True)
class Refusal:
    """The answer to what is no valid model."""


REFUSED = Refusal()


@dataclass(frozen=True)
class Either:
    """Each element is that of one array or of the other: a sum next to a whole number is cut to it or to the one
    before."""

    low: Any
    high: Any


Answer = list[Any] | Refusal | Either | None  # None where the referee has no answer to the other words either


@dataclass(frozen=True)
class Row:
    operators: str
    holds: Callable[[Case], bool]
    reason: str
    right: Callable[[Case, Referee], Answer]


def refused(case: Case, referee: Referee) -> Answer:
    return REFUSED


def closed(form: Callable[..., Any]) -> Callable[[Case, Referee], Answer]:
    """A closed form over the inputs and attributes of a case; several results come as a tuple."""

    def right(case: Case, referee: Referee) -> Answer:
        found = form(*case.xs, **case.sample.attrs)
        return [as_fed(y, case, i) for i, y in enumerate(found if isinstance(found, tuple) else (found,))]

    return right


def asked(who: str, change: Callable[[Case], Sample], back: Any = None) -> Callable[[Case, Referee], Answer]:
    """What a referee answers to a sample that means the same, in the element types of the case; `back` turns the
    results into those of the case."""

    def right(case: Case, referee: Referee) -> Answer:
        other = finished(case.op, change(case), *schema_of(case.op), set())
        found, _ = referee.ask(who, other.model, dict(other.feeds))
        if found is None:
            return None
        return [as_fed(y, case, i) for i, y in enumerate((back(case, found) if back else found)[: case.sample.outputs])]

    return right


def as_fed(y: Any, case: Case, i: int) -> Any:
    """A result in the element type of the case's; types that Python has no arrays of are cast to float32 there."""
    dtype = case.dtypes[i]
    if dtype is None and isinstance(y, np.ndarray) and DType.of(y.dtype).floating and first(case).floating:
        return y.astype(case.xs[0].dtype)
    if dtype is None or dtype is DType.STRING:
        return y
    with np.errstate(all="ignore"):
        made = np.asarray(y).astype(dtype.numpy)
    return made if dtype.numpy.name in BUILT_IN else made.astype(np.float32)


def wider(dtype: str, *, whole: bool = False) -> Callable[[Case], Sample]:
    """The sample with its floats, and whole numbers too if asked, in another type of floats."""

    def change(case: Case) -> Sample:
        def one(x: Any) -> Any:
            turns = isinstance(x, (np.ndarray, np.generic)) and (
                DType.of(x.dtype).floating or (whole and x.dtype != object)
            )
            return np.asarray(x).astype(dtype) if turns else x

        return replace(case.sample, inputs=[one(x) for x in case.xs])

    return change


def with_attrs(**given: Any) -> Callable[[Case], Sample]:
    """The sample with other attributes; those of None are left out."""

    def change(case: Case) -> Sample:
        attrs = {**case.sample.attrs, **given}
        return replace(case.sample, attrs={a: v for a, v in attrs.items() if v is not None})

    return change


# Conditions


def kinds(case: Case) -> int:
    """How many element types of floats go in."""
    found = {np.asarray(x).dtype for x in case.xs if isinstance(x, (np.ndarray, np.generic))}
    return sum(DType.of(dtype).floating for dtype in found)


def narrow(case: Case) -> bool:
    """Whether floats of 16 bits or less go in."""
    return any(DType.of(x.dtype).narrow for x in case.xs if isinstance(x, (np.ndarray, np.generic)))


def first(case: Case) -> DType:
    return DType.of(case.xs[0].dtype)


def empty(case: Case, at: int = 0) -> bool:
    return not np.size(case.xs[at])


def repeats(case: Case) -> bool:
    """Whether axes name one axis twice."""
    if len(case.xs) < 2 or case.xs[1] is None:
        return False
    rank = np.ndim(case.xs[0]) + (np.size(case.xs[1]) if case.op.name == "Unsqueeze" else 0)
    axes = np.asarray(case.xs[1]).reshape(-1).tolist()
    return len({a % max(rank, 1) for a in axes}) < len(axes)


def spans(case: Case) -> list[tuple[int, int, int]]:
    """For each spatial axis of a pool: how many elements it has with its padding, the window's span, the stride."""
    attrs, image = case.sample.attrs, np.shape(case.xs[0])[2:]
    n, kernel = len(image), attrs["kernel_shape"]
    pads = attrs.get("pads", [0] * 2 * n) if attrs.get("auto_pad", "NOTSET") == "NOTSET" else [0] * 2 * n
    strides, dilations = attrs.get("strides", [1] * n), attrs.get("dilations", [1] * n)
    return [
        (image[i] + pads[i] + pads[n + i], (kernel[i] - 1) * dilations[i] + 1, strides[i]) for i in range(len(image))
    ]


def too_short(case: Case) -> bool:
    """Whether the standard's formula gives a pool a negative size."""
    same = "SAME" in case.sample.attrs.get("auto_pad", "")
    up = case.sample.attrs.get("ceil_mode", 0)
    return not same and any((-((span - n) // s) if up else (n - span) // s) + 1 < 0 for n, span, s in spans(case))


def misfit(case: Case) -> bool:
    """Whether coefficients do not make one score per intercept, or none, of the features."""
    attrs = case.sample.attrs
    scores = len(attrs.get("intercepts", ())) or max(map(len, labels(case)), default=0)
    count = len(attrs.get("coefficients", ()))
    features = np.shape(case.xs[0])[-1]
    return not features or count % features != 0 or (bool(attrs.get("intercepts")) and count != scores * features)


def labels(case: Case) -> list[Any]:
    """The class labels that are given, of either kind."""
    kinds_of = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")
    return [case.sample.attrs[a] for a in kinds_of if case.sample.attrs.get(a)]


def labelled_outside(case: Case) -> bool:
    """True for a label that is no class, and not left out."""
    scores, target = case.xs[:2]
    counted = target[target != case.sample.attrs.get("ignore_index", 0.5)]
    return bool(counted.size) and not 0 <= counted.min() <= counted.max() < np.shape(scores)[1]


def twice(dtype: DType, attrs: Mapping[str, Any]) -> bool:
    """Whether the pool lists an n-gram of one or two tokens twice."""
    pools = [attrs.get("pool_int64s"), attrs.get("pool_strings")]
    pool: Any = (pools[::-1] if dtype is DType.STRING else pools)[0] or pools[0] or pools[1]
    first_pair = (*attrs["ngram_counts"], 0)[1]
    grams = [*((t,) for t in pool[:first_pair]), *zip(pool[first_pair::2], pool[first_pair + 1 :: 2], strict=False)]
    return len(set(grams)) < len(grams)


def other_pool(case: Case) -> str:
    """The pool that is not of the type of X."""
    return "pool_int64s" if first(case) is DType.STRING else "pool_strings"


def weights_of(case: Case) -> Any:
    """The weights of n-grams, which the reference wants to be given where they count."""
    attrs = case.sample.attrs
    return attrs.get("weights") or (1.0,) * len(attrs["ngram_indexes"])


def outside(data: Any, indices: Any, batch_dims: int = 0) -> bool:
    """Whether indices lie outside of an array, or differ from it in the batch."""
    if data.shape[:batch_dims] != indices.shape[:batch_dims]:
        return True
    sizes = np.array(data.shape[batch_dims : batch_dims + indices.shape[-1]])
    return bool(((indices < -sizes) | (indices >= sizes)).any())


def outside_of_blocks(case: Case) -> bool:
    """Whether indices lie outside of the axis that is gathered along."""
    size = np.shape(case.xs[0])[case.sample.attrs.get("gather_axis", 0)]
    return bool(((case.xs[1] < -size) | (case.xs[1] >= size)).any())


def blocks_fit(case: Case) -> bool:
    """Whether a scale has one entry for each block."""
    dims, size = list(np.shape(case.xs[0])), case.sample.attrs.get("block_size", 0)
    axis = case.sample.attrs.get("axis", 1)
    if not size:
        return True
    dims[axis] = -(-dims[axis] // size)
    return list(np.shape(case.xs[1])) == dims


# Other words, and closed forms


def with_pads(case: Case) -> Sample:
    """The pool with the pads that auto_pad stands for."""
    attrs = dict(case.sample.attrs)
    upper, image = attrs.pop("auto_pad") == "SAME_UPPER", np.shape(case.xs[0])[2:]
    missing = [
        max((-(-n // s) - 1) * s + span - n, 0) for n, (_, span, s) in zip(image, spans(case), strict=True)
    ]  # fmt: skip
    small, large = [m // 2 for m in missing], [m - m // 2 for m in missing]
    return replace(case.sample, attrs={**attrs, "pads": small + large if upper else large + small})


def lowest(case: Case, found: list[Any]) -> list[Any]:
    """The largest of no elements is the lowest that there is."""
    dtype = case.xs[0].dtype
    least = np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf
    return [np.full(np.shape(found[0]), least), *found[1:]]


def recurrent(case: Case) -> Sample:
    """A recurrent network of float32 that says its hidden size, with the time first."""
    attrs = {"hidden_size": np.shape(case.xs[2])[-1], **case.sample.attrs}
    xs: list[Any] = list(wider("float32")(case).inputs)
    if unscaled(case):
        attrs |= scales(attrs)
    if attrs.pop("layout", 0):
        xs = [x.swapaxes(0, 1) if i in (0, 5, 6) and x is not None else x for i, x in enumerate(xs)]
    return replace(case.sample, inputs=xs, attrs=attrs)


def recurrent_back(case: Case, found: list[Any]) -> list[Any]:
    if not case.sample.attrs.get("layout"):
        return found
    return [found[0].transpose(2, 0, 1, 3), *(y.swapaxes(0, 1) for y in found[1:])]


SCALES = {"HardSigmoid": (0.2, 0.5), "ScaledTanh": (1.0, 1.0), "Affine": (1.0, 0.0), "LeakyRelu": (0.01, None)}


def unscaled(case: Case) -> bool:
    """Whether activations lack a scale, and one of them is a ScaledTanh."""
    attrs = case.sample.attrs
    given = [attrs.get(f"activation_{name}", ()) for name in ("alpha", "beta")]
    return "ScaledTanh" in attrs.get("activations", ()) and min(map(len, given)) < 2


def scales(attrs: Mapping[str, Any]) -> dict[str, list[float]]:
    """All scales of the activations, those that are not said by their defaults."""
    found = {}
    for i, name in enumerate(("activation_alpha", "activation_beta")):
        said = [SCALES[n][i] for n in attrs["activations"] if n in SCALES and SCALES[n][i] is not None]
        given = list(attrs.get(name, ()))
        found[name] = given + said[len(given) :]
    return found


def positive_axes(case: Case) -> Sample:
    rank = np.ndim(case.xs[0])
    return replace(case.sample, attrs={**case.sample.attrs, "axes": [a % rank for a in case.sample.attrs["axes"]]})


def places(case: Case) -> Sample:
    """The place of each element in the place of the element."""
    sample = wider("float32")(case)
    x = np.arange(np.size(case.xs[0]), dtype=np.float32).reshape(np.shape(case.xs[0]))
    return replace(sample, inputs=[x, *sample.inputs[1:]], attrs={**case.sample.attrs, "extrapolation_value": -1.0})


def from_places(case: Case, found: list[Any]) -> list[Any]:
    beyond = np.full(1, case.sample.attrs.get("extrapolation_value", 0.0)).astype(case.xs[0].dtype)
    return [np.concatenate([case.xs[0].reshape(-1), beyond])[found[0].astype(int)]]


def cut(round: Any, change: Callable[[Case], Sample]) -> Callable[[Case, Referee], Answer]:
    """The runtime's sums of floats, made whole at the end."""

    def right(case: Case, referee: Referee) -> Answer:
        other = finished(case.op, change(case), *schema_of(case.op), set())
        found, _ = referee.ask("runtime", other.model, dict(other.feeds))
        if found is None:
            return None
        if first(case) is DType.BOOL:
            return Either(np.abs(found[0]) > 1e-4, np.True_)
        return Either(
            *(as_fed(round(found[0] + at, case.xs[0].dtype).astype(np.int64), case, 0) for at in (-1e-4, 1e-4))
        )

    return right


def by_parts(case: Case, referee: Referee) -> Answer:
    """The runtime's answers to the real and to the imaginary parts."""
    found = []
    for part in (case.xs[0].real, case.xs[0].imag):
        sample = replace(case.sample, inputs=[part.astype(np.float64), case.xs[1].astype(np.float64)])
        other = finished(case.op, sample, *schema_of(case.op), set())
        found.append(referee.ask("runtime", other.model, dict(other.feeds))[0])
    real, imaginary = found
    return None if real is None or imaginary is None else [as_fed(real[0] + 1j * imaginary[0], case, 0)]


def kept_in_range(y: Any, dtype: Any) -> Any:
    return np.clip(np.rint(y), np.iinfo(dtype).min, np.iinfo(dtype).max)


def image_as_floats(case: Case) -> Sample:
    return replace(case.sample, inputs=[case.xs[0].astype(np.float32), *case.xs[1:]])


def skipped(case: Case, referee: Referee) -> Answer:
    x, skip, gamma, *bias = case.xs
    if np.shape(x)[1:] != np.shape(skip)[1:] or len(skip) not in (1, len(x)):
        return REFUSED
    x = np.add(x, skip, dtype=np.float64) + sum(b for b in bias if b is not None)
    mean, inverse = (
        x.mean(-1, keepdims=True),
        1 / np.sqrt((x * x).mean(-1, keepdims=True) + case.sample.attrs.get("epsilon", 1e-12)),
    )
    return [as_fed(y, case, i) for i, y in enumerate((x * inverse * gamma, mean, inverse, x))]


TRANSFORMS: Mapping[Any, Callable[[Any], Any]] = {
    "SOFTMAX": softmax,
    "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)),
    "SOFTMAX_ZERO": lambda x: np.where(x == 0, 0, np.exp(x) / np.where(x == 0, 0, np.exp(x)).sum(-1, keepdims=True)),
    "NONE": lambda x: x,
}
BY_NUMBER = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]


def transformed(case: Case, found: list[Any]) -> list[Any]:
    """The scores of trees after their post_transform."""
    asked_for = case.sample.attrs.get("post_transform", "NONE")
    return [TRANSFORMS[BY_NUMBER[asked_for] if isinstance(asked_for, int) else asked_for](found[0].astype(float))]


def quantiles(case: Case, found: list[Any]) -> list[Any]:
    """The normal distribution's quantile of the second score, by the formula that ONNX Runtime has."""
    x = 2 * found[1][:, 1].astype(float) - 1
    with np.errstate(all="ignore"):
        log = np.log((1 - x) * (1 + x))
        half = 2 / (np.pi * 0.147) + 0.5 * log
        made = np.sqrt(2) * np.sign(x) * np.sqrt(-half + np.sqrt(half * half - log / 0.147))
    return [found[0], np.stack([1 - made, made], 1)]


def linear_classifier(X: Any, **attrs: Any) -> Any:
    """Without intercepts: the scores are the products."""
    x, given = np.asarray(X, float), attrs.get("classlabels_ints") or attrs["classlabels_strings"]
    x = x.reshape(-1, x.shape[-1])
    scores = x @ np.reshape(attrs["coefficients"], (-1, x.shape[-1])).T
    turn = TRANSFORMS[attrs.get("post_transform", "NONE")]
    chosen, made = scores.argmax(1), turn(scores)
    if scores.shape[1] == 1:
        two = len(given) == 2
        chosen, made = np.where(scores[:, 0] > 0, int(two), 0), np.concatenate([1 - made, made], 1) if two else made
    return np.array([given[i] for i in chosen], object if isinstance(given[0], str) else np.int64), made


def unique_of_nothing(X: Any, axis: int, sorted: int = 1) -> Any:
    """Slices without elements are equal to each other."""
    n = X.shape[axis]
    one = np.zeros(min(n, 1), int)
    return X[(slice(None),) * (axis % X.ndim) + (slice(0, 1),)], one, np.zeros(n, int), one + n


def lrn(X: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    """https://onnx.ai/onnx/operators/onnx__LRN.html, channel by channel."""
    near = [X[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1] ** 2 for c in range(X.shape[1])]
    return X / (bias + np.float32(alpha) / size * np.stack([n.sum(1) for n in near], 1)) ** np.float32(beta)


def over(part: Any, x: Any, axis: int = 1, block_size: int = 0, **_: Any) -> Any:
    """A scale or zero point of each element."""
    wide = np.asarray(part, float)
    if block_size and wide.ndim:
        return np.repeat(wide, block_size, axis).take(range(x.shape[axis]), axis)
    return wide.reshape([wide.size if i == axis % x.ndim else 1 for i in range(x.ndim)]) if wide.size > 1 else wide


def quantised(case: Case, referee: Referee) -> Answer:
    """Quotients by a scale of zero are infinite, and saturate."""
    x, dtype = case.xs[0].astype(float), case.dtypes[0]
    assert dtype is not None
    with np.errstate(all="ignore"):
        quotient = x / over(case.xs[1], x, **case.sample.attrs)
    zero = over(case.xs[2], x, **case.sample.attrs) if case.xs[2:] else 0
    steps = np.rint(np.where(np.isnan(quotient), 0, quotient)) + zero
    return [np.clip(steps, np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max).astype(dtype.numpy)]


def dequantised(x: Any, scale: Any, zero: Any, **attrs: Any) -> Any:
    return (x.astype(float) - over(zero, x, **attrs)) * over(scale, x, **attrs)


def mask_of_floats(case: Case) -> Sample:
    return replace(case.sample, inputs=[x if i != 3 else x.astype(case.xs[0].dtype) for i, x in enumerate(case.xs)])


def float32_scales(case: Case) -> Sample:
    wide = wider("float32")(case).inputs
    return replace(case.sample, inputs=[wide[i] if i in (1, 4, 6) else x for i, x in enumerate(case.xs)])


def width_of_heads(case: Case) -> int:
    """How many elements of each head are turned; where heads are not counted, those of the table."""
    attrs, dims = case.sample.attrs, np.shape(case.xs[0])
    if case.op.domain and len(dims) == 3 and not attrs.get("num_heads"):
        return 2 * int(np.shape(case.xs[2])[-1])
    return int(attrs.get("rotary_embedding_dim") or dims[-1] // (attrs["num_heads"] if len(dims) == 3 else 1))


def zeros_without_keys(case: Case, found: list[Any]) -> list[Any]:
    """Zeros for new places whose window lies behind the end of their text."""
    window, ends = case.sample.attrs["local_window_size"], np.ravel(case.xs[5])[:, None]
    unseen = np.arange(found[0].shape[1]) >= ends + window
    return [np.where(unseen[..., None], 0, found[0]).astype(found[0].dtype), *found[1:]]


def fused_matmul_of_nothing(case: Case, referee: Referee) -> Answer:
    """Zeros, in the shape that the runtime says."""
    found, _ = referee.ask("runtime", case.model, dict(case.feeds))
    return None if found is None else [np.zeros_like(found[0])]


def padded_texts(case: Case) -> Sample:
    """Strings as numbers above zero: places in a list."""
    listed = sorted({*case.xs[0].reshape(-1)} - {""})
    number = np.array([listed.index(t) + 1 if t else 0 for t in case.xs[0].reshape(-1)], np.int64)
    return replace(case.sample, inputs=[number.reshape(case.xs[0].shape), *case.xs[1:]])


def texts_back(case: Case, found: list[Any]) -> list[Any]:
    listed = ["", *sorted({*case.xs[0].reshape(-1)} - {""})]
    return [np.array([listed[i] for i in found[0].reshape(-1)], object).reshape(found[0].shape)]
