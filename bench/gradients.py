"""Gradients of operators: how far from finite differences in float64, and from PyTorch where it has the operator.

The cases are those of tests/gradients.py: each sample of each operator, differentiated as a graph and run by the
interpreter in float64. Errors are relative to the largest entry of a gradient. `second` says whether the differentiated
graph of a small sample was differentiated again and found right. The peers of the last row are counts of operators:
onnx-ad 0.3.0, and the training registry of ONNX Runtime. With --quick three samples of each operator run whose
gradients are not zero.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from rows import Row, arguments, machine, write

from mezzo.ops import OPS, Op, Sample
from mezzo.ops.errors import MezzoError

sys.path.append(str(Path(__file__).parents[1]))  # the cases are those of the tests
check: Any = import_module("tests.gradients")

# The operators of ai.onnx at opset 28 that take and return floats, with a derivative that is not zero everywhere.
DIFFERENTIABLE = """
    Abs Acos Acosh Add AffineGrid Asin Asinh Atan Atanh Attention AveragePool BatchNormalization Cast CastLike
    CausalConvWithState Celu CenterCropPad Clip Col2Im Compress Concat ConcatFromSequence Conv ConvTranspose Cos
    Cosh CumProd CumSum DFT DeformConv DepthToSpace DequantizeLinear Det Div Dropout Einsum Elu Erf Exp Expand
    Flatten GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample
    GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization LRN LSTM LayerNormalization LeakyRelu
    LinearAttention Log LogSoftmax Loop LpNormalization LpPool MatMul Max MaxPool MaxRoiPool MaxUnpool Mean
    MeanVarianceNormalization Min Mish Mul Neg NegativeLogLikelihoodLoss Optional OptionalGetElement PRelu Pad Pow
    RMSNormalization RNN Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding STFT Scan
    ScatterElements ScatterND Selu SequenceAt SequenceConstruct SequenceErase SequenceInsert SequenceMap Shrink
    Sigmoid Sin Sinh Slice Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split SplitToSequence Sqrt
    Squeeze Sub Sum SwiGLU Swish Tan Tanh TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where
""".split()
PEERS = {"onnx-ad": 119.0, "ort-training": 52.0}
NEAR = 1e-4  # relative error that a checked gradient may have


@dataclass(frozen=True, slots=True)
class Checked(Row):
    """One operator: `ours` is the largest error against differences; the numbers of the inputs that got a gradient;
    whether second derivatives are right (None: no sample is small enough); whether a gradient was not zero."""

    inputs: list[int] = field(default_factory=list[int])
    second: bool | None = None
    moves: bool = False


def error(found: Any, expected: Any, known: Any) -> float:
    """The largest difference where something is known, relative to the largest expected entry (at least 1)."""
    off = np.abs(np.asarray(found, np.float64)[known] - expected[known])
    worst = float(off.max(initial=0)) / max(1.0, float(np.abs(expected[known]).max(initial=0)))
    return worst if np.isfinite(worst) else float("inf")


def against_differences(c: Any, grads: dict[str, Any]) -> tuple[float, list[int], bool]:
    """The largest error over the inputs, which inputs got a gradient, and whether one was not zero."""
    worst, inputs, moves = 0.0, [], False
    for name in c.wrt:
        arrays = check.leaves(c.feeds[name])
        given = check.leaves(grads[name]) if name in grads else [np.zeros(x.shape) for x in arrays]
        for dx, (slope, known) in zip(given, check.numeric(c.graph, c.feeds, c.dys, name), strict=True):
            worst = max(worst, error(dx, slope, known))
            moves |= bool(np.any(slope[known] != 0))
        if name in grads and name.startswith("x"):
            inputs.append(int(name[1:]))
    return worst, inputs, moves


def against_torch(op: Op, sample: Sample, c: Any, grads: dict[str, Any]) -> float | None:
    """The largest difference from PyTorch's gradients; None where it has no such operator, or defines it otherwise."""
    try:
        import torch
        from peers.torch_functions import TORCH
    except ImportError:
        return None
    if op.name not in TORCH or op.domain:
        return None

    def tensors(value: Any, name: str) -> Any:
        if isinstance(value, list):
            return [tensors(v, name) for v in value]
        return torch.tensor(value, requires_grad=name in c.wrt)

    node = c.graph.nodes[0]
    try:
        feeds = {n: tensors(v, n) for n, v in c.feeds.items()}
        with warnings.catch_warnings(action="ignore"):
            made = TORCH[op.name](*(feeds[i] if i else None for i in node.inputs), **sample.attrs)
        ys = made if isinstance(made, tuple) else (made,)
        pairs = [
            (y, torch.tensor(dy))
            for o, whole in zip(c.graph.outputs, ys, strict=False)
            if o in c.dys
            for y, dy in zip(check.leaves(whole), check.leaves(c.dys[o]), strict=True)
        ]
        answers = check.evaluate(c.graph, c.feeds)
        ours = [y for o in c.dys for y in check.leaves(answers[o])]
        alike = all(np.allclose(y.detach(), mine, atol=1e-6) for (y, _), mine in zip(pairs, ours, strict=True))
        if not alike:
            return None
        torch.autograd.backward([y for y, _ in pairs], [dy for _, dy in pairs])
    except (TypeError, ValueError, RuntimeError, LookupError):  # PyTorch takes no such operands or attributes
        return None
    worst = 0.0
    for name in c.wrt:
        given = grads.get(name)
        for i, t in enumerate(check.leaves(feeds[name])):
            theirs = np.zeros(t.shape) if t.grad is None else t.grad.numpy()
            dx = np.zeros(t.shape) if given is None else check.leaves(given)[i]
            worst = max(worst, error(dx, theirs, np.isfinite(theirs)))
    return worst


def second_of(op: Op, samples: Sequence[Sample]) -> bool | None:
    """Whether the gradients of the first small sample have gradients themselves, and these are right."""
    for sample in samples:
        c = check.twice(op, sample)
        if c is not None:
            try:
                return against_differences(c, check.by_graph(c, c.graph))[0] <= NEAR
            except MezzoError:
                return False
    return None


def checked(op: Op, quick: bool) -> Checked | None:
    """The row of one operator; None where no sample has floats on both ends. Raises MezzoError where a sample has no
    derivative."""
    cases = [(s, replace(c, wrt=check.wanted(op, c))) for s in op.samples if (c := check.case(op, s)) is not None]
    if not cases:
        return None
    worst, torch_worst = 0.0, list[float]()
    inputs, moving = set[int](), 0
    for sample, c in cases:
        if quick and moving == 3:
            break
        grads = check.by_graph(c, c.graph)
        off, given, moves = against_differences(c, grads)
        theirs = against_torch(op, sample, c, grads)
        worst, moving, inputs = max(worst, off), moving + moves, inputs | set(given)
        torch_worst += [] if theirs is None else [theirs]
    name = f"{op.domain}::{op.name}" if op.domain else op.name
    peers = {"pytorch": max(torch_worst)} if torch_worst else {}
    second = second_of(op, op.samples) if moving else None
    return Checked(name, "relative", worst, peers, None, sorted(inputs), second, moving > 0)


def shown(rows: Sequence[Checked]) -> None:
    """The table for people."""
    print(f"{'operator':<40}{'inputs':>12}{'differences':>14}{'pytorch':>12}{'second':>8}")
    for r in rows:
        inputs = ",".join(map(str, r.inputs)) if len(r.inputs) < 6 else f"{len(r.inputs)} of them"
        peer = f"{r.peers['pytorch']:.1e}" if r.peers else ""
        second = {None: "", True: "yes", False: "no"}[r.second]
        print(f"{r.case:<40}{inputs or 'zero':>12}{r.ours:>14.1e}{peer:>12}{second:>8}")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="names of operators, with commas between")


def main() -> None:
    args = arguments(__doc__, options)
    chosen = {n for n in args.only.split(",") if n}
    rows, lacking = list[Checked](), dict[str, str]()
    for op in list(OPS.values()):
        if not check.has_derivative(op) or (chosen and op.name not in chosen):
            continue
        try:
            row = checked(op, args.quick)
        except MezzoError as problem:
            lacking[op.name] = problem.message
            continue
        rows += [row] if row is not None else []
    right = {r.case for r in rows if r.moves and r.ours <= NEAR}
    for name in DIFFERENTIABLE:
        if name not in right and (name in chosen or not chosen):
            wrong = next((f"off by {r.ours:.1e}" for r in rows if r.case == name), "no rule")
            lacking.setdefault(name, wrong)
    ours = len(right.intersection(DIFFERENTIABLE))
    total = Row("operators with a checked non-zero gradient", "operators", ours, PEERS)
    if not write([*rows, total], args):
        return
    shown(rows)
    compared = [r for r in rows if r.peers and r.case in right]
    twice = [r for r in rows if r.second and r.case in right.intersection(DIFFERENTIABLE)]
    print(f"\n{total.case}: {ours} of {len(DIFFERENTIABLE)} ({', '.join(f'{p} {n:.0f}' for p, n in PEERS.items())})")
    print(f"{len(compared)} compared with PyTorch, {len(twice)} with second derivatives")
    print(f"besides, {sum('::' in name for name in right)} operators of other domains")
    for name in DIFFERENTIABLE:
        if name in lacking:
            print(f"missing {name}: {lacking[name]}")
    print(machine())


if __name__ == "__main__":
    main()
