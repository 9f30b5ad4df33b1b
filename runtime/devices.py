"""The devices of this process, by name."""

from __future__ import annotations

import os
from typing import Any, Final

from ..ops.errors import InputError, MissingPackage
from .backends.processor import EXECUTOR
from .caches import caches
from .compile.kernel import Kernel
from .compile.lower import Options
from .environment import switch
from .execution.executor import Executor

DEVICES: Final[dict[str, Executor]] = {"cpu": EXECUTOR}
GPU: Final = "gpu:"
MINE = "MEZZO_GPU"  # variable of our launcher: the number of this process's GPU
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")  # of torchrun, Open MPI and Slurm


def full_name(device: str) -> str:
    """The name of a device with its number: for `gpu` that of this process's own, which its launcher gave it, else that
    of its rank on its host, counted through the GPUs that it sees, else the first.

    Raises InputError for what is no name and for a number that is none, MissingPackage without CuPy.

    >>> full_name("gpu:1"), full_name("cpu")
    ('gpu:1', 'cpu')
    """
    if not isinstance(device, str):
        raise InputError(f"device={device!r} is no name", hint="give 'cpu' or 'gpu:0'")
    if device != "gpu" or device in DEVICES:
        return device
    told = {MINE: switch(MINE), **{n: os.environ.get(n, "") for n in LOCAL_RANKS}}
    name, number = next(((n, text) for n, text in told.items() if text), (MINE, "0"))
    if name == MINE:
        return f"{GPU}{int(number)}"
    if not number.isdecimal():
        raise InputError(f"{name}={number!r} is no number of a GPU", hint="the launcher of the job sets it")
    from .backends.cuda.driver import count  # with the first GPU that is asked for

    return f"{GPU}{int(number) % max(count(), 1)}"


def device_named(name: str) -> Executor:
    """The device of this name: `cpu`, `gpu:0`, `gpu` for this process's own, or `gpu:0@sm_90` to plan for a GPU that is
    not here.

    Raises MissingPackage for one that is missing, and says what of it is; InputError for a number that is none.

    >>> device_named("cpu").name, device_named("gpu:0@sm_80").sm
    ('cpu', 80)
    """
    name = full_name(name)
    device = DEVICES.get(name)
    if device is None and name.startswith(GPU):
        from .backends.cuda.executor import gpu  # with the first GPU that is asked for

        device = DEVICES.setdefault(name, gpu(name, EXECUTOR))
    if device is None:
        raise MissingPackage(
            f"device {name!r} is not available; this build runs on {', '.join(DEVICES)}",
            hint="leave out device=, or see `mezzo doctor` for what this machine has",
        )
    return device


def register_kernel(kernel: Kernel, device: str = "cpu") -> None:
    """Ask a kernel before those of a device: sessions that are made from now on have it, and so have operators on
    arrays. One that is registered again takes the place of the former of its name.

    Raises InputError for the name of a kernel that the device has itself, and what `device_named` raises.
    """
    target = device_named(device).target
    if any(k.name == kernel.name for k in target.own):
        raise InputError(
            f"{device} has a kernel {kernel.name!r}", where="register_kernel", hint="give yours another name"
        )
    target.register(kernel)
    caches().clear()  # they hold programs that were made without it


def plannable(name: str) -> tuple[str, str]:
    """The name of a GPU for plans: its own, or where it is not here, that of one which stands for it; and why it is not
    here."""
    name = full_name(name)
    try:
        return device_named(name).name, ""
    except MissingPackage as error:
        from .backends.cuda.executor import NAMES
        from .backends.cuda.target import USUAL_SM

        if NAMES.fullmatch(name) is None:
            raise
        return f"{name}@sm_{USUAL_SM}", error.message


def options_for(device: str, **settings: Any) -> Options:
    """Options to compile for the device of this name, with settings of `Options`."""
    return Options(device_named(device).target, **settings)
