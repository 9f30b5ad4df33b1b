"""Kernels that are written as CUDA C++ (runtime/backends/cuda) run here on the processor: compiled by g++ with
cuda_shim.hpp.

    case = ask("ReduceSum", [x, axes], {"keepdims": 0})   # a KernelRequest; arrays in place of types are known elements
    (y,) = run_kernel(Reduce(), case, [x, axes])            # as `select` and `prepare` would run it
    (y,) = run_written(written, case, [x, axes])            # the launches themselves
    many = run_all([Run(written, case, [x, axes]), ...])    # the same, compiled together: a tenth of the time for each

Inputs are row-major arrays (None where absent) and so are the outputs: where types have a layout, elements are moved
into it and back. Every run checks that

- operands are what the parameters are: pointers, and numbers of their width;
- every element of an output is written: outputs and workspace begin as bytes 0xFF, NaN to floats;
- nothing is written beside outputs and workspace, or into inputs;
- the bits of the outputs are the same with blocks and threads in the opposite order, and in one drawn at random;
- blocks are no larger than the kernel says that they are, and all their threads come to each barrier, the same one;
- lanes that wait for each other are at one instruction, name each other, and have not returned;
- they are the same where an output lies in place of an input, for each alias of the kind "inplace".

Where `STRICT` is set, before anything is compiled, the compiler's sanitizer speaks of undefined behaviour on stderr,
and who reads beyond the last page of a buffer ends the process: for a process of its own.

Addresses are multiples of 64 bytes and of nothing more, as in an arena. Where there is no g++ for x86-64, `missing()`
says so, for pytest.skip.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import mmap
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mezzo.ops import OPS, Context, Tensor
from mezzo.ops.layouts import parse
from mezzo.ops.math.random import words_of
from mezzo.ops.types import Type, type_of
from mezzo.runtime.backends.cuda.generated import Generated
from mezzo.runtime.backends.cuda.launch import In, Launch, LaunchKey, Out, Scratch, Source, Written
from mezzo.runtime.compile.kernel import Declined, KernelRequest
from mezzo.runtime.ir.graph import Node

Array = np.ndarray[Any, Any]
STRICT = False
HEADER = Path(__file__).with_suffix(".hpp")
GUARD = 192  # bytes around every buffer; an odd multiple of 64
# what threads keep for themselves begins as a pattern, as nobody has written it
UNWRITTEN = "-ftrivial-auto-var-init=pattern"
FLAGS = (
    "-std=c++17",
    "-O1",
    "-w",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    UNWRITTEN,
    "-fwrapv",
)
INCLUDES = {"cuda_fp16.h", "cuda_bf16.h"}
SANITIZED = (*FLAGS[:-1], "-fsanitize=undefined,float-cast-overflow")  # without -fwrapv
WAITS = re.compile(r"__sync|_sync\s*\(")


@dataclass(frozen=True, slots=True)
class Run:
    """Launches with what they were asked for and the arrays that they are given."""

    written: Written
    request: KernelRequest
    inputs: Sequence[Any]


def missing() -> str:
    """Why nothing can be compiled here; empty where it can."""
    if platform.machine() != "x86_64":
        return "threads of kernels change places in x86-64's registers"
    return "" if shutil.which("g++") else "there is no g++"


def ask(
    op: str,
    inputs: Sequence[Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    domain: str | None = None,
    outputs: int = 1,
    layouts: Sequence[str] = (),
    known: Sequence[bool] | None = None,
    dropped: Collection[int] = (),
) -> KernelRequest:
    """What a device is asked for one node: inputs are arrays (whose elements inference knows, unless `known` says
    otherwise), types, or None. `layouts` are those of the inputs, then of the outputs, of which nobody wants those in
    `dropped`."""
    domain = ("" if ("", op) in OPS else "mezzo") if domain is None else domain
    known = [True] * len(inputs) if known is None else known
    types = [
        x if x is None or isinstance(x, Tensor) else type_of(np.asarray(x), known=k)
        for x, k in zip(inputs, known, strict=True)
    ]
    names = tuple("" if t is None else f"x{i}" for i, t in enumerate(types))
    made = tuple(f"y{i}" for i in range(outputs))
    node = Node(op, names, made, dict(attrs or {}), domain)
    found = OPS[domain, op].infer_types(types, node.attrs, (True,) * outputs)
    laid = [*layouts, *[""] * (len(types) + outputs - len(layouts))]
    constants = [k and isinstance(t, Tensor) and t.value is not None for k, t in zip(known, types, strict=True)]
    asked = KernelRequest(node, types, found, constants)
    return without(relaid(asked, laid), dropped) if dropped else relaid(asked, laid)


def without(asked: KernelRequest, dropped: Collection[int]) -> KernelRequest:
    """The same question where nobody wants some outputs, as a graph has it after prune: absent ones have no name and no
    type, and those at the end are not listed."""
    names = ["" if i in dropped else o for i, o in enumerate(asked.node.outputs)]
    kept = [t for i, t in enumerate(asked.outputs) if i not in dropped]
    while names and not names[-1] and not any(p.variadic for p in asked.node.record.outputs):
        names.pop()
    return replace(asked, node=replace(asked.node, outputs=tuple(names)), outputs=kept)


def relaid(asked: KernelRequest, layouts: Sequence[str]) -> KernelRequest:
    """The same question with these layouts of inputs and outputs; none of them for row-major throughout."""
    count, names = len(asked.inputs), asked.node.outputs
    layouts = layouts or ("",) * (count + len(names))

    def laid(type: Type | None, layout: str) -> Any:
        return replace(type, layout=layout) if isinstance(type, Tensor) else type

    ins = [laid(t, layout) for t, layout in zip(asked.inputs, layouts[:count], strict=True)]
    kept = [layout for name, layout in zip(names, layouts[count:], strict=True) if name]
    outs = [laid(t, layout) for t, layout in zip(asked.outputs, kept, strict=True)]
    return replace(asked, inputs=ins, outputs=outs)


def run_kernel(kernel: Generated, asked: KernelRequest, inputs: Sequence[Any]) -> list[Array]:
    """The outputs of a family's launches; AssertionError where it declines."""
    return run_all([written_by(kernel, asked, inputs)])[0]


def written_by(kernel: Generated, asked: KernelRequest, inputs: Sequence[Any]) -> Run:
    """What a family runs: chosen by one question, prepared by another, in which types have the chosen layouts."""
    assert kernel.serves(asked.node), f"{kernel.name} does not serve {asked.node.op}"
    found = kernel.written(asked)
    assert not isinstance(found, Declined), f"{kernel.name} declines {asked.node.op}: {found.reason}"
    chosen = relaid(asked, found.layouts)
    assert kernel.written(chosen) == found, f"{kernel.name} writes something else once layouts are chosen"
    return Run(found, chosen, inputs)


def run_written(written: Written, asked: KernelRequest, inputs: Sequence[Any]) -> list[Array]:
    """The outputs of these launches; types have the layouts of `written`."""
    return run_all([Run(written, relaid(asked, written.layouts), inputs)])[0]


def run_all(runs: Sequence[Run], jobs: int | None = None) -> list[list[Array]]:
    """The outputs of many launches, compiled together by `jobs` compilers at once (a worker of pytest's: one)."""
    load([launch.source for run in runs for launch in run.written.launches], jobs)
    return [_checked(run) for run in runs]


# Compiling


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel in a library of ours: its number there, the widths of its parameters, and how many threads a block has
    at most."""

    library: Any
    number: int
    sizes: tuple[int, ...]
    most: int


_LOADED: dict[str, Loaded] = {}
_TEXTS: dict[str, str] = {}


def load(sources: Iterable[Source], jobs: int | None = None, *, quick: bool = False) -> None:
    """Compile what is not loaded yet, `quick` without optimising it. AssertionError with the compiler's words where it
    fails."""
    fresh: dict[str, Source] = {}
    for source in sources:
        assert _TEXTS.setdefault(source.name, source.text) == source.text, f"two texts are named {source.name}"
        if source.name not in _LOADED:
            fresh[source.name] = source
    if not fresh:
        return
    jobs = jobs or (1 if "PYTEST_XDIST_WORKER" in os.environ else os.cpu_count() or 1)
    parts = [p for p in (list(fresh.values())[i::jobs] for i in range(jobs)) if p]
    flags: tuple[str, ...] = SANITIZED if STRICT else FLAGS
    flags = tuple("-O0" if flag == "-O1" and quick else flag for flag in flags)
    folder, command = _folder(), ["g++", *flags, "-I", str(_ahead(flags)), "-I", str(HEADER.parent)]
    paths = []
    for part in parts:
        text = unit(part)
        paths.append(folder / hashlib.sha256(text.encode()).hexdigest()[:24])
        paths[-1].with_suffix(".cpp").write_text(text)
    running = [
        subprocess.Popen([*command, "-shared", "-o", f"{p}.so", f"{p}.cpp", "-lm"], stderr=subprocess.PIPE, text=True)
        for p in paths
    ]
    for process, path, part in zip(running, paths, parts, strict=True):
        _, said = process.communicate()
        assert not process.returncode, f"g++ of {path}.cpp:\n{said[:4000]}"
        library = ctypes.CDLL(f"{path}.so")
        library.mz_run.restype = library.mz_describe.restype = ctypes.c_char_p
        for i, source in enumerate(part):
            sizes = library.mz_describe(i).decode().split()
            _LOADED[source.name] = Loaded(library, i, tuple(map(int, sizes)), bound_of(source))


def bound_of(source: Source) -> int:
    """How many threads a block of a kernel has at most, as its source says."""
    said = re.search(r"__launch_bounds__\((\d+)", source.text)
    return int(said[1]) if said else 1024


@cache
def _ahead(flags: tuple[str, ...]) -> Path:
    """A folder with cuda_shim.hpp compiled ahead, which is two fifths of the time of a small kernel; for all processes
    that have the same header, flags and compiler."""
    compiler = subprocess.run(["g++", "-dumpfullversion", "-dumpmachine"], check=True, capture_output=True).stdout
    key = hashlib.sha256(HEADER.read_bytes() + compiler + " ".join(flags).encode()).hexdigest()[:24]
    folder = HEADER.parents[1] / "build" / "shim" / key
    made = folder / f"{HEADER.name}.gch"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = made.with_suffix(f".{os.getpid()}")
        subprocess.run(["g++", *flags, "-x", "c++-header", "-o", fresh, HEADER], check=True)
        fresh.replace(made)
    return folder


@cache
def _folder() -> Path:
    """Where libraries lie until this process ends."""
    kept = tempfile.TemporaryDirectory(prefix="mezzo-shim-")
    _KEPT.append(kept)
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def unit(sources: Sequence[Source]) -> str:
    """A translation unit with these kernels, each in a namespace of its own."""
    lines, table = ['#include "cuda_shim.hpp"'], list[str]()
    for i, source in enumerate(sources):
        text = re.sub(r'^\s*#\s*include\s*[<"](.*?)[>"].*$', _included, source.text, flags=re.M)
        text = text.replace('extern "C"', "")
        text = re.sub(
            r"extern\s+__shared__\s+((?:__align__\s*\(\s*\d+\s*\)\s*)?)([\w ]+?)\s+(\w+)\s*\[\s*\]\s*;",
            r"\2* \3 = (\2*)mz_dynamic_shared;",
            text,
        )
        shared = "__shared__" in text
        lines += [
            f'#define __shared__ static __attribute__((section("mz_shared_{i}")))',
            f"namespace kernel_{i} {{",
            text,
            "}",
            "#undef __shared__",
            *(f"#undef {name}" for name in re.findall(r"^\s*#\s*define\s+(\w+)", text, re.M)),
        ]
        ends = "nullptr, nullptr"
        if shared:
            ends = f"__start_mz_shared_{i}, __stop_mz_shared_{i}"
            lines.append(f'extern "C" __attribute__((visibility("hidden"))) char {ends.replace(",", "[],")}[];')
        table.append(f"MZ_KERNEL(kernel_{i}::{source.name}, {str(bool(WAITS.search(text))).lower()}, {ends}),")
    return "\n".join([*lines, "static const MzKernel mz_table[] = {", *table, "};", _DOORS])


def _included(found: re.Match[str]) -> str:
    assert found[1] in INCLUDES, f"the shim has nothing in place of {found[1]}"
    return ""


_DOORS = """
extern "C" const char* mz_run(int number, void** operands, const unsigned* grid, const unsigned* block,
                              unsigned dynamic, unsigned order) {
    return mz_launch(mz_table[number], operands, grid, block, dynamic, order);
}
extern "C" const char* mz_describe(int number) {
    static char said[4096];
    int length = 0;
    said[0] = 0;
    for (int i = 0; i < mz_table[number].count; i++)
        length += snprintf(said + length, sizeof said - length, "%d ", mz_table[number].sizes[i]);
    return said;
}
"""


# Running


class Buffer:
    """Bytes with a guard on both sides."""

    def __init__(self, nbytes: int, fill: bytes | None = None) -> None:
        if STRICT:
            self._all = _before_a_wall(nbytes + GUARD)
            self._start = (len(self._all) - nbytes) // 64 * 64
        else:
            self._all = np.empty(nbytes + 2 * GUARD + 64, np.uint8)
            self._start = GUARD + (64 - self._all.ctypes.data - GUARD) % 128  # no multiple of 128
        self._all[:] = 0xA5
        self.bytes = self._all[self._start : self._start + nbytes]
        self.bytes[:] = 0xFF if fill is None else np.frombuffer(fill, np.uint8)
        self.address = self.bytes.ctypes.data if nbytes else self._all.ctypes.data + self._start

    def check(self, what: str) -> None:
        around = [self._all[: self._start], self._all[self._start + len(self.bytes) :]]
        assert all((part == 0xA5).all() for part in around), f"bytes beside {what} were written"


def _before_a_wall(nbytes: int) -> Array:
    """Whole pages, behind which lies one that nobody may touch."""
    page = mmap.PAGESIZE
    size = -(-nbytes // page) * page
    held = mmap.mmap(-1, size + page)
    found = np.frombuffer(held, np.uint8)
    failed = ctypes.CDLL(None).mprotect(ctypes.c_void_p(found.ctypes.data + size), page, 0)
    assert not failed, "mprotect"
    return found[:size]


def _checked(run: Run) -> list[Array]:
    outputs = _run(run, {}, 0)
    shown = " + ".join(map(str, run.written.launches))
    for order in (1, 2 + len(shown) % 1000):
        again = _run(run, {}, order)
        assert _bits(outputs) == _bits(again), f"{shown}: another order of threads gives another result"
    places: dict[int, int] = {}
    for alias in run.written.aliases:
        if alias.kind == "inplace" and not alias.delta:
            given, made = run.request.inputs[alias.input], run.request.results[alias.output]
            assert getattr(given, "nbytes", -1) == getattr(made, "nbytes", -2), shown
            places.setdefault(alias.output, alias.input)
            there = _run(run, {alias.output: alias.input}, 0)
            assert _bits(outputs) == _bits(there), f"{shown}: another result in place of input {alias.input}"
    if places:  # all at once, and the other way round
        assert len({*places.values()}) == len(places), f"{shown}: two outputs in one place"
        assert _bits(outputs) == _bits(_run(run, places, 1)), f"{shown}: another result in place of inputs"
    return outputs


def _bits(arrays: Sequence[Array]) -> list[bytes]:
    return [a.tobytes() for a in arrays]


def _run(run: Run, places: Mapping[int, int], order: int) -> list[Array]:
    asked, written = run.request, run.written
    ins: list[Buffer | None] = []
    for x, known in zip(run.inputs, asked.inputs, strict=True):
        assert (x is None) == (known is None)
        ins.append(None if x is None or known is None else Buffer(known.nbytes, physical(np.asarray(x), known)))  # type: ignore[union-attr]
    outs: list[Buffer | None] = []
    for i, made in enumerate(asked.results):
        place = ins[places[i]] if i in places else None
        outs.append(place or (Buffer(made.nbytes) if isinstance(made, Tensor) else None))
    scratch = Buffer(written.workspace)
    key = Buffer(8, np.array(words_of(Context().key, asked.node.attrs.get("seed")), np.uint32).tobytes())
    for launch in written.launches:
        _launch(launch, ins, outs, scratch, key, order)
    for i, (x, known) in enumerate(zip(run.inputs, asked.inputs, strict=True)):
        buffer = ins[i]
        if buffer is None:
            continue
        buffer.check(f"input {i}")
        if i not in places.values():
            assert buffer.bytes.tobytes() == physical(np.asarray(x), known), f"input {i} was written"
    for i, buffer in enumerate(outs):
        if buffer is not None:
            buffer.check(f"output {i}")
    scratch.check("the workspace")
    written_to = [buffer for buffer in outs if buffer is not None]
    return [logical(b.bytes, t) for b, t in zip(written_to, asked.outputs, strict=True)]


def _launch(
    launch: Launch,
    ins: Sequence[Buffer | None],
    outs: Sequence[Buffer | None],
    scratch: Buffer,
    key: Buffer,
    order: int,
) -> None:
    kernel, what = _LOADED[launch.source.name], launch.source.name
    assert len(launch.operands) == len(kernel.sizes), f"{what} has {len(kernel.sizes)} parameters"
    assert all(n >= 1 for n in (*launch.grid, *launch.block)), f"an empty launch: {launch}"
    assert max(launch.grid[0] >> 15, *launch.grid[1:]) < 65536, f"the grid is too large: {launch}"
    assert max(math.prod(launch.block), 16 * launch.block[2]) <= 1024, f"the block is too large: {launch}"
    assert launch.shared <= 227 * 1024, f"too much shared memory: {launch}"
    assert math.prod(launch.block) <= kernel.most, f"{launch}: more threads than its launch bounds, {kernel.most}"
    held: list[Any] = []
    for operand, size in zip(launch.operands, kernel.sizes, strict=True):
        if isinstance(operand, np.generic):
            assert operand.nbytes == size, f"{what}: {operand!r} for a parameter of {size} bytes"
            held.append(ctypes.create_string_buffer(operand.tobytes(), 16))
            continue
        assert size == -1, f"{what}: an address for a number"
        match operand:
            case In(i):
                buffer = ins[i]
                assert buffer is not None, f"{what}: input {i} is absent"
                address = buffer.address
            case Out(i):
                result = outs[i]
                assert result is not None, f"{what}: output {i} is not wanted"
                address = result.address
            case Scratch(offset):
                assert offset in range(0, len(scratch.bytes), 64), f"{what}: workspace at {offset}"
                address = scratch.address + offset
            case LaunchKey():
                address = key.address
        held.append(ctypes.c_void_p(address))
    pointers = (ctypes.c_void_p * max(1, len(held)))(*(ctypes.addressof(h) for h in held))
    three = ctypes.c_uint * 3
    said = kernel.library.mz_run(
        kernel.number, pointers, three(*launch.grid), three(*launch.block), launch.shared, order
    )
    assert said is None, f"{launch}: {said.decode()}"


def physical(x: Array, known: Any) -> bytes:
    """The bytes of an array in the layout of its type."""
    assert isinstance(known, Tensor)
    assert (x.shape, x.dtype) == (known.sizes, known.dtype.numpy), known
    if not known.layout:
        return np.ascontiguousarray(x).tobytes()
    order, blocks, behind = parse(known.layout, known.rank)
    assert (blocks, behind) == ((), 0), f"{known}: blocks are not laid out here"
    return np.ascontiguousarray(x.transpose(order)).tobytes()


def logical(held: Array, known: Any) -> Array:
    """The array in row-major order."""
    assert isinstance(known, Tensor)
    sizes, order = known.sizes, tuple(range(known.rank))
    if known.layout:
        order, blocks, behind = parse(known.layout, known.rank)
        assert (blocks, behind) == ((), 0), f"{known}: blocks are not laid out here"
    flat = held.copy().view(known.dtype.numpy) if held.size else np.empty(0, known.dtype.numpy)
    laid = flat.reshape([sizes[d] for d in order])
    return np.ascontiguousarray(laid.transpose(np.argsort(order) if order else ())).reshape(sizes)
