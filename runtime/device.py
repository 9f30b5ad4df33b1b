"""Devices: which kernels run there, and where an arena's bytes come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar, cast

from ..ops import MezzoError, Tensor, Type
from ..ops.errors import MissingPackage, PlanError, ShapeError
from ..ops.types import Array
from . import onednn
from .kernels import CPU_KERNELS, Ask, Choice, Kernel, Packs
from .kernels.kind import Answers, kind
from .pool import aligned_empty

Chosen = tuple[Choice, tuple[tuple[str, str], ...]]  # and (kernel, reason) of each that declined before


@dataclass(frozen=True, slots=True)
class Device:
    """A place where programs run. `kernels` are asked in this order; `allocate(nbytes)` gives the bytes of an arena."""

    name: str
    kernels: tuple[Kernel, ...]
    allocate: Callable[[int], Array]

    def kernel(self, name: str) -> Kernel:
        """The kernel of this name."""
        return next(k for k in self.kernels if k.name == name)

    def choose(self, ask: Ask) -> Chosen:
        """The first kernel that serves, and (kernel, reason) of each that declined before it."""
        asked = kind(ask)
        if asked is None or any(k.serves(ask.node) for k in _forgetful(self)):
            return self._choose(ask)
        return _CHOICES.get((self, asked), lambda: self._choose(ask))

    def _choose(self, ask: Ask) -> Chosen:
        node, declined = ask.node, list[tuple[str, str]]()
        for kernel in self.kernels:
            if not kernel.serves(node):
                continue
            try:
                answer = kernel.select(ask if _packs(type(kernel)) else _plain(ask))
            except MezzoError as error:
                raise error.at(node.place) from error.__cause__
            except Exception as error:  # as in infer: an attribute is of a kind that nobody foresees
                raise ShapeError(
                    f"{node.op} cannot be run by {kernel.name}: {type(error).__name__}: {error}",
                    where=node.place,
                    hint="check the operand types and attributes of this node",
                ) from error
            if isinstance(answer, Choice):
                return answer, tuple(declined)
            declined.append((kernel.name, answer.reason))
        raise PlanError(f"no kernel of {self.name} serves {node.op}", where=node.place)


_CHOICES: Answers[Chosen] = Answers()


@cache
def _forgetful(device: Device) -> tuple[Kernel, ...]:
    """Kernels that look at more than what makes the kind of a question."""
    return tuple(k for k in device.kernels if not getattr(k, "remembers", False))


@cache
def _packs(kernel: type[Kernel]) -> bool:
    return issubclass(kernel, Packs)


def _plain(ask: Ask) -> Ask:
    """What is asked of a kernel that knows no layouts."""
    return replace(ask, inputs=[_row_major(t) for t in ask.inputs], outputs=list(map(_row_major, ask.outputs)))


T = TypeVar("T", bound=Type | None)


def _row_major(type: T) -> T:
    return cast(T, replace(type, layout="")) if isinstance(type, Tensor) and type.layout else type


DEVICES: dict[str, Device] = {"cpu": Device("cpu", (*onednn.KERNELS, *CPU_KERNELS), aligned_empty)}


def device(name: str) -> Device:
    """The device of this name; MissingPackage names the ones there are.

    >>> device("cpu").name
    'cpu'
    """
    found = DEVICES.get(name)
    if found is None:
        raise MissingPackage(
            f"device {name!r} is not available; this build runs on {', '.join(DEVICES)}",
            hint="leave out device=, or see `mezzo doctor` for what this machine has",
        )
    return found
