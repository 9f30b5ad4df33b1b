"""Accounts of a DataLoader: how long the trainer waited for data, and what making them took."""

from __future__ import annotations

from typing import Any

from ..ops.dataclasses import dataclass, field
from ..train.waits import HELD_BACK, LEAST
from .clock import STAGES

REMEDIES = {
    "read": "packed records (`mezzo pack`) and local files read fastest",
    "decode": "`mezzo pack --resize` stores images at the size that is trained with, and decode(size=...) reads large "
    "JPEGs at a fraction of their size",
    "augment": "crop before anything is computed of all pixels, and keep uint8 until the end",
    "batch": "a batchify rule that fills mezzo.data.arena.empty(...) spares copies",
}


@dataclass(slots=True)
class Stats:
    """Numbers of a loader since it was made, or since `reset`. Times are in seconds: `waited` by the trainer for a
    batch, `used` between batches, and `stages` of the making, summed over all that make batches."""

    workers: int = 0
    threads: bool = False
    batches: int = 0
    samples: int = 0
    waited: float = 0.0
    used: float = 0.0
    first: float = 0.0  # of `waited`, for the first batches of epochs
    stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    skipped: int = 0
    skipped_samples: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # the first hundred
    died: int = 0

    @property
    def utilisation(self) -> float:
        """The share of time that the trainer did not wait; 1 before anything was taken."""
        whole = self.waited + self.used
        return self.used / whole if whole else 1.0

    def advice(self, processors: int) -> str:
        """A sentence on what would make the data come faster; empty where they do not hold the trainer back."""
        steady = self.waited - self.first
        if steady < LEAST or steady < HELD_BACK * (self.waited + self.used):
            return ""
        whole = sum(self.stages.values()) or 1.0
        most = max(self.stages, key=lambda s: self.stages[s])
        share = steady / (self.waited + self.used)
        said = (
            f"the trainer waited {share:.0%} of the time for data, of which {self.stages[most] / whole:.0%} is {most}"
        )
        if not self.workers:
            return f"{said}: workers={processors} makes batches beside it"
        if self.workers < processors:
            return f"{said}: workers={processors} instead of {self.workers} would use all processors"
        return f"{said}: {REMEDIES[most]}"

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain data."""
        return {
            "batches": self.batches,
            "samples": self.samples,
            "waited": self.waited,
            "used": self.used,
            "utilisation": self.utilisation,
            **self.stages,
            "skipped": self.skipped,
            "died": self.died,
        }

    def __str__(self) -> str:
        rows = [
            ("batches", f"{self.batches}"),
            ("samples", f"{self.samples}"),
            ("the trainer waited", f"{self.waited:.3f} s"),
            ("it used them for", f"{self.used:.3f} s ({self.utilisation:.0%})"),
            *((name, f"{seconds:.3f} s") for name, seconds in self.stages.items()),
            ("skipped samples", f"{self.skipped}"),
            ("workers that died", f"{self.died}"),
        ]
        return "\n".join(f"{name:<20}{value:>20}" for name, value in rows)
