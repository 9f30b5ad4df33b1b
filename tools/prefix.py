"""Output of several processes in one stream: whole lines, each with the name of its process before it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


class Printer:
    """A context that writes lines from any thread, each with its prefix.

    Lines of those in `bare` come without a name. `lost` is called when nobody reads the output any more (a pipe was
    closed); what comes then is dropped.
    """

    def __init__(self, names: Sequence[str], lost: Callable[[], None], bare: Collection[str] = ()) -> None:
        self._lock, self._lost, self._gone = threading.Lock(), lost, False
        self._outs = {False: _binary(sys.stdout), True: _binary(sys.stderr)}
        streams = {False: sys.stdout, True: sys.stderr}
        self._prefixes = {error: _prefixes(names, bare, stream) for error, stream in streams.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def line(self, name: str, line: bytes, *, error: bool = False) -> None:
        """One line, which may lack its end if it was the last."""
        text = self._prefixes[error][name] + line.removesuffix(b"\n") + b"\n"
        with self._lock:
            if self._gone:
                return
            try:
                self._outs[error].write(text)
                self._outs[error].flush()
            except (BrokenPipeError, ValueError):
                self._gone = True
                self._lost()

    def note(self, text: str) -> None:
        """Print a line of the launcher itself."""
        self.line("launch", text.encode(), error=True)


def _prefixes(names: Sequence[str], bare: Collection[str], stream: Any) -> dict[str, bytes]:
    """Return the prefix of each process's lines, padded to one width, in colours on a terminal."""
    every = [*names, "launch"]
    wide = max(map(len, every)) + 2
    plain = {name: f"[{name}]".ljust(wide) + " " for name in every}
    if stream.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(file=stream)
        for i, name in enumerate(every):
            with console.capture() as capture:
                console.print(Text(plain[name], style=COLOURS[i % len(COLOURS)]), end="")
            plain[name] = capture.get()
    return {name: b"" if name in bare else text.encode() for name, text in plain.items()}


def _binary(stream: Any) -> Any:
    stream.flush()
    return stream.buffer
