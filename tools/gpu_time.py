"""A model of how long a program takes on a GPU, step by step: no measurement, and labelled so wherever it is shown.

A launch takes `GAP` between the end of the one before it and its own first work, and at least `LEAST` in all; between,
it is bound by what takes longer, arithmetic or bytes. Each is its count over a rate: that of the card, times the share
of it that kernels of such a kind reach. Shares are from published figures: cuBLAS and cuDNN reach 75 to 80 % of tensor
cores on large products (790 of 989 TFLOP/s on an H100 or H200), FlashAttention 2 and 3 35 to 75 %
(https://arxiv.org/abs/2307.08691, https://arxiv.org/abs/2407.08608), streams of bytes 90 to 93 % of the bandwidth
(https://github.com/UoB-HPC/BabelStream). Products and convolutions whose tiles do not fill the multiprocessors wait for
the last of them. What lies in the second-level cache is counted as if it came from memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..ops import OPS, DType, Tensor, Type
from ..ops.errors import InputError
from ..runtime.backends.cuda.cublaslt.product import LtProduct
from ..runtime.backends.cuda.cudnn.draft import GraphDraft
from ..runtime.backends.cuda.host import host_fallbacks
from ..runtime.backends.cuda.launch import Written
from ..runtime.compile.kernel import anchor
from ..runtime.compile.program import Program, ProgramStep
from ..runtime.memory.liveness import Space
from .report import Table

GAP, LEAST = 1.0e-6, 2.2e-6  # seconds: nodes of a CUDA graph that wait for each other
TILE = 128  # rows and columns of a product that one multiprocessor works on
DEPTH = 512  # of the inner axis that a part of a split product has at least


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU: floating-point operations a second by kind of arithmetic, bytes a second of its memory and of the link to
    the host, multiprocessors."""

    name: str
    rates: Mapping[str, float]
    bandwidth: float
    link: float
    processors: int


# https://www.nvidia.com/en-us/data-center/h100/, .../h200/, .../a100/: dense rates of the SXM forms
CARDS = {
    c.name: c
    for c in (
        Card("A100", {"half": 312e12, "tf32": 156e12, "fp32": 19.5e12, "fp64": 9.7e12}, 2.04e12, 25e9, 108),
        Card("H100", {"half": 989e12, "tf32": 495e12, "fp32": 67e12, "fp64": 34e12}, 3.35e12, 50e9, 132),
        Card("H200", {"half": 989e12, "tf32": 495e12, "fp32": 67e12, "fp64": 34e12}, 4.8e12, 50e9, 132),
    )
}
# What kernels of a kind reach: of arithmetic, of bandwidth.
SHARES: dict[str, tuple[float, float]] = {
    "product": (0.80, 0.90),  # cuBLASLt
    "convolution": (0.70, 0.85),  # cuDNN, implicit products
    "attention": (0.50, 0.85),  # cuDNN, one kernel
    "our product": (0.30, 0.60),  # 4 x 4 sums for a thread, no tensor cores
    "recurrence": (0.15, 0.50),  # few blocks, one step after the other
    "rows": (0.50, 0.80),  # reductions, normalisation, softmax
    "moved": (0.50, 0.75),  # transposes, gathers, windows: not in the order of memory
    "element": (0.50, 0.90),  # element by element
}
KINDS = {
    "cublaslt.matmul": "product", "cudnn.conv": "convolution", "cudnn.conv_transpose": "convolution",
    "cudnn.attention": "attention", "cudnn.matmul": "product", "cudnn.conv_grad_input": "convolution",
    "cudnn.conv_grad_weights": "convolution", "gpu.total_norm": "rows",
    "gpu.gemm": "our product", "gpu.conv": "our product", "gpu.einsum": "our product",
    "gpu.recurrence": "recurrence", "gpu.linear_attention": "our product", "gpu.fourier": "our product",
    "gpu.pointwise": "element", "gpu.random": "element", "gpu.made": "element", "gpu.quantise": "element",
    "gpu.reduce": "rows", "gpu.softmax": "rows", "gpu.normalisation": "rows", "gpu.batch_normalisation": "element",
    "gpu.batch_training": "rows", "gpu.losses": "rows", "gpu.global_pool": "rows",
}  # fmt: skip
LOOKED_UP = ("gather", "pick", "slice")  # moves that read as much of the first input as they write


@dataclass(frozen=True, slots=True)
class StepTime:
    """Expected cost of a step: `seconds`, its launches, bytes read and written, operations, and what bounds it:
    `arithmetic`, `bytes`, `launches`, `tiles` (too few for the card) or `the host`."""

    index: int
    step: ProgramStep
    kind: str
    launches: int
    nbytes: int
    flops: float
    seconds: float
    bound: str


def card_for(program: Program, name: str = "") -> Card:
    """The card of that name, or the usual one of the program's architecture."""
    name = name or ("H100" if program.target.sm >= 90 else "A100")
    if name not in CARDS:
        raise InputError(f"no card is named {name}", hint=f"there are {', '.join(CARDS)}")
    return CARDS[name]


def step_times(program: Program, card: Card) -> list[StepTime]:
    """Return the expected cost of each step of a program for a GPU."""
    on_host = {a.index: a for a in host_fallbacks(program)}
    places = _places(program)
    times = []
    for i, step in enumerate(program.steps):
        if i in on_host:
            copies = on_host[i].copies
            nbytes = sum(c.nbytes or 0 for c in (*copies.down, *copies.up))
            times.append(StepTime(i, step, "host", 0, nbytes, 0.0, nbytes / card.link + 20e-6, "the host"))
        else:
            times.append(_on_device(program, i, step, card, places))
    return times


def copies_seconds(program: Program, card: Card) -> float:
    """Inputs to the device and results back, over the link: 10 us for each way, and their bytes."""
    nbytes = sum(t.nbytes for t in (program.types[n] for n in program.staged) if isinstance(t, Tensor))
    return 20e-6 + nbytes / card.link


def _on_device(program: Program, i: int, step: ProgramStep, card: Card, places: Mapping[str, int]) -> StepTime:
    kind = KINDS.get(step.choice.kernel, "moved")
    share, moved = SHARES[kind]
    calls = _calls(step, places)
    if not calls:
        return StepTime(i, step, kind, 0, 0, 0.0, 0.0, "nothing to do")
    nbytes = _bytes(program.types, step)
    flops, rate, fill = _arithmetic(program.types, step, card)
    computing, moving = flops / (rate * share * fill), nbytes / (card.bandwidth * moved)
    work = max(computing, moving)
    seconds = max(calls * LEAST, calls * GAP + work)
    bound = (
        "launches"
        if seconds == calls * LEAST
        else "bytes"
        if moving >= computing
        else "tiles"
        if fill < 0.7
        else "arithmetic"
    )
    return StepTime(i, step, kind, calls, nbytes, flops, seconds, bound)


def _calls(step: ProgramStep, places: Mapping[str, int]) -> int:
    """Kernels that a run launches: copies of what lies in its place already are none."""
    ins, outs = ([places.get(n, -(1 << 40)) for n in names] for names in (step.node.inputs, step.node.outputs))
    count = 0
    for primitive in step.choice.primitives:
        if isinstance(primitive, Written):
            count += sum(not launch.in_place(ins, outs) for launch in primitive.launches)
        elif isinstance(primitive, LtProduct):
            count += len(primitive.starts)
        else:
            count += 1
    if not step.choice.primitives and step.node.outputs:  # an identity, where its ends are one
        count = int(ins[:1] != outs[:1])
    return count


def _places(program: Program) -> dict[str, int]:
    """An address for each value: that of the plan in the arena, one of its own elsewhere."""
    addresses: dict[str, int] = {}
    for n, slot in enumerate(program.plan.slots):
        addresses[slot.life.value] = slot.offset if slot.life.space is Space.ARENA else (n + 2) << 44
    at = (1 << 43) + program.plan.size
    for name in program.staged:
        known = program.types[name]
        if isinstance(known, Tensor):
            addresses[name] = at
            at += -(-known.nbytes // 64) * 64
    for before, after in program.states.items():
        addresses[after] = addresses.setdefault(before, (len(addresses) + 2) << 44)
    return addresses


def _size(type: Type | None) -> int:
    return type.nbytes if isinstance(type, Tensor) and type.static else 0


def _bytes(types: Mapping[str, Type], step: ProgramStep) -> int:
    """Bytes that must be read and written; what launches hand to each other in the workspace, twice."""
    written = [p for p in step.choice.primitives if isinstance(p, Written)]
    if written and any(launch.copies for w in written for launch in w.launches):  # parts of an operand, moved once
        return 2 * sum(_size(types.get(o)) for o in step.node.outputs if o)
    results = sum(_size(types.get(o)) for o in step.node.outputs if o)
    operands = [_size(types.get(n)) for n in step.node.inputs if n]
    if step.node.record.moves in LOOKED_UP and operands:
        operands[0] = min(operands[0], results)
    if step.choice.kernel == "gpu.scatter" and step.choice.aliases:
        results = min(results, 2 * sum(operands[1:]))
        operands[0] = 0
    workspace = step.choice.workspace if written and len(written[0].launches) > 1 else 0
    return sum(operands) + results + 2 * workspace


def _arithmetic(types: Mapping[str, Type], step: ProgramStep, card: Card) -> tuple[float, float, float]:
    """Operations, the rate of their kind, and the share of multiprocessors that the tiles of a product keep busy."""
    for primitive in step.choice.primitives:
        if isinstance(primitive, LtProduct):
            d, inner = primitive.d, primitive.a.columns
            count = primitive.batch * len(primitive.starts)
            rate = card.rates[arithmetic(d.dtype if d.dtype.narrow else primitive.a.dtype, primitive.math)]
            return 2.0 * d.rows * d.columns * inner * count, rate, filled(d.rows, d.columns, inner, count, card)
        if isinstance(primitive, GraphDraft):
            return _of_graph(primitive, card)
    elements = max(
        (t.elements or 0 for t in map(types.get, (*step.node.inputs, *step.node.outputs)) if isinstance(t, Tensor)),
        default=0,
    )
    multiplied = _inner(types, step)
    narrow = (
        DType.DOUBLE
        if any(isinstance(t, Tensor) and t.dtype is DType.DOUBLE for t in map(types.get, step.node.inputs))
        else DType.FLOAT
    )
    links = len(step.node.attrs.get("chain", ())) or 1
    flops = 2.0 * multiplied if multiplied else float(elements * links * 4)
    return flops, card.rates[arithmetic(narrow, "strict")], 1.0


def arithmetic(dtype: DType, math: str) -> str:
    """The kind of arithmetic of a product.

    >>> arithmetic(DType.FLOAT16, "strict"), arithmetic(DType.FLOAT, "tf32"), arithmetic(DType.FLOAT, "strict")
    ('half', 'tf32', 'fp32')
    """
    if dtype.narrow:
        return "half"
    return "fp64" if dtype is DType.DOUBLE else "tf32" if math == "tf32" else "fp32"


def filled(rows: int, columns: int, inner: int, count: int, card: Card) -> float:
    """The share of multiprocessors that tiles keep busy until the last is done; a deep product is split.

    >>> filled(4096, 4096, 4096, 1, CARDS["H100"]) > 0.9, filled(64, 64, 64, 1, CARDS["H100"]) < 0.01
    (True, True)
    """
    tiles = -(-rows // TILE) * -(-columns // TILE) * count
    splits = max(1, min(inner // DEPTH, card.processors // tiles)) if tiles < card.processors else 1
    whole = tiles * splits / card.processors
    used = min(1.0, rows / TILE / -(-rows // TILE)) if rows >= TILE else max(rows, 16) / TILE
    return max(whole / math.ceil(whole) * used, 1e-3)


def _of_graph(draft: GraphDraft, card: Card) -> tuple[float, float, float]:
    """The main operation of a graph of cuDNN's."""
    rate = card.rates[arithmetic(draft.result.dtype, draft.math)]
    for node in draft.nodes:
        sizes = [
            draft.operands[v].sizes if v >= 0 else draft.nodes[~v].sizes for v in node.inputs if isinstance(v, int)
        ]
        if node.op == "sdpa":
            b, heads, queries, depth = sizes[0]
            keys = sizes[1][2]
            share = filled(queries, TILE, depth, b * heads, card)
            return 4.0 * b * heads * queries * keys * depth, rate, share
        if node.op == "matmul":
            (*batch, rows, inner), columns = sizes[0], node.sizes[-1]
            count = math.prod(batch)
            return 2.0 * count * rows * inner * columns, rate, filled(rows, columns, inner, count, card)
        if node.op.startswith("conv_"):
            result, weight = {
                "conv_fprop": (node.sizes, sizes[1]), "conv_dgrad": (sizes[0], sizes[1]),
            }.get(node.op, (sizes[1], node.sizes))  # fmt: skip
            inner, pixels = math.prod(weight[1:]), math.prod(result) // result[1]
            rows, columns, deep = pixels, result[1], inner
            if node.op == "conv_dgrad":
                rows, columns, deep = (
                    math.prod(node.sizes) // node.sizes[1],
                    node.sizes[1],
                    result[1] * math.prod(weight[2:]),
                )
            elif node.op != "conv_fprop":
                rows, columns, deep = weight[0], inner, pixels
            return 2.0 * math.prod(result) * inner, rate, filled(rows, columns, deep, 1, card)
    return 0.0, rate, 1.0


def _inner(types: Mapping[str, Type], step: ProgramStep) -> float:
    """Multiplications of products and convolutions of our own; 0 for other steps."""
    domain, op = anchor(step.node)
    known = [types.get(n) for n in step.node.inputs if n]
    tensors = [t for t in known if isinstance(t, Tensor)]
    y = types.get(step.node.outputs[0])
    if not isinstance(y, Tensor) or len(tensors) < 2:
        return 0.0
    a, b = tensors[:2]
    record = OPS.get((domain, op))
    kind = record.kind if record is not None else ""
    if kind == "convolution":
        return float(math.prod((a if op == "ConvTranspose" else y).sizes) * math.prod(b.sizes[1:]))
    if kind == "matmul":
        deep = a.sizes[0] if step.node.attrs.get("transA") else a.sizes[-1]
        return float(math.prod(y.sizes) * deep)
    if op == "Recurrence":
        weights = max(math.prod(t.sizes) for t in tensors)
        steps = max((t.sizes[0] for t in tensors if t.rank == 3 and t.sizes[0] > 4), default=1)
        return float(weights * steps)
    return 0.0


def times_table(program: Program, card: Card, named: Callable[[ProgramStep], str]) -> tuple[dict[str, object], Table]:
    """Facts and a table for `mezzo explain --time`: a model, not a measurement. `named` names the operators of a
    step."""
    times = step_times(program, card)
    rows = [
        (t.index, named(t.step), t.step.choice.kernel, t.kind, t.launches, round(t.nbytes / 1e6, 3),
         round(t.flops / 1e9, 3), round(t.seconds * 1e6, 2), t.bound)
        for t in times if t.launches or t.kind == "host"
    ]  # fmt: skip
    total = sum(t.seconds for t in times)
    facts: dict[str, object] = {
        "expected_microseconds": round(total * 1e6, 1),
        "expected_copies_microseconds": round(copies_seconds(program, card) * 1e6, 1),
        "expected_on": f"{card.name}, by a model: nothing was measured",
        "launches": sum(t.launches for t in times),
        "moved_megabytes": round(sum(t.nbytes for t in times) / 1e6, 1),
        "gigaflop": round(sum(t.flops for t in times) / 1e9, 2),
    }
    shares: dict[str, float] = {}
    for t in times:
        shares[t.bound] = shares.get(t.bound, 0.0) + t.seconds
    facts |= {
        f"bound_by_{b.replace(' ', '_')}_percent": round(100 * s / total, 1)
        for b, s in sorted(shares.items())
        if s and total
    }
    columns = ("step", "operator", "kernel", "kind", "launches", "MB", "GFLOP", "expected us", "bound by")
    return facts, Table("Expected time: a model, no measurement", columns, rows)
