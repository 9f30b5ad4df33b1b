"""GPUs as programs run on them: their memory, instances, and what is told of a GPU that is full or absent."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....ops import MezzoError, Tensor
from ....ops.dataclasses import dataclass
from ....ops.errors import BudgetError, InputError, MissingPackage
from ....ops.types import Array
from ...compile.largest_batch import largest_batch
from ...compile.program import Program
from ...execution.executor import Executor
from ...execution.instance import ExecutionContext
from ...memory.pool import aligned_empty
from .direct import Direct
from .driver import cupy, described
from .host import Host, HostSteps, host_fallbacks
from .kernels import GPU_KERNELS
from .memory import DeviceFull, allocated
from .target import GpuTarget
from .uploads import residents

if TYPE_CHECKING:
    from ...execution.session import Session

SHOWN: Final = 8  # steps that a warning names
FIRST_TF32: Final = 80  # the architecture whose tensor cores take TF32
NAMES: Final = re.compile(r"gpu:(\d+)(?:@sm_(\d+))?")
ON_GPU: Final = (2, 13)  # DLPack's numbers of CUDA's device memory and of managed memory


@dataclass(frozen=True, slots=True)
class GpuExecutor(Executor):
    """A GPU, or the plan of one, on which nothing runs."""

    target: GpuTarget

    @property
    def precisions(self) -> tuple[str, ...]:
        return ("fp32", "tf32", "bf16", "fp16")

    @property
    def usual_precision(self) -> str:
        return "tf32" if self.target.sm >= FIRST_TF32 else "fp32"

    @property
    def runs(self) -> bool:
        return not self.target.planned

    def instantiate(
        self, program: Program, arena: Any, context: ExecutionContext, states: Mapping[str, Array] | None = None
    ) -> Any:
        if self.target.planned:
            raise _only_planned(self.target)
        from .instance import GpuInstance

        return GpuInstance(program, arena, context, self, states)

    def keep(self, states: Mapping[str, Array]) -> Mapping[str, Array]:
        return states if self.target.planned else residents(states, self.target.index)

    def report(self, program: Program) -> bool:
        """Warn of the steps that run on the host."""
        steps = () if self.target.planned else host_fallbacks(program)
        if steps:
            shown = "\n  ".join(map(str, steps[:SHOWN]))
            more = f"\n  and {len(steps) - SHOWN} more: `mezzo explain --kernels --device gpu:0`" * (len(steps) > SHOWN)
            said = f"{len(steps)} of {len(program.steps)} steps have no kernel on {self.name}:\n  {shown}{more}"
            warnings.warn(said, HostSteps, stacklevel=5)
        return bool(steps)

    def fast_path(self, executable: Any, feeds: Any, outputs: Any, arena: Any, instance: Any) -> Direct | None:
        known = next(
            (guard for guard in arena.replays if isinstance(guard, Direct) and guard.fits(feeds, outputs)), None
        )
        guard = known or Direct.of(executable, self.target.index, feeds, outputs)
        if guard is not None:
            arena.replays[guard] = guard.replay(instance)
        return guard

    def explain(self, error: BudgetError, session: Session, program: Program) -> BudgetError:
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

    def from_dlpack(self, value: Any) -> Any:
        """Arrays on this device stay there, as arrays of CuPy; others are taken as on the CPU."""
        if self.target.planned or value.__dlpack_device__()[0] not in ON_GPU:
            return np.from_dlpack(value)
        cp = cupy()
        with self.target.current():
            array = value if isinstance(value, cp.ndarray) else cp.from_dlpack(value)
        if array.device.id != self.target.index:
            raise BufferError(f"it lies on gpu:{array.device.id}, and the model runs on {self.name}")
        if not array.flags.c_contiguous:
            raise BufferError("it is not contiguous; give cupy.ascontiguousarray(...) of it")
        return array


def gpu(name: str, host: Executor) -> GpuExecutor:
    """The device of a name: `gpu:0`, or `gpu:0@sm_90` for plans alone, which need no GPU; `host` runs subgraphs.

    Raises MissingPackage where CuPy or the device is missing, InputError for a name that is none.
    """
    match = NAMES.fullmatch(name)
    if match is None:
        hint = "give 'cpu', 'gpu', 'gpu:0', or 'gpu:0@sm_90' to plan without a GPU"
        raise InputError(f"{name!r} is no device", hint=hint)
    index, kernels = int(match[1]), (*GPU_KERNELS, Host())
    if match[2]:
        target = GpuTarget(name, kernels, host.target, index, int(match[2]), planned=True)
        return GpuExecutor(target, _refusing(target), host)
    target = GpuTarget(name, kernels, host.target, index, described(index).sm)
    return GpuExecutor(target, lambda nbytes: allocated(nbytes, index), host)


def _refusing(target: GpuTarget) -> Callable[[int], Array]:
    def allocate(nbytes: int) -> Array:
        if nbytes:
            raise _only_planned(target)
        return aligned_empty(0)

    return allocate


def _only_planned(target: GpuTarget) -> MissingPackage:
    name = target.name.partition("@")[0]
    return MissingPackage(
        f"{target.name} is a plan for sm_{target.sm}, and nothing runs there",
        hint=f"on a machine with such a GPU, and after pip install 'mezzo[cuda13]': device={name!r}",
    )
