"""The settings of `mezzo train`: the options, and the optimizer that they describe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..kvstore.environment import attempt
from ..ops.dataclasses import dataclass, fields
from ..ops.errors import InputError
from ..runtime.optimizer import Optimizer, named, schedule
from ..train.checkpoint import exists
from .curve import check_name
from .feeds import parse_sizes

T = TypeVar("T")
# Schedule, the field that the rate goes into, and the fields that follow from the count of updates.
SCHEDULES: dict[str, tuple[type[Any], str, Mapping[str, Callable[[int], int]]]] = {
    "constant": (schedule.Constant, "value", {}),
    "warm-up": (schedule.Constant, "value", {}),
    "step": (schedule.Step, "value", {"every": lambda total: max(total // 3, 1)}),
    "cosine": (schedule.Cosine, "value", {"total": lambda total: total}),
    "polynomial": (schedule.Polynomial, "value", {"total": lambda total: total}),
    "one-cycle": (schedule.OneCycle, "highest", {"total": lambda total: total}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of the command, by their names."""

    output: Path
    # the model
    predict: str | None
    head: int | None
    head_at: str | None
    train: Sequence[str]
    freeze: Sequence[str]
    opset: int | None
    # the data
    inputs: Sequence[str]
    target: Sequence[str]
    size: tuple[float, ...]
    scale: float | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    validate: float
    validation: Path | None
    # the training
    loss: str
    optimizer: str
    rate: float | None
    momentum: float | None
    weight_decay: float | None
    more: Sequence[str]
    schedule: str
    warm_up: int | None
    epochs: int
    batch: int | None
    clip_norm: float | None
    clip_value: float | None
    gather: int
    amp: str | None
    seed: int
    device: str
    threads: int | None
    zero: int
    wire: str | None
    remainder: str
    # what is kept
    checkpoint: Path | None
    every: str
    resume: bool
    curve: Path | None


def check_places(how: Settings) -> None:
    """Check paths and settings for errors that would otherwise appear only after the training. Raises InputError."""
    if how.output.suffix.lower() != ".onnx":
        raise InputError("the result is an ONNX file", where=str(how.output), hint="write -o OUT.onnx")
    if how.curve:
        check_name(how.curve)
    for path in (how.output, how.curve):
        if path is not None and not path.parent.is_dir():
            raise InputError("there is no such folder", where=str(path.parent), hint="make it first")
    if how.resume and how.checkpoint is None:
        raise InputError("--resume needs a checkpoint", where="train", hint="give --checkpoint FOLDER")
    if how.checkpoint and exists(how.checkpoint) and not (how.resume or attempt()):
        raise InputError(
            "the folder holds the checkpoint of another training",
            where=str(how.checkpoint),
            hint="go on from it with --resume, or give another folder",
        )


def optimizer(how: Settings, updates: int) -> Optimizer:
    """The optimizer and its schedule for so many updates."""
    kind = named(how.optimizer)
    plan, field, usual = _named(SCHEDULES, how.schedule, "schedule")
    given = {n.replace("-", "_"): _plain(n, text) for n, text in parse_sizes(how.more).items()}
    given |= {n: v for n in ("momentum", "weight_decay") if (v := getattr(how, n)) is not None}
    own = {f.name for f in fields(kind)} - {"rate", "groups"}
    its = {f.name for f in fields(plan)} - {"value", "highest"}
    strange = [n for n in given if n not in own | its]
    if strange:
        raise InputError(
            f"{how.optimizer} with the schedule {how.schedule} has no setting {strange[0]!r}",
            where="train",
            hint=f"there are {', '.join(sorted(own | its))}",
        )
    rising = how.warm_up if how.warm_up is not None else (how.schedule == "warm-up") * max(updates // 20, 1)
    rate = how.rate if how.rate is not None else next(f.default for f in fields(kind) if f.name == "rate")
    remaining = max(updates - rising, 1)
    try:
        then = plan(**{field: rate, **{n: value_of(remaining) for n, value_of in usual.items()}, **_those(given, its)})
        return kind(rate=schedule.WarmUp(then, rising) if rising else then, **_those(given, own))
    except TypeError as error:
        raise InputError(f"the settings do not fit: {error}", where="train", hint="see --set") from error


def _named(table: Mapping[str, T], name: str, what: str) -> T:
    if name not in table:
        raise InputError(f"there is no {what} {name!r}", where=f"--{what}", hint=f"one of {', '.join(table)}")
    return table[name]


def _those(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {n: v for n, v in given.items() if n in names}


def _plain(name: str, text: str) -> Any:
    try:
        value = json.loads(text.lower())
        if isinstance(value, bool | int | float):
            return value
    except ValueError:
        pass
    raise InputError(f"{text!r} for {name!r} is no number", where="--set", hint="write beta2=0.98 or nesterov=true")
