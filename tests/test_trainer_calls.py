"""Calls of a Trainer as users of other libraries make them: batches as tuples, names that it does not have."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from mezzo.data import DataLoader
from mezzo.models.digits import digits_model, held_out
from mezzo.nd import asarray
from mezzo.ops.errors import InputError
from mezzo.runtime.optimizer import SGD
from mezzo.train.names import ATTRIBUTES
from mezzo.train.trainer import Trainer


def test_batches_are_given_by_name_or_in_order() -> None:
    """A tuple or list has the model's inputs, then the targets; loaders of pairs make such batches."""
    digits = held_out()
    images, labels = digits.inputs[:48], digits.labels[:48]
    named, told = (Trainer(digits_model(), optimizer=SGD(rate=0.05)) for _ in range(2))
    pairs = list(zip(images, labels, strict=True))
    wanted = named.fit([{"image": images[i : i + 16], "target": labels[i : i + 16]} for i in (0, 16, 32)])
    assert told.fit(DataLoader(pairs, batch_size=16)) == wanted
    feeds: list[Any] = [(images, labels), [images, labels.astype(np.uint8)], {"target": labels, "image": images}]
    assert len({told.evaluate([batch]).loss for batch in feeds}) == 1
    weighed = Trainer(digits_model(), sample_weights=True, optimizer="adamw")
    assert weighed.step((images, labels, np.ones(48, np.float32))) > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"image": np.ones((2, 1, 8, 8), np.float32), "target": np.ones(2)}, r"one batch, or the arrays of a dataset"),
        ((np.ones((2, 1, 8, 8), np.float32), np.ones(2)), r"ndarray alone is no batch(.|\n)*with image, target"),
        ([(np.ones((2, 1, 8, 8), np.float32),)], r"a batch of 1 arrays(.|\n)*there are 2: image, target"),
    ],
)
def test_what_is_no_batch_is_told(given: Any, said: str) -> None:
    trainer = Trainer(digits_model())
    for taken in (trainer.fit, trainer.evaluate):
        with pytest.raises(InputError, match=said):
            taken(given)


def test_names_of_other_trainers_are_answered() -> None:
    trainer: Any = Trainer(digits_model())
    assert repr(trainer) == f"<Trainer of {trainer.source.name}: {len(trainer.trained)} tensors learn, 0 updates>"
    with pytest.raises(AttributeError, match=r"it is trainer\.snapshot"):
        trainer.state_dict()
    with pytest.raises(AttributeError, match="it is evaluate here"):
        trainer.evaluat([])
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        trainer.nothing()
    assert not hasattr(trainer, "nothing")
    with pytest.raises(InputError, match="there is no optimizer 'adamm'"):
        Trainer(digits_model(), optimizer="adamm")


def test_names_that_are_told_exist() -> None:
    trainer = Trainer(digits_model())
    for meant in ATTRIBUTES.values():
        for name in re.findall(r"trainer\.([a-z_]+)", meant):
            assert hasattr(trainer, name), meant


@pytest.mark.parametrize("how", [{}, {"micro_batches": 2}, {"device": "cpu:0,cpu:1"}])
def test_arrays_of_nd_are_batches_as_those_of_numpy_are(how: dict[str, Any]) -> None:
    plain, own = (Trainer(digits_model(), metrics=["top_k"], **how) for _ in range(2))
    digits = held_out()
    feeds = {"image": digits.inputs[:8], "target": digits.labels[:8]}
    ours = {n: asarray(a) for n, a in feeds.items()}
    assert own.step(ours) == plain.step(feeds)
    assert own.evaluate([ours]) == plain.evaluate([feeds])
