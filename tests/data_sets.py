"""Datasets for tests of loaders: worker processes import them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from mezzo.data.dataset import Dataset
from mezzo.data.draws import generator


class Numbers(Dataset):
    """Samples that tell their number, what they draw, and who makes them."""

    def __init__(self, length: int, seconds: float = 0.0, width: int = 3) -> None:
        self.length, self.seconds, self.width = length, seconds, width

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        return np.full(self.width, number, np.float32), number, generator().random(), os.getpid()

    def name(self, number: int) -> str:
        return f"number {number}"


class Bad(Numbers):
    """One sample of them cannot be made: `how` is raise, exit, kill, segfault or hang."""

    def __init__(self, length: int, at: int, how: str) -> None:
        super().__init__(length)
        self.at, self.how = at, how

    def __getitem__(self, number: int) -> Any:
        if number == self.at:
            match self.how:
                case "raise":
                    raise ZeroDivisionError("by nothing")
                case "exit":
                    os._exit(7)
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hang":
                    time.sleep(600)
        return super().__getitem__(number)


class KillsOnce(Numbers):
    """A sample kills the process that makes it where there is a file, which is gone then."""

    def __init__(self, length: int, at: int, file: str) -> None:
        super().__init__(length)
        self.at, self.file = at, file

    def __getitem__(self, number: int) -> Any:
        if number == self.at and os.path.exists(self.file):
            os.remove(self.file)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(number)


class Strings(Dataset):
    """Samples with fields of every kind, of unequal lengths."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, number: int) -> Any:
        return {"tokens": np.arange(number + 1), "text": "ab" * number, "none": None, "pair": (number, 0.5)}


class Growing(Dataset):
    """Samples of which each is larger than the one before."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> Any:
        return np.full((number * 1000 + 1,), number, np.int16), np.zeros((0, 3))


class Once(Dataset):
    """Samples that write down, in a folder, that they were made."""

    def __init__(self, folder: Path, length: int) -> None:
        self.folder, self.length = folder, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> int:
        (self.folder / f"{number}-{os.getpid()}").touch()
        return number


class Unequal(Dataset):
    """Arrays of unequal lengths."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> Any:
        return np.full(self.lengths[number], number)


def times_ten(x: Any, *rest: Any) -> Any:
    return (x * 10, *rest)


def joined(samples: Any) -> Any:
    """A batchify function of the user's."""
    return {"sum": np.stack([s[0] for s in samples]).sum(), "numbers": [int(s[1]) for s in samples]}
