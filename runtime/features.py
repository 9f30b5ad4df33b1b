"""`mz.runtime.Features`: the features of this build on this machine, and the reason why one is off."""

from __future__ import annotations

from ..ops.dataclasses import dataclass
from .backends.cuda.present import gpus, libraries
from .backends.machine.blobs import loaded
from .backends.onednn.library import find, library


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature; `why` names its implementation, or what is missing."""

    name: str
    enabled: bool
    why: str

    def __str__(self) -> str:
        return f"{'on ' if self.enabled else 'off'} {self.name}: {self.why}"


class Features(dict[str, Feature]):
    """All features by name.

    >>> Features().is_enabled("CPU")
    True
    """

    def __init__(self) -> None:
        super().__init__({f.name: f for f in _features()})

    def is_enabled(self, name: str) -> bool:
        """Return True if a feature is on. Raises KeyError for an unknown one."""
        return self[name.upper()].enabled

    def __str__(self) -> str:
        return "\n".join(map(str, self.values()))


def _features() -> list[Feature]:
    onednn, devices, code = library(), gpus(), loaded()
    features = [
        Feature("CPU", True, "NumPy"),
        Feature("ONEDNN", onednn is not None, str(onednn or find())),
        Feature(
            "BF16", onednn is not None and onednn.bf16, "bfloat16 products of oneDNN" if onednn else "needs oneDNN"
        ),
        Feature(
            "MACHINE_CODE",
            not isinstance(code, str),
            code if isinstance(code, str) else f"kernels for {code.tier.name}",
        ),
        Feature("CUDA", devices[0][1] == "on", "; ".join(why for _, _, why in devices)),
    ]
    parts = [
        Feature(n.partition(":")[0].upper().replace(" ", "_"), state == "on", why) for n, state, why in libraries()
    ]
    return features + parts
