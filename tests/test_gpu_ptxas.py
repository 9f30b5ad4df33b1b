"""What ptxas says of the GPU's own kernels: nothing is spilled, and enough threads fit on a multiprocessor to hide the
latency of memory. A kernel with fewer stands in FLOORS, with the reason."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from mezzo.runtime.backends.cuda.generated import Generated

from .cuda_shim import Run
from .ptx.assemble import Assembled, architectures, assembled, ptxas
from .ptx.run import ptx_of
from .test_gpu_kernels import by_nvrtc, families, runs
from .test_gpu_ptx import every, few

by_ptxas = pytest.mark.skipif(not ptxas(), reason="there is no ptxas: pip install nvidia-cuda-nvcc")
FLOOR = 0.33  # of the threads that a multiprocessor can hold
# Lower floors, by the names of kernels, with what makes them low.
FLOORS: dict[str, tuple[float, str]] = {}
# Bytes that kernels may spill, by the names of kernels, with the reason.
SPILLS: dict[str, tuple[int, str]] = {
    "shares_*": (16, "on sm_100 float64 is divided by a subroutine, and two registers are saved before it"),
}
FROM = {"sm_80": ("sm_80", "sm_86", "sm_89"), "sm_90": ("sm_90", "sm_100")}  # what is assembled from which PTX


def floor_of(name: str) -> float:
    return next((f for pattern, (f, _) in FLOORS.items() if fnmatch(name, pattern)), FLOOR)


def check(found: list[Run], archs: tuple[str, ...]) -> list[tuple[str, str, int, Assembled, float]]:
    """Rows of the table: kernel, architecture, threads of a block, what ptxas made, occupancy; AssertionError for what
    is below its floor."""
    launches = {launch.source.name: launch for run in found for launch in run.written.launches}
    rows, wrong = [], []
    each = list(launches.values())
    for part in (each[i : i + 16] for i in range(0, len(each), 16)):
        for of, to in FROM.items():
            some = [a for a in to if a in archs and a in architectures()]
            text = ptx_of([launch.source for launch in part], of) if some else ""
            for arch in some:
                made = assembled(text, arch)
                assert set(made) == {launch.source.name for launch in part}
                for launch in part:
                    one, threads = made[launch.source.name], launch.block[0] * launch.block[1] * launch.block[2]
                    share = one.occupancy(arch, threads, launch.shared)
                    # a block of fewer threads than a processor holds blocks of cannot fill it
                    may = one.occupancy(arch, max(threads, 128), launch.shared)
                    allowed = next((n for p, (n, _) in SPILLS.items() if fnmatch(launch.source.name, p)), 0)
                    if one.spilled > allowed or may < floor_of(launch.source.name):
                        wrong.append(f"{launch.source.name} on {arch}: {one}, {may:.2f} of the threads")
                    rows.append((launch.source.name, arch, threads, one, share))
    assert not wrong, "\n".join(wrong)
    return rows


def show(rows: list[tuple[str, str, int, Assembled, float]]) -> None:
    for name, arch, threads, one, share in rows:
        print(
            f"{name:34} {arch:7} {threads:5} threads {one.registers:4} registers {one.spilled:5} B spilled "
            f"{one.shared:6} B shared {share:5.0%}"
        )


@by_nvrtc
@by_ptxas
@families
def test_a_few_of_each_family(kernel: Generated) -> None:
    """For one architecture each."""
    arch = architectures()[sum(map(ord, kernel.name)) % len(architectures())]
    show(check([run for _, run in runs(kernel, few(kernel)[::2])], (arch,)))


@by_nvrtc
@by_ptxas
@pytest.mark.soak
@families
def test_all_of_each_family(kernel: Generated) -> None:
    show(check([run for _, run in runs(kernel, every(kernel))], architectures()))


def test_floors_have_reasons() -> None:
    assert all(reason for _, reason in (*FLOORS.values(), *SPILLS.values()))
    assert Assembled(255, 0, 0, 0).occupancy("sm_80", 256) == 0.125
    assert Assembled(32, 0, 0, 0).occupancy("sm_80", 32) == 0.5  # 32 blocks of one warp
    assert Assembled(32, 0, 0, 100 * 1024).occupancy("sm_90", 1024) == 1.0
    assert Assembled(32, 0, 0, 100 * 1024).occupancy("sm_86", 1024) == 0.0
