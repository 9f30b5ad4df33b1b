"""Processes of `mezzo serve`: clients that are slow or go, workers that are killed, loads with reloads."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.models.digits import digits_model

from .test_serve import ANSWERS, IMAGES, body, near

# -- processes -------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], str]]]:
    begun: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> tuple[subprocess.Popen[bytes], str]:
        port = free_port()
        command = [sys.executable, "-m", "mezzo", "serve", f"digits={digits_model()}", "--port", str(port), *options]
        with (tmp_path / "log").open("wb") as log:
            begun.append(subprocess.Popen(command, stderr=log, stdout=log))
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5).close()
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert begun[-1].poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.1)
            else:
                return begun[-1], url
        raise AssertionError((tmp_path / "log").read_text())

    yield start
    for process in begun:
        process.terminate()
        process.wait(60)


def ask(url: str, images: Any) -> Any:
    text, head = body({"image": images}, parameters={"binary_data_output": True})
    request = urllib.request.Request(
        f"{url}/v2/models/digits/infer", text, {"Inference-Header-Content-Length": str(head)}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        length = int(answer.headers["Inference-Header-Content-Length"])
        return np.frombuffer(answer.read()[length:], np.float32).reshape(len(images), 10)


def test_a_process_serves_and_ends_in_order(server: Any, tmp_path: Path) -> None:
    """With clients that never finish what they send, and others that go."""
    process, url = server("--arrive", "1")
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    slow = [socket.create_connection(address) for _ in range(20)]
    for s in slow:
        s.sendall(b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
    for s in slow[10:]:
        s.close()
    assert near(ask(url, IMAGES), ANSWERS)
    slow[0].settimeout(30)
    assert slow[0].recv(20).startswith(b"HTTP/1.1 408")
    for s in slow[:10]:
        s.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, -signal.SIGTERM)
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    assert [e["event"] for e in events] == ["serving", "loaded"]


@pytest.mark.soak
def test_a_worker_that_is_killed_is_replaced(server: Any, tmp_path: Path) -> None:
    _, url = server("--workers", "2", "--batch", "4")

    def loaded() -> list[int]:
        lines = (line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{"))
        return [e["pid"] for e in map(json.loads, lines) if e["event"] == "loaded"]

    for _ in range(300):
        if len(loaded()) >= 2:
            break
        time.sleep(0.1)
    os.kill(loaded()[0], signal.SIGKILL)
    lost = 0
    for _ in range(300):
        try:
            assert near(ask(url, IMAGES), ANSWERS)
        except (urllib.error.URLError, ConnectionError):
            lost += 1
            time.sleep(0.1)
    assert lost < 30, "what was in the killed process is lost, no more"
    for _ in range(300):
        if len(loaded()) >= 3:
            break
        time.sleep(0.1)
    assert len(loaded()) >= 3


@pytest.mark.soak
def test_a_load_with_reloads_and_faults_loses_nothing(server: Any) -> None:
    """Clients that keep their connections, beside reloads, damaged requests and clients that break off."""
    process, url = server("--batch", "8", "--arrive", "1")
    address, lost, answered = ("127.0.0.1", int(url.rpartition(":")[2])), list[str](), [0] * 8

    def resident() -> int:
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def client(number: int, count: int) -> None:
        connection = http.client.HTTPConnection(*address, timeout=60)
        for i in range(count):
            rows = IMAGES[i % 24 : i % 24 + 1 + (number + i) % 4]
            text, head = body({"image": rows}, parameters={"binary_data_output": True})
            connection.request("POST", "/v2/models/digits/infer", text, {"Inference-Header-Content-Length": str(head)})
            answer = connection.getresponse()
            raw = answer.read()
            if answer.status != 200:
                lost.append(f"{answer.status}: {raw[:200]!r}")
                continue
            length = int(answer.headers["Inference-Header-Content-Length"])
            got = np.frombuffer(raw[length:], np.float32).reshape(len(rows), 10)
            if not near(got, ANSWERS[i % 24 : i % 24 + len(rows)]):
                lost.append(f"wrong rows for {i}")
            answered[number] += 1
        connection.close()

    def all_clients(count: int) -> None:
        threads = [threading.Thread(target=client, args=(n, count)) for n in range(len(answered))]
        for thread in threads:
            thread.start()
        for _ in range(5):
            for text in (b"[[", b'{"inputs": 1}'):
                with contextlib.suppress(urllib.error.HTTPError):
                    urllib.request.urlopen(f"{url}/v2/models/digits/infer", text, timeout=60)
            with socket.create_connection(address) as s:
                s.sendall(b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\nhalf")
            load = f"{url}/v2/repository/models/digits/load"
            urllib.request.urlopen(load, b"{}", timeout=60).close()
        for thread in threads:
            thread.join()

    all_clients(200)
    before = resident()
    all_clients(600)
    assert not lost
    assert answered == [800] * 8
    assert resident() < before * 1.3
