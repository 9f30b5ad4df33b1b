"""The place of a process that runs elsewhere: `python -I -S relay.py SOCKET TOKEN`, for launchers that watch processes.

It passes on what that one writes, and ends as that one has ended: with its exit code, or by SIGKILL where it is lost.
Asked to end by a signal it asks that one; when it is killed, that one is ended too. The launcher's end of the socket is
tools/on_ray.py. Nothing but the standard library, so that it starts at once.
"""

import os
import signal
import socket
import struct
import sys

FRAME = struct.Struct(">cI")  # what it is, and the bytes that follow, or an exit code
OUT, ERR, EXIT, LOST, END = b"o", b"e", b"x", b"l", b"t"


def main() -> int:
    path, token = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(token.encode() + b"\n")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sock.sendall(END))
        with sock.makefile("rb") as frames:
            while len(head := frames.read(FRAME.size)) == FRAME.size:
                kind, number = FRAME.unpack(head)
                if kind == EXIT:
                    return int(number)
                if kind == LOST:
                    os.kill(os.getpid(), signal.SIGKILL)
                stream = sys.stdout.buffer if kind == OUT else sys.stderr.buffer
                stream.write(frames.read(number))
                stream.flush()
    return 1  # the launcher is gone


if __name__ == "__main__":
    sys.exit(main())
