"""A stand-in for the module `cudnn`, for machines without a GPU: it computes graphs with NumPy from what cuDNN's pages
say of the operations. It is no cuDNN: which graphs cuDNN has engines for, only cuDNN tells (test_gpu_cudnn.py asks it
where it is installed).

    standin = Standin(computes=True)
    standin.install(monkeypatch)
    library = CudnnStandin(standin)
    library.install(monkeypatch)

Tensors are read and written at their addresses, by their own sizes and strides, where the device `computes`. A graph
has three plans: `eng0`, which a draft may bar by the note that `notes` gives it, `eng1`, and `eng2`; `times` tells how
long each takes.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mezzo.runtime.backends.cuda.cudnn import library, plans

from .cupy_standin import Standin

Array = Any  # NumPy's; what it is made of is not for mypy
TYPES = {"FLOAT": np.float32, "HALF": np.float16, "BFLOAT16": ml_dtypes.bfloat16, "DOUBLE": np.float64}
PLANS = ("eng0", "eng1", "eng2")
WORKSPACE = {"eng0": 0, "eng1": 640, "eng2": 64}


class GraphNotSupportedError(Exception):
    """As cuDNN's: there is no engine."""


@dataclass
class CudnnStandin:
    """The state: what was built and run, and how plans behave."""

    device: Standin
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    times: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(PLANS, 1.0))
    stored: list[Graph] = field(default_factory=list)
    run: list[str] = field(default_factory=list)
    built: list[str] = field(default_factory=list)
    streams: dict[int, int] = field(default_factory=dict)
    refuses: Callable[[Graph], bool] = lambda graph: False
    says: Callable[[str], Exception] = GraphNotSupportedError  # what is raised then

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let `import cudnn` find this, until the test ends."""
        monkeypatch.setattr(library, "DRIVER", ctypes.util.find_library("c"))  # one that is there
        monkeypatch.setitem(sys.modules, "cudnn", self.module())
        monkeypatch.setattr(plans, "PLANS", plans.Plans())
        monkeypatch.setattr("mezzo.runtime.backends.cuda.cudnn.kernel.PLANS", plans.PLANS)
        monkeypatch.setattr(library, "_HANDLES", library._CudnnHandles())
        forget()

    def module(self) -> types.ModuleType:
        made = types.ModuleType("cudnn")
        names = {
            "data_type": types.SimpleNamespace(**{name: name for name in TYPES}),
            "numerical_note": types.SimpleNamespace(**{
                n: n for n in ("NONDETERMINISTIC", "DOWN_CONVERT_INPUTS", "TENSOR_CORE", "REDUCED_PRECISION_REDUCTION")
            }),
            "heur_mode": types.SimpleNamespace(A="A", FALLBACK="FALLBACK"),
            "scalar_type": types.SimpleNamespace(COMPILE_TIME_CONST="constant"),
            "backend_version": lambda: 92800,
            "backend_version_string": lambda: "9.28.0",
            "__version__": "stand-in",
            "create_device_properties": lambda of: types.SimpleNamespace(serialize=lambda: f"properties of {of}"),
            "create_handle": self._create_handle,
            "set_stream": self._set_stream,
            "pygraph": lambda **settings: Graph(self, **settings),
        }  # fmt: skip
        for name, value in names.items():
            setattr(made, name, value)
        return made

    def _create_handle(self) -> Handle:
        self.device.refuse_in_capture("cudnnCreate")
        return Handle()

    def _set_stream(self, *, handle: Handle, stream: int) -> None:
        handle.stream = stream


def forget() -> None:
    """Let cuDNN be looked for again; also when a test ends."""
    library.find.cache_clear()
    library.properties.cache_clear()


class Handle:
    """A handle: it holds the stream."""

    stream = 0


class Tensor:
    """A tensor of a graph; the result of an operation has its sizes from that."""

    def __init__(
        self, dim: Sequence[int] = (), stride: Sequence[int] = (), data_type: str = "", uid: int = 0, name: str = ""
    ) -> None:
        self.dim, self.stride, self.data_type, self.uid, self.name = list(dim), list(stride), data_type, uid, name
        self.output, self.value = False, 0.0

    def set_output(self, output: bool) -> Tensor:
        self.output = output
        return self

    def set_data_type(self, data_type: str) -> Tensor:
        self.data_type = data_type
        return self

    def set_uid(self, uid: int) -> Tensor:
        self.uid = uid
        return self

    def set_dim(self, dim: list[int]) -> Tensor:
        assert not self.dim or self.dim == dim, f"the operation makes {self.dim}, not {dim}"
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Tensor:
        assert len(stride) == len(self.dim)
        self.stride = stride
        return self


class Graph:
    """A graph, its plans, and how it is run."""

    def __init__(
        self, standin: CudnnStandin, io_data_type: str = "", intermediate_data_type: str = "",
        compute_data_type: str = "", device_property: Any = None, sm_version: int = 0,
    ) -> None:  # fmt: skip
        self._standin = standin
        self.wide, self.properties, self.sm = compute_data_type, device_property, sm_version
        assert intermediate_data_type == compute_data_type
        self.tensors: dict[int, Tensor] = {}
        self.nodes: list[tuple[str, tuple[Tensor, ...], dict[str, Any], Tensor]] = []
        self.barred: set[str] = set()
        self.plan = ""
        self.planned = False

    # -- putting it together -----------------------------------------------------------------------------------------

    def tensor(self, *, name: str, uid: int, dim: list[int], stride: list[int], data_type: str) -> Tensor:
        assert uid not in self.tensors
        assert len(dim) == len(stride)
        self.tensors[uid] = Tensor(dim, stride, data_type, uid, name)
        return self.tensors[uid]

    def tensor_scalar(self, value: float, scalar_type: str) -> Tensor:
        assert scalar_type == "constant"
        made = Tensor([1], [1])
        made.value = value
        return made

    def _node(self, op: str, given: tuple[Tensor, ...], dim: list[int], **settings: Any) -> Tensor:
        made = Tensor(dim)
        self.nodes.append((op, given, settings, made))
        return made

    def conv_fprop(
        self, image: Tensor, weight: Tensor, pre_padding: list[int], post_padding: list[int], stride: list[int],
        dilation: list[int],
    ) -> Tensor:  # fmt: skip
        spatial = [
            (n + a + b - (k - 1) * d - 1) // s + 1
            for n, k, a, b, s, d in zip(
                image.dim[2:], weight.dim[2:], pre_padding, post_padding, stride, dilation, strict=True
            )
        ]
        settings = {"before": pre_padding, "stride": stride, "dilation": dilation}
        return self._node("conv_fprop", (image, weight), [image.dim[0], weight.dim[0], *spatial], **settings)

    def conv_dgrad(
        self, loss: Tensor, filter: Tensor, pre_padding: list[int], post_padding: list[int], stride: list[int],
        dilation: list[int],
    ) -> Tensor:  # fmt: skip
        made = self._node(
            "conv_dgrad", (loss, filter), [], before=pre_padding, after=post_padding, stride=stride, dilation=dilation
        )
        return made

    def conv_wgrad(
        self, image: Tensor, loss: Tensor, pre_padding: list[int], post_padding: list[int], stride: list[int],
        dilation: list[int],
    ) -> Tensor:  # fmt: skip
        settings = {"before": pre_padding, "after": post_padding, "stride": stride, "dilation": dilation}
        return self._node("conv_wgrad", (image, loss), [], **settings)

    def matmul(self, A: Tensor, B: Tensor) -> Tensor:
        return self._node("matmul", (A, B), [*A.dim[:-1], B.dim[-1]])

    def sdpa(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, *, attn_scale: float, use_causal_mask: bool,
        generate_stats: bool,
    ) -> tuple[Tensor, None]:  # fmt: skip
        assert not generate_stats
        given = (q, k, v) if bias is None else (q, k, v, bias)
        settings = {"scale": attn_scale, "causal": use_causal_mask}
        return self._node("sdpa", given, [*q.dim[:3], v.dim[3]], **settings), None

    def bias(self, input: Tensor, bias: Tensor) -> Tensor:
        return self._elements("add", input, bias)

    def relu(
        self, input: Tensor, negative_slope: float = 0, lower_clip: float = 0, upper_clip: float = math.inf
    ) -> Tensor:
        return self._node("relu", (input,), input.dim, slope=negative_slope, low=lower_clip, high=upper_clip)

    def swish(self, input: Tensor, swish_beta: float = 1.0) -> Tensor:
        return self._node("swish", (input,), input.dim, beta=swish_beta)

    def _elements(self, op: str, *given: Tensor) -> Tensor:
        shapes = [tuple(t.dim) if t.dim else () for t in given if t.dim != [1]]
        return self._node(op, given, list(np.broadcast_shapes(*shapes)))

    def __getattr__(self, name: str) -> Any:
        if name in ("add", "sub", "mul", "div"):
            return lambda a, b: self._elements(name, a, b)
        if name in ("max", "min", "pow"):
            return lambda input0, input1: self._elements(name, input0, input1)
        if name in UNARY:
            return lambda input: self._elements(name, input)
        raise AttributeError(name)

    # -- planning ----------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        outputs = [made for *_, made in self.nodes if made.output]
        assert len(outputs) == 1, "one result"
        assert outputs[0].dim
        assert len(outputs[0].stride) == len(outputs[0].dim)
        self.tensors[outputs[0].uid] = outputs[0]
        assert sorted(self.tensors) == list(range(1, len(self.tensors) + 1))

    def build_operation_graph(self) -> None:
        if self._standin.refuses(self):
            raise self._standin.says("no engine")

    def create_execution_plans(self, modes: list[str]) -> None:
        assert modes == ["A", "FALLBACK"]
        self.planned = True

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        assert self.planned
        self.barred = {plan for plan, note in self._standin.notes.items() if note in notes}

    def get_execution_plan_count(self) -> int:
        return len(PLANS)

    def get_plan_name_at_index(self, index: int) -> str:
        return PLANS[index]

    def build_plan_at_index(self, index: int) -> None:
        self._standin.device.refuse_in_capture("cudnn: building plans")
        if PLANS[index] in self.barred:
            raise GraphNotSupportedError("Deselecting execution plan")
        self._standin.built.append(PLANS[index])
        self.plan = PLANS[index]

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return WORKSPACE[PLANS[index]]

    def get_workspace_size(self) -> int:
        return WORKSPACE[self.plan]

    def serialize(self) -> list[int]:
        assert self.plan
        self._standin.stored.append(self)
        return list(f"{len(self._standin.stored) - 1} {self.plan}".encode())

    def deserialize(self, handle: Handle, data: list[int]) -> None:
        assert isinstance(handle, Handle)
        number, self.plan = bytes(data).decode().split()
        held = self._standin.stored[int(number)]
        self.tensors, self.nodes, self.wide = held.tensors, held.nodes, held.wide

    # -- running -----------------------------------------------------------------------------------------------------

    def execute(self, pointers: dict[int, int], workspace: int, handle: Handle) -> None:
        assert sorted(pointers) == sorted(self.tensors)
        assert all(type(p) is int and p for p in pointers.values())
        assert WORKSPACE[self.plan] == 0 or workspace
        device = self._standin.device
        on = next(s for s in (*device._streams, device.null) if s.ptr == handle.stream)
        output = next(t for *_, t in self.nodes if t.output)

        def work() -> None:
            places = {uid: (at, at + extent(self.tensors[uid])) for uid, at in pointers.items()}
            device.touch(on, [p for uid, p in places.items() if uid != output.uid], [places[output.uid]])
            device.say("launch", f"cudnn {self.plan}", 0, on)
            device.clock += self._standin.times[self.plan]
            self._standin.run.append(self.plan)
            if device.computes:
                device.later(on, lambda: self._compute(pointers))

        device.submit(on, work, f"cudnn {self.plan}")

    def execute_plan_at_index(self, pointers: dict[int, int], workspace: int, index: int, handle: Handle) -> None:
        self.plan = PLANS[index]
        self.execute(pointers, workspace, handle)

    def _compute(self, pointers: Mapping[int, int]) -> None:
        wide: Any = TYPES[self.wide]
        known = {id(t): at_address(t, pointers[uid]).astype(wide) for uid, t in self.tensors.items() if not t.output}
        for op, given, settings, made in self.nodes:
            values = [known.get(id(t), wide(t.value)) for t in given]
            known[id(made)] = compute(op, values, settings, made.dim).astype(wide)
            assert list(known[id(made)].shape) == made.dim, f"{op} makes {known[id(made)].shape}, not {made.dim}"
            if made.output:
                at_address(made, pointers[made.uid])[...] = known[id(made)]


def extent(t: Tensor) -> int:
    """Bytes up to the end of the last element."""
    last = sum((n - 1) * s for n, s in zip(t.dim, t.stride, strict=True))
    return int((last + 1) * np.dtype(TYPES[t.data_type]).itemsize)


def at_address(t: Tensor, address: int) -> Array:
    """The elements of a tensor, where they lie."""
    kind = np.dtype(TYPES[t.data_type])
    held: Any = (ctypes.c_char * extent(t)).from_address(address)
    raw = np.frombuffer(held, kind)
    return np.lib.stride_tricks.as_strided(raw, t.dim, [s * kind.itemsize for s in t.stride])


def erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "cos": np.cos,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "erf": erf,
    "exp": np.exp,
    "floor": np.floor,
    "gelu": lambda x: x / 2 * (1 + erf(x / math.sqrt(2))),
    "gelu_approx_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "log": np.log,
    "neg": np.negative,
    "reciprocal": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "pow": np.power,
}  # fmt: skip


def compute(op: str, values: Sequence[Array], settings: Mapping[str, Any], dim: Sequence[int]) -> Array:
    """The result of one operation."""
    if op in UNARY:
        return UNARY[op](*values)
    if op in BINARY:
        return BINARY[op](*values)
    match op:
        case "relu":
            (x,) = values
            low, high = settings["low"], settings["high"]
            return np.where(x > high, high, np.where(x < low, low + settings["slope"] * (x - low), x))
        case "swish":
            return values[0] / (1 + np.exp(-settings["beta"] * values[0]))
        case "conv_fprop":
            return _taps(values[0], values[1], settings, dim, back=False)
        case "conv_dgrad":
            return _taps(values[0], values[1], settings, dim, back=True)
        case "conv_wgrad":
            return _weights(values[0], values[1], settings, dim)
        case "matmul":
            return np.matmul(values[0], values[1])
        case "sdpa":
            return _attention(*values, scale=settings["scale"], causal=settings["causal"])
    raise AssertionError(op)


def _taps(x: Array, w: Array, settings: Mapping[str, Any], dim: Sequence[int], back: bool) -> Array:
    """A convolution of x, or what a convolution gives back to its image for x: place by place of the kernel."""
    before, stride, dilation = settings["before"], settings["stride"], settings["dilation"]
    made = np.zeros(dim, np.float64)
    image, result = (made, x) if back else (x, made)
    group = image.shape[1] // w.shape[1]
    per = w.shape[0] // group  # filters of a group
    for at in itertools.product(*map(range, w.shape[2:])):
        inside, outside = [], []
        for axis, (k, a, s, d) in enumerate(zip(at, before, stride, dilation, strict=True)):
            places = np.arange(result.shape[axis + 2]) * s + k * d - a
            seen = (places >= 0) & (places < image.shape[axis + 2])
            inside.append(places[seen])
            outside.append(np.flatnonzero(seen))
        for g in range(group):
            filters, channels = (np.arange(g * n, (g + 1) * n) for n in (per, w.shape[1]))
            tap = w[(slice(g * per, (g + 1) * per), slice(None), *at)].astype(np.float64)
            here = np.ix_(np.arange(x.shape[0]), channels, *inside)
            there = np.ix_(np.arange(x.shape[0]), filters, *outside)
            if back:
                made[here] += np.einsum("kc,nk...->nc...", tap, x[there])
            else:
                made[there] += np.einsum("kc,nc...->nk...", tap, x[here])
    return made


def _weights(x: Array, dy: Array, settings: Mapping[str, Any], dim: Sequence[int]) -> Array:
    """What a convolution of x gives back to its weights for dy: at each place of the kernel the sum of the products."""
    made = np.zeros(dim, np.float64)
    group, per = x.shape[1] // dim[1], dy.shape[1] * dim[1] // x.shape[1]
    for at in itertools.product(*map(range, dim[2:])):
        inside, outside = [], []
        ways = (settings["before"], settings["stride"], settings["dilation"])
        for axis, (k, a, s, d) in enumerate(zip(at, *ways, strict=True), 2):
            places = np.arange(dy.shape[axis]) * s + k * d - a
            seen = (places >= 0) & (places < x.shape[axis])
            inside.append(places[seen])
            outside.append(np.flatnonzero(seen))
        for g in range(group):
            filters, channels = (np.arange(g * n, (g + 1) * n) for n in (per, dim[1]))
            here = x[np.ix_(np.arange(x.shape[0]), channels, *inside)].astype(np.float64)
            there = dy[np.ix_(np.arange(x.shape[0]), filters, *outside)].astype(np.float64)
            place: Any = (filters, slice(None), *at)
            made[place] = np.einsum("nkp,ncp->kc", _flat(there), _flat(here))
    return made


def _flat(x: Array) -> Array:
    """All axes behind the channels as one."""
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]))


def _attention(q: Array, k: Array, v: Array, bias: Array | None = None, *, scale: float, causal: bool) -> Array:
    shared = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, shared, 1), np.repeat(v, shared, 1)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * scale
    scores = scores if bias is None else scores + bias
    if causal:
        scores = np.where(np.tri(*scores.shape[2:]) > 0, scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bhkd->bhqd", e / e.sum(-1, keepdims=True), v)
