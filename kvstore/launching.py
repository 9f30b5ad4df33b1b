"""`mezzo.kv.launch`: `mezzo launch` from Python."""

from __future__ import annotations

import subprocess
import sys
from os import PathLike, fspath

from ..ops.errors import InputError, PeerError


def launch(script: str | PathLike[str], *args: str, workers: int, **options: str | int | bool | PathLike[str]) -> None:
    """Run a script, with its arguments, as the workers of a job, and wait for its end. `options` are those of the
    command (`mezzo launch --help`) with `_` for `-`: `servers=2`, `on="ray"`, `cpus=4`, `hosts="a,b"`, `restarts=3`,
    `rejoin=True`. What the processes write goes where this one writes.

    Raises InputError for options that there are not, or that do not go together, and PeerError where the job failed.
    """
    command = [sys.executable, "-m", "mezzo", "launch", "--workers", str(workers)]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is not False:
            command += (
                [option] if value is True else [option, fspath(value) if isinstance(value, PathLike) else str(value)]
            )
    code = subprocess.run([*command, fspath(script), *args], check=False).returncode
    if code == 2:
        raise InputError(
            f"`{' '.join(command[3:])} {fspath(script)}` was called wrongly, or the script was",
            where="kv.launch",
            hint="what was written to standard error says how",
        )
    if code:
        raise PeerError(
            f"the job of {fspath(script)} has ended with exit code {code}",
            where="kv.launch",
            hint="what was written to standard error names the process that failed first",
        )
