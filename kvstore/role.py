"""The entry point of processes by their DMLC_ROLE, unless they are workers: `python -m mezzo.kvstore.role`."""

from __future__ import annotations

import signal
import sys

from ..ops.errors import InputError, MezzoError
from .environment import Environment


def serve(environment: Environment) -> None:
    """Be the scheduler or a server of a job until it has ended. Raises what it failed with."""
    match environment.role:
        case "scheduler":
            from . import scheduler

            scheduler.serve(environment)
        case "server":
            from . import server

            server.serve(environment)
        case _:
            raise InputError(f"a {environment.role} serves nobody", where="DMLC_ROLE")


def main() -> int:
    """Serve as the environment says; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started the job ends it
    try:
        serve(Environment.read())
    except MezzoError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
