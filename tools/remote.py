"""A process of a job on another host, which a shell there has started: `python -m mezzo.tools.remote`.

Standard input begins with a line of JSON that says what to run, where, and with which variables: none of it, the job's
key above all, stands on a command line. When standard input ends, as it does when the launcher or the connection is
gone, what was started is asked to end, and ended; else the exit code is that of the process. A worker that has ended
well counts as ended when the agent of its host, which serves other workers too, has ended as well.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ..kvstore.environment import LASTS
from ..kvstore.schedulers import reaches
from ..runtime.environment import processors

GRACE = 5.0  # seconds between asking the process to end and ending it


def through(shell: str, host: str) -> tuple[str, ...]:
    """The command line that starts this module on a host; the same Python is there.

    >>> through("ssh -p 2222", "a")[:4]
    ('ssh', '-p', '2222', 'a')
    """
    return (*shlex.split(shell), host, shlex.join((sys.executable, "-m", "mezzo.tools.remote")))


def asked(command: Sequence[str], environment: Mapping[str, str], toward: str, share: int) -> bytes:
    """The line that asks for a command in the folder of this process, on a host that listens at the address which the
    one at `toward` sees, with so many workers."""
    request = {"command": command, "environment": environment, "toward": toward, "share": share, "folder": os.getcwd()}
    return json.dumps(request).encode() + b"\n"


def main() -> int:
    given = json.loads(sys.stdin.buffer.readline())
    environment = {**os.environ, **given["environment"]}
    environment.setdefault("MEZZO_BIND", reaches(given["toward"]))
    environment.setdefault("OMP_NUM_THREADS", str(max(1, processors() // given["share"])))
    lasts, held = os.pipe()
    environment[LASTS] = str(held)
    try:
        process = subprocess.Popen(
            given["command"], env=environment, cwd=given["folder"], stdin=subprocess.DEVNULL, start_new_session=True,
            pass_fds=(held,),
        )  # fmt: skip
    except OSError as error:
        print(f"{given['command'][0]} cannot be started: {error}", file=sys.stderr)
        return 127

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):  # not of the buffer, whose lock would be held when this ends
            pass
        for number, wait in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 0.0)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            time.sleep(wait)

    threading.Thread(target=watch, daemon=True).start()
    os.close(held)
    code = process.wait()
    if not code:
        os.read(lasts, 1)  # until nobody holds the other end
    with suppress(ProcessLookupError):  # what it has started ends with it
        os.killpg(process.pid, signal.SIGKILL)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
