"""Losses of pairs, counts and sequences: PyTorch's, or by their formulas; eager = hybridized, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mezzo import nd
from mezzo.gluon import loss
from mezzo.nd import autograd
from mezzo.ops.errors import InputError

from .peers import peer

RNG = np.random.default_rng(5)


def close(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    assert np.abs(a - b).max(initial=0) <= tolerance * max(np.abs(b).max(initial=0), 1e-12)


def as_in_pytorch(block: Any, expected: str, *given: Any, learnt: int = 1, more: dict[str, Any] | None = None) -> None:
    """The loss and its gradients by the first operands, eager and hybridized; `expected` names them a, b, c."""
    torch = peer("torch")
    theirs = [torch.tensor(x, requires_grad=i < learnt) for i, x in enumerate(given)]
    names = {"F": torch.nn.functional, "torch": torch, **dict(zip("abc", theirs, strict=False)), **(more or {})}
    want = eval(expected, names)  # noqa: S307
    weights = np.arange(1.0, 1 + len(want))
    (want * torch.tensor(weights)).sum().backward()
    for hybrid in (False, True):
        block.hybridize(hybrid)
        with autograd.record():
            block(*(nd.asarray(x[::-1].copy()) for x in given))  # traced with other numbers and labels
        mine = [nd.asarray(x) for x in given]
        for x in mine[:learnt]:
            x.attach_grad()
        with autograd.record():
            found = block(*mine)
            total = (found * nd.asarray(weights)).sum()
        total.backward()
        close(found.asnumpy(), want.detach().numpy())
        for x, y in zip(mine[:learnt], theirs, strict=False):
            assert x.grad is not None
            close(x.grad.asnumpy(), y.grad.numpy(), 1e-9)


A, B, C = (RNG.standard_normal((4, 3)) for _ in range(3))
COUNTS = RNG.poisson(3, (4, 3)).astype(float)
SIGNS = np.array([1.0, -1.0, -1.0, 1.0])

CASES: dict[str, tuple[Callable[[], Any], str, list[Any], int]] = {
    "poisson": (loss.PoissonNLLLoss, "F.poisson_nll_loss(a, b, reduction='none').mean(1)", [A, COUNTS], 1),
    "poisson rates": (
        lambda: loss.PoissonNLLLoss(from_logits=False, compute_full=True),
        "F.poisson_nll_loss(a, b, log_input=False, full=True, reduction='none').mean(1)",
        [np.abs(A) + 0.1, COUNTS],
        1,
    ),
    "cosine": (
        lambda: loss.CosineEmbeddingLoss(margin=0.2),
        "F.cosine_embedding_loss(a, b, c, margin=0.2, reduction='none')",
        [A, B, SIGNS],
        2,
    ),
    "triplet": (
        lambda: loss.TripletLoss(margin=2.0),
        "F.relu(((a - b) ** 2 - (a - c) ** 2).sum(1) + 2)",
        [A, B, C],
        3,
    ),
    "logistic": (
        loss.LogisticLoss,
        "F.soft_margin_loss(a, b, reduction='none').mean(1)",
        [A, np.sign(B)],
        1,
    ),
    "binary": (
        lambda: loss.LogisticLoss(label_format="binary", weight=2.0),
        "2 * F.binary_cross_entropy_with_logits(a, b, reduction='none').mean(1)",
        [A, (B > 0).astype(float)],
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_of_pairs_and_counts(name: str) -> None:
    make, expected, given, learnt = CASES[name]
    as_in_pytorch(make(), expected, *given, learnt=learnt)


LABELS = np.array([[0, 1, 1], [2, 2, 2], [1, -1, -1], [-1, -1, -1]])
LENGTHS = np.array([3, 3, 1, 0])


@pytest.mark.parametrize("layout", ["NTC", "TNC"])
@pytest.mark.parametrize("blank", [None, 0])
@pytest.mark.parametrize("cut", [False, True])
def test_sequences_as_in_pytorch(layout: str, blank: int | None, cut: bool) -> None:
    """Repeated labels, which need a blank between them, and none at all."""
    times = np.array([7, 6, 4, 5]) if cut else np.array([7, 7, 7, 7])
    pred, labels = RNG.standard_normal((4, 7, 5)), LABELS + (blank == 0) * (LABELS >= 0)
    expected = "F.ctc_loss(a.log_softmax(2).transpose(0, 1), labels, times, lengths, blank=blank, reduction='none')"
    if layout == "TNC":
        pred, expected = pred.swapaxes(0, 1).copy(), expected.replace(".transpose(0, 1)", "")
    torch = peer("torch")
    more = {
        "labels": torch.tensor(np.maximum(labels, 0)),
        "times": torch.tensor(times),
        "lengths": torch.tensor(LENGTHS),
        "blank": 4 if blank is None else blank,
    }
    block = loss.CTCLoss(layout, blank=blank)
    if cut:
        as_in_pytorch(block, expected, pred, labels, times, more=more)
    else:
        as_in_pytorch(block, expected, pred, labels, more=more)
    told = loss.CTCLoss(layout, "TN", blank=blank)(
        nd.asarray(pred), nd.asarray(np.maximum(labels, 0).T), nd.asarray(times), nd.asarray(LENGTHS)
    )
    close(told.asnumpy(), block(nd.asarray(pred), nd.asarray(labels), nd.asarray(times)).asnumpy())


def test_labels_that_do_not_fit_are_impossible() -> None:
    """Three equal labels need five times; the others are not disturbed."""
    pred = nd.asarray(RNG.standard_normal((2, 4, 3)).astype(np.float32))
    pred.attach_grad()
    with autograd.record():
        found = loss.CTCLoss()(pred, nd.asarray(np.array([[1, 1, 1], [0, 1, -1]])))
    found.backward()
    impossible, possible = found.asnumpy()
    assert impossible > 1e29
    assert 0 < possible < 20
    assert pred.grad is not None
    assert np.isfinite(pred.grad.asnumpy()).all()


def test_weights_of_examples_and_what_is_refused() -> None:
    pred, label, weights = A[:2], B[:2], np.array([2.0, 0.5])
    for each in (weights, weights[:, None]):
        found = loss.L2Loss()(nd.asarray(pred), nd.asarray(label), nd.asarray(each)).asnumpy()
        close(found, weights * ((pred - label) ** 2).mean(1) / 2)
    found = loss.TripletLoss()(*(nd.asarray(x) for x in (A, B, C, SIGNS)))
    close(found.asnumpy(), SIGNS * np.maximum(((A - B) ** 2 - (A - C) ** 2).sum(1) + 1, 0))
    with pytest.raises(InputError, match="layouts"):
        loss.CTCLoss("CTN")
    with pytest.raises(InputError, match="signed or binary"):
        loss.LogisticLoss(label_format="other")


@pytest.mark.parametrize(
    "kind", ["L2Loss", "HuberLoss", "SoftmaxCELoss", "CTCLoss", "TripletLoss", "CosineEmbeddingLoss"]
)
def test_a_weight_of_none_is_one(kind: str) -> None:
    assert getattr(loss, kind)(weight=None).weight == 1.0
