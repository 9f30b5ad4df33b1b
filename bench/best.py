"""What is best of many beside ONNX Runtime: NonMaxSuppression with the sizes of detectors, TopK of logits and scores.

Rows `boxes/BOXES/CLASSES`: random boxes, of which a threshold of 0.25 leaves a sixth to a third; at most 300 are kept
of one class, 100 of each of several. Rows `top/ROWS/SIZE/K`: normal numbers.

    python bench/best.py --rounds 15
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import helper
from rows import Row, arguments, machine, show

from mezzo.tools.compare import OURS, Contestant, command, race, ratios

BOXES = ((8400, 1), (8400, 80), (1917, 90))
TOP = ((128, 1000, 5), (1, 151936, 50), (8, 151936, 50), (1, 76725, 1000))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=0, help="of each engine (default: 15)")
    parser.add_argument("--threads", type=int, default=1, help="of each engine (default: 1)")
    parser.add_argument("--rows", default="", help="only rows whose names contain this")


def written(
    path: Path, op: str, feeds: dict[str, np.ndarray[Any, Any]], limits: list[np.ndarray[Any, Any]], outputs: list[str]
) -> None:
    """Write a file of one node with constant limits."""
    constants = [onnx.numpy_helper.from_array(a, f"limit{i}") for i, a in enumerate(limits)]
    node = helper.make_node(op, [*feeds, *(c.name for c in constants)], outputs)
    given = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape) for n, a in feeds.items()]
    made = [onnx.ValueInfoProto(name=n) for n in outputs]
    graph = helper.make_graph([node], op, given, made, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def boxes(path: Path, count: int, classes: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    centre, half = rng.random((1, count, 2)) * 640, rng.random((1, count, 2)) * 40 + 5
    sides = np.concatenate([centre - half, centre + half], -1).astype(np.float32)
    feeds = {
        "boxes": sides,
        "scores": (rng.random((1, classes, count)) ** (4 if classes == 1 else 8)).astype(np.float32),
    }
    limits = [np.array([300 if classes == 1 else 100]), np.array([0.5], np.float32), np.array([0.25], np.float32)]
    written(path, "NonMaxSuppression", feeds, limits, ["selected"])
    return feeds


def top(path: Path, rows: int, size: int, k: int) -> dict[str, Any]:
    feeds = {"x": np.random.default_rng(0).standard_normal((rows, size)).astype(np.float32)}
    written(path, "TopK", feeds, [np.array([k])], ["values", "places"])
    return feeds


def main() -> None:
    args = arguments(__doc__, options)
    rounds = args.rounds or (3 if args.quick else 15)
    cases: list[tuple[Any, tuple[int, ...]]] = [*((boxes, sizes) for sizes in BOXES), *((top, sizes) for sizes in TOP)]
    rows, notes = [], [machine()]
    with TemporaryDirectory() as folder:
        for write, sizes in cases:
            name = "/".join(map(str, (write.__name__, *sizes)))
            if args.rows not in name:
                continue
            path = Path(folder) / "model.onnx"
            feeds = write(path, *sizes)
            engines = [Contestant(engine, command(engine), {"model": str(path)}) for engine in (OURS, "ort")]
            found = race(engines, feeds, threads=args.threads, rounds=rounds)
            ours, theirs = found[OURS], found["ort"]
            if ours.median is None or theirs.median is None:
                notes.append(f"{name}: {ours.failed or theirs.failed}")
                continue
            rows.append(Row(name, "ms", ours.median * 1e3, {"ort": theirs.median * 1e3}))
            notes.append(f"{name}: {statistics.median(ratios(ours, theirs)):.2f} x ONNX Runtime; apart {theirs.error}")
    show(rows, args, notes)


if __name__ == "__main__":
    main()
