"""What ptxas makes of kernels for an architecture: registers, spills, shared memory, and how many threads fit.

The assembler is the package `nvidia-cuda-nvcc`, or that of a toolkit on the path. Limits of processors are those of
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

KIB = 1024


@dataclass(frozen=True, slots=True)
class Processor:
    """What a multiprocessor of an architecture has: threads and blocks that may be there at once, bytes of shared
    memory, of which each block takes `reserved` more than it asks for, and registers."""

    threads: int
    blocks: int
    shared: int
    reserved: int = KIB
    registers: int = 64 * KIB


PROCESSORS = {
    "sm_80": Processor(2048, 32, 164 * KIB),
    "sm_86": Processor(1536, 16, 100 * KIB),
    "sm_89": Processor(1536, 24, 100 * KIB),
    "sm_90": Processor(2048, 32, 228 * KIB),
    "sm_100": Processor(2048, 32, 228 * KIB),
}


@dataclass(frozen=True, slots=True)
class Assembled:
    """A kernel as ptxas made it: registers of a thread, bytes of its stack, bytes that were spilled (stores and loads),
    bytes of static shared memory."""

    registers: int
    stack: int
    spilled: int
    shared: int

    def occupancy(self, arch: str, threads: int, dynamic: int = 0) -> float:
        """The share of a multiprocessor's threads that can be there at once.

        >>> Assembled(32, 0, 0, 0).occupancy("sm_90", 256), Assembled(64, 0, 0, 0).occupancy("sm_90", 256)
        (1.0, 0.5)
        """
        p, warps = PROCESSORS[arch], -(-threads // 32)
        of_warp = -(-self.registers * 32 // 256) * 256
        of_block = -(-(self.shared + dynamic + p.reserved) // 128) * 128
        fit = min(p.registers // (of_warp * warps), p.shared // of_block, p.threads // (32 * warps), p.blocks)
        return fit * 32 * warps / p.threads


@cache
def ptxas() -> str:
    """The assembler; empty where there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    places = [p / part / "bin" / "ptxas" for p in folders for part in ("cu13", "cuda_nvcc")]
    return next((str(p) for p in places if p.is_file()), shutil.which("ptxas") or "")


@cache
def architectures() -> tuple[str, ...]:
    """Those of PROCESSORS that the assembler knows."""
    said = subprocess.run([ptxas(), "--help"], capture_output=True, text=True, check=True).stdout
    return tuple(arch for arch in PROCESSORS if f"'{arch}'" in said)


_INFO = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for.*?(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.S,
)


def assembled(ptx: str, arch: str) -> dict[str, Assembled]:
    """Each kernel of a module. AssertionError with ptxas's words where it refuses."""
    with tempfile.TemporaryDirectory(prefix="mezzo-ptxas-") as folder:
        file = Path(folder, "kernels.ptx")
        file.write_text(ptx)
        ran = subprocess.run(
            [ptxas(), "-v", f"-arch={arch}", "-o", str(file.with_suffix(".cubin")), str(file)],
            capture_output=True,
            text=True,
        )
    assert not ran.returncode, ran.stderr[-4000:]
    made = {}
    for found in _INFO.finditer(ran.stderr):
        shared = re.search(r"(\d+) bytes smem", found["rest"])
        numbers = {n: int(found[n]) for n in ("registers", "stack")}
        made[found["name"]] = Assembled(
            numbers["registers"],
            numbers["stack"],
            int(found["stores"]) + int(found["loads"]),
            int(shared[1]) if shared else 0,
        )
    return made
