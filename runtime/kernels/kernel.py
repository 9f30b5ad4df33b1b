"""What a kernel is: `select` at bind, `prepare` at instantiation, then only calls.

A kernel is chosen once from types (`select` answers a Choice or a reason), and prepared once per set of buffers
(`prepare` answers a call without arguments that writes into the buffers it was given).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...ops import DType, Tensor, Type
from ...ops.types import Array
from ..graph import Node

Call = Callable[[], Any]
Scratch = Callable[[DType, tuple[int, ...]], Array]


@dataclass(frozen=True, slots=True)
class Target:
    """What programs are made for."""

    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Alias:
    """Bytes that an output and an input can share.

    `inplace`: the output is written over the input, if that dies here. `view`: the output is bytes `delta` onwards of
    the input, unchanged. `part`: the input is bytes `delta` onwards of the output.
    """

    output: int
    input: int
    kind: str = "inplace"
    delta: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel of one step, as data that a file can hold.

    `workspace` counts bytes of the arena used while the step runs. `allocates` marks a step whose results are fresh
    arrays that are then copied into their slots. `layouts` names the memory layout of inputs and outputs where it is
    not row-major; `saved` the outputs of a training twin.
    """

    kernel: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    workspace: int = 0
    aliases: tuple[Alias, ...] = ()
    allocates: bool = False
    layouts: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    capturable: bool = True
    deterministic: bool = True


@dataclass(frozen=True, slots=True)
class Declined:
    """Why a kernel does not serve a node."""

    reason: str


@dataclass(frozen=True, slots=True)
class Work:
    """One step as a kernel prepares it: the node, its chosen kernel and its buffers.

    Inputs are None where absent. `scratch(dtype, shape)` hands out workspace. Where `outputs` is None the kernel
    returns its results instead (Choice.allocates). `bodies` maps attribute names to runnable subgraphs; `key`
    and `numpy_random` serve the references.
    """

    node: Node
    choice: Choice
    inputs: Sequence[Array | None]
    outputs: Sequence[Array | None]
    scratch: Scratch
    bodies: Mapping[str, Any] = field(default_factory=dict[str, Any])
    key: Callable[[], tuple[int, ...]] = tuple
    numpy_random: bool = False


class Kernel(Protocol):
    """A way to run some operators on one kind of device."""

    name: str

    def serves(self, node: Node) -> bool: ...
    def select(
        self, node: Node, inputs: Sequence[Type | None], outputs: Sequence[Type], target: Target
    ) -> Choice | Declined: ...

    def prepare(self, work: Work) -> Call: ...


def tensors(types: Sequence[Type | None]) -> list[Tensor] | None:
    """The types, if every one is a tensor of numbers; else None."""
    found = [t for t in types if isinstance(t, Tensor) and t.dtype is not DType.STRING]
    return found if len(found) == len(types) else None
