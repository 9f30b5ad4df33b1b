"""`gpu:0`: a GPU as a device, with its kernels, its memory, and the instances of its programs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from ....ops import MezzoError, Tensor
from ....ops.dataclasses import dataclass
from ....ops.errors import BudgetError, InputError, MissingPackage
from ....ops.types import Array
from ...compile.kernel import KernelRequest
from ...compile.largest_batch import largest_batch
from ...execution.device import DEVICES, Chosen, Device, Serving, device_named
from ...ir.graph import Node
from ...memory.pool import aligned_empty
from .direct import Direct
from .driver import cupy, described
from .host import HOST, Host, HostSteps, aside
from .kernels import GPU_KERNELS
from .memory import DeviceFull, allocated
from .uploads import residents

if TYPE_CHECKING:
    from ...compile.program import Program
    from ...execution.session import Session

SHOWN = 8  # steps that a warning names
NAMES = re.compile(r"gpu:(\d+)(?:@sm_(\d+))?")
ON_GPU = (2, 13)  # DLPack's numbers of CUDA's device memory and of managed memory
USUAL_SM = 90  # what is planned for where nobody says: H100 and H200


@dataclass(frozen=True, slots=True)
class Gpu(Device):
    """A GPU, or a plan for one: with `planned` no driver is called, and nothing runs.

    `index` counts the devices that CUDA shows, `architecture` is that of `sm_90` as 90.
    """

    index: int = 0
    architecture: int = USUAL_SM
    planned: bool = False

    @property
    def sm(self) -> int:
        return self.architecture

    def choose(self, ask: KernelRequest) -> Chosen:
        """Kernels of the device are asked of tensors whose sizes are known; all else belongs to the host."""
        fixed = all(t is None or (isinstance(t, Tensor) and t.static) for t in (*ask.inputs, *ask.outputs))
        if not fixed or ask.node.bodies:
            return HOST.choose(ask)
        if self.planned:
            return Device.choose(self, ask)
        with self.current():  # libraries are asked there, and timed
            return Device.choose(self, ask)

    def _serves(self, node: Node) -> Serving:
        """Kernels here look at the whole of a chain, not only at the operator with which it begins. What a step on the
        host answers depends on what the CPU's kernels look at."""
        if node.op != "Fused":
            serving, remember = Device._serves(self, node)
        else:
            serving = tuple(k for k in self.kernels if k.serves(node))
            remember = all(getattr(k, "remembers", False) for k in serving)
        return serving, remember and DEVICES["cpu"]._serves(node)[1]

    def instantiate(self, program: Any, arena: Any, around: Any, states: Mapping[str, Array] | None) -> Any:
        if self.planned:
            raise _only_planned(self)
        from .instance import GpuInstance

        return GpuInstance(program, arena, around, states)

    def keep(self, states: Mapping[str, Array]) -> Mapping[str, Array]:
        return states if self.planned else residents(states, self.index)

    @property
    def runs(self) -> bool:
        return not self.planned

    def report(self, program: Program) -> bool:
        """Warn of the steps that run on the host."""
        found = () if self.planned else aside(program)
        if found:
            shown = "\n  ".join(map(str, found[:SHOWN]))
            more = f"\n  and {len(found) - SHOWN} more: `mezzo explain --kernels --device gpu:0`" * (len(found) > SHOWN)
            said = f"{len(found)} of {len(program.steps)} steps have no kernel on {self.name}:\n  {shown}{more}"
            warnings.warn(said, HostSteps, stacklevel=5)
        return bool(found)

    def direct(self, bound: Any, feeds: Any, outputs: Any, seat: Any, instance: Any) -> Direct | None:
        found = next((k for k in seat.replays if isinstance(k, Direct) and k.fits(feeds, outputs)), None)
        made = found or Direct.of(bound, self.index, feeds, outputs)
        if made is not None:
            seat.replays[made] = made.replay(instance)
        return made

    def explained(self, error: BudgetError, session: Session, program: Program) -> BudgetError:
        """The figures of the plan, and the largest batch that fits what is free."""
        if not isinstance(error, DeviceFull):
            return error
        room = error.info.free + error.info.reserved - error.info.in_use
        sizes = {p.name: p.type.sizes for p in program.inputs if isinstance(p.type, Tensor) and p.type.static}
        error.message += f"; the plan asks for an arena of {program.arena_bytes} bytes"
        try:
            dim, batch, arena = largest_batch(session, sizes, room)
        except MezzoError as none:
            error.hint += f" ({none.message})"
        else:
            error.hint = f"{batch} is the largest {dim} that fits, with an arena of {arena} bytes; else {error.hint}"
        return error

    def taken(self, value: Any) -> Any:
        """Arrays on this device stay there, as arrays of CuPy; others are taken as on the CPU."""
        if self.planned or value.__dlpack_device__()[0] not in ON_GPU:
            return np.from_dlpack(value)
        cp = cupy()
        with self.current():
            array = value if isinstance(value, cp.ndarray) else cp.from_dlpack(value)
        if array.device.id != self.index:
            raise BufferError(f"it lies on gpu:{array.device.id}, and the model runs on {self.name}")
        if not array.flags.c_contiguous:
            raise BufferError("it is not contiguous; give cupy.ascontiguousarray(...) of it")
        return array

    def current(self) -> AbstractContextManager[Any]:
        """Make it this thread's device for a while."""
        used: AbstractContextManager[Any] = cupy().cuda.Device(self.index)
        return used


def gpu(name: str) -> Gpu:
    """The device of a name: `gpu:0`, or `gpu:0@sm_90` for plans alone, which need no GPU.

    Raises MissingPackage where CuPy or the device is missing, InputError for a name that is none.

    >>> gpu("gpu:0@sm_80").sm
    80
    """
    found = NAMES.fullmatch(name)
    if found is None:
        raise InputError(f"{name!r} is no device", hint="give 'cpu', 'gpu:0', or 'gpu:0@sm_90' to plan without a GPU")
    index = int(found[1])
    kernels = (*GPU_KERNELS, Host())
    if found[2]:
        made = Gpu(name, kernels, aligned_empty, index, int(found[2]), planned=True)
        return Gpu(name, kernels, _refusing(made), index, int(found[2]), planned=True)
    about = described(index)
    return Gpu(name, kernels, lambda nbytes: allocated(nbytes, index), index, about.sm)


def plannable(name: str) -> tuple[str, str]:
    """The name of a device for plans: the device itself, or where a GPU is not here, that of one which stands for it.
    And why it is not here."""
    try:
        return device_named(name).name, ""
    except MissingPackage as error:
        if NAMES.fullmatch(name) is None:
            raise
        return f"{name}@sm_{USUAL_SM}", error.message


def _refusing(device: Gpu) -> Callable[[int], Array]:
    def allocate(nbytes: int) -> Array:
        if nbytes:
            raise _only_planned(device)
        return aligned_empty(0)

    return allocate


def _only_planned(device: Gpu) -> MissingPackage:
    name = device.name.partition("@")[0]
    return MissingPackage(
        f"{device.name} is a plan for sm_{device.sm}, and nothing runs there",
        hint=f"on a machine with such a GPU, and after pip install 'mezzo[cuda13]': device={name!r}",
    )
