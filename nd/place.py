"""Places of arrays: `cpu()`, `cpu(1)`, `gpu(0)`."""

from __future__ import annotations

from ..ops.dataclasses import dataclass
from ..ops.errors import InputError, MissingPackage
from ..runtime.devices import device_named


@dataclass(frozen=True, slots=True)
class Place:
    """A device and its number. All of `cpu(i)` share the memory of the host, but are distinct places, so that a program
    for several devices can be written, and tried, without them.

    >>> print(cpu(), cpu(1), cpu() is cpu(0))
    cpu(0) cpu(1) True
    """

    name: str
    index: int

    @property
    def device(self) -> str:
        """The device of sessions that run there."""
        return "cpu" if self.name == "cpu" else f"gpu:{self.index}"

    def __str__(self) -> str:
        return f"{self.name}({self.index})"

    def __repr__(self) -> str:
        return str(self)


_PLACES: dict[tuple[str, int], Place] = {}


def _place(name: str, index: int) -> Place:
    if index < 0:
        raise InputError(f"device number {index!r}", where=f"mezzo.{name}", hint="devices are counted from 0")
    return _PLACES.setdefault((name, index), Place(name, index))


def cpu(index: int = 0) -> Place:
    """The host. Raises InputError for a negative number."""
    return _place("cpu", index)


def gpu(index: int = 0) -> Place:
    """A GPU, counted from 0. Raises MissingPackage, which says what is missing, where there is none."""
    device_named(f"gpu:{index}")
    return _place("gpu", index)


def num_gpus() -> int:
    """The number of GPUs that CUDA shows; 0 where there is none, or no CuPy.

    >>> num_gpus() >= 0
    True
    """
    from ..runtime.backends.cuda.driver import count  # with the first question about GPUs

    try:
        return count()
    except MissingPackage:
        return 0


def place_of(given: Place | str | None) -> Place:
    """The place that is meant for an array: None is the CPU; `"cpu"`, `"gpu:1"` as sessions take them.

    Raises InputError for what is none, MissingPackage for a GPU that is not there.
    """
    if given is None:
        return cpu()
    if isinstance(given, Place):
        return given
    name, _, number = str(given).partition(":")
    if name not in ("cpu", "gpu") or not (number or "0").isdecimal():
        raise InputError(f"{given!r} is no device", where="mezzo.nd", hint="give mz.cpu(), mz.gpu(0), or 'gpu:0'")
    return place_of((cpu if name == "cpu" else gpu)(int(number or 0)))
