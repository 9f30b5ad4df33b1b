"""A model of transformers as exporters take it: tensors in by position, a tuple of tensors out."""

from __future__ import annotations

from typing import Any


def answers(model: Any, reads: tuple[str, ...], returns: tuple[str, ...], **always: Any) -> Any:
    """A module around a model: what comes by position is given by the names of `reads`, beside `always`."""
    from torch import nn

    class Answers(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: Any) -> Any:
            said = self.model(**dict(zip(reads, given, strict=True)), **always)
            return tuple(said[name] for name in returns)

    return Answers()


def remembers(model: Any, layers: int, reads: tuple[str, ...], returns: tuple[str, ...]) -> Any:
    """A module around a decoder: behind `reads` come the keys and values of each layer that it has seen before, and
    behind `returns` those that it has seen then."""
    import torch
    from transformers import DynamicCache

    class Remembers(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: Any) -> Any:
            cache = DynamicCache()
            for layer in range(layers):
                cache.update(given[len(reads) + 2 * layer], given[len(reads) + 2 * layer + 1], layer)
            said = self.model(**dict(zip(reads, given, strict=False)), past_key_values=cache, use_cache=True)
            kept = [part for layer in cache.layers for part in (layer.keys, layer.values)]
            return (*(said[name] for name in returns), *kept)

    return Remembers()
