"""Matrix products of cuBLASLt as kernels: algorithms are chosen, timed once, kept on disk; calls are prepared."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .....ops import DType, Tensor
from .....ops.types import Array
from ....compile.kernel import Alias, Call, Choice, Declined, KernelArgs, KernelRequest, TargetSpec, anchor
from ....ir.graph import Node
from ..cache import key_of, read, write
from ..cudnn.library import is_plan
from ..driver import cupy, described, index_of
from ..found import needed
from ..generated import laid
from ..memory import check_operand
from ..timing import TIMED, fastest, filled, milliseconds, no_room
from .library import ALIGNED, HANDLES, Algorithm, CublasLt, Descriptors, alignment, find
from .product import LtProduct, LtRefused, Matrix
from .written import written

KIND, FORM = "cublaslt", "1"
BY_RULE = "cuBLASLt, by rule"  # the implementation, where there is no cuBLASLt to ask
OPERATORS = frozenset({("", "MatMul"), ("", "Gemm"), ("com.microsoft", "FusedMatMul")})


def workspace_of(sm: int) -> int:
    """Bytes of workspace that an algorithm may take: what cuBLAS takes itself."""
    return 32 << 20 if sm >= 90 else 4 << 20


class Algorithms:
    """Cache of this process: the chosen algorithm of each product and device."""

    def __init__(self) -> None:
        self._algorithms: dict[tuple[LtProduct, str, int], Algorithm | LtRefused] = {}
        self._lock = threading.RLock()

    def best(self, product: LtProduct, target: TargetSpec, *, timed: bool) -> Algorithm:
        """The algorithm to take, the fastest where `timed` asks for it. Raises Refused where there is none."""
        at = product, target.device, target.sm
        with self._lock:
            algorithm = self._algorithms.get(at) or self._kept(product, target)
            if algorithm is None or (timed and isinstance(algorithm, Algorithm) and algorithm.milliseconds is None):
                algorithm = self._asked(product, target, timed)
            if isinstance(algorithm, LtRefused) and algorithm.for_now:
                raise algorithm
            self._algorithms[at] = algorithm
        if isinstance(algorithm, LtRefused):
            raise algorithm
        return algorithm

    def recall(self, product: LtProduct, target: TargetSpec, algorithm: Algorithm) -> None:
        """Take what was chosen elsewhere, on such a device."""
        with self._lock:
            self._algorithms[product, target.device, target.sm] = algorithm

    def forget(self) -> None:
        """Let go of all; for tests."""
        with self._lock:
            self._algorithms.clear()

    def _kept(self, product: LtProduct, target: TargetSpec) -> Algorithm | None:
        held = read(KIND, _key(product, target))
        return None if held is None else Algorithm(**json.loads(held))

    def _asked(self, product: LtProduct, target: TargetSpec, timed: bool) -> Algorithm | LtRefused:
        try:
            descriptors = Descriptors(_library(), product)
            handle = HANDLES.get(descriptors.library, index_of(target.device))
            named = descriptors.algorithms(handle, workspace_of(target.sm), TIMED if timed else 1)
        except LtRefused as error:
            return error
        algorithm = named[0]
        if timed:
            timing = _timed(descriptors, handle, named)
            if timing is None:
                return algorithm  # for now
            algorithm = replace(timing[0], milliseconds=timing[1])
        about = {"data": algorithm.data, "workspace": algorithm.workspace, "milliseconds": algorithm.milliseconds}
        write(KIND, _key(product, target), json.dumps(about).encode())
        return algorithm


ALGORITHMS = Algorithms()


def _timed(descriptors: Descriptors, handle: int, named: Sequence[Algorithm]) -> tuple[Algorithm, float] | None:
    """The fastest algorithm with its time; None where none can be timed now, for want of memory."""
    try:
        return fastest(named, _Clock(descriptors, handle))
    except Exception as error:
        if not no_room(error):
            raise
        return None


class _Clock:
    """Timer of an algorithm over operands of small numbers."""

    def __init__(self, descriptors: Descriptors, handle: int) -> None:
        self._descriptors, self._handle = descriptors, handle
        p = descriptors.product
        self._held = [filled(_extent(m, p.batch) * m.dtype.itemsize) for m in (p.a, p.b, p.c or p.d, p.d)]
        if p.bias is not None:
            self._held.append(filled(p.d.columns * p.d.dtype.itemsize))
            descriptors.point_bias(int(self._held[-1].ptr))

    def __call__(self, algorithm: Algorithm) -> float:
        space = filled(algorithm.workspace)
        a, b, c, d = (int(m.ptr) for m in self._held[:4])
        current = cupy().cuda.get_current_stream

        def run() -> None:
            stream = int(current().ptr)
            self._descriptors.call(self._handle, (a, b, c, d), algorithm, int(space.ptr), stream)

        return milliseconds(run)


def _extent(m: Matrix, batch: int) -> int:
    """Elements from the first to behind the last, at most."""
    return (m.columns if m.turned else m.rows) * m.leading + m.apart * (batch - 1)


def _library() -> CublasLt:
    return needed(find(), error=LtRefused)


def _key(product: LtProduct, target: TargetSpec) -> str:
    about = described(index_of(target.device))
    return key_of(FORM, repr(product), _library().version, about.name, str(about.sm))


class Products:
    """MatMul, Gemm and FusedMatMul, followed by bias, residual, Relu or Gelu."""

    name = "cublaslt.matmul"
    remembers = False  # what is timed only in the end answers differently before: see KernelRequest.trial

    def serves(self, node: Node) -> bool:
        return anchor(node) in OPERATORS

    def select(self, request: KernelRequest) -> Choice | Declined:
        """The product with the algorithm to take; without a device, with the workspace that it may take."""
        try:
            product = written(request)
            algorithm = self._algorithm(request, product)
        except LtRefused as error:
            return Declined(str(error))
        layouts, params = _layouts(request, product), dict[str, Any]()
        if algorithm is not None:
            params = {"algorithm": algorithm.data}
            if algorithm.milliseconds is not None:
                params["milliseconds"] = algorithm.milliseconds
        added = product.c.place[1] if product.c else -1
        once = added >= 0 and request.node.inputs.count(request.node.inputs[added]) == 1
        return Choice(
            self.name,
            params,
            workspace=workspace_of(request.target.sm) if algorithm is None else algorithm.workspace,
            aliases=(Alias(0, added),) if once and layouts[added] == layouts[-1] else (),
            layouts=layouts if any(layouts) else (),
            implementation=BY_RULE if algorithm is None else f"cuBLASLt algorithm {_number(algorithm)}",
            primitives=(product,),
        )

    def recall(self, request: KernelRequest, choice: Choice) -> None:
        """Let `select` answer with the algorithm that a stored program names."""
        data, milliseconds = choice.params.get("algorithm"), choice.params.get("milliseconds")
        if isinstance(find(), str) or not isinstance(data, str) or len(data) != 128:
            raise LtRefused("a program that was made without cuBLASLt is made again")
        time = milliseconds if isinstance(milliseconds, float) else None
        ALGORITHMS.recall(written(request), request.target, Algorithm(data, choice.workspace, time))

    def prepare(self, args: KernelArgs) -> Call:
        """The calls over the buffers of the step, on CuPy's current stream."""
        (product,), target = args.choice.primitives, args.request.target
        library = _library()
        descriptors = Descriptors(library, product)
        handle = HANDLES.get(library, index_of(target.device))
        params = args.choice.params
        algorithm = Algorithm(str(params["algorithm"]), args.choice.workspace)
        space = args.scratch(DType.UINT8, (algorithm.workspace,)) if algorithm.workspace else None
        _check(args, product)
        starts = [_addresses(args, product, start) for start in product.starts]
        if product.bias is not None:
            descriptors.point_bias(_address(args, product.bias))
        aligned = alignment(at for addresses in starts for at in addresses)
        if aligned < ALIGNED:  # a view into another value: what was chosen may read more at once than lies there so
            algorithm = descriptors.algorithms(handle, algorithm.workspace, 1, aligned)[0]
        return _Run(descriptors, handle, starts, algorithm, 0 if space is None else int(space.data.ptr))

    def pack(self, request: KernelRequest, choice: Choice, index: int, array: Array) -> Array:
        """A constant in a layout that is an order of its dims."""
        return laid(array, choice.layouts[index])

    def _algorithm(self, request: KernelRequest, product: LtProduct) -> Algorithm | None:
        if is_plan(request.target.device):
            return None
        _library()
        return ALGORITHMS.best(product, request.target, timed=not request.trial)


class _Run:
    """A sequence of calls."""

    def __init__(
        self, descriptors: Descriptors, handle: int, starts: Sequence[tuple[int, int, int, int]], algorithm: Algorithm,
        workspace: int,
    ) -> None:  # fmt: skip
        self._arguments = descriptors, handle, starts, algorithm, workspace
        self._current = cupy().cuda.get_current_stream

    def __call__(self) -> None:
        descriptors, handle, starts, algorithm, workspace = self._arguments
        stream = int(self._current().ptr)
        for addresses in starts:
            descriptors.call(handle, addresses, algorithm, workspace, stream)


def _check(args: KernelArgs, p: LtProduct) -> None:
    """Raise PlanError where a call would touch bytes behind the end of an operand."""
    for side, m in enumerate((p.a, p.b, p.c or p.d, p.d)):
        rows, columns = (m.columns, m.rows) if m.turned else (m.rows, m.columns)
        last = (rows - 1) * m.leading + columns + m.apart * (p.batch - 1) + max(start[side] for start in p.starts)
        check_operand(_array(args, m.place), last * m.dtype.itemsize, m.dtype.itemsize, m.place)


def _addresses(args: KernelArgs, p: LtProduct, start: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return the addresses of A, B, C and D of one call; C is D if nothing is added."""
    at = [
        _address(args, m.place) + n * m.dtype.itemsize for m, n in zip((p.a, p.b, p.c or p.d, p.d), start, strict=True)
    ]
    if p.c is None:
        at[2] = at[3]
    return at[0], at[1], at[2], at[3]


def _address(args: KernelArgs, place: tuple[str, int]) -> int:
    return int(_array(args, place).data.ptr)


def _array(args: KernelArgs, place: tuple[str, int]) -> Any:
    return (args.inputs if place[0] == "in" else args.outputs)[place[1]]


def _layouts(request: KernelRequest, product: LtProduct) -> tuple[str, ...]:
    """The layouts of all inputs, then of the output; what the product does not read stays as it lies."""
    wanted = {m.place: m.layout for m in product.operands}
    if product.bias is not None:
        wanted[product.bias] = ""
    held = [(("in", i), t.layout if isinstance(t, Tensor) else "") for i, t in enumerate(request.inputs)]
    return (*(wanted.get(place, layout) for place, layout in held), product.d.layout)


def _number(algorithm: Algorithm) -> int:
    """The number by which cuBLASLt calls the algorithm: the first of its words."""
    return int.from_bytes(bytes.fromhex(algorithm.data[:16]), "little") & 0xFFFF
