"""`import onnxruntime` answered by Mezzo: for one process (`mz.as_onnxruntime()`), or for a program
(`python -m mezzo.as_onnxruntime PROGRAM`)."""

from __future__ import annotations

import builtins
import importlib.metadata
import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from email.message import Message
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ...ops.errors import ArgumentError, MissingPackage
from ...runtime.version import __version__
from .hints import Overlooking
from .process import version

NAME: Final = "onnxruntime"
OURS: Final = f"{__name__.partition('.')[0]}.{NAME}"
WHERE: Final = "mz.as_onnxruntime()"
# Parts of the real package that are tools, and no runtime: what does the same here.
INSTEAD: Final = {
    "quantization": "mz.quantize(model, data) quantizes; models that are quantized already run as they are",
    "tools": "`mezzo check` and `mezzo convert` look at models and write them",
    "training": "mz.Trainer(model) trains",
    "transformers": "models are fused when they are planned: `mezzo explain model.onnx`",
    "datasets": "mezzo.models.digits.digits_model() is a model to try",
}
USAGE: Final = """usage: python -m mezzo.as_onnxruntime [-m MODULE | -c CODE | PROGRAM] [ARGS]...

Runs a program in whose process `import onnxruntime` is answered by Mezzo. PROGRAM is a file of Python, a folder or
archive with a __main__.py, or a command that an installed package brings (pytest, rembg, ...)."""


class NoSuchPart(MissingPackage, ModuleNotFoundError):
    """A module of ONNX Runtime's package that Mezzo has nothing for; an ImportError, as where it is not installed."""


def as_onnxruntime() -> None:
    """Answer `import onnxruntime` with Mezzo from now on, in this process and those forked from it.

    The first import says so on standard error, with who asked. `importlib.metadata` tells the version whose names
    these are. Options that only hint at how to be quick are taken, and named there once, where others are refused as
    ever. Call it before anything imports onnxruntime: raises ArgumentError where the real one is imported already.
    """
    real = sys.modules.get(NAME)
    if real is not None and real is not sys.modules.get(OURS):
        path = getattr(real, "__file__", None) or "a module without a file"
        hint = "call it first, or start the program by python -m mezzo.as_onnxruntime"
        raise ArgumentError(f"onnxruntime is imported already: {path}", where=WHERE, hint=hint)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(_installed()))
        Overlooking.tell = _say


def _installed() -> str:
    """The real packages of this name that are installed, for people to read."""
    names = (NAME, f"{NAME}-gpu", f"{NAME}-directml", f"{NAME}-openvino")
    return ", ".join(
        f"{d.metadata['Name']} {d.version}" for n in names for d in importlib.metadata.distributions(name=n)
    )


def _say(message: str) -> None:
    print(f"mezzo.as_onnxruntime: {message}", file=sys.stderr, flush=True)


class _Finder:
    """First of `sys.meta_path`: modules, and the distribution that `importlib.metadata` is asked for."""

    def __init__(self, real: str) -> None:
        self.real, self.told = real, False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Raises NoSuchPart for modules of the real package that ours has nothing for."""
        if name != NAME and not name.startswith(f"{NAME}."):
            return None
        part = name.removeprefix(NAME)
        if part and importlib.util.find_spec(OURS + part) is None:
            hint = INSTEAD.get(part.split(".")[1], "")
            error = NoSuchPart(f"there is no {name} in Mezzo, which stands in for {NAME}", where=_asking(), hint=hint)
            error.name = name
            raise error
        if not self.told:
            self.told = True
            also = f" ({self.real} is installed, and not used)" if self.real else ""
            _say(f"Mezzo {__version__} answers `import {NAME}` of {_asking()}{also}")
        return ModuleSpec(name, _Loader(), is_package=part in ("", ".capi", ".backend", ".transformers"))

    def find_distributions(self, context: importlib.metadata.DistributionFinder.Context) -> Iterator[_Distribution]:
        if context.name is None or context.name == NAME:
            yield _Distribution()

    def invalidate_caches(self) -> None:
        """Nothing is cached."""


class _Loader(Loader):
    """Our module by the other name: one module object, so that its classes are one."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"{OURS.partition('.')[0]}.{spec.name}")
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # that the import system has just replaced


class _Distribution(importlib.metadata.Distribution):
    """Metadata of a package `onnxruntime`, of the version whose names these are."""

    def read_text(self, filename: str) -> str | None:
        about = Message()
        for key, value in (("Metadata-Version", "2.1"), ("Name", NAME), ("Version", version)):
            about[key] = value
        about["Summary"] = f"Mezzo {__version__}, which stands in for it"
        return {"METADATA": str(about), "top_level.txt": f"{NAME}\n"}.get(filename)

    def locate_file(self, path: Any) -> Any:
        return Path(import_module(OURS).__path__[0]) / path


def _asking() -> str:
    """The module that is importing, with its file and line."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_globals.get("__name__", "?")
        if not file.startswith("<frozen importlib") and name not in (__name__, "importlib", "importlib.util"):
            return f"{name}, {file}:{frame.f_lineno}"
        frame = frame.f_back
    return "the interpreter"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a program with Mezzo in the place of ONNX Runtime. Ends with its exit code; 2 where there is none to run."""
    match list(sys.argv[1:] if arguments is None else arguments):
        case ["-h" | "--help", *_]:
            print(USAGE)
        case ["-m", module, *argv]:
            as_onnxruntime()
            sys.argv = [module, *argv]
            runpy.run_module(module, {"__builtins__": builtins}, "__main__", alter_sys=True)
        case ["-c", code, *argv]:
            as_onnxruntime()
            sys.argv = ["-c", *argv]
            exec(compile(code, "<string>", "exec"), sys.modules["__main__"].__dict__)
        case [program, *argv] if not program.startswith("-"):
            as_onnxruntime()
            sys.argv = [program, *argv]
            _program(program)
        case _:
            print(USAGE, file=sys.stderr)
            sys.exit(2)


def _program(program: str) -> None:
    """A file, folder or archive; else a command by the name of an entry point."""
    here = os.getcwd()
    if sys.path and sys.path[0] in ("", here):
        del sys.path[0]  # which `-m` has put there, and a program does not have
    if os.path.isfile(program) and not program.endswith((".zip", ".pyz")):
        sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    if os.path.exists(program):
        runpy.run_path(program, {"__builtins__": builtins}, "__main__")  # the module, as Python gives it
        return
    commands = importlib.metadata.entry_points(group="console_scripts", name=program)
    if not commands:
        print(f"mezzo.as_onnxruntime: there is neither a file nor a command {program!r}", file=sys.stderr)
        sys.exit(2)
    sys.exit(next(iter(commands)).load()())
