"""Outputs of the metrics of a job: an address that Prometheus reads, a file for node_exporter, or OpenTelemetry.

The launcher looks on as `mezzo top` does (kvstore/onlooker.py), once a second, and hands what it sees to an output.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

from ..kvstore.environment import LOOPBACK, Environment
from ..kvstore.onlooker import Onlooker
from ..ops.errors import InputError, MezzoError
from ..runtime.files import replace_file
from .crew import Member
from .job_metrics import JobMetrics
from .launch import Scale
from .top import view

EVERY, BRIEF = 1.0, 0.1  # seconds between two looks, and within which the end of the job is heard
TYPE = "text/plain; version=0.0.4; charset=utf-8"
Job = Callable[[Scale], Sequence[Member]]


class Output(Protocol):
    """Interface of where metrics go."""

    def put(self) -> None:
        """There has been a look."""
        ...

    def close(self) -> None: ...


class ToFile:
    """A file that is replaced after each look."""

    def __init__(self, metrics: JobMetrics, path: Path) -> None:
        self._metrics, self._path = metrics, path
        self.put()  # what cannot be written is told before the job starts

    def put(self) -> None:
        replace_file(self._path, [self._metrics.text().encode()])

    def close(self) -> None:
        self.put()


class ToReaders:
    """An address of this machine at which whoever asks gets them. Raises InputError where it is taken."""

    def __init__(self, metrics: JobMetrics, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds for a request, so that nobody holds a thread for ever

            def do_GET(self) -> None:
                served = self.path.partition("?")[0] in ("/", "/metrics")
                text = metrics.text().encode() if served else b"see /metrics\n"
                self.send_response(200 if served else 404)
                self.send_header("Content-Type", TYPE)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody needs a line for each look."""

        try:
            self._server = ThreadingHTTPServer((LOOPBACK, port), Handler)
        except (OSError, OverflowError) as error:
            hint = "give another port, or 0 for any that is free"
            raise InputError(f"port {port} cannot be had: {error}", where="--metrics", hint=hint) from error
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": BRIEF}, daemon=True)
        self._thread.start()
        print(f"[launch] metrics: http://{LOOPBACK}:{self.port}/metrics", file=sys.stderr, flush=True)

    def put(self) -> None:
        """Readers come by themselves."""

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def output_of(metrics: JobMetrics, where: str) -> Output:
    """The output of `--metrics`: a port, the address of an OpenTelemetry collector, or a file. Raises InputError and
    ModelError for what cannot be, MissingPackage without OpenTelemetry."""
    if where.isascii() and where.isdigit():
        return ToReaders(metrics, int(where))
    if where.startswith(("http://", "https://")):
        from .telemetry import ToCollector

        return ToCollector(metrics, where)
    return ToFile(metrics, Path(where))


class _Looking(threading.Thread):
    """Looks at the job of now, once a second, until it is told to stop."""

    def __init__(self, metrics: JobMetrics, output: Output) -> None:
        super().__init__(daemon=True)
        self._metrics, self._output = metrics, output
        self.job: Environment | None = None
        self.over = threading.Event()
        self._failed = ""

    def _put(self) -> None:
        """Hand on what was seen; what keeps it from that is told once."""
        try:
            self._output.put()
        except MezzoError as error:
            if error.message != self._failed:
                print(f"[launch] metrics: {error}", file=sys.stderr, flush=True)
            self._failed = error.message

    def run(self) -> None:
        while not self.over.wait(BRIEF):
            if (job := self.job) is None:
                continue
            try:
                with Onlooker(job) as looking:
                    while job is self.job and not self.over.is_set() and (overview := looking.look()) is not None:
                        self._metrics.look(view(overview))
                        self._put()
                        for _ in range(round(EVERY / BRIEF)):
                            if not self.over.is_set() and job is self.job:
                                looking.rest(BRIEF)
            except (MezzoError, OSError):  # it does not listen yet, or no more; the launcher tells what has failed
                pass
            self._metrics.look(None)


@contextmanager
def measured(job: Job, where: str | None) -> Iterator[Job]:
    """The same job, whose metrics go where `--metrics` says, for as long as this lasts; without that nothing
    happens."""
    if where is None:
        yield job
        return
    metrics = JobMetrics()
    output = output_of(metrics, where)
    looking = _Looking(metrics, output)
    looking.start()

    def begin(scale: Scale) -> Sequence[Member]:
        members = job(scale)
        metrics.attempts += 1
        looking.job = Environment.read(members[0].environment).as_role("worker")
        return members

    try:
        yield begin
    finally:
        looking.over.set()
        looking.join()
        metrics.look(None)
        output.close()
