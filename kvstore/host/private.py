"""Operands in the private memory of their process, read by the others with one copy (process_vm_readv of Linux).

A member's array that no segment has would first be copied to shared memory; a process of the same user may read it
where it lies instead, if the kernel allows it, which each member tries once with every other. Whoever waits for the
value keeps the array unchanged meanwhile; one that stops waiting copies it to shared memory first, and says so in the
value's `moved`, so that no one takes what may have changed since.
https://man7.org/linux/man-pages/man2/process_vm_readv.2.html
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ...ops.types import Array

WORD = 8  # bytes that are read to see whether it may be
READ = 1 << 20  # bytes of one call, at which it is quickest


class _Piece(ctypes.Structure):
    """The struct iovec of POSIX."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@cache
def _call() -> Any:
    """The kernel's call; None where there is none."""
    return getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)


def read(pid: int, address: int, out: Array) -> None:
    """Fill a contiguous array with the bytes at an address of another process. Raises OSError."""
    call = _call()
    if call is None:
        raise OSError("this system has no process_vm_readv")
    into, done = out.ctypes.data, 0
    while done < out.nbytes:
        length = out.nbytes - done
        here, there = _Piece(into + done, length), _Piece(address + done, length)
        count = call(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if count <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        done += count


class Unreadable(Exception):
    """The operand of a member cannot be read, since its process has ended."""

    def __init__(self, member: int, reason: str) -> None:
        super().__init__(reason)
        self.member = member


@dataclass(frozen=True, slots=True)
class PrivateOperand:
    """An operand of another member, in its own memory."""

    member: int
    pid: int
    address: int  # of its first element
    itemsize: int

    def read(self, low: int, out: Array) -> None:
        """Fill `out` with the elements from `low` on. Raises Unreadable."""
        try:
            read(self.pid, self.address + low * self.itemsize, out)
        except OSError as error:
            raise Unreadable(self.member, str(error)) from error


class Probe:
    """Test of whether all other members can read this process's memory.

    Each member is told the address of a word that its sender has, reads it, and answers whether that worked.
    """

    def __init__(self, others: tuple[int, ...]) -> None:
        self.word = np.frombuffer(os.urandom(WORD), np.int64).copy()
        self._left = {*others}
        self._refused = not others

    @property
    def may(self) -> bool:
        """True if every other member has answered that it can."""
        return not self._left and not self._refused

    def question(self) -> dict[str, Any]:
        return {"is": "readable?", "address": self.word.ctypes.data, "word": int(self.word[0])}

    def answered(self, member: int, able: bool) -> None:
        self._left.discard(member)
        self._refused |= not able


def answer(question: dict[str, Any], pid: int) -> dict[str, Any]:
    """The answer to a question of the process of this number (0: of another namespace)."""
    found = np.zeros(1, np.int64)
    try:
        if pid:
            read(pid, question["address"], found)
    except OSError:
        pid = 0
    return {"is": "readable", "able": bool(pid) and int(found[0]) == question["word"]}
