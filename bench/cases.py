"""The cases of `bench/inference.py` and `bench/serve.py`: which model, in which precision, and the files they need.

`bench/training.py` has its own, and takes the peers from here.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from peers.environment import mxnet_python

from mezzo.tools.compare import CHILD, OURS, Contestant, command

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "bench"  # models made here, until their sources change
PEERS = ("ort", "torch-eager", "torch-compile", "mxnet")


@dataclass(frozen=True)
class Case:
    """One row: a workload of ours, or a model inside a package (`package`, `file`). `bars` are the least ratios wanted,
    by peer; `aim` is the one that is hoped for."""

    name: str
    workload: str = ""
    batch: int = 1
    precision: str = "fp32"
    bars: Mapping[str, float] = field(default_factory=dict)
    aim: float | None = None
    package: str = ""
    file: str = ""
    quantised: bool = False

    @property
    def peers(self) -> tuple[str, ...]:
        """Who can run it: the peers' networks are those of the workloads, in 32 bits or (PyTorch) in bfloat16."""
        if not self.workload or self.quantised:
            return ("ort",)
        return PEERS


def _packaged(name: str, package: str, file: str) -> Case:
    return Case(name, bars={"ort": 0.9}, package=package, file=file)


CASES = {
    c.name: c
    for c in (
        Case("resnet50/b1/fp32", "resnet50", 1, "fp32", {"ort": 1.0, "torch-compile": 1.1, "mxnet": 1.4}),
        Case("resnet50/b16/fp32", "resnet50", 16, "fp32", {"ort": 1.0, "torch-compile": 1.1, "mxnet": 1.4}),
        Case("resnet50/b1/bf16", "resnet50", 1, "bf16", {"ort": 4.5}),
        Case("resnet50/b16/bf16", "resnet50", 16, "bf16", {"ort": 5.8}),
        Case("mobilenetv2/b1/fp32", "mobilenetv2", 1, "fp32", {"ort": 1.1}),
        Case("mobilenetv2/b1/bf16", "mobilenetv2", 1, "bf16", {"ort": 1.5}),
        Case("bert/b1/fp32", "bert", 1, "fp32", {"ort": 1.1, "torch-compile": 0.95}),
        Case("bert/b8/fp32", "bert", 8, "fp32", {"ort": 1.1, "torch-compile": 0.95}),
        Case("bert/b1/bf16", "bert", 1, "bf16", {"ort": 4.3, "torch-compile": 1.0}),
        Case("bert/b8/bf16", "bert", 8, "bf16", {"ort": 6.5}),
        Case("mlp/b1/fp32", "mlp", 1, "fp32", {"ort": 1.1, "torch-eager": 3.0, "mxnet": 2.3}),
        Case("lstm/b1/fp32", "lstm", 1, "fp32", {"ort": 0.9}),
        _packaged("silero/b1/fp32", "silero_vad", "data/silero_vad.onnx"),
        _packaged("pp-ocr-det/b1/fp32", "rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx"),
        _packaged("pp-ocr-rec/b1/fp32", "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"),
        _packaged("magika/b1", "magika", "models/standard_v3_3/model.onnx"),
        _packaged("nudenet/b1", "nudenet", "320n.onnx"),
        Case("resnet50-int8/b1", "resnet50", 1, "fp32", {"ort": 0.9}, quantised=True),
    )
}
QUICK = ("mlp/b1/fp32", "lstm/b1/fp32", "mobilenetv2/b1/fp32", "resnet50/b1/fp32", "silero/b1/fp32", "magika/b1")
SMALLER = tuple(n for n, c in CASES.items() if c.package or c.quantised or c.workload == "lstm")
SMALLER_BAR = 1.0  # of their geometric mean


class Missing(Exception):
    """What a case needs is not here."""


def feeds(case: Case) -> dict[str, Any]:
    """The inputs, of fixed seeds."""
    if case.workload:
        from mezzo.models.workloads import WORKLOADS

        return WORKLOADS[case.workload].feeds(case.batch)
    rng = np.random.default_rng(1)
    if case.package == "silero_vad":
        sound = 0.1 * rng.standard_normal((1, 576), np.float32)
        return {"input": sound, "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000)}
    if case.package == "magika":
        return {"bytes": rng.integers(0, 256, (1, 2048), np.int32)}
    if case.package == "nudenet":
        return {"images": rng.random((1, 3, 320, 320), np.float32)}
    return {"x": _page(640, 640, 16) if "det" in case.name else _page(48, 320, 1)}


def _page(height: int, width: int, lines: int) -> np.ndarray:
    """A page of text: on noise the readers answer next to nothing, and engines could not be compared."""
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(24)
    for i in range(lines):
        draw.text((8, 10 + 40 * i), f"{i}. a line of words to be read here"[: width // 13], "black", font)
    pixels = np.asarray(page, np.float32) / 127.5 - 1
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def model(case: Case) -> Path:
    """The ONNX file; made if it is one of ours and not made yet. Missing, if its package is not installed."""
    if case.package:
        found = find_spec(case.package)
        if found is None or not found.submodule_search_locations:
            raise Missing(f"the package {case.package} is not installed (tests/model-packages.txt)")
        return Path(next(iter(found.submodule_search_locations))) / case.file
    path = _kept(case.workload, f"b{case.batch}.onnx")
    if not path.exists():
        from mezzo.exporters import save_onnx
        from mezzo.models.workloads import WORKLOADS

        save_onnx(WORKLOADS[case.workload].build(case.batch), path)
    if not case.quantised:
        return path
    whole = _kept(case.workload, f"b{case.batch}.int8.onnx")
    if not whole.exists():
        part = whole.with_suffix(".part")
        _child("quantise.py", str(path), str(part))
        part.replace(whole)
    return whole


def weights(workload: str, build: Callable[[], Any]) -> Path:
    """The weights for the peers' own networks: one array for each floating-point initialiser of each node of the graph
    that `build` makes, in order."""
    path = _kept(workload, "npz")
    if not path.exists():
        graph, arrays = build(), {}
        for i, node in enumerate(graph.nodes):
            given = (graph.initializers.get(n) for n in node.inputs)
            floats = [a for a in given if a is not None and a.dtype == np.float32 and a.ndim]
            arrays |= {f"{i:05d}.{node.op}.{j}": a for j, a in enumerate(floats)}
        part = path.with_suffix(".part.npz")
        np.savez(part, **arrays)
        part.replace(path)
    return path


def contestants(case: Case, peers: tuple[str, ...]) -> list[Contestant]:
    """Ours first, then the peers that can run it; one that cannot be had here says why when it is started."""
    path = str(model(case))
    found = [Contestant(OURS, command(OURS), {"model": path, "precision": case.precision})]
    for peer in (p for p in case.peers if p in peers):
        if peer == "ort":
            found.append(Contestant(peer, command(peer), {"model": path}))
            continue
        from mezzo.models.workloads import WORKLOADS

        kept = weights(case.workload, WORKLOADS[case.workload].build)
        settings = {"net": case.workload, "weights": str(kept), "precision": case.precision}
        found.append(framework(peer, "engine", settings))
    return found


def framework(peer: str, task: str, settings: Mapping[str, Any]) -> Contestant:
    """PyTorch or MXNet; `task` is what bench/peers has for both: `torch_TASK.py` and `mxnet_TASK.py`."""
    name, python = "torch", sys.executable
    if peer == "mxnet":
        try:
            name, python = peer, mxnet_python()
        except RuntimeError as reason:
            return Contestant(peer, [sys.executable, "-c", f"import sys; sys.exit({str(reason)!r})"], {})
    return engine(peer, f"{name}_{task}.py", {**settings, "compiled": peer == "torch-compile"}, python)


def engine(name: str, program: str, settings: Mapping[str, Any], python: str = sys.executable) -> Contestant:
    """An engine that a program of bench/peers is."""
    return Contestant(name, [python, str(ROOT / "bench" / "peers" / program), str(CHILD)], settings)


def _kept(workload: str, ending: str) -> Path:
    """A place for what is made of a workload; another one when the sources of the networks change."""
    sources = [*sorted((ROOT / "models").glob("*.py")), ROOT / "bench" / "peers" / "quantise.py"]
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:8]
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{workload}.{digest}.{ending}"
    for stale in KEPT.glob(f"{workload}.????????.{ending}"):
        if stale != path:
            stale.unlink()
    return path


def _child(program: str, *args: str) -> None:
    """Run a script of bench/peers."""
    ended = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "peers" / program), *args], capture_output=True, text=True
    )
    if ended.returncode:
        raise Missing(ended.stderr.strip().splitlines()[-1])
