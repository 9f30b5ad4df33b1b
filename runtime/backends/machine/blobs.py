"""Blobs: machine code that was compiled ahead, in files of this package, one for each tier.

A blob has a line of JSON (the tier, LLVM's version, a digest of the texts, the place of each function) and then the
code, which needs nothing but itself. `python -m mezzo.runtime.backends.machine.build` makes them anew.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ....ops.dataclasses import dataclass
from ...environment import switch
from ...memory.executable_code import ExecutableCode
from .tiers import Tier, tier_here

SWITCH = "MEZZO_MACHINE_CODE"
FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True, eq=False)
class Blob:
    """Code of a tier: the first line of its file, and the code."""

    about: Mapping[str, Any]
    code: bytes

    def content(self) -> bytes:
        """The bytes of the file."""
        import json  # of a start, a millisecond

        return json.dumps(self.about, sort_keys=True).encode() + b"\n" + self.code


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A blob in memory: its tier and the addresses of its functions."""

    tier: Tier
    functions: Mapping[str, int]
    memory: ExecutableCode


def path_of(tier: Tier) -> Path:
    """The file of a tier."""
    return FOLDER / f"{tier.name}.bin"


def read(tier: Tier) -> Blob:
    """The blob of a tier, from its file."""
    import json

    first, _, code = path_of(tier).read_bytes().partition(b"\n")
    return Blob(json.loads(first), code)


_LOADING = threading.Lock()  # what a second thread loads would go while its addresses are in use


def loaded() -> Loaded | str:
    """The blob for this machine, or why there is none; loaded once."""
    with _LOADING:
        return _loaded()


@cache
def _loaded() -> Loaded | str:
    if switch(SWITCH):
        return f"{SWITCH}=off"
    tier = tier_here()
    if isinstance(tier, str):
        return tier
    blob = read(tier)
    try:
        memory = ExecutableCode(blob.code)
    except OSError as error:
        return f"the system grants no memory for machine code ({error})"
    return Loaded(tier, {n: memory.address + at for n, at in blob.about["functions"].items()}, memory)
