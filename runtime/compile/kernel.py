"""The interface of kernels: `select` at compile time, `prepare` at instantiation, then only calls.

A kernel is chosen once from types (`select` answers a Choice or a reason), and prepared once per set of buffers
(`prepare` answers a call without arguments that writes into the buffers it was given).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

from ...ops import DType, Tensor, Type
from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import ExecutionError
from ...ops.types import Array
from ..ir.graph import Node

Call = Callable[[], Any]
Scratch = Callable[[DType, tuple[int, ...]], Array]


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Compile-time description of the machine: the device, the number of threads for one step, whether oneDNN is used
    where installed, the arithmetic of float32 products (`strict`, or operands rounded to `bf16` or `tf32`), the
    architecture of a GPU (90 for sm_90; 0 on the CPU), whether seeded operators draw NumPy's numbers, and the handling
    of NaN and infinities. A `watched` run that met one is repeated (see onednn/invalid.py) by an `exact` program; where
    states are written, so that no run can be repeated, no NaN is lost (`kept`). With `one_layout` a weight is read in
    the layout that serves any number of rows, though single rows may have a faster one: both would be held at once."""

    device: str = "cpu"
    threads: int = 1
    onednn: bool = True
    math: str = "strict"
    sm: int = 0
    numpy_random: bool = False
    nan: str = "watched"
    one_layout: bool = False


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
    arrays that are then copied into their slots. `layouts` names the memory layouts of all inputs, then of all outputs
    (empty: row-major throughout); `implementation` is the library's name for what runs; `saved` names the outputs of a
    training twin. `primitives` describes what is made of a library, or launched on a GPU, as frozen dataclasses
    (operands with their layouts, post-ops, settings): `prepare` makes just these, and asks nothing again.
    """

    kernel: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    workspace: int = 0
    aliases: tuple[Alias, ...] = ()
    allocates: bool = False
    layouts: tuple[str, ...] = ()
    implementation: str = ""
    saved: tuple[str, ...] = ()
    capturable: bool = True
    deterministic: bool = True
    primitives: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Declined:
    """The reason why a kernel does not serve a node."""

    reason: str


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """One step before a kernel is chosen: a node and the types of its operands and results.

    The inputs' layouts are those in which they are at hand (a kernel may want others: they are then reordered), those
    of the outputs are what their readers would like best. `constants` tells which inputs are constant, so that they
    can be packed ahead of time. `trial`: no step comes of the answer, it only tells whether a kernel takes the node at
    all, so that nothing need be measured.
    """

    node: Node
    inputs: Sequence[Type | None]
    outputs: Sequence[Type]
    constants: Sequence[bool] = ()
    target: TargetSpec = field(default_factory=TargetSpec)
    trial: bool = False
    keys: list[Any] = field(
        default_factory=list[Any], init=False, compare=False, repr=False
    )  # its cache key, once made

    def constant(self, i: int) -> bool:
        """Return True if input `i` is a constant."""
        return i < len(self.constants) and self.constants[i]

    @property
    def results(self) -> list[Type | None]:
        """The types of all outputs of the node; None for those that nobody wants, which `outputs` leaves out."""
        wanted = iter(self.outputs)
        return [next(wanted) if name else None for name in self.node.outputs]


class Exchange(Protocol):
    """The store behind a program's Emit and Await, shared with other processes (train/exchange.py).

    `part` is added to the keys of random numbers, so that each process draws its own.
    """

    @property
    def part(self) -> tuple[int, ...]: ...
    def buffer(self, key: str, type: Tensor) -> Array:
        """Return the buffer for the value of a key, of this type: the same array each time. Raises InputError for
        another type."""
        ...

    def emit(self, key: str, verb: str = "all_reduce") -> None:
        """The value in the buffer is final; nobody touches it until `wait`. `verb` is that of an Emit."""
        ...

    def wait(self, key: str) -> Array:
        """Wait for the store's answer and return it: the buffer, or an array that is valid until the next `emit`."""
        ...

    def sum_rows(self, key: str, ids: Array, rows: Array) -> tuple[Array, Array]:
        """The rows that any process has of a value, summed: their numbers, ascending, and they. Waits for the others;
        valid until the next sum of the key."""
        ...


def nothing() -> None:
    """The call of a step that has nothing to do: its result is where it belongs already."""


@dataclass(frozen=True, slots=True)
class KernelArgs:
    """One step for a kernel to prepare: the request, the choice and the buffers.

    Inputs are None where absent. `scratch(dtype, shape)` hands out workspace. Where `outputs` is None the kernel
    returns its results instead (Choice.allocates). `bodies` maps attribute names to runnable subgraphs; `key`
    and `numpy_random` serve the references, `words` is where a device has the two words that the step draws with,
    `exchange` is the store that Emit and Await speak to. `check()` raises where the run is to end, for long loops,
    which may collect `room` bytes. `shared` is where a library may keep its objects for buffers, which the
    steps of one instance share; None where the buffers of the step move.
    """

    request: KernelRequest
    choice: Choice
    inputs: Sequence[Array | None]
    outputs: Sequence[Array | None]
    scratch: Scratch
    bodies: Mapping[str, Any] = field(default_factory=dict[str, Any])
    key: Callable[[], tuple[int, ...]] = tuple
    numpy_random: bool = False
    words: Any = None
    exchange: Exchange | None = None
    check: Callable[[], None] = nothing
    room: int = 1 << 62
    shared: dict[Any, Any] | None = None

    @property
    def node(self) -> Node:
        return self.request.node


class Kernel(Protocol):
    """An implementation of some operators for one kind of device.

    One that says `remembers = True` looks at nothing but what the cache key of a request has, so that its
    answer serves all nodes of that key. One that packs (`Packs`), or says `any_layout = True`, is asked with the
    layouts that its operands have; the others see them row-major.
    """

    @property
    def name(self) -> str: ...
    def serves(self, node: Node) -> bool: ...
    def select(self, request: KernelRequest) -> Choice | Declined: ...
    def prepare(self, args: KernelArgs) -> Call: ...


def listed(names: str) -> frozenset[tuple[str, str]]:
    """Domain and name of each operator of a list.

    >>> sorted(listed("Softmax mezzo::SoftmaxGrad"))
    [('', 'Softmax'), ('mezzo', 'SoftmaxGrad')]
    """
    parts = (name.rpartition("::") for name in names.split())
    return frozenset((domain, op) for domain, _, op in parts)


class Listed:
    """Base of kernels that name the operators they serve."""

    operators: ClassVar[frozenset[tuple[str, str]]]

    def serves(self, node: Node) -> bool:
        """True if the node's operator is among those named."""
        return (node.domain, node.op) in self.operators


@runtime_checkable
class Packs(Protocol):
    """A kernel with layouts of its own, which packs constants into them."""

    def pack(self, request: KernelRequest, choice: Choice, index: int, array: Array) -> Array:
        """The bytes of constant input `index` in the layout that the choice, the answer to `request`, names."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """A kernel whose choice was measured, so that it could differ today."""

    def recall(self, request: KernelRequest, choice: Choice) -> None:
        """Let `select` answer with what a stored program holds. Raises MezzoError where that is not to be had."""
        ...


@runtime_checkable
class Rebinds(Protocol):
    """A prepared call that can be given other buffers of the same types."""

    def rebind(self, place: tuple[str, int], array: Array) -> None:
        """Let input ("in", i) or output ("out", i) be another array."""
        ...


def without_layouts(request: KernelRequest) -> KernelRequest:
    """The question to a kernel that knows no layouts, or to one that takes and gives none here."""
    return replace(
        request, inputs=[_row_major(t) for t in request.inputs], outputs=list(map(_row_major, request.outputs))
    )


T = TypeVar("T", bound=Type | None)


def _row_major(type: T) -> T:
    return cast(T, replace(type, layout="")) if isinstance(type, Tensor) and type.layout else type


def anchor(node: Node) -> tuple[str, str]:
    """Domain and name of the operator that a node begins with."""
    if (node.domain, node.op) == ("mezzo", "Fused"):
        domain, op, *_ = node.attrs["chain"][0]
        return domain, op
    return node.domain, node.op


def failed(status: int) -> ExecutionError:
    """The error for a prepared call that returned a status other than 0: libraries answer so."""
    return ExecutionError(f"the library behind this step answered with status {status}", hint="see `mezzo doctor`")


def answered(call: Any, status: int) -> None:
    """Raise the error for a prepared call that returned a status other than 0. Calls with a method `judge` say
    themselves what theirs means."""
    judge = getattr(call, "judge", None)
    if judge is None:
        raise failed(status)
    judge(status)


def tensors(types: Sequence[Type | None]) -> list[Tensor] | None:
    """The types, if every one is a tensor of numbers; else None."""
    numeric = [t for t in types if isinstance(t, Tensor) and t.dtype is not DType.STRING]
    return numeric if len(numeric) == len(types) else None
