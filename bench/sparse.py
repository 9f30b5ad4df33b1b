"""Skip-gram with negative samples: a step of two tables by rows, beside the dense one, and beside PyTorch's by rows.

A vocabulary of 50,000 words in 64 numbers each; a batch is 100 words, each with one neighbour and five words that are
none. `ours` is the step by rows, `dense` our step of whole tables (for Adam another rule: each row moves), `torch` that
of `nn.Embedding(sparse=True)` with SGD, Adagrad or SparseAdam. All run in one process, in rounds that are interleaved;
each figure is the median over the rounds of the milliseconds of a step.

    python bench/sparse.py --json FILE
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from rows import Row, arguments, machine, show

import mezzo as mz
from mezzo.ops import DType, Tensor
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.optimizer import SGD, Adagrad, Adam, Optimizer
from mezzo.train.building import Step
from mezzo.train.step import training_step

WORDS, WIDTH, BATCH, NEGATIVE = 50_000, 64, 100, 5
# What it is called, our optimizer by rows and whole, PyTorch's name of it.
KINDS: dict[str, tuple[Optimizer, Optimizer, str]] = {
    "sgd": (SGD(rate=0.1), SGD(rate=0.1), "SGD"),
    "adagrad": (Adagrad(rate=0.1), Adagrad(rate=0.1), "Adagrad"),
    "adam": (Adam(rate=0.001, lazy_update=True), Adam(rate=0.001), "SparseAdam"),
}


def tables() -> list[Any]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((WORDS, WIDTH)) * 0.1).astype(np.float32) for _ in range(2)]


def skip_gram() -> Graph:
    """The mean of log(1 + exp(-s * word . other)), s being 1 for neighbours and -1 for the others."""
    g = GraphBuilder("skip-gram")
    word, others = (g.input(n, Tensor(DType.INT64, (BATCH, k))) for n, k in (("word", 1), ("others", 1 + NEGATIVE)))
    held = [g.const(t) for t in tables()]
    product = g.ReduceSum(g.Mul(g.Gather(held[0], word), g.Gather(held[1], others)), g.const([2]), keepdims=0)
    sign = g.const(np.array([-1.0] + [1.0] * NEGATIVE, np.float32))
    return g.graph([g.ReduceMean(g.Softplus(g.Mul(product, sign)), keepdims=0)])


def batch(number: int) -> dict[str, Any]:
    rng = np.random.default_rng([1, number])
    return {"word": rng.integers(0, WORDS, (BATCH, 1)), "others": rng.integers(0, WORDS, (BATCH, 1 + NEGATIVE))}


def ours(optimizer: Optimizer, rows: bool) -> Callable[[int], float]:
    """A step on the batch of a number, which returns the loss."""
    graph = skip_gram()
    (loss,) = graph.outputs
    learned = [n for n, a in graph.initializers.items() if a.ndim == 2]
    session = Session(training_step(graph, loss, learned, Step(optimizer, rows=rows)))
    return lambda number: float(session.run(batch(number))[loss])


def theirs(name: str, rate: float) -> Callable[[int], float]:
    import torch

    held = [torch.nn.Embedding(WORDS, WIDTH, sparse=True) for _ in range(2)]
    for table, given in zip(held, tables(), strict=True):
        table.weight.data = torch.from_numpy(given)
    optimizer = getattr(torch.optim, name)([t.weight for t in held], lr=rate)
    sign = torch.tensor([-1.0] + [1.0] * NEGATIVE)

    def step(number: int) -> float:
        word, others = (torch.from_numpy(x) for x in batch(number).values())
        optimizer.zero_grad()
        loss = torch.nn.functional.softplus((held[0](word) * held[1](others)).sum(2) * sign).mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def main() -> None:
    args = arguments(__doc__)
    rounds, steps = (3, 3) if args.quick else (15, 10)
    notes, found = [machine(), f"{mz.__version__}, {os.cpu_count()} processors"], []
    for kind, (lazy, whole, name) in KINDS.items():
        runners = {"ours": ours(lazy, True), "dense": ours(whole, False)}
        try:
            runners["torch"] = theirs(name, float(lazy.rate))  # type: ignore[arg-type]
        except ImportError:
            notes.append("PyTorch is not installed")
        losses = {n: [run(i) for i in range(3)] for n, run in runners.items()}
        known = {n: x for n, x in losses.items() if n != "dense" or lazy == whole}
        if any(not np.allclose(x, losses["ours"], rtol=1e-4) for x in known.values()):
            raise SystemExit(f"{kind}: the first losses differ: {losses}")
        times: dict[str, list[float]] = {n: [] for n in runners}
        for i in range(rounds):
            for n, run in runners.items():
                begin = perf_counter()
                for j in range(steps):
                    run(i * steps + j)
                times[n].append((perf_counter() - begin) / steps * 1e3)
        median = {n: statistics.median(t) for n, t in times.items()}
        found.append(Row(f"skip-gram/{kind}", "ms", median.pop("ours"), median))
    show(found, args, notes)


if __name__ == "__main__":
    main()
