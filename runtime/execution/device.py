"""Devices: which kernels run there, and where an arena's bytes come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from ...ops import MezzoError
from ...ops.dataclasses import dataclass, field
from ...ops.errors import BudgetError, MissingPackage, PlanError
from ...ops.types import Array
from ..backends import onednn
from ..backends.cpu import CPU_KERNELS
from ..compile.defects import DEFECTS, Unprepared
from ..compile.kernel import Call, Choice, Kernel, KernelArgs, KernelRequest, Packs, anchor, without_layouts
from ..compile.lazy_kernel import itself
from ..ir.cache_keys import Answers, kind
from ..ir.graph import Node
from ..memory.pool import aligned_empty

Served = tuple[str, str, tuple[str, str]]  # a node's operator, and that with which it begins
Serving = tuple[tuple[Kernel, ...], bool]
Chosen = tuple[Choice, tuple[tuple[str, str], ...]]  # and (kernel, reason) of each that declined before


REPORT = "this is a defect of Mezzo, not of the model: please report it; onednn=False leaves the CPU to NumPy"


@dataclass(frozen=True, slots=True)
class Device:
    """A place where programs run. `kernels` are asked in this order; `allocate(nbytes)` gives the bytes of an arena."""

    name: str
    kernels: tuple[Kernel, ...]
    allocate: Callable[[int], Array]
    # what it was asked before
    _serving: dict[Served, Serving] = field(
        init=False, compare=False, repr=False, default_factory=dict[Served, Serving]
    )
    _chosen: Answers[Chosen] = field(init=False, compare=False, repr=False, default_factory=Answers)

    @property
    def sm(self) -> int:
        """The architecture of a GPU, 90 for sm_90; 0 for all others."""
        return 0

    def instantiate(self, program: Any, arena: Any, around: Any, states: Mapping[str, Array] | None) -> Any:
        """An instance of a program over an arena of this device."""
        from .instance import Instance  # which asks for devices itself

        return Instance(program, arena, around, states)

    def keep(self, states: Mapping[str, Array]) -> Mapping[str, Array]:
        """States where programs of this device read and write them."""
        return states

    @property
    def runs(self) -> bool:
        """Whether programs run here; a device that is only planned for runs none."""
        return True

    def report(self, program: Any) -> bool:
        """Say what of a program runs elsewhere; whether there was anything to say."""
        return False

    def direct(self, bound: Any, feeds: Any, outputs: Any, seat: Any, instance: Any) -> Any:
        """What lets runs of arrays like these go straight to an instance, noted in its seat; None if nothing does."""
        return None

    def explained(self, error: BudgetError, session: Any, program: Any) -> BudgetError:
        """An error of a run that had no room, with what is known of the device."""
        return error

    def taken(self, value: Any) -> Any:
        """What offers DLPack as an array that programs of this device take: one of NumPy here."""
        return np.from_dlpack(value)

    def kernel(self, name: str) -> Kernel:
        """The kernel of this name."""
        return next(itself(k) for k in self.kernels if k.name == name)

    def choose(self, ask: KernelRequest) -> Chosen:
        """The first kernel that serves, and (kernel, reason) of each that declined before it."""
        asked = kind(ask)
        if asked is None or not self._serves(ask.node)[1]:
            return self._choose(ask)
        return self._chosen.get(asked, lambda: self._choose(ask))

    def lengthy(self, node: Node) -> bool:
        """Whether the first kernel that serves a node takes long to answer."""
        return any(getattr(k, "lengthy", False) for k in self._serves(node)[0][:1])

    def _serves(self, node: Node) -> Serving:
        """The kernels that serve a node, and whether all of them look at nothing but what makes the kind of a
        question."""
        of = (node.domain, node.op, anchor(node))
        found = self._serving.get(of)
        if found is None:
            serving = tuple(k for k in self.kernels if k.serves(node))
            found = serving, all(getattr(k, "remembers", False) for k in serving)
            if node.domain in ("", "mezzo"):  # the records of others come and go
                self._serving[of] = found
        return found

    def _choose(self, ask: KernelRequest) -> Chosen:
        node, declined = ask.node, list[tuple[str, str]]()
        for kernel in map(itself, self._serves(node)[0]):
            reason: str | None
            try:
                answer = kernel.select(ask if _packs(type(kernel)) else without_layouts(ask))
            except Exception as error:
                if isinstance(error, MezzoError) and not isinstance(error, PlanError):
                    raise error.at(node.place) from error.__cause__
                reason = DEFECTS.note(kernel.name, node, "chose", error)
            else:
                if isinstance(answer, Choice):
                    reason = DEFECTS.excluded(answer, node)
                    if reason is None:
                        return answer, tuple(declined)
                else:
                    reason = answer.reason
            declined.append((kernel.name, reason))
        raise PlanError(
            f"no kernel of {self.name} serves {node.op}: {'; '.join(f'{name}: {why}' for name, why in declined)}",
            where=node.place,
        )

    def prepare(self, work: KernelArgs) -> Call:
        """The call of a chosen kernel. Raises Unprepared where it fails as no kernel foresees: planned again, another
        kernel takes the step."""
        choice, node = work.choice, work.node
        try:
            return self.kernel(choice.kernel).prepare(work)
        except Exception as error:
            if isinstance(error, MezzoError) and not isinstance(error, PlanError):
                raise error.at(node.place) from error.__cause__
            reason = DEFECTS.note(choice.kernel, node, "prepared", error)
            DEFECTS.exclude(choice, node, reason)
            self._chosen.forget()
            raise Unprepared(f"{choice.kernel} has {reason}", where=node.place, hint=REPORT) from error


@cache
def _packs(kernel: type[Kernel]) -> bool:
    return issubclass(kernel, Packs)


DEVICES: dict[str, Device] = {"cpu": Device("cpu", (*onednn.KERNELS, *CPU_KERNELS), aligned_empty)}


def device_named(name: str) -> Device:
    """The device of this name: `cpu`, `gpu:0`, or `gpu:0@sm_90` to plan for a GPU that is not here.

    Raises MissingPackage for one that is missing, and says what of it is.

    >>> device_named("cpu").name
    'cpu'
    """
    found = DEVICES.get(name)
    if found is None and name.startswith("gpu:"):
        from ..backends.cuda.device import gpu  # with the first GPU that is asked for

        found = DEVICES.setdefault(name, gpu(name))
    if found is None:
        raise MissingPackage(
            f"device {name!r} is not available; this build runs on {', '.join(DEVICES)}",
            hint="leave out device=, or see `mezzo doctor` for what this machine has",
        )
    return found
