"""`mz.models`: networks of the literature as blocks (`list`, `get`; docs/models.md).

Beside them lie the networks of benchmarks and tests as builders of graphs in the form in which exporters write them
(`convnets`, `bert`, `gpt2`, `transformer`, `workloads`, `training`), and one trained model with its data (`digits`).

>>> from mezzo import models
>>> models.list("resnet*_v2")
['resnet18_v2', 'resnet34_v2', 'resnet50_v2', 'resnet101_v2', 'resnet152_v2']
>>> net = models.get("lenet").initialize("xavier")
>>> models.count(net), models.get("llama2_7b").embed_tokens.weight.shape  # this one has no numbers yet
(61706, (32000, 4096))
"""

from __future__ import annotations

from typing import Any

__all__ = ["count", "get", "list", "model"]


def __getattr__(name: str) -> Any:
    """Names that need blocks, imported when they are first used (PEP 562)."""
    if name in __all__:
        from .zoo import registry

        return getattr(registry, {"list": "names"}.get(name, name))
    raise AttributeError(f"module 'mezzo.models' has no attribute {name!r}")


def __dir__() -> Any:
    return __all__
