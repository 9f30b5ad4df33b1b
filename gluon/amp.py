"""`mz.amp`: mixed precision for blocks. `net.hybridize(amp="bf16")` computes products in 16 bits, and sensitive
operators in 32 (Micikevicius et al. 2017, arXiv 1710.03740); a Policy changes which operators are narrow.

In float16 gradients are too small or too large without a scale: `Trainer(..., scaling=True)` and `scale_loss`.

>>> from mezzo.gluon import Trainer, nn
>>> from mezzo import autograd, nd
>>> net = nn.Dense(1, in_units=2).initialize().hybridize(amp="fp16")
>>> trainer = Trainer(net.collect_params(), "sgd", scaling=True)
>>> with autograd.record():
...     loss = net(nd.ones((4, 2)))
...     with scale_loss(loss, trainer) as scaled:
...         scaled.backward()
>>> trainer.step(4)
>>> trainer.loss_scale, trainer.updates  # twice as much was too much: that update is left out
(32768.0, 0)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..nd.array import Array
from ..ops.errors import InputError
from ..train import amp
from ..train.amp import Policy, mixed, policy_named
from ..train.building import Scaling
from .trainer import Trainer

__all__ = ["LOW", "RECURRENT", "WIDE", "Policy", "Scaling", "mixed", "policy_named", "scale_loss"]

if TYPE_CHECKING:
    LOW: frozenset[str]
    RECURRENT: frozenset[str]
    WIDE: frozenset[str]


def __getattr__(name: str) -> frozenset[str]:
    return amp.__getattr__(name)


@contextmanager
def scale_loss(loss: Array | list[Array] | tuple[Array, ...], trainer: Trainer) -> Iterator[Any]:
    """The loss, or each of several, times the trainer's `loss_scale`: inside of `record()`, for `backward`. The trainer
    divides gradients by it again. Raises InputError for a trainer that does not."""
    if trainer._step.scaling is None:
        raise InputError("this trainer scales no loss", where="amp.scale_loss", hint="Trainer(..., scaling=True)")
    scale = trainer.loss_scale
    yield loss * scale if isinstance(loss, Array) else type(loss)(one * scale for one in loss)
