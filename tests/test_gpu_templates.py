"""What templates of GPU kernels promise beyond right answers: views cost no launch, forms follow sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.ops.types import f32
from mezzo.runtime.backends.cuda import pool
from mezzo.runtime.backends.cuda.generated import Generated
from mezzo.runtime.backends.cuda.indexing import Gather
from mezzo.runtime.backends.cuda.launch import Written
from mezzo.runtime.backends.cuda.movement import CudaMovement
from mezzo.runtime.backends.cuda.topk import TopK

from .cuda_shim import ask, missing, run_all, written_by

NHWC = "acdb"


def whole(*values: int) -> Any:
    return np.array(values, np.int64)


def written(kernel: Generated, op: str, inputs: list[Any], **attrs: Any) -> Written:
    layouts, outputs = attrs.pop("layouts", ()), attrs.pop("outputs", 1)
    asked = ask(op, inputs, attrs, layouts=layouts, outputs=outputs)
    found = kernel.written(asked)
    assert isinstance(found, Written), found
    return found


VIEWS: list[tuple[Generated, str, list[Any], dict[str, Any], list[tuple[str, int, int, int]]]] = [
    (CudaMovement(), "Reshape", [f32(4, 6), whole(24)], {}, [("view", 0, 0, 0)]),
    (CudaMovement(), "Transpose", [f32(2, 3, 4, 5)], {"perm": (0, 2, 3, 1)}, [("view", 0, 0, 0)]),
    (CudaMovement(), "Squeeze", [f32(2, 8, 1, 5), whole(2)], {"layouts": [NHWC]}, [("view", 0, 0, 0)]),
    (CudaMovement(), "Expand", [f32(3, 4), whole(1, 3, 4)], {}, [("view", 0, 0, 0)]),
    (CudaMovement(), "Concat", [f32(16, 4), f32(2, 4)], {"axis": 0}, [("part", 0, 0, 0), ("part", 0, 1, 256)]),
    (CudaMovement(), "Split", [f32(48, 4)], {"num_outputs": 3, "outputs": 3},
     [("view", 0, 0, 0), ("view", 1, 0, 256), ("view", 2, 0, 512)]),
    (CudaMovement(), "Slice", [f32(1, 9, 16), whole(2), whole(5), whole(1)], {}, [("view", 0, 0, 128)]),
    (CudaMovement(), "Slice", [f32(9, 3), whole(1), whole(5), whole(0)], {}, []),  # 12 bytes from the beginning
    (CudaMovement(), "Concat", [f32(2, 4), f32(2, 4)], {"axis": 1}, []),
    (Gather(), "Gather", [f32(8, 64), np.array(-2)], {}, [("view", 0, 0, 1536)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "op", "inputs", "attrs", "views"), VIEWS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_views_cost_no_launch(kernel: Generated, op: str, inputs: list[Any], attrs: Any, views: list[Any]) -> None:
    """Whole operands that are bytes of others are aliases, and where those are honoured, nothing is launched."""
    found = written(kernel, op, inputs, **attrs)
    assert [(a.kind, a.output, a.input, a.delta) for a in found.aliases] == views
    assert [launch.copies for launch in found.launches if launch.copies] == list(found.aliases)
    for launch in found.launches:
        ins, outs = [1 << 20] * 4, [1 << 20] * 4
        alias = launch.copies
        if alias is None:
            assert not launch.in_place(ins, outs)
            continue
        assert launch.in_place(ins, outs) == (alias.delta == 0)
        (outs if alias.kind == "view" else ins)[alias.output if alias.kind == "view" else alias.input] += alias.delta
        assert launch.in_place(ins, outs)
        outs[alias.output] += 64
        assert not launch.in_place(ins, outs)


@pytest.mark.skipif(bool(missing()), reason=missing() or "runs")
@pytest.mark.parametrize("channels", [8, 6, 5])
def test_pools_of_several_channels(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many channels in a thread as divide theirs: the same answers as one by one."""
    x = np.random.default_rng(0).standard_normal((2, channels, 9, 11)).astype(np.float16)
    attrs, found = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, []
    for busy in (1, 1 << 30):
        monkeypatch.setattr(pool, "BUSY", busy)
        found.append(written_by(pool.CudaPool(), ask("MaxPool", [x], attrs, layouts=[NHWC, NHWC]), [x]))
    many, one = found
    assert (many.written == one.written) == (channels % 2 == 1)
    (first,), (second,) = run_all(found)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(("size", "k", "launches"), [(2048, 5, 1), (2049, 5, 2), (1 << 20, 300, 5), (4000, 3999, 1)])
def test_rows_of_top_k_take_as_few_launches_as_they_can(size: int, k: int, launches: int) -> None:
    assert len(written(TopK(), "TopK", [f32(2, size), whole(k)], outputs=2).launches) == launches
