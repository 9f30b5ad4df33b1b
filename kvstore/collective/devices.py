"""Communicators of the devices that one process drives, each with a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ...ops.errors import MissingPackage
from ...runtime.backends.cuda.driver import index_of
from ..environment import deadline as longest_wait
from .communicator import Communicator
from .layout import warn_of_layout
from .nccl import Nccl, nccl
from .peers import peers
from .threads import team


def of_devices(devices: Sequence[str]) -> Sequence[Communicator]:
    """The ranks of this process, one for each device. On GPUs they use NCCL where CuPy has it, with sums in the order
    of the ranks, and copies from GPU to GPU otherwise; on CPUs they share the memory of the host.

    Raises the error that NCCL begins with, and MissingPackage for a GPU that is not there.
    """
    deadline = longest_wait()
    ranks = team(len(devices), deadline)
    if not devices[0].startswith("gpu:"):
        return ranks
    numbers = [index_of(device) for device in devices]
    try:
        nccl()
    except MissingPackage:
        return peers(numbers, deadline)
    with ThreadPoolExecutor(len(ranks)) as threads:  # each waits for all others
        begun = [threads.submit(_begun, *pair) for pair in zip(ranks, numbers, strict=True)]
        return [one.result() for one in begun]


def _begun(beside: Communicator, number: int) -> Communicator:
    warn_of_layout(beside, number)
    return Nccl(beside, number, deterministic=True)
