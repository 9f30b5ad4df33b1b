"""Vocabularies of GluonNLP: the JSON that its `Vocab.to_json` wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ops.budget import Budget
from ...ops.dataclasses import dataclass
from ...ops.errors import ModelError


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by their numbers, and those of a meaning by what they are called: `unknown`, `padding`, `bos`, `eos`."""

    tokens: tuple[str, ...]
    special: Mapping[str, str]

    def numbers(self) -> dict[str, int]:
        """The number of each token."""
        return {t: i for i, t in enumerate(self.tokens)}


def read_vocabulary(source: str | os.PathLike[str] | bytes, budget: Budget | None = None) -> Vocabulary:
    """Read a vocabulary from a path, or the bytes of a file. Raises ModelError for what is none.

    >>> text = b'{"idx_to_token": ["<unk>", "a"], "token_to_idx": {"<unk>": 0, "a": 1}, "unknown_token": "<unk>"}'
    >>> read_vocabulary(text)
    Vocabulary(tokens=('<unk>', 'a'), special={'unknown': '<unk>'})
    """
    where = "vocabulary"
    if not isinstance(source, bytes):
        path, limits = Path(source), Budget.of(budget)
        where = path.name
        try:
            limits.check("file_bytes", path.stat().st_size, "bytes of the file", where=where)
            source = path.read_bytes()
        except OSError as error:
            raise ModelError(f"it cannot be read: {error.strerror}", where=where) from error
    try:
        content: Any = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"it is no JSON: {error}", where=where) from error
    tokens = content.get("idx_to_token") if isinstance(content, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens) or len(set(tokens)) < len(tokens):
        raise ModelError("it has no list of different tokens", where=where, hint="is it what Vocab.to_json wrote?")
    numbers = content.get("token_to_idx", {})
    if not isinstance(numbers, dict) or any(numbers.get(t, i) != i for i, t in enumerate(tokens)):
        raise ModelError("the numbers of its tokens are not their places", where=where, hint="write it again")
    names = ((k.removesuffix("_token"), v) for k, v in content.items() if k.endswith("_token"))
    return Vocabulary(tuple(tokens), {k: v for k, v in names if isinstance(v, str) and v in tokens})
