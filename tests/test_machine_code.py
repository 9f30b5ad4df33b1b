"""Machine code of our own: how it is made, loaded and called."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mezzo as mz
from mezzo.runtime.backends.machine import build
from mezzo.runtime.backends.machine.blobs import loaded, read
from mezzo.runtime.backends.machine.emit import compiler
from mezzo.runtime.backends.machine.emit.ir import F32, PTR, Function, module, number, vector
from mezzo.runtime.backends.machine.tiers import AVX2, AVX512, NEON, TIERS, Tier
from mezzo.runtime.memory import executable_code as executable
from mezzo.runtime.memory.executable_code import ExecutableCode

LINUX = pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="only for Linux on x86-64")


def doubling(width: int = 8) -> Function:
    """A function that doubles so many float32."""
    f = Function("doubling")
    x = f.word(f.arguments[0], 0, PTR)
    f.store(f.binary("fmul", f.load(x, vector(width, F32)), 2.0), x)
    f.give()
    return f


@pytest.mark.parametrize("tier", TIERS, ids=lambda t: t.name)
def test_blobs_are_of_the_texts_that_are_here(tier: Tier) -> None:
    """Where it fails: python -m mezzo.runtime.backends.machine.build."""
    about = read(tier).about
    assert about["tier"] == tier.name
    assert about["texts"] == build.digest_of(build.texts(tier))


@pytest.mark.parametrize("tier", TIERS, ids=lambda t: t.name)
def test_the_texts_give_the_blobs_again(tier: Tier) -> None:
    pytest.importorskip("llvmlite")
    blob = read(tier)
    if compiler.llvm_version() != blob.about["llvm"]:
        pytest.xfail(f"the blob is of LLVM {blob.about['llvm']}, here is {compiler.llvm_version()}")
    assert build.build(tier).content() == blob.content()


@pytest.mark.parametrize("tier", [AVX2, AVX512, NEON], ids=lambda t: t.name)
def test_code_stands_alone_or_is_refused(tier: Tier) -> None:
    pytest.importorskip("llvmlite")
    assert compiler.compiled(module([doubling()]), tier).functions == {"doubling": 0}
    f = Function("power")
    x = f.word(f.arguments[0], 0, PTR)
    f.store(f.call(F32, "llvm.pow.f32", f.load(x, F32), number(0.3)), x)
    f.give()
    with pytest.raises(mz.PlanError, match="does not stand alone: it needs powf"):
        compiler.compiled(module([f]), tier)
    counts = "@n = internal global i32 0\ndefine void @count() {\n store volatile i32 1, ptr @n\n ret void\n}\n"
    with pytest.raises(mz.PlanError, match="does not stand alone"):
        compiler.compiled(counts, tier)


@LINUX
@pytest.mark.parametrize("way", ["file", "memory"])
def test_no_memory_is_written_and_executed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "memory":  # as where files may not be executed
        monkeypatch.setattr(executable, "_from_file", refused)
    answer = ExecutableCode(bytes.fromhex("b82a000000c3"))  # mov eax, 42; ret
    assert ctypes.CFUNCTYPE(ctypes.c_int)(answer.address)() == 42
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, *_ = line.split()
        first, last = (int(end, 16) for end in span.split("-"))
        if first <= answer.address < last:
            assert mode == "r-xp"
            break
    else:
        pytest.fail("the code is nowhere")


def refused(code: bytes, size: int) -> None:
    raise PermissionError(13, "refused")


SWITCHED = """
import numpy as np, mezzo as mz
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.ops.types import f32
from mezzo.runtime.memory import executable_code as executable
def refused(*_): raise PermissionError(13, "refused")
if {refuse}: executable._mapped = refused
g = GraphBuilder()
bits, scales = g.const(np.full((16, 1, 16), 0x98, np.uint8)), g.const(np.ones((16, 1), np.float32))
y = g.op("MatMulNBits", g.input("x", f32(1, 32)), bits, scales, domain="com.microsoft", K=32, N=16, block_size=32)
s = mz.Session(g.graph([y]))
assert (s(np.ones((1, 32), np.float32))[0] == 16).all()
(step,) = s.program.steps
print(step.choice.kernel, dict(step.declined).get("machine.matmul_n_bits"))
"""


@LINUX
@pytest.mark.parametrize(("refuse", "off", "said"), [(False, "off", "MEZZO_MACHINE_CODE=off"), (True, "", "refused")])
def test_without_it_another_kernel_takes_the_step(refuse: bool, off: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SWITCHED.format(refuse=refuse)],
        env={**os.environ, "MEZZO_MACHINE_CODE": off}, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    kernel, reason = done.stdout.strip().split(maxsplit=1)
    assert not kernel.startswith("machine.")
    assert said in reason


@LINUX
def test_the_blob_is_loaded_once_where_the_processor_has_its_instructions() -> None:
    code = loaded()
    assert code is loaded()
    flags = Path("/proc/cpuinfo").read_text()
    if "avx2" in flags and "fma" in flags:
        assert not isinstance(code, str)
        assert set(code.functions) == set(read(code.tier).about["functions"])
