"""Every standard form says what its operator does: with sizes known and with ranks only, here and in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.exporters import to_onnx
from mezzo.exporters.lower import is_composed
from mezzo.importers import load_onnx
from mezzo.ops import OPS, DType, Op
from mezzo.runtime.ir.graph import Node
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.ir.interpreter import evaluate
from mezzo.runtime.passes.expand import expand

from .gradients import ranks_only
from .graphs import hosted, sample_graph
from .models import ort_run

# Samples that ONNX Runtime answers otherwise: operator, number of the sample, why.
ORT_DIFFERS: dict[tuple[str, int], str] = {
    ("ConvGradWeights", 7): "it leaves sums of nothing as they are",
    ("MaxPoolTrain", 2): "onnx's inference counts a window that starts in the padding",
    **{("ResizeGrad", i): "it aligns corners with whole sizes" for i in (23, 28)},
    **{("ResizeGrad", i): "it has no policies of aspect ratios on some axes" for i in (40, 41)},
    **{("AveragePoolGrad", i): "onnx's inference has no transposed convolution of no windows" for i in range(20, 24)},
    ("GRU", 6): "its Scan refuses to take no step",
    ("GRUTrain", 5): "its Scan refuses to take no step",
    ("GRUGrad", 5): "its Scan refuses to take no step",
}


def _complex(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.generic) and x.dtype.kind == "c"


def cases() -> list[Any]:
    """Operators of ours, and ONNX's own: those that an old opset had are written as they were, com.microsoft has a test
    of its own."""
    return [
        pytest.param(o, i, id=f"{o.name}-{i}")
        for o in OPS.values()
        if o.body_rule is not None and (not o.domain or is_composed(Node(o.name, (), (), domain=o.domain)))
        for i, s in enumerate(o.samples)
        if not hosted(o, s) and not any(map(_complex, s.inputs))  # no operator of ONNX takes these apart
    ]


def close(got: dict[str, Any], want: dict[str, Any], how: str) -> None:
    """Equal whole numbers; floats within 1e-5 of the largest."""
    for name, y in want.items():
        assert (got[name].shape, got[name].dtype) == (y.shape, y.dtype), f"{how}: {name}"
        if not DType.of(y.dtype).floating:
            np.testing.assert_array_equal(got[name], y, f"{how}: {name}")
            continue
        one, other = got[name].astype(np.float64), y.astype(np.float64)
        most = np.abs(other[np.isfinite(other)]).max(initial=0)
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * most, err_msg=f"{how}: {name}")


@pytest.mark.parametrize("fed", ["all", "types"])
@pytest.mark.parametrize(("o", "sample"), cases())
def test_the_standard_form_says_the_same(o: Op, sample: int, fed: str) -> None:
    graph, feeds = sample_graph(o, o.samples[sample], fed=fed)
    want = evaluate(graph, feeds)
    for how, known in (("with sizes", infer(graph)), ("ranks only", ranks_only(infer(graph), lists=True))):
        proto = to_onnx(expand(known, lambda n: n.op == o.name, known.types), standard=True)
        assert o.name not in {n.op_type for n in proto.graph.node}
        assert {n.domain for n in proto.graph.node} == {""}
        close(evaluate(load_onnx(proto), feeds), want, how)
        if (o.name, sample) not in ORT_DIFFERS:
            close(ort_run(proto, feeds), want, f"{how}, in ONNX Runtime")
