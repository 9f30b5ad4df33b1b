"""Machine code of our own beside ONNX Runtime: products with 4-bit weights, and forests of trees.

Rows `n_bits/TOKENS/LEVEL`: the 14 products of two layers of TinyLlama's sizes (2048, 5632), one after the other, in the
accuracy level of the file; ours computes in float32 whatever it is. The floor is the time that reading the weights and
scales takes from memory. Rows `trees/FOREST/ROWS`: forests of scikit-learn, 28 features.

    python bench/machine_code.py --rounds 15
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import helper
from rows import Row, arguments, machine, show

from mezzo.tools.compare import OURS, Contestant, command, race, ratios

HIDDEN, INNER, KEYS, LAYERS, BLOCK = 2048, 5632, 256, 2, 32
FEATURES = 28


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=0, help="of each engine (default: 15)")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default: 2)")
    parser.add_argument("--rows", default="", help="only rows whose names contain this")


def low_bits(path: Path, tokens: int, level: int) -> tuple[dict[str, Any], int]:
    """A file of products; returns the inputs, and the bytes of weights and scales."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    nbytes = 0

    def product(x: str, k: int, n: int, y: str) -> None:
        nonlocal nbytes
        bits = rng.integers(0, 256, (n, k // BLOCK, BLOCK // 2), dtype=np.uint8)
        scales = (rng.random((n, k // BLOCK)) * 0.4 / np.sqrt(k)).astype(np.float32)
        for name, array in ((f"{y}.bits", bits), (f"{y}.scales", scales)):
            constants.append(onnx.numpy_helper.from_array(array, name))
            nbytes += array.nbytes
        attrs = {"K": k, "N": n, "bits": 4, "block_size": BLOCK, "accuracy_level": level}
        names = [x, f"{y}.bits", f"{y}.scales"]
        nodes.append(helper.make_node("MatMulNBits", names, [y], domain="com.microsoft", **attrs))

    at = "x"
    for i in range(LAYERS):
        for part, width in (("q", HIDDEN), ("k", KEYS), ("v", KEYS)):
            product(at, HIDDEN, width, f"{part}{i}")
        product(f"q{i}", HIDDEN, HIDDEN, f"o{i}")
        product(f"o{i}", HIDDEN, INNER, f"gate{i}")
        product(f"o{i}", HIDDEN, INNER, f"up{i}")
        nodes.append(helper.make_node("Add", [f"gate{i}", f"up{i}"], [f"inner{i}"]))
        product(f"inner{i}", INNER, HIDDEN, f"down{i}")
        at = f"down{i}"
    outputs = [at, *(f"{part}{i}" for i in range(LAYERS) for part in "kv")]
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs]
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [tokens, HIDDEN])
    graph = helper.make_graph(nodes, "products", [given], values, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return {"x": rng.standard_normal((tokens, HIDDEN)).astype(np.float32)}, nbytes


def forest(path: Path, kind: str, rows: int) -> dict[str, Any]:
    """A file of a fitted forest; returns the inputs."""
    from skl2onnx import to_onnx
    from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor

    rng = np.random.default_rng(0)
    x = rng.standard_normal((3000, FEATURES)).astype(np.float32)
    y = x[:, 0] * x[:, 1] + x[:, 2] + rng.standard_normal(len(x)) / 4
    model = (
        RandomForestRegressor(100, max_depth=12, random_state=0)
        if kind == "forest of 100"
        else GradientBoostingRegressor(n_estimators=300, max_depth=6, random_state=0)
    )
    onnx.save(to_onnx(model.fit(x[:2000], y[:2000]), x[:1]), path)
    return {"X": x[2000 : 2000 + rows]}


def read_floor(nbytes: int, threads: int) -> float:
    """Milliseconds in which so many bytes are read from memory, by so many threads that do nothing else."""
    from concurrent.futures import ThreadPoolExecutor

    parts = np.array_split(np.ones((256 << 20) // 8, np.uint64), threads)
    times = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(7):
            begin = time.perf_counter()
            list(pool.map(np.max, parts))
            times.append(time.perf_counter() - begin)
    return nbytes / (256 << 20) * min(times) * 1e3


def main() -> None:
    args = arguments(__doc__, options)
    rounds = args.rounds or (3 if args.quick else 15)
    cases: list[tuple[str, Any]] = [(f"n_bits/{n}/level {v}", (n, v)) for n in (1, 64) for v in (0, 4)]
    cases += [(f"trees/{kind}/{n}", (kind, n)) for kind in ("forest of 100", "boosting of 300") for n in (1, 1000)]
    rows, notes = [], [machine()]
    with TemporaryDirectory() as folder:
        for name, (what, how) in cases:
            if args.rows not in name:
                continue
            path, floor = Path(folder) / "model.onnx", None
            if isinstance(what, int):
                feeds, nbytes = low_bits(path, what, how)
                floor = read_floor(nbytes, args.threads)
            else:
                feeds = forest(path, what, how)
            engines = [
                Contestant(OURS, command(OURS), {"model": str(path), "precision": "fp32"}),
                Contestant("ort", command("ort"), {"model": str(path)}),
            ]
            found = race(engines, feeds, threads=args.threads, rounds=rounds)
            ours, theirs = found[OURS], found["ort"]
            if ours.median is None or theirs.median is None:
                notes.append(f"{name}: {ours.failed or theirs.failed}")
                continue
            rows.append(Row(name, "ms", ours.median * 1e3, {"ort": theirs.median * 1e3}, floor))
            ratio = statistics.median(ratios(ours, theirs))
            peak = [f"{m.peak_bytes / 2**20:.0f} MiB" for m in (ours, theirs) if m.peak_bytes]
            notes.append(f"{name}: {ratio:.2f} x ONNX Runtime; peaks {' and '.join(peak)}; apart {theirs.error}")
    show(rows, args, notes)


if __name__ == "__main__":
    main()
