"""What each family of GPU kernels must serve, in more shapes, strides and layouts than the samples of the operators
have. One list per family, by the kernel's name; helpers add their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mezzo.ops import DType, Tensor
from mezzo.ops.training.update import SHOWN
from mezzo.ops.types import f32, i64


@dataclass(frozen=True)
class Case:
    """One question: inputs are types (filled at random), arrays (constants, whose elements are known) or None.
    `layouts` are those in which the inputs lie."""

    op: str
    inputs: Sequence[Any]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1
    layouts: Sequence[str] = ()


def chain(inputs: Sequence[Any], *links: tuple[Any, ...], layouts: Sequence[str] = ()) -> Case:
    """A Fused node: a link is (operator, operands) or (operator, operands, attributes)."""
    made = tuple(
        (link[0].partition("::")[0] if "::" in link[0] else "", link[0].rpartition("::")[2], link[1],
         tuple(sorted(link[2].items())) if len(link) > 2 else ())
        for link in links
    )  # fmt: skip
    return Case("Fused", inputs, {"chain": made}, layouts=layouts)


def half(*dims: int) -> Tensor:
    return Tensor(DType.FLOAT16, dims)


def brain(*dims: int) -> Tensor:
    return Tensor(DType.BFLOAT16, dims)


def truth(*dims: int) -> Tensor:
    return Tensor(DType.BOOL, dims)


def _to(dtype: DType) -> dict[str, int]:
    return {"to": dtype.onnx}


POINTWISE = [
    *(Case("Add", [f32(*d), f32(*d)]) for d in ((1,), (3,), (4,), (1031,), (8, 128))),
    Case("Add", [f32(2, 3, 4, 8), f32(3, 1, 8)]),
    Case("Add", [f32(2, 3, 5, 6), f32(1, 3, 1, 1)]),
    Case("Mul", [f32(5, 7, 1, 3), f32(7, 9, 1)]),
    Case("Sub", [f32(4, 1), f32(1, 8)]),
    Case("Div", [f32(), f32(2, 4)]),
    Case("Add", [f32(2, 0, 3), f32(3)]),
    Case("Add", [half(3, 16), half(16)]),
    Case("Add", [half(2, 3, 7), half(3, 1)]),
    Case("Mul", [brain(33), brain(33)]),
    Case("Where", [truth(6, 16), f32(16), f32(6, 1)]),
    Case("Where", [truth(67), half(67), half(1)]),
    Case("Where", [truth(2, 3, 32), Tensor(DType.INT8, (2, 3, 32)), Tensor(DType.INT8, (32,))]),
    Case("Not", [truth(129)]),
    Case("Max", [f32(2, 8), f32(8), f32(2, 1), f32()]),
    Case("Clip", [i64(9), np.array(-1), np.array(1)]),
    Case("Pow", [f32(3, 5), np.array(2, np.float32)]),
    Case("Pow", [f32(3, 5), np.array(-1)]),
    Case("Cast", [f32(2, 3, 7)], _to(DType.FLOAT16)),
    Case("Cast", [half(35)], _to(DType.FLOAT)),
    Case("Cast", [i64(35)], _to(DType.BFLOAT16)),
    Case("Cast", [Tensor(DType.UINT8, (67,))], _to(DType.FLOAT)),
    Case("Cast", [brain(4, 4)], _to(DType.INT8)),
    Case("CastLike", [half(5), f32()]),
    # layouts: one for all, several, some that broadcasting uses
    Case("Relu", [f32(2, 8, 3, 5)], layouts=["acdb"]),
    Case("Add", [f32(2, 8, 3, 5), f32(2, 8, 3, 5)], layouts=["acdb", "acdb"]),
    Case("Add", [f32(2, 8, 3, 5), f32(2, 8, 3, 5)], layouts=["acdb", ""]),
    Case("Add", [f32(2, 8, 3, 5), f32(8, 1, 1)], layouts=["acdb", ""]),
    Case("Mul", [half(2, 8, 3, 5), half(2, 8, 1, 1)], layouts=["acdb", "acdb"]),
    Case("Sub", [f32(5, 1, 3), f32(1, 7, 3)], layouts=["cba", "bac"]),
    Case("Neg", [f32(4, 6)], layouts=["ba"]),
    # chains
    chain([f32(3, 8), f32(8), f32(3, 8)], ("Add", (0, 1)), ("Relu", (-1,)), ("Mul", (2, -1))),
    chain([half(33), half(33)], ("Mul", (0, 1)), ("Gelu", (-1,)), ("Add", (-1, 0))),
    chain([f32(2, 4, 3, 3), f32(4, 1, 1)], ("Mul", (0, 1)), ("Sigmoid", (-1,)), layouts=["acdb", ""]),
    chain([f32(17)], ("Cast", (0,), _to(DType.FLOAT16)), ("Cast", (-1,), _to(DType.FLOAT))),
    chain([f32(17), f32(17)], ("Less", (0, 1)), ("Where", (-1, 0, 1)), ("Clip", (-1, -2, 1))),
    chain([f32(9)], ("Abs", (0,)), ("mezzo::SigmoidGrad", (-1, 0))),
    # optimizers
    Case("Update", [f32(9), f32(9), f32()], {"rule": SHOWN[0][0]}),
    Case("Update", [f32(4, 6, 3, 3), f32(4, 6, 3, 3), f32()], {"rule": SHOWN[0][0]}, layouts=["", "acdb"]),
]


def axes(*values: int) -> Any:
    return np.array(values, np.int64)


_EXTREME = np.array([[1, np.nan, 2], [np.inf, 1, -np.inf], [-np.inf, -np.inf, -np.inf], [5, 300, 300]], np.float32)
_REDUCTIONS = "Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare".split()
# rows: of a thread, of a part of a warp, a warp, a block, cut into parts; columns: few, many, cut; and between
_SIZES: list[tuple[tuple[int, ...], Any]] = [
    ((300, 1), axes(1)), ((70, 3), axes(1)), ((9, 24), axes(1)), ((5, 37), axes(-1)), ((3, 1000), axes(1)),
    ((2, 4096), axes(1)), ((1, 140_001), axes(1)), ((140_000,), axes(0)), ((40, 3), axes(0)), ((37, 70), axes(0)),
    ((9000, 3), axes(0)), ((3, 5, 7, 6), axes(0, 2)), ((3, 5, 7, 6), axes(1, 3)), ((2, 3, 4), axes()),
    ((2, 0, 3), axes(1)), ((0, 3), axes(1)), ((600, 2, 9), axes(0, 2)),
]  # fmt: skip


def _tame(name: str, dims: tuple[int, ...]) -> Any:
    """Elements whose product and logarithm are tame, where those are taken."""
    if name not in ("Prod", "LogSum"):
        return f32(*dims)
    return np.random.default_rng(5).uniform(0.99, 1.01, dims).astype(np.float32)


REDUCE = [
    *(
        Case(f"Reduce{_REDUCTIONS[i % 10]}", [_tame(_REDUCTIONS[i % 10], dims), over], {"keepdims": i % 2})
        for i, (dims, over) in enumerate(_SIZES)
    ),
    *(Case("ReduceSum", [f32(*dims), over]) for dims, over in _SIZES[3:]),
    *(Case("ReduceLogSumExp", [f32(*dims), over]) for dims, over in _SIZES[3:12]),
    *(
        Case(f"Reduce{name}", [_EXTREME, over])
        for name in ("Max", "Min", "Sum", "LogSumExp")
        for over in (axes(0), axes(1))
    ),
    *(Case(f"Reduce{name}", [i64(7, 9), axes(1)]) for name in _REDUCTIONS if not name.startswith("Log")),
    Case("ReduceMax", [truth(5, 40), axes(1)]),
    Case("ReduceMin", [truth(40, 5), axes(0)]),
    Case("ReduceSum", [half(3, 4096), axes(1)]),
    Case("ReduceMean", [brain(2, 8, 5, 5), axes(2, 3)], layouts=["acdb"]),
    Case("ReduceMean", [f32(2, 8, 5, 5), axes(2, 3)], {"keepdims": 0}, layouts=["acdb"]),
    Case("ReduceSum", [f32(2, 8, 5, 5), axes(1)], {"keepdims": 0}, layouts=["acdb"]),
    Case("ReduceSum", [f32(3, 8, 5, 5), axes(0)], {"keepdims": 0}, layouts=["acdb"]),
    Case("ReduceSum", [f32(3, 8), axes(0)], layouts=["ba"]),
    Case("SumTo", [f32(4, 3, 5), axes(3, 1)]),
    Case("SumTo", [half(200, 16), axes(16)]),
]

CASES: dict[str, list[Case]] = {"gpu.pointwise": POINTWISE, "gpu.reduce": REDUCE}
