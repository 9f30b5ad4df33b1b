"""Caches of decoders: inputs and outputs are paired by their names, types and axes."""

from __future__ import annotations

from typing import Any

import pytest

from mezzo.ops import DType, Tensor
from mezzo.ops.errors import InputError
from mezzo.ops.types import Dim, f32, i64
from mezzo.runtime.compile.program import Port
from mezzo.runtime.execution.cache_pairs import cache_pairs


def ports(**types: Tensor) -> tuple[Port, ...]:
    return tuple(Port(name.replace("__", "."), type) for name, type in types.items())


PAST, PRESENT = f32("b", 2, "past", 8), f32("b", 2, None, 8)
IDS = {"input_ids": i64("b", "s")}
HABITS = {
    "past_key_values__0__key": "present__0__key",
    "past_key_values__0__decoder__value": "present__0__decoder__value",
    "past_key_values__11__key": "present_key_values__11__key",
    "past_key_3": "present_key_3",
    "past_key_self_3": "present_key_self_3",
    "past__0": "present__0",
    "past_0": "present_0",
}


@pytest.mark.parametrize("past", HABITS)
def test_names_by_habit(past: str) -> None:
    (pair,) = cache_pairs(ports(**IDS, **{past: PAST}), ports(logits=f32(), **{HABITS[past]: PRESENT}), "auto")
    assert (pair.past, pair.present) == (past.replace("__", "."), HABITS[past].replace("__", "."))
    assert (pair.batch, pair.time) == (0, 2)
    assert pair.empty(3).shape == (3, 2, 0, 8)
    assert pair.row_bytes(3) == 3 * 2 * 8 * 4


# Dims of a past, those of its present, axes of batch and time; the tokens are ("b", "s").
AXES: list[tuple[tuple[Dim, ...], tuple[Dim, ...] | None, int | None, int]] = [
    (("b", 2, "past", 8), ("b", 2, "past + s", 8), 0, 2),
    (("b", 2, "past", 8), None, 0, 2),
    ((2, "b", 4, "past", 8), (2, "b", 4, "total", 8), 1, 3),
    (("past", "b", 2, 8), (None, None, 2, 8), 1, 0),
    ((1, 2, "past", 8), (1, 2, "total", 8), None, 2),
]


@pytest.mark.parametrize(("takes", "returns", "batch", "time"), AXES)
def test_axes(takes: tuple[Dim, ...], returns: tuple[Dim, ...] | None, batch: int | None, time: int) -> None:
    present = Tensor(DType.FLOAT, returns)
    (pair,) = cache_pairs(ports(**IDS, past_0=f32(*takes)), ports(present_0=present), "auto")
    assert (pair.batch, pair.time) == (batch, time)


def test_caches_of_encoders_are_the_callers() -> None:
    takes = ports(**IDS, past_key_values__0__decoder__key=PAST, past_key_values__0__encoder__key=f32("b", 2, "e", 8))
    returns = ports(present__0__decoder__key=PRESENT, present__0__encoder__key=f32("b", 2, "e", 8))
    assert [pair.past for pair in cache_pairs(takes, returns, "auto")] == ["past_key_values.0.decoder.key"]
    with pytest.raises(InputError, match=r"(?s)encoder.*no axis that grows.*leave it out"):
        cache_pairs(takes, returns, {"past_key_values.*": "present.*"})
    pairs = cache_pairs(takes, returns, {"past_key_values.*.decoder.key": "present.*.decoder.key"})
    assert [pair.present for pair in pairs] == ["present.0.decoder.key"]


TAKES = ports(**IDS, past_0=PAST, past_1=PAST)
RETURNS = ports(logits=f32(), present_0=PRESENT, present_1=PRESENT)
REFUSED: dict[str, tuple[tuple[Port, ...], tuple[Port, ...], Any, str]] = {
    "no cache": (ports(**IDS), RETURNS, "auto", r"no input has the name of a cache: input_ids.*hint: export"),
    "no output": (TAKES, RETURNS[:2], "auto", "input 'past_1' has no output 'present_1'.*name it"),
    "two outputs": (
        ports(past_key_values__0=PAST),
        ports(present__0=PRESENT, present_key_values__0=PRESENT),
        "auto",
        "may be 'present.0' or 'present_key_values.0'",
    ),
    "unknown": (TAKES, RETURNS, "all", "'all' is unknown.*give \"auto\""),
    "nothing": (TAKES, RETURNS, {}, "no pattern"),
    "two stars": (TAKES, RETURNS, {"*_*": "present_*"}, r"'\*_\*': 'present_\*' is no pair.*one \*"),
    "one star": (TAKES, RETURNS, {"past_*": "present_0"}, "is no pair of patterns"),
    "no match": (TAKES, RETURNS, {"cache_*": "present_*"}, "matches no input.*they are input_ids"),
    "no such output": (TAKES, RETURNS, {"past_*": "new_*"}, "is 'new_0' for 'past_0', and no output.*they are logits"),
    "twice": (TAKES, RETURNS, {"past_*": "present_*", "past_0": "logits"}, "several patterns match 'past_0'"),
    "one output twice": (TAKES, RETURNS, {"past_0": "logits", "past_1": "logits"}, "several patterns match 'logits'"),
    "element types": (TAKES, ports(present_0=i64("b", 2, None, 8), present_1=PRESENT), "auto", "not of one element"),
    "rank": (TAKES, ports(present_0=f32("b", None, 8), present_1=PRESENT), "auto", "differ in rank"),
    "sizes": (TAKES, ports(present_0=f32("b", 3, None, 8), present_1=PRESENT), "auto", "a size that does not grow"),
    "no rank": (ports(past_0=Tensor(DType.FLOAT, None)), ports(present_0=PRESENT), {"past_*": "present_*"}, "no shape"),
    "a state": (ports(**IDS, past_conv_0=f32("b", 8, 3)), ports(present_conv_0=f32("b", 8, 3)), "auto", "no axis that"),
    "a batch without a name": (
        ports(**IDS, past_0=f32(None, 2, "past", 8)),
        ports(present_0=f32("b", 2, "past", 8)),
        "auto",
        "no axis that grows",
    ),
    "names": (
        ports(**IDS, past_0=f32(None, 2, None, 8)),
        ports(present_0=f32(None, 2, None, 8)),
        "auto",
        "several axes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_paired(name: str) -> None:
    takes, returns, patterns, message = REFUSED[name]
    with pytest.raises(InputError, match=f"(?s)^cache: .*{message}"):
        cache_pairs(takes, returns, patterns)
