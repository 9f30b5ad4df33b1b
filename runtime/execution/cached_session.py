"""Sessions of decoders with caches, and the conversations that go on in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...ops import DType, Tensor
from ...ops.errors import InputError
from ..environment import whole
from ..ir.graph import Graph
from .cache_pairs import Patterns, cache_pairs
from .conversation import MASK, POSITIONS, CacheMemory, Conversation
from .fitting import ProvenBuckets
from .session import Session

if TYPE_CHECKING:
    from ..file import Opened

TOKENS = ("input_ids", "decoder_input_ids", "inputs_embeds")  # by habit, before others


class CachedSession(Session):
    """A session of a decoder that takes a past and returns it with new rows: see `conversation`. It runs as any session
    where all inputs are fed by hand.

    `cache` pairs inputs with outputs (see cache_pairs), `capacity` bounds the rows of a conversation, `max_cache_bytes`
    the bytes of all of them together; `options` are those of Session, of which `buckets` is "auto" if none are given.
    `caches` are the pairs, `rounds` is True if their rows are rounded up, `cache_memory` counts their bytes,
    `token_inputs` and `answers` are the names of inputs with the tokens and of outputs that are no caches, `masked` and
    `positioned` the element types of attention_mask and position_ids, None where the model takes none. Raises
    InputError where the pairs do not fit the model, or a bound is not positive.
    """

    alternates = True  # a prompt, and then one token after the other

    def __init__(
        self,
        model: Graph | Opened,
        *,
        cache: Patterns = "auto",
        capacity: int | None = None,
        max_cache_bytes: int | None = None,
        **options: Any,
    ) -> None:
        capacity, max_cache_bytes = whole("capacity", capacity, 1), whole("max_cache_bytes", max_cache_bytes, 1)
        if options.get("buckets") is None:  # a decoder has another size at each token
            options["buckets"] = "auto"
        super().__init__(model, **options)
        self.caches, self.capacity = cache_pairs(self.inputs, self.outputs, cache), capacity
        self.cache_memory = CacheMemory(max_cache_bytes)
        self.rounds = isinstance(self._fitting, ProvenBuckets)
        if self.rounds:
            self._fitting = ProvenBuckets({pair.present: pair.past for pair in self.caches})
        self.masked, self.positioned = self._of_rank_2(MASK), self._of_rank_2(POSITIONS)
        pasts, self._presents = {pair.past for pair in self.caches}, tuple(pair.present for pair in self.caches)
        others = [n for n in self.signature.inputs if n not in pasts | {MASK, POSITIONS}]
        self.token_inputs = tuple(n for n in TOKENS if n in others) or tuple(others[:1])
        self.answers = tuple(n for n in self.signature.outputs if n not in self._presents)

    def conversation(self, batch: int = 1) -> Conversation:
        """An empty conversation of `batch` texts. Raises InputError for less than one."""
        return Conversation(self, batch)

    def warmup_conversations(self, rows: int, batch: int = 1) -> int:
        """Plan for conversations of up to so many rows: prompts of every length, and one more token behind any. Returns
        the number of programs that are planned now. Raises InputError where an input is neither a cache nor takes one
        row for each token."""
        for past, new in (*((0, n) for n in range(1, rows + 1)), *((n, 1) for n in range(1, rows))):
            self.warmup({name: self._shape(name, batch, past, new) for name in self.signature.inputs})
        stats = self.stats()
        return stats.programs + stats.rounded

    def _shape(self, name: str, batch: int, past: int, new: int) -> tuple[int, ...]:
        """The sizes of an input for so many new tokens behind a past."""
        pair = next((pair for pair in self.caches if pair.past == name), None)
        if pair is not None:
            return pair.shape(batch, past)
        type = self.signature.inputs[name]
        dims = type.dims if isinstance(type, Tensor) else None
        tokens = name in self.token_inputs or name in (MASK, POSITIONS)
        if dims is not None and all(isinstance(d, int) for d in dims[2 if tokens else 0 :]):
            rows = (batch, past + new if name == MASK else new) if tokens else ()
            return (*rows, *(d for d in dims[len(rows) :] if isinstance(d, int)))
        raise InputError(
            f"the sizes of {name!r} do not follow from the number of tokens",
            where=self.signature.name,
            hint="plan with warmup({name: shape}) for the sizes that will come",
        )

    def wanted(self, names: Sequence[str] | None) -> tuple[str, ...] | None:
        """The outputs to compute for a run of a conversation: `names` and the caches; None for all. Raises InputError
        for a name of a cache."""
        kept = [name for name in names or () if name in self._presents]
        if kept:
            raise InputError(f"the conversation keeps {kept[0]!r}", hint="ask Session.run for caches")
        all_of_them = names is None or {*names} == {*self.answers}
        return None if all_of_them else (*(names or ()), *self._presents)

    def _of_rank_2(self, name: str) -> DType | None:
        """The element type of the input of this name; None where there is none, or it is not (batch, length)."""
        type = self.signature.inputs.get(name)
        flat = isinstance(type, Tensor) and (type.dims is None or len(type.dims) == 2)
        return type.dtype if flat and isinstance(type, Tensor) else None
