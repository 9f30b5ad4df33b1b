"""ONNX Runtime on uvicorn, written without a framework: tensors as bytes by the Open Inference Protocol, each request
on a thread of a pool.

    python bench/peers/ort_server.py MODEL PORT THREADS
"""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime as ort
import uvicorn

KINDS = {"FP32": np.float32, "INT64": np.int64, "INT32": np.int32}
NAMES = {np.dtype(kind): name for name, kind in KINDS.items()}
HEAD = b"inference-header-content-length"


class Server:
    def __init__(self, path: str, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.pool = ThreadPoolExecutor(4)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, headers = bytearray(), [(b"content-type", b"application/octet-stream")]
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        answer = b""
        if scope["method"] == "POST":
            head = int(dict(scope["headers"])[HEAD])
            answer, length = await asyncio.get_running_loop().run_in_executor(self.pool, self.answer, bytes(body), head)
            headers.append((HEAD, str(length).encode()))
        headers.append((b"content-length", str(len(answer)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def answer(self, body: bytes, head: int) -> tuple[bytes, int]:
        feeds, at = {}, head
        for entry in json.loads(body[:head])["inputs"]:
            size = entry["parameters"]["binary_data_size"]
            feeds[entry["name"]] = np.frombuffer(
                body, KINDS[entry["datatype"]], size // KINDS[entry["datatype"]]().nbytes, at
            )
            feeds[entry["name"]] = feeds[entry["name"]].reshape(entry["shape"])
            at += size
        results = self.session.run(None, feeds)
        outputs = [
            {
                "name": port.name,
                "datatype": NAMES[r.dtype],
                "shape": r.shape,
                "parameters": {"binary_data_size": r.nbytes},
            }
            for port, r in zip(self.session.get_outputs(), results, strict=True)
        ]
        told = json.dumps({"model_name": "m", "model_version": "1", "outputs": outputs}).encode()
        return told + b"".join(r.tobytes() for r in results), len(told)


if __name__ == "__main__":
    uvicorn.run(Server(sys.argv[1], int(sys.argv[3])), port=int(sys.argv[2]), log_level="warning", access_log=False)
