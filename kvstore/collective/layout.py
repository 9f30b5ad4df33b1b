"""Judgement of the GPUs that the ranks of a job were given."""

from __future__ import annotations

import warnings

import numpy as np

from ...ops.errors import MissingPackage
from ...runtime.backends.cuda.driver import count
from ...runtime.backends.cuda.nvml import topology_here
from ...runtime.backends.cuda.topology import findings
from .communicator import Communicator


class SlowLayout(UserWarning):
    """GPUs whose paths to each other slow a job, where others or a repair would not."""


def warn_of_layout(ranks: Communicator, gpu: int) -> None:
    """Have rank 0 warn (SlowLayout) of slow paths in a ring over the GPUs of a host's ranks, as NVML knows them. Every
    rank calls it with the number of its own GPU."""
    gpus = np.zeros(ranks.size, np.int64)
    ranks.all_gather(np.array([gpu]), gpus, name="the GPUs of the ranks").wait()
    if ranks.rank or ranks.size == 1:
        return
    try:
        topology = topology_here(count())
    except MissingPackage:  # paths are a matter of speed alone
        return
    for finding in findings(topology, sorted({*gpus.tolist()})):
        warnings.warn(str(finding), SlowLayout, stacklevel=2)
