"""Roles of the open dims of a model's inputs: batches, lengths, and the caches of a decoder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from ..ops import Tensor
from ..ops.dataclasses import dataclass
from ..runtime.compile.program import Port

CACHE = re.compile(r"past|cache", re.IGNORECASE)  # past_key_values.0.key, past_0, key_cache
MASK = "mask"

Dim = int | str | None


class Role(Enum):
    """The use of a dim. `NEW` is the length of a sequence, or any other side; `PAST` how many steps a cache holds, and
    `TOTAL` both together, as an attention mask has them."""

    BATCH = "batch"
    NEW = "new"
    PAST = "past"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of each dim of each tensor that is an input, and which named dims have it."""

    of_input: Mapping[str, tuple[Role, ...]]
    named: Mapping[Role, tuple[str, ...]]

    @property
    def caches(self) -> bool:
        """True if an input is a cache of open length."""
        return any(Role.PAST in roles for roles in self.of_input.values())

    @staticmethod
    def of(ports: Sequence[Port]) -> Roles:
        """Roles by the habits of exporters: `past_key_values.0.key[batch, heads, past, 64]`, `attention_mask[batch,
        total]`. In a model without caches the first open dim of an input is its batch.

        >>> from mezzo.ops.types import f32, i64
        >>> ids, past = Port("ids", i64("b", "s")), Port("past_0", f32("b", 2, "p", 8))
        >>> [r.value for r in Roles.of([ids, Port("mask", i64("b", "t")), past]).of_input["mask"]]
        ['batch', 'total']
        """
        dims = {p.name: p.type.dims or () for p in ports if isinstance(p.type, Tensor)}
        elsewhere = {d for n, ds in dims.items() if not CACHE.search(n) and MASK not in n.lower() for d in ds}
        past = {n: axis for n, ds in dims.items() if CACHE.search(n) and (axis := _length(ds, elsewhere))}
        of_input = {
            n: tuple(
                Role.PAST if axis == past.get(n)
                else Role.TOTAL if past and MASK in n.lower() and axis == _length(ds, elsewhere)
                else Role.BATCH if axis == (0 if past and n not in past else _first(ds))
                else Role.NEW
                for axis in range(len(ds))
            )
            for n, ds in dims.items()
        }  # fmt: skip
        pairs = [(r, d) for n, rs in of_input.items() for r, d in zip(rs, dims[n], strict=True) if isinstance(d, str)]
        return Roles(of_input, {role: tuple(d for r, d in pairs if r is role) for role in Role})

    def ways(self, ways: Sequence[tuple[int, int]], given: Mapping[str, str]) -> Iterator[dict[Role, int]]:
        """Sizes by role for pairs of a batch and of what else is open: caches are empty, then hold all but one step."""
        if not self.caches:
            yield from (dict.fromkeys(Role, other) | {Role.BATCH: batch} for batch, other in ways)
            return
        new, past, total = (self._given(role, given) for role in (Role.NEW, Role.PAST, Role.TOTAL))
        for batch, other in ways:
            for history in (0, other - 1):
                before = history if past is None else past
                now = (other - history) if new is None else new
                if total is not None and new is None and (past is not None or not history):
                    now = total - before
                elif total is not None and past is None:
                    before = total - now
                now, before = max(now, 0), max(before, 0)
                yield {Role.BATCH: batch, Role.NEW: now, Role.PAST: before, Role.TOTAL: now + before}

    def _given(self, role: Role, given: Mapping[str, str]) -> int | None:
        """The size that was given for a dim of this role."""
        texts = (given[name] for name in self.named[role] if name in given)
        return next((int(text) for text in texts if text.isdecimal()), None)


def _first(dims: Sequence[Dim]) -> int | None:
    """The first open axis."""
    return next((axis for axis, dim in enumerate(dims) if not isinstance(dim, int)), None)


def _length(dims: Sequence[Dim], elsewhere: set[Dim]) -> int | None:
    """The last open axis, if it is not the first axis of all and no other input has its dim."""
    last = next((axis for axis in reversed(range(len(dims))) if not isinstance(dims[axis], int)), None)
    return last if last and (dims[last] is None or dims[last] not in elsewhere) else None
