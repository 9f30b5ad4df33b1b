"""`mezzo serve`: the application on uvicorn, in one process or several, each with models of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Final

from ...ops.dataclasses import asdict
from ...ops.errors import MissingPackage
from .app import App, Limits, said_by
from .repository import sources
from .served import Serving

GIVEN: Final = "_MEZZO_SERVE"  # what worker processes are told by the environment, as JSON
DRAINED: Final = 30  # seconds for requests that are under way when the server is asked to end


def serve(
    models: Sequence[str], settings: Serving, limits: Limits, host: str, port: int, workers: int, every: bool
) -> None:
    """Serve until a signal asks to end; then no request that has begun is lost. Raises InputError for models that are
    not there, and MissingPackage without uvicorn."""
    try:
        import uvicorn
    except ImportError as error:
        hint = "pip install 'mezzo[serve]'"
        raise MissingPackage("uvicorn is not installed", where="mezzo serve", hint=hint) from error
    sources(models)  # what is not there is told before anything starts
    os.environ[GIVEN] = json.dumps([list(models), asdict(settings), asdict(limits), every, workers > 1])
    said_by()("serving", models=models, host=host, port=port, workers=workers)
    uvicorn.run(
        f"{__name__}:application", factory=True, host=host, port=port, workers=workers, log_level="warning",
        access_log=False, lifespan="on", server_header=False, timeout_graceful_shutdown=DRAINED,
    )  # fmt: skip


def application() -> App:
    """The application that this process was asked for."""
    models, settings, limits, every, first = json.loads(os.environ[GIVEN])
    of: dict[str, Any] = {**settings, "dims": tuple(settings["dims"])}
    return App(sources(models), Serving(**of), Limits(**limits), said_by(), every, first)
