"""`mezzo serve` beside ONNX Runtime on uvicorn: requests per second and latencies of 1, 8 and 64 clients on loopback.

Rows `serving/NET/CLIENTS`. Servers run at the same time, one is asked at a time, in turn, for so many seconds a round;
each client sends its next request when it has the answer to the last. Figures are medians over the rounds. `mezzo` is
the default, `mezzo batch` has --batch 8. Clients take a share of the machine, the same for all.

    python bench/serving.py --rows serving/mlp/8 --rounds 5 --json FILE
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, feeds, model
from rows import arguments, machine

from mezzo.ops import DType
from mezzo.tools.serve.protocol import NAMES

NETS = {"mlp": Case("mlp", "mlp"), "resnet50": Case("resnet50", "resnet50"), "bert": Case("bert", "bert")}
CLIENTS = (1, 8, 64)
PEER = str(Path(__file__).parent / "peers/ort_server.py")


def options(parser: argparse.ArgumentParser) -> None:
    rows = ",".join(f"serving/{net}/{n}" for net in NETS for n in CLIENTS)
    parser.add_argument("--rows", default=rows, help="with commas between (default: all)")
    parser.add_argument("--rounds", type=int, default=0, help="of each server (default: 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round (default: 3)")
    parser.add_argument("--threads", type=int, default=2, help="of each run (default: 2)")


def request(arrays: dict[str, Any], name: str) -> bytes:
    """A request with tensors as bytes, as it goes over the wire."""
    inputs = [
        {
            "name": n,
            "datatype": NAMES[DType.of(a.dtype)],
            "shape": a.shape,
            "parameters": {"binary_data_size": a.nbytes},
        }
        for n, a in arrays.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(np.ascontiguousarray(a).tobytes() for a in arrays.values())
    lines = (
        f"POST /v2/models/{name}/infer HTTP/1.1",
        "Host: 127.0.0.1",
        f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


async def crowd(port: int, text: bytes, clients: int, seconds: float) -> dict[str, float]:
    """Ask as so many clients for so long; latencies in milliseconds."""
    taken: list[float] = []
    until = time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < until:
            writer.write(text)
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head[:20]:
                raise RuntimeError(head.decode())
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(length)
            taken.append(time.perf_counter() - began)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    per_second = len(taken) / (time.perf_counter() - began)
    p50, p99 = np.percentile(taken, (50, 99)) * 1e3
    return {"per_second": per_second, "p50_ms": float(p50), "p99_ms": float(p99)}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def opened(case: Case, folder: str) -> str:
    """The model with an open dim in front, so that requests can run together."""
    import onnx

    made = onnx.load(str(model(case)))
    for port in (*made.graph.input, *made.graph.output):
        port.type.tensor_type.shape.dim[0].dim_param = "batch"
    del made.graph.value_info[:]
    onnx.save(made, f"{folder}/m.onnx")
    return f"{folder}/m.onnx"


def started(command: list[str], port: int, stack: ExitStack, log: Any) -> None:
    """Start a server and wait until it is ready."""
    process = stack.enter_context(subprocess.Popen(command, stderr=log, stdout=log))
    stack.callback(process.terminate)
    for _ in range(1200):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).close()
            return
        except OSError:
            log.seek(0)
            said = log.read().decode()
            if process.poll() is not None or '"failed"' in said:
                raise RuntimeError(said) from None
            time.sleep(0.1)
    raise RuntimeError("not ready after two minutes")


def measured(net: str, clients: list[int], rounds: int, seconds: float, threads: int) -> list[dict[str, Any]]:
    case = NETS[net]
    text = request(feeds(case), "m")
    ports = {name: free_port() for name in ("mezzo", "mezzo batch", "ort")}
    made = []
    with ExitStack() as stack:
        path = opened(case, stack.enter_context(tempfile.TemporaryDirectory()))
        ours = [sys.executable, "-m", "mezzo", "serve", f"m={path}", "--threads", str(threads), "--port"]
        commands = {
            "mezzo": [*ours, str(ports["mezzo"])],
            "mezzo batch": [*ours, str(ports["mezzo batch"]), "--batch", "8"],
            "ort": [sys.executable, PEER, path, str(ports["ort"]), str(threads)],
        }
        for name, command in commands.items():
            started(command, ports[name], stack, stack.enter_context(tempfile.TemporaryFile()))
        for count in clients:
            taken: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
            for number in range(rounds + 1):
                for name, port in ports.items():
                    told = asyncio.run(crowd(port, text, count, seconds if number else seconds / 3))
                    taken[name] += [told] if number else []  # the first of each warms it
            row: dict[str, Any] = {"row": f"serving/{net}/{count}"}
            for name, told_all in taken.items():
                row[name] = {k: float(f"{statistics.median(t[k] for t in told_all):.4g}") for k in told_all[0]}
            for name in ("mezzo", "mezzo batch"):
                pairs = zip(taken[name], taken["ort"], strict=True)
                row[f"{name} / ort"] = round(statistics.median(a["per_second"] / b["per_second"] for a, b in pairs), 3)
            print(json.dumps(row), flush=True)
            made.append(row)
    return made


def main() -> None:
    given = arguments(__doc__, options)
    asked: dict[str, list[int]] = {}
    for name in given.rows.split(","):
        _, net, count = name.split("/")
        asked.setdefault(net, []).append(int(count))
    rounds = given.rounds or (1 if given.quick else 5)
    rows = [r for net, counts in asked.items() for r in measured(net, counts, rounds, given.seconds, given.threads)]
    if given.json:
        Path(given.json).write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
