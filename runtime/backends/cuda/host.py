"""Host fallback: steps without a kernel on the GPU run on the CPU's kernels, with copies of their operands.

Nothing is hidden: such a step cannot be captured, and its copies are counted (`copies`) and shown.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....ops import Tensor, Type
from ....ops.dataclasses import dataclass, replace
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, TargetSpec
from ...compile.program import Program, ProgramStep
from ...compile.target import Target
from ...ir.graph import Node
from ..processor import CPU

NAME = "host"


class HostSteps(UserWarning):
    """Warning: steps of a program for a GPU run on the host, with copies before and after them."""


class Host:
    """The fallback for every operator on row-major arrays, asked last.

    The steps are prepared with arrays of the host: the instance copies what they read and what others read of them.
    """

    name = NAME
    remembers = True

    def serves(self, node: Node) -> bool:
        return True

    def select(self, request: KernelRequest) -> Choice | Declined:
        if (request.node.domain, request.node.op) == ("mezzo", "Reorder") and request.node.attrs.get("layout"):
            return Declined("layouts of the device stay there")
        kernel = _on_cpu(request)
        return Choice(
            self.name,
            {"kernel": kernel.kernel},
            allocates=kernel.allocates,
            saved=kernel.saved,
            capturable=False,
            deterministic=kernel.deterministic,
            primitives=(kernel,),
        )

    def prepare(self, args: KernelArgs) -> Call:
        (choice,) = args.choice.primitives
        request = replace(args.request, target=TargetSpec("cpu", args.request.target.threads))
        return CPU.kernel(choice.kernel).prepare(replace(args, request=request, choice=choice))


def _on_cpu(request: KernelRequest) -> Choice:
    """Return the CPU's choice with row-major operands and results."""
    for onednn in (True, False):
        choice, _ = CPU.choose(replace(request, target=TargetSpec("cpu", request.target.threads, onednn)))
        if not any(choice.layouts):
            break
    return choice


HOST = Target(NAME, (Host(),))


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A copy of a value between the host and the device for a step; bytes are None if they depend on data."""

    value: str
    nbytes: int | None

    def __str__(self) -> str:
        return f"{self.value} ({'?' if self.nbytes is None else self.nbytes} B)"


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies to the host before a step (`down`), and to the device after it (`up`)."""

    down: tuple[HostCopy, ...] = ()
    up: tuple[HostCopy, ...] = ()

    def __str__(self) -> str:
        sides = (("to the host", self.down), ("to the device", self.up))
        return "; ".join(f"{side}: {', '.join(map(str, copies))}" for side, copies in sides if copies) or "no copies"


@dataclass(frozen=True, slots=True)
class HostFallback:
    """A step that runs on the host: its number, the reason, and its copies."""

    index: int
    step: ProgramStep
    copies: Copies

    @property
    def reason(self) -> str:
        """Why no kernel of the device computes it."""
        if self.step.dynamic:
            return "its sizes are known only at run time"
        if self.step.bodies:
            return "control flow runs on the host"
        return "; ".join(f"{kernel}: {why}" for kernel, why in self.step.declined) or "no kernel of the GPU serves it"

    def __str__(self) -> str:
        return f"{self.step.node.place} ({self.step.node.op}) runs on the host, {self.reason}; {self.copies}"


def on_host(step: ProgramStep) -> bool:
    """True if a step of a program for a GPU runs on the host."""
    return step.choice.kernel == NAME or step.dynamic or bool(step.bodies)


def host_fallbacks(program: Program) -> tuple[HostFallback, ...]:
    """The steps of a program for a GPU that run on the host, in order, with the copies that they need.

    A value is copied once in each direction at most: to the host before the first step there that reads it, to the
    device if a step there, or a state, takes what the host has made. What the host makes and nobody else reads stays.
    """
    if not program.target.sm:
        return ()
    device_reads = {n for s in program.steps if not on_host(s) for n in s.reads()} | set(program.states.values())
    host_values = {*program.weights, *program.given, *program.captures}  # constants and what is fed are at hand
    host_values -= set(program.states)
    fallbacks = []
    for i, step in enumerate(program.steps):
        if not on_host(step):
            continue
        down = [n for n in step.reads() if n not in host_values]
        up = [n for n in step.writes() if n in device_reads]
        host_values.update(down, step.writes())
        fallbacks.append(HostFallback(i, step, Copies(_copies(program, down), _copies(program, up))))
    return tuple(fallbacks)


def _copies(program: Program, names: Iterable[str]) -> tuple[HostCopy, ...]:
    return tuple(HostCopy(n, _nbytes(program.types[n])) for n in names)


def _nbytes(type: Type) -> int | None:
    return type.nbytes if isinstance(type, Tensor) and type.static else None
