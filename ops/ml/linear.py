"""LinearClassifier, LinearRegressor and support vector machines.

https://onnx.ai/onnx/operators/onnx_aionnxml_SVMClassifier.html; the arithmetic of support vectors and their
probabilities is that of Chang, Lin: LIBSVM, https://www.csie.ntu.edu.tw/~cjlin/papers/libsvm.pdf (sections 4 and 8).
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from ..core.samples import scattered
from ..errors import ShapeError
from ..op import Context, Sample, op
from ..types import Array, Dim, Tensor, f32
from .scores import Floats, Ints, Strings, both_classes, classified, labels_of, logistic, regressed, table, transform

X = np.array([[1, 2], [-3, 0.5], [0, 0], [4, -1]], np.float32)


def _linear(X: Array, coefficients: Floats, intercepts: Floats, columns: int) -> Array:
    """One score per row and column; float64 inside, so that long sums lose nothing."""
    x = table(X)
    weights = np.asarray(coefficients or (), np.float64).reshape(columns, -1)
    if weights.shape[1] != x.shape[1]:
        raise ShapeError(f"{weights.size} coefficients do not make {columns} scores of {x.shape[1]} features")
    scores = x @ weights.T
    return scores + np.asarray(intercepts, np.float64) if intercepts else scores


def _score_columns(coefficients: Floats, intercepts: Floats, labels: int, features: Dim) -> int:
    """Return the number of scores that the coefficients make: one per intercept, and without intercepts one per
    class."""
    if intercepts:
        return len(intercepts)
    if isinstance(features, int) and features and coefficients:
        return max(len(coefficients) // features, 1)
    return labels


@op(
    "LinearClassifier",
    domain="ai.onnx.ml",
    since=1,
    outputs=("Y", "Z"),
    samples=[
        Sample(
            [X],
            {
                "coefficients": (0.5, -1.0, 1.0, 0.0, -0.25, 2.0),
                "intercepts": (0.0, 0.5, -1.0),
                "classlabels_ints": (3, 5, 7),
                "post_transform": t,
            },
            2,
        )
        for t in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    ]
    + [
        Sample(
            [X],
            {"coefficients": (0.5, -1.0), "intercepts": (0.1,), "classlabels_strings": ("no", "yes"), **more},
            2,
        )
        for more in ({}, {"post_transform": "LOGISTIC", "multi_class": 1})
    ]
    + [Sample([X.astype(np.int64)], {"coefficients": (0.5, -1.0, 1.0, 0.0), "classlabels_ints": (0, 1)}, 2)],
)
def linear_classifier(
    k: Context,
    X: Array,
    *,
    classlabels_ints: Ints = None,
    classlabels_strings: Strings = None,
    coefficients: Floats,
    intercepts: Floats = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Array, Array]:
    labels = labels_of(classlabels_ints, classlabels_strings)
    scores = _linear(X, coefficients, intercepts, _score_columns(coefficients, intercepts, len(labels), X.shape[-1]))
    if scores.shape[1] == 1:  # one score tells two classes apart
        label = labels[(scores[:, 0] > 0).astype(int) if len(labels) == 2 else np.zeros(len(scores), int)]
        probabilities = transform(scores, post_transform)
        if len(labels) == 2:
            probabilities = np.concatenate([1 - probabilities, probabilities], 1)
        return label.copy(), probabilities.astype(np.float32)
    return labels[scores.argmax(1)], transform(scores, post_transform).astype(np.float32)


@linear_classifier.infer
def _(
    X: Tensor,
    *,
    classlabels_ints: Ints = None,
    classlabels_strings: Strings = None,
    coefficients: Floats,
    intercepts: Floats = None,
) -> tuple[Tensor, Tensor]:
    if classlabels_ints and classlabels_strings:
        raise ShapeError("a LinearClassifier has labels of one kind", hint="remove one of the classlabels attributes")
    labels = len(labels_of(classlabels_ints, classlabels_strings))
    features = X.dims[-1] if X.dims else None
    scores = _score_columns(coefficients, intercepts, labels, features)
    columns = 2 if scores == 1 and labels == 2 else scores
    known = bool(intercepts) or isinstance(features, int)
    return classified(X, classlabels_ints, classlabels_strings, columns if known else None)


@op(
    "LinearRegressor",
    domain="ai.onnx.ml",
    since=1,
    samples=[
        Sample([X], {"coefficients": (0.5, -1.0), "intercepts": (2.0,)}),
        Sample([X], {"coefficients": (0.5, -1.0, 1.0, 3.0), "targets": 2}),
        Sample(
            [X.astype(np.float64)],
            {"coefficients": (0.5, -1.0, 1.0, 3.0), "targets": 2, "post_transform": "SOFTMAX"},
        ),
    ],
)
def linear_regressor(
    k: Context,
    X: Array,
    *,
    coefficients: Floats = None,
    intercepts: Floats = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Array:
    return transform(_linear(X, coefficients, intercepts, targets), post_transform).astype(np.float32)


@linear_regressor.infer
def _(X: Tensor, *, targets: int = 1) -> Tensor:
    return regressed(X, targets)


def _kernel(x: Array, vectors: Array, kind: str, params: Floats) -> Array:
    """The kernel of each row with each vector. `params` are gamma, coef0 and degree."""
    gamma, coef0, degree = params or (0.0, 0.0, 0.0)
    if kind == "RBF":
        squares = (x * x).sum(1)[:, None] + (vectors * vectors).sum(1) - 2 * (x @ vectors.T)
        return np.exp(-gamma * np.maximum(squares, 0))
    products = x @ vectors.T
    match kind:
        case "LINEAR":
            return products
        case "POLY":
            return (gamma * products + coef0) ** degree
        case "SIGMOID":
            return np.tanh(gamma * products + coef0)
    raise ShapeError(f"kernel_type {kind!r} is none of LINEAR, POLY, RBF, SIGMOID")


SUPPORT = (1.0, 0.0, -1.0, 1.0, 0.5, 0.5)  # three vectors of two features


@op(
    "SVMRegressor",
    domain="ai.onnx.ml",
    since=1,
    samples=[
        Sample(
            [X],
            {
                "coefficients": (1.0, -0.5, 0.25),
                "kernel_params": (0.5, 1.0, 3.0),
                "kernel_type": t,
                "n_supports": 3,
                "rho": (0.5,),
                "support_vectors": SUPPORT,
            },
        )
        for t in ("LINEAR", "POLY", "RBF", "SIGMOID")
    ]
    + [
        Sample(
            [X],
            {
                "coefficients": (1.0, -0.5, 0.25),
                "kernel_params": (0.5, 1.0, 3.0),
                "kernel_type": "RBF",
                "n_supports": 3,
                "one_class": 1,
                "rho": (-0.3,),
                "support_vectors": SUPPORT,
            },
        ),
        Sample([X], {"coefficients": (1.0, -0.5), "kernel_params": (0.0, 0.0, 0.0), "rho": (0.5,)}),
    ],
)
def svm_regressor(
    k: Context,
    X: Array,
    *,
    coefficients: Floats = None,
    kernel_params: Floats = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Floats = None,
    support_vectors: Floats = None,
) -> Array:
    x, weights = table(X), np.asarray(coefficients or (), np.float64)
    if n_supports:
        vectors = np.asarray(support_vectors or (), np.float64).reshape(n_supports, -1)
        scores = _kernel(x, vectors, kernel_type, kernel_params) @ weights
    else:
        scores = _kernel(x, weights[None], kernel_type, kernel_params)[:, 0]
    scores = scores + (rho or (0.0,))[0]
    if one_class:
        scores = np.where(scores > 0, 1.0, -1.0)
    return transform(scores[:, None], post_transform).astype(np.float32)


@svm_regressor.infer
def _(X: Tensor) -> Tensor:
    return regressed(X, 1)


def _pairwise(kernels: Array, weights: Array, rho: Array, per_class: tuple[int, ...]) -> tuple[Array, Array]:
    """One score and one vote per pair of classes. Of two classes i < j, the vectors of i weigh by row j - 1 of the
    coefficients, those of j by row i."""
    ends = np.cumsum(per_class)
    spans = [slice(end - n, end) for end, n in zip(ends, per_class, strict=True)]
    scores, votes = [], np.zeros((len(kernels), len(per_class)), np.int64)
    for at, (i, j) in enumerate(combinations(range(len(per_class)), 2)):
        score = kernels[:, spans[i]] @ weights[j - 1, spans[i]] + kernels[:, spans[j]] @ weights[i, spans[j]] + rho[at]
        votes[np.arange(len(score)), np.where(score > 0, i, j)] += 1
        scores.append(score)
    return np.stack(scores, 1), votes


def _coupled(scores: Array, a: Array, b: Array, count: int) -> Array:
    """Probabilities of the classes from the scores of their pairs: Platt's sigmoids, coupled by the second method of
    Wu, Lin, Weng 2004, iterated as LIBSVM does; a row that has converged is left alone."""
    share = np.clip(logistic(-(scores * a + b)), 1e-7, 1 - 1e-7)
    r = np.zeros((len(scores), count, count))
    for at, (i, j) in enumerate(combinations(range(count), 2)):
        r[:, i, j], r[:, j, i] = share[:, at], 1 - share[:, at]
    q = -r * r.swapaxes(1, 2)
    diagonal = np.arange(count)
    q[:, diagonal, diagonal] = (r * r).sum(1)
    p = np.full((len(scores), count), 1 / count)
    active = np.arange(len(scores))
    for _ in range(max(100, count)):
        left = q[active]
        qp = np.einsum("nij,nj->ni", left, p[active])
        pqp = (qp * p[active]).sum(1)
        going = np.abs(qp - pqp[:, None]).max(1, initial=0) >= 0.005 / count
        active, left, qp, pqp = active[going], left[going], qp[going], pqp[going]
        if not len(active):
            break
        now = p[active]
        for t in range(count):
            step = (pqp - qp[:, t]) / left[:, t, t]
            now[:, t] += step
            pqp = (pqp + step * (step * left[:, t, t] + 2 * qp[:, t])) / (1 + step) ** 2
            qp = (qp + step[:, None] * left[:, t]) / (1 + step)[:, None]
            now /= (1 + step)[:, None]
        p[active] = now
    return p


def _svm(count: int, *, proba: bool = False, labels: int | None = None) -> dict[str, object]:
    """Attributes of a machine over `count` classes, one vector for each and two for the first."""

    def spread(most: float, size: int) -> tuple[float, ...]:
        """Numbers between -most and most."""
        return tuple((scattered(-1000, 1000, size, seed=count) * (most / 1000)).tolist())

    pairs = count * (count - 1) // 2
    more = {"prob_a": (-1.5,) * pairs, "prob_b": (0.1,) * pairs} if proba else {}
    return {
        "classlabels_ints": tuple(range(10, 10 + count)),
        "coefficients": spread(1, (count - 1) * (count + 1)),
        "kernel_params": (0.5, 0.0, 0.0),
        "kernel_type": "RBF",
        "rho": spread(0.5, pairs),
        "support_vectors": spread(2, 2 * (count + 1)),
        "vectors_per_class": (2, *(1,) * (count - 1)),
        **more,
    }


@op(
    "SVMClassifier",
    domain="ai.onnx.ml",
    since=1,
    outputs=("Y", "Z"),
    samples=[
        Sample([X], _svm(3), 2),
        Sample([X], _svm(4, proba=True), 2),
        Sample([X], _svm(2), 2),
        Sample([X], _svm(2, proba=True), 2),
        Sample([f32(0, 2)], _svm(3, proba=True), 2),
        Sample(
            [X],
            {
                "classlabels_strings": ("a", "b", "c"),
                "coefficients": (1.0, 0.5, -1.0, 0.0, 0.5, 0.25),
                "kernel_params": (0.0, 0.0, 0.0),
                "rho": (0.1,),
            },
            2,
        ),
    ],
)
def svm_classifier(
    k: Context,
    X: Array,
    *,
    classlabels_ints: Ints = None,
    classlabels_strings: Strings = None,
    coefficients: Floats = None,
    kernel_params: Floats = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Floats = None,
    prob_b: Floats = None,
    rho: Floats = None,
    support_vectors: Floats = None,
    vectors_per_class: Ints = None,
) -> tuple[Array, Array]:
    labels, x = labels_of(classlabels_ints, classlabels_strings), table(X)
    weights, offsets = np.asarray(coefficients or (), np.float64), np.asarray(rho or (0.0,), np.float64)
    if not vectors_per_class:  # linear machines: one score per class
        scores = _kernel(x, weights.reshape(len(labels), -1), kernel_type, kernel_params) + offsets[0]
        return labels[scores.argmax(1)], transform(scores, post_transform).astype(np.float32)
    total = sum(vectors_per_class)
    vectors = np.asarray(support_vectors or (), np.float64).reshape(total, -1)
    count = len(vectors_per_class)
    kernels = _kernel(x, vectors, kernel_type, kernel_params)
    scores, votes = _pairwise(kernels, weights.reshape(count - 1, total), offsets, tuple(vectors_per_class))
    best = votes.argmax(1)  # whatever the probabilities say, as LIBSVM has it
    if prob_a:
        scores = _coupled(scores, np.asarray(prob_a, np.float64), np.asarray(prob_b, np.float64), count)
    elif count == 2:
        # One score, positive for the first class, comes out as a column for each class in this order: whoever converts
        # a machine of two classes knows ONNX Runtime's way, and turns the sign.
        return labels[best], both_classes(scores[:, 0], post_transform, shares=False).astype(np.float32)
    return labels[best], transform(scores, post_transform).astype(np.float32)


@svm_classifier.infer
def _(
    X: Tensor,
    *,
    classlabels_ints: Ints = None,
    classlabels_strings: Strings = None,
    prob_a: Floats = None,
    vectors_per_class: Ints = None,
) -> tuple[Tensor, Tensor]:
    labels = len(labels_of(classlabels_ints, classlabels_strings))
    count = len(vectors_per_class or ())
    columns = labels if prob_a or count in (0, 2) else count * (count - 1) // 2
    return classified(X, classlabels_ints, classlabels_strings, columns)
