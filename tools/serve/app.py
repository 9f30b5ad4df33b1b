"""An ASGI application that speaks the Open Inference Protocol, version 2, over HTTP: routes, limits and answers.

Nothing of a framework: https://asgi.readthedocs.io/en/latest/specs/www.html is all that it needs of a server.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from ...ops.dataclasses import dataclass
from ...ops.errors import MezzoError
from ...runtime.version import __version__
from .line import Job
from .metrics import Metrics
from .protocol import Inquiry, read, written
from .repository import Repository, Source
from .served import Overloaded, Served, Serving, refusal

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Scope = Mapping[str, Any]
JSON: Final = "application/json"
HEAD: Final = b"inference-header-content-length"
JOINED: Final = 1 << 16  # bytes of parts that are copied into one, since each part is a call of the system
NUMBERS: Final = 16  # bytes of a list of Python numbers for one byte of JSON, at most


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of requests: bytes of one, of its JSON, and of all that are held at once; seconds until a request has come
    and until it is answered (None: no limit)."""

    request: int = 64 << 20
    json: int = 8 << 20
    held: int = 256 << 20
    arrive: float = 30.0
    answer: float | None = None


class Refused(Exception):
    """A response that is no success: status, message and headers."""

    def __init__(self, code: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.headers = code, dict(headers or {})


class Gone(Exception):
    """The client has closed its connection: nobody is to be told."""


class App:
    """The application: `await app(scope, receive, send)`. Models are loaded when the server says that it starts; until
    they are warm, /v2/health/ready answers 503; where others answer meanwhile, `first` has no connection taken until
    then."""

    def __init__(
        self,
        of: Sequence[Source],
        settings: Serving,
        limits: Limits,
        say: Callable[..., None],
        every: bool = False,
        first: bool = False,
    ) -> None:
        self.limits, self.say, self.every, self.first = limits, say, every, first
        self.metrics = Metrics()
        self.models = Repository(of, settings, self.metrics, say)
        self.held = 0
        self._loading: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        parts = [p for p in scope["path"].split("/") if p]
        try:
            code, headers, bodies = await self._routed(scope["method"], parts, scope, receive)
        except Gone:
            return
        except Refused as refused:
            code, bodies = refused.code, [json.dumps({"error": str(refused)}).encode()]
            headers = {"content-type": JSON, **refused.headers}
        length = sum(map(len, bodies))
        if length <= JOINED:
            bodies = [b"".join(bodies)]
        raw = [(n.encode(), v.encode()) for n, v in headers.items()]
        raw.append((b"content-length", b"%d" % length))
        await send({"type": "http.response.start", "status": code, "headers": raw})
        for number, body in enumerate(bodies, 1):
            await send({"type": "http.response.body", "body": body, "more_body": number < len(bodies)})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._loading = asyncio.create_task(self.models.load_all())
                if self.first:
                    await self._loading
                await send({"type": "lifespan.startup.complete"})
            else:
                if self._loading is not None:
                    self._loading.cancel()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # -- routes -----------------------------------------------------------------------------------------------------

    async def _routed(self, method: str, parts: list[str], scope: Scope, receive: Receive) -> Any:
        match method, parts:
            case "GET", ["metrics"]:
                return 200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, [self._counted()]
            case "GET", ["v2"]:
                extensions = ["binary_tensor_data", "model_repository", "statistics"]
                return _json({"name": "mezzo", "version": __version__, "extensions": extensions})
            case "GET", ["v2", "health", "live"]:
                return 200, {}, [b""]
            case "GET", ["v2", "health", "ready"]:
                return (200 if self.models.ready else 503), {}, [b""]
            case "POST", ["v2", "repository", "index"]:
                await self._body(scope, receive)
                return _json(self.models.index())
            case "POST", ["v2", "repository", "models", name, "load" | "unload" as verb]:
                await self._body(scope, receive)
                try:
                    await (self.models.load(name) if verb == "load" else self.models.unload(name))
                except KeyError as error:
                    raise Refused(404, error.args[0]) from error
                except MezzoError as error:
                    raise Refused(400, str(error)) from error
                return _json({})
            case _, ["v2", "models", name, *segments]:
                version, segments = (
                    (segments[1], segments[2:])
                    if segments[:1] == ["versions"] and len(segments) > 1
                    else ("", segments)
                )
                return await self._of_model(method, name, version, segments, scope, receive)
        raise Refused(404, f"there is no {method} {scope['path']}")

    async def _of_model(
        self, method: str, name: str, version: str, segments: list[str], scope: Scope, receive: Receive
    ) -> Any:
        try:
            model = self.models.find(name, version)
        except KeyError as error:
            loading = name in self.models.sources and not self.models.served.get(name)
            raise Refused(503 if loading else 404, error.args[0], {"retry-after": "1"} if loading else {}) from error
        match method, segments:
            case "GET", []:
                about = {"name": name, "versions": [*self.models.served[name]], "platform": "mezzo"}
                return _json({**about, "inputs": model.inputs, "outputs": model.outputs})
            case "GET", ["ready"]:
                return 200, {}, [b""]
            case "GET", ["stats"]:
                stats = model.session.stats()
                counts = {"runs": stats.runs, "programs": stats.programs, "arena_bytes": stats.arena_bytes}
                return _json({"model_stats": [{"name": name, "version": model.version, **counts}]})
            case "POST", ["infer"]:
                with model.used():
                    return await self._infer(model, scope, receive)
        raise Refused(404, f"there is no {method} {scope['path']}")

    async def _infer(self, model: Served, scope: Scope, receive: Receive) -> Any:
        """An answer, whose body is held until it is made; counted and logged, whatever comes of it."""
        began, code, asked, body, reserved = monotonic(), 200, None, bytearray(), 0
        try:
            body = await self._body(scope, receive)
            head = _number(scope, HEAD)
            numbers = min(len(body) if head is None else head, len(body))
            if numbers > self.limits.json:
                raise Refused(413, f"{numbers} bytes of JSON, {self.limits.json} allowed: send tensors as bytes")
            self._reserve(numbers * NUMBERS, model)
            reserved = numbers * NUMBERS
            asked = read(body, head, *model.ports)
            job = model.submit(asked, self.limits.answer)
            results = await _results(job, receive)
            parts, head = written(asked, results, model.name, model.version)
            headers = {"content-type": JSON}
            if head is not None:
                headers = {"content-type": "application/octet-stream", HEAD.decode(): str(head)}
            return 200, headers, parts
        except Refused as refused:
            code = refused.code
            raise
        except Gone:
            code = 499
            raise
        except Exception as error:
            code, more = refusal(error)
            if code == 500:
                self.say("error", level="error", **model.labels, error=repr(error))
            raise Refused(code, str(error), more) from error
        finally:
            self.held -= len(body) + reserved
            took = monotonic() - began
            self.metrics.requests.add(code=str(code), **model.labels)
            self.metrics.seconds.see(took, **model.labels)
            if self.every:
                self._log(model, asked, code, took, len(body))

    def _log(self, model: Served, asked: Inquiry | None, code: int, took: float, size: int) -> None:
        about = {"id": asked.identity} if asked is not None and asked.identity else {}
        self.say("request", **model.labels, **about, code=code, ms=round(took * 1e3, 3), bytes=size)

    # -- bodies -----------------------------------------------------------------------------------------------------

    async def _body(self, scope: Scope, receive: Receive) -> bytearray:
        """All of a body, whose bytes are counted as held; whoever asked gives them back, but where this raises.

        Raises Refused for one that is too large (before it is read, where it says so), too slow, compressed, or for
        which there is no room, and Gone.
        """
        length = _number(scope, b"content-length")
        if length is not None and length > self.limits.request:
            raise Refused(
                413, f"the request has {length} bytes, {self.limits.request} allowed", {"connection": "close"}
            )
        if any(n == b"content-encoding" and v.strip() not in (b"", b"identity") for n, v in scope["headers"]):
            raise Refused(415, "compressed requests are not read: send it as it is")
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.arrive):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    chunk = message.get("body", b"")
                    if len(body) + len(chunk) > self.limits.request:
                        raise Refused(413, f"more than {self.limits.request} bytes", {"connection": "close"})
                    self._reserve(len(chunk))
                    body += chunk
                    if not message.get("more_body"):
                        break
        except TimeoutError as error:
            self.held -= len(body)
            slow = f"the request did not arrive within {self.limits.arrive:g} s"
            raise Refused(408, slow, {"connection": "close"}) from error
        except BaseException:
            self.held -= len(body)
            raise
        if scope["path"].endswith("/infer"):
            return body
        self.held -= len(body)
        return body

    def _reserve(self, count: int, model: Served | None = None) -> None:
        if self.held + count > self.limits.held:
            error = Overloaded(f"requests hold {self.held} bytes", 1 if model is None else model.patience())
            raise Refused(503, str(error), {"retry-after": str(error.after)})
        self.held += count

    def _counted(self) -> bytes:
        self.metrics.held.set(self.held)
        for versions in self.models.served.values():
            for each in versions.values():
                stats = each.session.stats()
                self.metrics.memory.set(stats.arena_bytes + stats.program_bytes, **each.labels)
        return self.metrics.text().encode()


async def _results(job: Job, receive: Receive) -> Any:
    """The results of a job, which leaves the line when the client goes; raises Gone then."""
    away: asyncio.Task[None] | None = None
    try:
        if not job.ticket.done():
            await asyncio.sleep(0)
        if not job.ticket.done():  # it is not brief: somebody may go while it lasts
            away = asyncio.create_task(_away(receive))
            away.add_done_callback(lambda _: job.ticket.cancel())
        return await job.ticket
    except asyncio.CancelledError:
        if away is not None and away.done():
            raise Gone from None
        raise
    finally:
        job.gone = True
        if away is not None:
            away.cancel()


async def _away(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _number(scope: Scope, name: bytes) -> int | None:
    for key, value in scope["headers"]:
        if key == name:
            if not value.isdigit() or len(value) > 18:
                raise Refused(400, f"{name.decode()} is {value!r}")
            return int(value)
    return None


def _json(value: Any) -> Any:
    return 200, {"content-type": JSON}, [json.dumps(value).encode()]


def said_by(process: int | None = None) -> Callable[..., None]:
    """A logger of events as lines of JSON, on standard error."""
    import sys
    from datetime import UTC, datetime

    process = os.getpid() if process is None else process

    def say(event: str, *, level: str = "info", **fields: Any) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": at, "level": level, "event": event, "pid": process, **fields}, default=str)
        print(line, file=sys.stderr, flush=True)

    return say
