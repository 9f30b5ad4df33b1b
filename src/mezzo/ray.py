"""Ray Train: `MezzoTrainer` and `MezzoConfig`. `mezzo launch --on ray` needs none of it."""

from .tools.ray_train import class_of as __getattr__  # noqa: F401 (PEP 562)

__all__ = ["MezzoConfig", "MezzoTrainer"]  # noqa: F822
