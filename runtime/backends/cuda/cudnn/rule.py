"""Rules that predict which drafts cuDNN takes, for planning on a machine without cuDNN.

Taken from the answers of cuDNN 9.28 for sm_80 and sm_90; tests/test_gpu_cudnn.py compares the two where cuDNN is.
"""

from __future__ import annotations

from .....ops import DType
from .draft import GraphDraft, GraphNode, GraphRefused

PLAIN = frozenset({"relu", "elu", "sigmoid", "tanh"})  # ends of what engines do that know no other operations


def expected(draft: GraphDraft) -> None:
    """Return if cuDNN should have a plan; raises Refused otherwise."""
    first, *behind = draft.nodes
    if first.op == "sdpa":
        _attention(draft)
        return
    types = {o.dtype for o in draft.all}
    if first.op == "matmul" and len(types) == 1:
        return
    if len(types) > 1 or (DType.DOUBLE in types and behind):
        raise GraphRefused("operands of several types, or float64 with an epilogue")
    packed = draft.operands[0].strides[1] == 1  # channels-last; a single channel may be either
    if not packed and behind and not _usual(first, behind):
        raise GraphRefused("row-major images with this epilogue")


def _usual(first: GraphNode, behind: list[GraphNode]) -> bool:
    """True if an epilogue is a bias, optionally after a residual and before an activation."""
    names = [node.op for node in behind]
    if first.op != "conv_fprop" or "bias" not in names:
        return False
    names = names[1:] if names[0] == "add" else names
    clipped = any(name == "lower_clip" for node in behind for name, _ in node.settings)
    if names[0] != "bias" or len(names) > 2 or not PLAIN.issuperset(names[1:]):
        return False
    return clipped or not behind[-1].settings


def _attention(draft: GraphDraft) -> None:
    sizes = {o.sizes[-1] for o in draft.all[:3]}
    if any(n % 8 or n > 128 for n in sizes):
        raise GraphRefused("heads of another size than a multiple of 8 up to 128")
