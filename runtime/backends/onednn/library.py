"""Loading of oneDNN: the library, its version, and the instruction sets that it may use."""

from __future__ import annotations

import ctypes
import os
import site
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from ....ops.dataclasses import dataclass
from ....ops.errors import InputError
from ... import idle
from ...environment import switch
from .contention import SPINNING, watchable

SWITCH = "MEZZO_ONEDNN"  # "off" to run without, or the path of a library to take instead
OMP_PAUSE_SOFT = 1  # the team of the calling thread goes, and is made again when it is needed
OFF = "off"
# How often an OpenMP thread without work looks again before it sleeps: for 1 or 2 ms, which spinning.py makes much
# shorter while others want the processors (a thousand times, since the policy is "active"); and what is borne where
# nobody knows whether they do.
SPINS = {"GOMP_SPINCOUNT": "50000", "OMP_WAIT_POLICY": "active"}
UNWATCHED_SPINS = {"GOMP_SPINCOUNT": "5000"}
_FILES = ("lib/libdnnl.so.3", "lib/libdnnl.3.dylib", "Library/bin/dnnl.dll", "bin/dnnl.dll")
# Of which machines the wheels are dependencies of this package (pyproject.toml).
_WHEELS = {("linux", "x86_64"): "onednn-cpu-gomp", ("win32", "AMD64"): "onednn-cpu-vcomp"}
_SYSTEM = ("libdnnl.so.3", "libdnnl.3.dylib", "dnnl.dll")
# dnnl_cpu_isa_t: each adds bits to the ones before
_ISAS = {
    0x1FEF: "avx512_core_amx_fp16", 0xFEF: "avx512_core_amx", 0x1EF: "avx512_core_fp16", 0xE7: "avx512_core_bf16",
    0x67: "avx512_core_vnni", 0x27: "avx512_core", 0x1F: "avx2_vnni_2", 0xF: "avx2_vnni", 0x7: "avx2", 0x3: "avx",
    0x1: "sse41",
}  # fmt: skip


class SlowKernels(UserWarning):
    """Warning of a machine without the kernels that are installed with this package there."""


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library: `handle` for ctypes, `held` the same for calls that keep Python's lock (calls below a
    microsecond should not release it: another thread may keep it much longer); `isa` is the best instruction set in
    use."""

    handle: Any
    held: Any
    path: str
    version: str
    isa: str

    @property
    def bf16(self) -> bool:
        """True if bfloat16 is computed natively."""
        return "bf16" in self.isa or self.amx or "fp16" in self.isa

    @property
    def amx(self) -> bool:
        """True if products are computed in tiles (AMX)."""
        return "amx" in self.isa

    def __str__(self) -> str:
        return f"oneDNN {self.version} ({self.isa})"


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


@cache
def find() -> Library | str:
    """The library, or why there is none; looked for once. Raises InputError for one that is named and cannot be
    taken."""
    wanted = switch(SWITCH)
    if wanted == OFF:
        return f"{SWITCH}={OFF}"
    reasons = []
    for path in [wanted] if wanted else _candidates():
        try:
            with spins_bounded():
                handle = ctypes.CDLL(path)
        except OSError as error:
            reasons += [str(error)] if path not in _SYSTEM else []
            continue
        if not hasattr(handle, "dnnl_version"):
            reasons.append(f"{path} is not oneDNN")
            continue
        handle.dnnl_version.restype = ctypes.POINTER(_Version)
        version = handle.dnnl_version().contents
        if version.major != 3:
            reasons.append(f"{path} is version {version.major}.{version.minor}, its C API is not that of 3.x")
            continue
        # a primitive from the library's own cache reads the descriptor that it was made of, which may be gone
        handle.dnnl_set_primitive_cache_capacity(0)
        if hasattr(handle, "omp_pause_resource_all"):
            pause = partial(handle.omp_pause_resource_all, OMP_PAUSE_SOFT)
            idle.CALLS.append(pause)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(before=pause)  # a child would wait for ever for a team that it does not have
        isa = _ISAS.get(int(handle.dnnl_get_effective_cpu_isa()), "other")
        held = ctypes.PyDLL(path, handle=handle._handle)
        return Library(handle, held, str(path), f"{version.major}.{version.minor}.{version.patch}", isa)
    if wanted:
        hint = f"give the file of a oneDNN 3, or {OFF!r}, or leave it out to take the one that is installed"
        raise InputError(f"{SWITCH}={wanted!r} cannot be loaded: {reasons[0]}", where="environment", hint=hint)
    return _missed("; ".join(dict.fromkeys(reasons)) or "it is not installed")


@contextmanager
def spins_bounded() -> Iterator[None]:
    """A context in which GNU's OpenMP, which reads the environment when it is loaded, is told to spin for a bounded
    time."""
    set_here = {} if any(name in os.environ for name in SPINNING) else SPINS if watchable() else UNWATCHED_SPINS
    os.environ.update(set_here)
    try:
        yield
    finally:
        for name in set_here:
            os.environ.pop(name, None)


_fetched = threading.Lock()  # taken for good by the first to fetch


def fetch() -> None:
    """Begin to load the library in a thread, if nobody has begun before.

    `find` takes some milliseconds, during which no Python runs; the first run of a `.mezzo` file has a use for them.
    """
    wanted = switch(SWITCH)
    if sys.platform == "win32" or wanted == OFF or not _fetched.acquire(blocking=False):
        return
    path = wanted or next(_candidates())
    # the loader itself, since CDLL does not let Python go on; what is wrong with the file is told by `find`
    dlopen = ctypes.CDLL(None).dlopen

    def load() -> None:
        with spins_bounded():
            dlopen(os.fsencode(path), os.RTLD_NOW | os.RTLD_LOCAL)

    loading = threading.Thread(target=load, name="mezzo-onednn", daemon=True)
    loading.start()
    os.register_at_fork(before=loading.join)  # a child would have half of it


def _candidates() -> Iterator[str]:
    """Paths of the library, the likeliest first: of this Python, of the prefix or folder into which this package was
    installed, of what the wheel says of its files, and of the system."""
    folder = site_packages(__file__)
    above = os.path.dirname(os.path.dirname(os.path.dirname(folder)))  # of lib/python3.x/site-packages
    for prefix in dict.fromkeys([sys.prefix, site.getuserbase() or sys.prefix, sys.base_prefix, above, folder]):
        for name in _FILES:
            path = os.path.join(prefix, name)  # pathlib would be a twentieth of `import mezzo`
            if os.path.exists(path):
                yield path
    yield from _recorded()
    yield from _SYSTEM


def site_packages(file: str) -> str:
    """The folder into which this package was installed, of the path of this module."""
    for _ in __name__.split("."):
        file = os.path.dirname(file)
    return file


def _recorded() -> Iterator[str]:
    """Files of the library in the record of a wheel that is installed somewhere else."""
    from importlib import metadata

    for wheel in _WHEELS.values():
        try:
            files = metadata.files(wheel) or ()
        except metadata.PackageNotFoundError:
            continue
        paths = [str(file.locate()) for file in files if file.as_posix().endswith(_FILES)]
        yield from (path for path in paths if os.path.exists(path))


def _missed(why: str) -> str:
    """Tell, once, that kernels are missing which are installed with this package on such a machine."""
    import platform  # a millisecond of `import mezzo`

    wheel = _WHEELS.get((sys.platform, platform.machine()))
    if wheel is not None and os.path.exists(__file__):  # not of `mezzo bundle`, which is made to need NumPy alone
        warnings.warn(
            f"oneDNN is not found ({why}): NumPy computes instead, often 10 to 20 times slower. Install {wheel} (by "
            f"--prefix rather than --target, which leaves its file out), name the file by {SWITCH}, or say "
            f"{SWITCH}={OFF} where that is meant",
            SlowKernels,
            stacklevel=3,
        )
    return why


def openmp() -> list[str]:
    """Paths of the OpenMP libraries that this process has loaded, where Linux tells them; all share one pool of threads
    if it is one library."""
    try:
        with open("/proc/self/maps") as file:
            paths = [line.split(maxsplit=5)[5].strip() for line in file if "/" in line]
    except OSError:
        return []
    names = ("libgomp", "libomp", "libiomp")
    return [p for p in dict.fromkeys(paths) if os.path.basename(p).startswith(names)]


def library() -> Library | None:
    """The library, where there is one."""
    loaded = find()
    return loaded if isinstance(loaded, Library) else None


def set_threads(count: int) -> int | None:
    """Let primitives that this thread makes be split for so many threads; returns for how many they were before, None
    if nobody knows."""
    loaded = library()
    openmp = None if loaded is None else loaded.held
    if openmp is None or not hasattr(openmp, "omp_set_num_threads"):
        return None
    before = int(openmp.omp_get_max_threads())
    openmp.omp_set_num_threads(count)
    return before


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Primitives that are made inside are split for so many threads.

    OpenMP keeps the number for each thread of the process, and oneDNN reads it when a primitive is made; most that are
    no products read it again when they run (teams.py).
    """
    before = set_threads(count)
    try:
        yield
    finally:
        if before is not None:
            set_threads(before)
