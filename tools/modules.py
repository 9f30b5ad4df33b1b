"""Modules of the user's that register something: operators, optimizers, importers."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ..ops.errors import InputError


def imported(modules: Sequence[str]) -> None:
    """Import modules by name, from the folder of the call too, as `python -m` does; or by file, where a name ends in
    `.py`. Raises InputError where one cannot be imported."""
    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in modules:
        try:
            if name.endswith(".py"):
                _from_file(Path(name).resolve())
            else:
                import_module(name)
        except (ImportError, OSError, SyntaxError) as error:
            raise InputError(
                f"{name} cannot be imported: {error}", where="--import", hint="give a module's name, or a file NAME.py"
            ) from error


def _from_file(path: Path) -> None:
    """Run a file as the module of its name, once for each process."""
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no module")
    module = sys.modules[path.stem] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
