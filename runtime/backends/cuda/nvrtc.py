"""Compilation of sources for an architecture by NVRTC, through CuPy's binding; results are kept on disk (cache.py).

Neither a GPU nor a driver is needed: cubins for any architecture come out on any machine that has the library.
https://docs.nvidia.com/cuda/nvrtc/
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ....ops.errors import ExecutionError, MissingPackage
from .cache import key_of, read, write
from .launch import Source

OPTIONS = ("--std=c++17",)
FORM = "1"  # of entries in the cache
TOGETHER = 16  # kernels in one unit: starting a compiler costs as much as ten small ones
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[^\n]*\n", re.M)


def compiled(sources: Iterable[Source], arch: str) -> dict[str, bytes]:
    """The image (cubin) that holds each kernel, by the kernel's name, for an architecture like "sm_90". Kernels that
    were compiled together have one image.

    Raises MissingPackage without NVRTC, and ExecutionError with NVRTC's words for a source that it refuses.
    """
    wanted = {s.name: s for s in sources}
    keys = {name: key_of(FORM, s.text, arch, version(), *OPTIONS) for name, s in wanted.items()}
    images, result = dict[str, bytes](), dict[str, bytes]()
    for name, key in keys.items():
        unit = (read("nvrtc", key) or b"").decode("latin1")
        if unit and unit not in images:
            held = read("nvrtc", unit)
            if held is not None:
                images[unit] = held
        if unit in images:
            result[name] = images[unit]
    for part in _parts([s for s in wanted.values() if s.name not in result]):
        image = _compile(part, arch)
        unit = f"{key_of(*(keys[s.name] for s in part))}.cubin"
        write("nvrtc", unit, image)
        for source in part:
            write("nvrtc", keys[source.name], unit.encode())
            result[source.name] = image
    return result


def joined(sources: Sequence[Source]) -> str:
    """One translation unit with these kernels: headers first, then each text in a namespace of its own."""
    headers = dict.fromkeys(line.strip() for s in sources for line in _INCLUDE.findall(s.text))
    bodies = [f"namespace in_{s.name} {{\n{_INCLUDE.sub('', s.text)}\n}}" for s in sources]
    return "\n".join([*headers, *bodies, ""])


@cache
def version() -> str:
    """The version of NVRTC, as in "13.5"; MissingPackage without it."""
    return ".".join(map(str, _binding().getVersion()))


@cache
def _binding() -> Any:
    try:
        binding = import_module("cupy.cuda").nvrtc
        binding.getVersion()  # finds the library
    except Exception as error:  # CuPy raises RuntimeError for a library that it does not find
        raise MissingPackage(
            f"kernels for GPUs are compiled by NVRTC, which cannot be loaded: {error}",
            hint="pip install 'mezzo[cuda13]', or 'mezzo[cuda12]' for drivers of CUDA 12",
        ) from error
    return binding


@cache
def headers() -> tuple[Path, ...]:
    """Folders that hold CUDA's headers: of the toolkit that CUDA_PATH names, of installed packages, of this machine."""
    return tuple(p for p in _places() if (p / "cuda_fp16.h").is_file())


def _places() -> Iterator[Path]:
    if os.environ.get("CUDA_PATH"):
        yield Path(os.environ["CUDA_PATH"]) / "include"
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield from (Path(place) / folder / "include" for folder in ("cu13", "cuda_runtime"))
    yield Path("/usr/local/cuda/include")


def _parts(sources: list[Source]) -> Iterator[list[Source]]:
    yield from (sources[i : i + TOGETHER] for i in range(0, len(sources), TOGETHER))


def _compile(sources: Sequence[Source], arch: str) -> bytes:
    """One image of these kernels."""
    nvrtc, text = _binding(), joined(sources)
    options = [f"--gpu-architecture={arch}", *OPTIONS, *(f"-I{p}" for p in headers()[:1] if "#include" in text)]
    program = nvrtc.createProgram(text, "mezzo.cu", (), ())
    try:
        nvrtc.compileProgram(program, tuple(options))
        image: bytes = nvrtc.getCUBIN(program)
        return image
    except nvrtc.NVRTCError as error:
        if len(sources) > 1:  # which one it is
            for source in sources:
                _compile([source], arch)
        raise ExecutionError(
            f"NVRTC {version()} refuses {' and '.join(s.name for s in sources)} for {arch}: {error}\n"
            f"{nvrtc.getProgramLog(program)}",
            where=sources[0].name,
            hint="" if headers() else "CUDA's headers were not found: pip install nvidia-cuda-runtime",
        ) from error
    finally:
        nvrtc.destroyProgram(program)
