"""The environment variables that this package reads; any other `MEZZO_*` variable is refused, and so are values that
they do not take."""

from __future__ import annotations

import os
import re
from functools import cache
from operator import index
from typing import Any

import numpy as np

from ..ops.errors import InputError

PREFIX = "MEZZO_"
SWITCHES = {
    "MEZZO_CACHE": "the folder of compiled GPU kernels; a folder of the user if not given",
    "MEZZO_CACHE_SIZE": "the MiB that compiled GPU kernels may take, 1024 if not given; 0 keeps nothing",
    "MEZZO_REPLAY": "where a run that `mezzo replay` began writes its manifest",
    "MEZZO_RECORD": "the folder in which the workers of a job write manifests, as `mezzo launch --record` sets it",
    "MEZZO_RECORD_COMMAND": "the command of that launcher, as JSON",
    "MEZZO_ENGINE": "'threaded', or 'naive' to run each workload where it is pushed",
    "MEZZO_ENGINE_CHECK": "1 to catch workloads that touch what they did not declare",
    "MEZZO_ENGINE_THREADS": "a number above 0: how many workloads may compute at once; all processors if not given",
    "MEZZO_GPU_CHECK": "1 to wait for each step on a GPU, so that a fault is told of the step that has it",
    "MEZZO_MACHINE_CODE": "'off' to run without machine code of our own",
    "MEZZO_ONEDNN": "'off' to run without oneDNN, or the path of a library to take instead",
    # of a job, read by kvstore/environment.py
    "MEZZO_BIND": "the address at which a process of a job listens",
    "MEZZO_HOST": "workers with one name share memory",
    "MEZZO_JOB_KEY": "the secret of a job: every connection proves it; needed outside of this machine",
    "MEZZO_JOB_KEY_FILE": "a file with that secret, which nobody but its owner may read",
    "MEZZO_KV_DEADLINE": "seconds after which a wait for other workers is an error",
    "MEZZO_KV_MEMORY": "MiB that a server or agent may take for values",
    "MEZZO_KV_GRACE": "seconds for which a server that is started again may be away",
    "MEZZO_KV_REJOIN": "seconds in which all workers meet again, another one in the place of one that died",
    "MEZZO_KV_KEPT": "descriptor of what outlives a server",
    "MEZZO_KV_LASTS": "descriptor that the agent of a host holds open for as long as it lasts",
    "MEZZO_KV_STEPS": "the steps after which a worker ends, as `mezzo launch --dry-run` sets it",
    "MEZZO_KV_VERBOSE": "1 to write a line of JSON for each event of a store to standard error",
    "MEZZO_KV_TRACE": "the folder in which the workers of a job write traces, as `mezzo launch --trace` sets it",
    "MEZZO_GPU": "the number of the GPU of this process, which device='gpu' means; 0 if not given",
    "MEZZO_INCARNATION": "how often this process was started again in its place",
    "MEZZO_ATTEMPT": "how many times the launcher has begun this job before",
    "MEZZO_RANK": "the rank that a worker or server asks for",
    "MEZZO_TLS": "1 to encrypt connections within this machine, too",
    "MEZZO_TLS_CA": "a file: both ends of a connection demand certificates of this authority",
    "MEZZO_TLS_CERT": "a file with the certificate of this process; made when it listens if not given",
    "MEZZO_TLS_KEY": "a file with the private key of that certificate",
}
# What they take, as expressions; files and folders are looked at where they are opened, and what the process of a job
# is told by kvstore/environment.py, all at once.
_NUMBER = "[0-9]+"
VALUES = {
    "MEZZO_CACHE_SIZE": _NUMBER, "MEZZO_ENGINE": "threaded|naive", "MEZZO_ENGINE_CHECK": "0|1",
    "MEZZO_ENGINE_THREADS": "0*[1-9][0-9]*", "MEZZO_GPU_CHECK": "0|1", "MEZZO_MACHINE_CODE": "off",
    "MEZZO_KV_LASTS": _NUMBER, "MEZZO_KV_STEPS": _NUMBER, "MEZZO_KV_VERBOSE": "0|1", "MEZZO_GPU": _NUMBER,
    "MEZZO_ATTEMPT": _NUMBER,
}  # fmt: skip


def switch(name: str) -> str:
    """Return the value of one of `SWITCHES` in the environment, or an empty string.

    Raises InputError where the environment has a `MEZZO_*` variable that nothing reads, or one with a value that it
    does not take: a misspelt switch would be a silent one.

    >>> os.environ["MEZZO_ENGIN"] = "naive"
    >>> switch("MEZZO_ENGINE")
    Traceback (most recent call last):
    mezzo.ops.errors.InputError: environment: MEZZO_ENGIN is unknown
      hint: did you mean MEZZO_ENGINE?
    >>> del os.environ["MEZZO_ENGIN"]
    """
    for variable, value in os.environ.items():
        if not variable.startswith(PREFIX):
            continue
        if variable not in SWITCHES:
            from difflib import get_close_matches  # of a start, a millisecond

            near = get_close_matches(
                variable.removeprefix(PREFIX), [known.removeprefix(PREFIX) for known in SWITCHES], 1
            )
            hint = f"did you mean {PREFIX}{near[0]}?" if near else f"there are {', '.join(SWITCHES)}"
            raise InputError(f"{variable} is unknown", where="environment", hint=hint)
        if value and variable in VALUES and not re.fullmatch(VALUES[variable], value):
            hint = f"it is {SWITCHES[variable]}; leave it out otherwise"
            raise InputError(f"{variable}={value!r} means nothing", where="environment", hint=hint)
    return os.environ.get(name, "")


def processors() -> int:
    """Return the number of processors that this process may use: those of its affinity mask, and no more than whole
    ones of its container's quota, since a second thread would only use up the first one's time."""
    mask = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = _quota()
    return mask if limit is None else max(1, min(mask, int(limit)))


def quota(root: str = "/") -> float | None:
    """Return how many processors' time the control groups of this process allow, the least of them and of those around
    them; None without a limit. Of Linux, versions 1 and 2 (docs.kernel.org/admin-guide/cgroup-v2.html, cpu.max).

    `root` is where the file system begins, for tests.
    """
    limits: list[float] = []
    try:
        with open(os.path.join(root, "proc/self/cgroup")) as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
    for number, controllers, group in groups:
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        for mount in ("", "unified") if number == "0" else (controllers, "cpu"):
            folder = group
            while True:  # a group and those around it, up to what is mounted; a container may not see its own name
                place = os.path.join(root, "sys/fs/cgroup", mount, folder.strip("/"))
                limits += _limits(place)
                if not folder.strip("/"):
                    break
                folder = os.path.dirname(folder.rstrip("/"))
    return min(limits, default=None)


@cache
def _quota() -> float | None:
    return quota()


def _limits(folder: str) -> list[float]:
    """Return the limits that the files of a control group state."""

    def words(name: str) -> list[str]:
        try:
            with open(os.path.join(folder, name)) as file:
                return file.read().split()
        except OSError:
            return []

    quotas = [words("cpu.max")[:2], [*words("cpu.cfs_quota_us"), *words("cpu.cfs_period_us")]]
    pairs = [(int(g[0]), int(g[1])) for g in quotas if len(g) == 2 and g[0].isdecimal() and g[1].isdecimal()]
    return [time / period for time, period in pairs if time and period]


def usual_threads() -> int:
    """Return the default number of threads of a step: OMP_NUM_THREADS, else one for each processor."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return min(int(wanted), processors()) if wanted.isdecimal() and int(wanted) else processors()


def threads_for(asked: int | None) -> int:
    """Return the number of threads that a session asks for, the usual one for None or 0. Raises InputError."""
    return whole("threads", asked, 0) or usual_threads()


def whole(name: str, value: Any, least: int) -> int | None:
    """Return an integer from `least` on, or None. Raises InputError for anything else: text from the environment,
    say, which libraries would take for an address."""
    number = None if value is None else _number(value)
    if value is not None and (number is None or number < least):
        raise InputError(f"{name}={value!r}", where="Session", hint=f"an integer from {least} on, or None")
    return number


def seed_of(value: Any) -> int:
    """Return an integer, from which random numbers begin. Raises InputError for anything else."""
    number = _number(value)
    if number is None:
        raise InputError(f"seed={value!r}", where="Session", hint="an integer")
    return number


def flag(name: str, value: Any) -> bool:
    """Return True or False. Raises InputError for what is neither, but for 1 and 0: "false" would mean True."""
    if _number(value) not in (0, 1) and not isinstance(value, np.bool_):
        raise InputError(f"{name}={value!r}", where="Session", hint="True or False")
    return bool(value)


def _number(value: Any) -> int | None:
    try:
        return index(value)
    except TypeError:
        return None
