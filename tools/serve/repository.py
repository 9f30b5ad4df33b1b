"""Models by name and version: found in files and folders, loaded beside those that answer, put in their place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ...ops.dataclasses import dataclass
from ...ops.errors import InputError, MezzoError
from .metrics import Metrics
from .served import Served, Serving
from .threads import call_and_let_go

SUFFIXES: Final = (".onnx", ".mezzo")
Say = Callable[..., None]  # an event and its fields


@dataclass(frozen=True, slots=True)
class Source:
    """A name and where its versions are: one file (version 1), or a folder with a folder for each number."""

    name: str
    path: Path

    def versions(self) -> dict[str, Path]:
        """Files by version, the lowest number first. Raises InputError where there is none."""
        if self.path.is_file():
            return {"1": self.path}
        numbers = sorted((p for p in self.path.glob("*") if p.name.isdigit() and p.is_dir()), key=lambda p: int(p.name))
        files = {p.name: model for p in numbers if (model := _model_in(p)) is not None}
        if not files:
            hint = "a file, or a folder NAME/1/model.onnx"
            raise InputError("there is no model", where=str(self.path), hint=hint)
        return files


def _model_in(folder: Path) -> Path | None:
    files = sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES)
    return next((p for p in files if p.stem == "model"), files[0] if files else None)


def sources(given: Sequence[str]) -> tuple[Source, ...]:
    """Models of NAME=PATH, a file, or a folder of files and folders. Raises InputError for what is none, and for a name
    that stands for two."""
    listed: list[Source] = []
    for text in given:
        name, named, location = text.partition("=")
        path = Path(location if named else text)
        if path.is_file() or (named and path.is_dir()):
            listed.append(Source(name if named else path.stem, path))
            continue
        inside = sorted(path.glob("*")) if path.is_dir() else []
        models = [Source(p.stem if p.is_file() else p.name, p) for p in inside if p.is_dir() or p.suffix in SUFFIXES]
        if not models:
            raise InputError("there is no model", where=text, hint="give files, folders, or NAME=PATH")
        listed += models
    for source in listed:
        source.versions()
        if not source.name or "/" in source.name:
            raise InputError(
                f"{source.name!r} is no name of a model", where="serve", hint="give NAME=PATH, without a /"
            )
    names = [s.name for s in listed]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise InputError(f"{twice!r} stands for two models", where="serve", hint="give NAME=PATH")
    return tuple(listed)


class Repository:
    """Models that answer, by name and version. All calls come from the thread of the event loop."""

    def __init__(self, of: Sequence[Source], settings: Serving, metrics: Metrics, say: Say) -> None:
        self.sources = {s.name: s for s in of}
        self.settings, self.metrics, self.say = settings, metrics, say
        self.served: dict[str, dict[str, Served]] = {}
        self.failed: dict[str, str] = {}  # why a model is not there
        self._turns = {name: asyncio.Lock() for name in self.sources}

    @property
    def ready(self) -> bool:
        return all(self.served.get(name) for name in self.sources)

    async def load_all(self) -> None:
        """Load every model; what fails is told, and is not ready."""
        for name in self.sources:
            try:
                await self.load(name)
            except MezzoError:
                continue  # said by `load`

    async def load(self, name: str) -> None:
        """Load all versions of a model and warm them, then put them in the place of those that answered so far, which
        end with what they have begun. Raises as Served does, and leaves those then."""
        async with self._turns[self._known(name)]:
            loop, fresh = asyncio.get_running_loop(), dict[str, Served]()
            try:
                for version, path in self.sources[name].versions().items():
                    fresh[version] = await loop.run_in_executor(
                        None, call_and_let_go, Served, name, version, path, self.settings, self.metrics
                    )
                    self.say("loaded", model=name, version=version, path=str(path), warm=fresh[version].warm)
            except MezzoError as error:
                self.failed[name] = str(error)
                self.metrics.loads.add(model=name, result="failed")
                self.say("failed", level="error", model=name, error=str(error))
                for each in fresh.values():
                    each.close()
                raise
            self.failed.pop(name, None)
            former = self.served.get(name, {})
            self.served[name] = fresh
            self.metrics.loads.add(model=name, result="loaded")
            self._mark(name, former)

    async def unload(self, name: str) -> None:
        """Let a model go; what it has begun is answered."""
        async with self._turns[self._known(name)]:
            former = self.served.pop(name, {})
            self.failed[name] = "unloaded"
            self._mark(name, former)
            self.say("unloaded", model=name)

    def _mark(self, name: str, former: dict[str, Served]) -> None:
        for version, each in former.items():
            each.close()
            self.metrics.ready.set(0, model=name, version=version)
        for version in self.served.get(name, {}):
            self.metrics.ready.set(1, model=name, version=version)

    def _known(self, name: str) -> str:
        if name not in self.sources:
            raise KeyError(f"there is no model {name!r}; there are {', '.join(self.sources)}")
        return name

    def find(self, name: str, version: str = "") -> Served:
        """A version, the highest where none is given. Raises KeyError."""
        versions = self.served.get(self._known(name))
        if not versions:
            raise KeyError(f"model {name!r} is not ready: {self.failed.get(name, 'it is being loaded')}")
        if not version:
            return versions[max(versions, key=int)]
        if version not in versions:
            raise KeyError(f"model {name!r} has no version {version!r}; it has {', '.join(versions)}")
        return versions[version]

    def index(self) -> list[dict[str, Any]]:
        """All models, as the repository extension of the protocol lists them."""
        rows: list[dict[str, Any]] = []
        for name in self.sources:
            here = self.served.get(name, {})
            rows += [{"name": name, "version": v, "state": "READY", "reason": ""} for v in here]
            if not self.served.get(name):
                rows.append({"name": name, "state": "UNAVAILABLE", "reason": self.failed.get(name, "loading")})
        return rows
