"""What NVRTC makes of the GPU's own kernels, run instruction by instruction (tests/ptx): right answers, no races,
nothing read or written where it must not be, nothing used that nobody has written, no barrier that somebody misses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytest

from mezzo.ops import Tensor
from mezzo.runtime.backends.cuda.generated import Generated
from mezzo.runtime.backends.cuda.launch import In, Launch, Out, Source

from .cuda_shim import Run
from .gpu_cases import Case
from .ptx.arithmetic import Unknown
from .ptx.memory import Fault
from .ptx.parse import Unreadable, parse
from .ptx.run import Arena, Kernel, census, compiled, interpreted, kernels_of, run_launch
from .test_gpu_kernels import ARCHITECTURES, CASES, NARROW, assert_answer, by_nvrtc, cases, families, retyped, runs

# cases of a family, elements of their operands, threads of their launches that the suite has time for
FEW, SMALL, THREADS = 12, 2_500, 20_000


def elements(case: Case) -> int:
    return sum(x.elements or 0 if isinstance(x, Tensor) else np.size(x) for x in case.inputs if x is not None)


def every(kernel: Generated) -> list[Case]:
    """The cases of a family: its own, in narrow floats too, and the samples of its operators."""
    own = list(CASES.get(kernel.name, ()))
    narrow = [retyped(case, NARROW[i % 2]) for i, case in enumerate(own)]
    return [*cases(kernel), *(case for case in narrow if case is not None)]


def few(kernel: Generated) -> list[Case]:
    """Some of them: the first of some operators, and others evenly, in all forms that the family has."""
    small = [case for case in every(kernel) if 0 < elements(case) <= SMALL]
    first = list({case.op: case for case in reversed(small)}.values())
    ops = first[:: max(1, -(-2 * len(first) // FEW))][: FEW // 2]
    rest = [case for case in small if all(case is not other for other in ops)]
    step = max(1, len(rest) // (FEW - len(ops)))
    return [*ops, *rest[step // 2 :: step]][:FEW]


def threads(run: Run) -> int:
    return sum(prod((*launch.grid, *launch.block)) for launch in run.written.launches)


def check(found: Sequence[tuple[Case, Run]], arch: str, groups: int = 2) -> Counter[str]:
    """Run all, as they are and with outputs in place of inputs where they may lie there."""
    kernels = compiled([launch.source for _, run in found for launch in run.written.launches], arch)
    for case, run in found:
        assert_answer(case, run, interpreted(run, kernels, groups=groups))
        inplace = {a.output: a.input for a in run.written.aliases if a.kind == "inplace" and not a.delta}
        if inplace:
            assert_answer(case, run, interpreted(run, kernels, seed=1, groups=groups, places=inplace))
    return census(kernels.values())


@by_nvrtc
@families
def test_a_few_of_each_family(kernel: Generated) -> None:
    """For one of the architectures, by turns."""
    made = sorted(runs(kernel, few(kernel)), key=lambda found: threads(found[1]))
    found = [one for one in made if threads(one[1]) <= THREADS] or made[:1]
    assert found
    said = check(found, ARCHITECTURES[sum(map(ord, kernel.name)) % 2])
    print(
        f"{kernel.name}: {len(found)} runs, {len(said)} instructions:",
        ", ".join(f"{n} {c}" for n, c in sorted(said.items())),
    )


@by_nvrtc
@pytest.mark.soak
@pytest.mark.parametrize("arch", ARCHITECTURES)
@families
def test_all_of_each_family(kernel: Generated, arch: str) -> None:
    found = runs(kernel, [case for case in every(kernel) if elements(case) <= 300_000])
    for i in range(0, len(found), 64):
        check(found[i : i + 64], arch, groups=3)


# The interpreter itself: what it is there to find


def entry(body: str, *, parameters: int = 2, threads: int = 64, registers: str = "") -> dict[str, Kernel]:
    """A kernel `k` over pointers, in PTX."""
    named = ", ".join(f".param .u64 k_param_{i}" for i in range(parameters))
    loads = "".join(f"ld.param.u64 %rd{i}, [k_param_{i}];\n" for i in range(parameters))
    text = f"""
.version 9.0
.target sm_80
.address_size 64
.visible .entry k({named}) .maxntid {threads}, 1, 1
{{
.reg .pred %p<9>; .reg .b32 %r<19>; .reg .f32 %f<19>; .reg .b64 %rd<19>; .reg .b16 %rs<9>; .reg .f64 %fd<9>;
.shared .align 4 .b8 square[256];
{registers}
{loads}
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd9, %r0, 4;
add.s64 %rd10, %rd0, %rd9;
add.s64 %rd11, %rd1, %rd9;
{body}
}}
"""
    return kernels_of(parse(text))


def ran(
    kernels: dict[str, Kernel], *, grid: int = 1, threads: int = 64, held: Any = None, groups: int = 2, seed: int = 0
) -> Any:
    """What is in the second buffer after a launch; the first one holds the numbers of threads."""
    held = np.arange(64, dtype=np.float32) if held is None else held
    rng = np.random.default_rng(seed)
    arena = Arena([(held.nbytes, False, held.tobytes()), (256, True, None)], (), 4, rng)
    launch = Launch(Source("k", ""), (grid, 1, 1), (threads, 1, 1), (In(0), Out(0)))
    arguments = [np.uint64(0x7F1000000000 + p) for p in arena.places]
    run_launch(kernels["k"], launch, arguments, arena, rng, groups)
    return arena


COPY = "ld.global.nc.f32 %f1, [%rd10]; st.global.f32 [%rd11], %f1;"
SHARE = "mov.u32 %r1, square; shl.b32 %r2, %r0, 2; add.s32 %r3, %r1, %r2; xor.b32 %r4, %r2, 128; add.s32 %r5, %r1, %r4;"


def test_what_is_right_runs() -> None:
    arena = ran(entry(f"{COPY} ret;"))
    assert arena.known(1, 256)
    assert arena.read(1, 256).view(np.float32).tolist() == list(range(64))
    turned = f"""{SHARE} ld.global.nc.f32 %f1, [%rd10]; st.shared.f32 [%r3], %f1; bar.sync 0;
ld.shared.f32 %f2, [%r5]; st.global.f32 [%rd11], %f2; ret;"""
    found = ran(entry(turned)).read(1, 256).view(np.float32)
    assert found.tolist() == [*range(32, 64), *range(32)]
    summed = """mov.b32 %r6, 31; mov.b32 %r7, -1; ld.global.nc.u32 %r8, [%rd10];
$again: shfl.sync.bfly.b32 %r9|%p1, %r8, 16, %r6, %r7; st.global.u32 [%rd11], %r9; ret;"""
    assert ran(entry(summed)).read(1, 256).view(np.float32)[:3].tolist() == [16, 17, 18]


HIGH = "setp.gt.u32 %p1, %r0, 40; @%p1"
DEFECTS = {
    "a race": f"{SHARE} st.shared.u32 [%r3], %r0; ld.shared.u32 %r6, [%r5]; st.global.u32 [%rd11], %r6; ret;",
    "write one place": "st.global.u32 [%rd1], %r0; ret;",
    "nobody has written": f"{SHARE} ld.shared.u32 %r6, [%r5]; setp.eq.s32 %p1, %r6, 0; @%p1 bra $end; $end: ret;",
    "the address": "shl.b64 %rd12, %rd13, 2; add.s64 %rd12, %rd12, %rd0; ld.global.u32 %r6, [%rd12]; ret;",
    "may not: 0x": "st.global.f32 [%rd11+256], 0f00000000; ret;",
    "writes global memory where it may not": "st.global.f32 [%rd10], 0f00000000; ret;",
    "no multiple": "ld.global.nc.u16 %rs1, [%rd10+1]; ret;",
    "they have returned": f"{HIGH} bra $end; bar.sync 0; st.global.u32 [%rd11], %r0; $end: ret;",
    "different barriers": f"{HIGH} bra $other; bar.sync 0; bra $end; $other: bar.sync 0; $end: ret;",
    "names a thread that has returned": f"{HIGH} ret; shfl.sync.bfly.b32 %r9, %r0, 1, 31, -1; ret;",
    "never come": f"{HIGH} bra $wait; shfl.sync.bfly.b32 %r9, %r0, 1, 31, -1; $wait: bar.sync 0; ret;",
    "not among those": "shfl.sync.bfly.b32 %r9, %r0, 1, 31, 1; ret;",
    "division by zero": "div.s32 %r6, 7, %r0; st.global.u32 [%rd11], %r6; ret;",
    "read as constant": "st.global.u32 [%rd11], %r0; ld.global.nc.u32 %r6, [%rd11]; ret;",
    "beyond shared memory": f"{SHARE} st.shared.u32 [%r3+4096], %r0; ret;",
}


@pytest.mark.parametrize("said", DEFECTS)
def test_what_is_wrong_is_a_fault(said: str) -> None:
    with pytest.raises(Fault, match=said):
        ran(entry(DEFECTS[said]))


def test_blocks_race_too() -> None:
    with pytest.raises(Fault, match="a race"):
        ran(entry("st.global.u32 [%rd11], %r0; ret;"), grid=2)
    with pytest.raises(Fault, match="threads in a block"):
        ran(entry(f"{COPY} ret;", threads=32))


def test_what_is_not_known_is_told() -> None:
    with pytest.raises(Unknown, match="wgmma"):
        ran(entry("wgmma.fence.sync.aligned.u32 %r1, %r1; ret;"))
    with pytest.raises(Unreadable):
        entry("??? ret;")
    kernels = entry("st.global.u32 [%rd11], %r5; ret;")
    assert not ran(kernels).known(1, 256)  # what means nothing may be stored, and then means nothing there


@pytest.mark.parametrize(
    ("text", "operands", "result"),
    [
        ("mul.hi.s64 %rd5, %rd3, %rd4", (-(3**38), 7**20), -(3**38) * 7**20 >> 64),
        ("mul.hi.u64 %rd5, %rd3, %rd4", (2**64 - 5, 2**63 + 9), (2**64 - 5) * (2**63 + 9) >> 64),
        ("div.s64 %rd5, %rd3, %rd4", (-7, 2), -3),
        ("rem.s64 %rd5, %rd3, %rd4", (-7, 2), -1),
        ("shr.s64 %rd5, %rd3, 70", (-7, 0), -1),
        ("shl.b64 %rd5, %rd3, 64", (1, 0), 0),
        ("bfi.b64 %rd5, %rd3, %rd4, 8, 4", (0xFF, 0), 0xF00),
        ("bfe.s64 %rd5, %rd3, 4, 4", (0xF0, 0), -1),
        ("cvt.s64.s8 %rd5, %rd3", (0x80, 0), -128),
        ("min.s64 %rd5, %rd3, %rd4", (-1, 1), -1),
        ("min.u64 %rd5, %rd3, %rd4", (-1, 1), 1),
        ("clz.b64 %r5, %rd3; cvt.u64.u32 %rd5, %r5", (1, 0), 63),
    ],
)
def test_whole_numbers(text: str, operands: tuple[int, int], result: int) -> None:
    def bits(n: int) -> int:
        return n % (1 << 64)

    given = f"mov.u64 %rd3, {bits(operands[0])}; mov.u64 %rd4, {bits(operands[1])};"
    body = f"{given} {text}; st.global.u64 [%rd1], %rd5; ret;"
    assert int(ran(entry(body), threads=1).read(1, 8).view(np.uint64)[0]) == bits(result)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("fma.rn.f32 %f3, 0f3F800001, 0f3F800001, 0fBF800002", 2.0**-46),  # rounded once
        ("fma.rm.f32 %f3, 0f3F800000, 0f3F800000, 0f33000000", 1.0),
        ("add.rz.f32 %f3, 0fBF800000, 0fB3000000", -1.0),
        ("min.f32 %f3, 0f7FC00000, 0f3F800000", 1.0),
        ("copysign.f32 %f3, 0fBF800000, 0f40000000", -2.0),
        ("cvt.sat.f32.f32 %f3, 0f7FC00000", 0.0),
        ("cvt.rzi.s32.f32 %r3, 0f4F800000; cvt.rn.f32.s32 %f3, %r3", 2147483648.0),
        ("cvt.rn.f16.f32 %rs1, 0f3F8003FF; cvt.f32.f16 %f3, %rs1", 1.0),
        ("ex2.approx.ftz.f32 %f3, 0f00000001", 1.0),
        ("setp.ne.f32 %p1, 0f7FC00000, 0f3F800000; selp.f32 %f3, 0f3F800000, 0f00000000, %p1", 0.0),
        ("setp.neu.f32 %p1, 0f7FC00000, 0f3F800000; selp.f32 %f3, 0f3F800000, 0f00000000, %p1", 1.0),
    ],
)
def test_floats(text: str, result: float) -> None:
    made = ran(entry(f"{text}; st.global.f32 [%rd1], %f3; ret;"), threads=1).read(1, 4).view(np.float32)
    assert float(made[0]) == result


def test_a_float64_is_multiplied_and_added_with_one_rounding() -> None:
    body = """mov.f64 %fd1, 0d3FF0000000000001; fma.rn.f64 %fd2, %fd1, %fd1, 0dBFF0000000000002;
st.global.f64 [%rd1], %fd2; ret;"""
    assert float(ran(entry(body), threads=1).read(1, 8).view(np.float64)[0]) == 2.0**-104


def test_atomics_do_not_race() -> None:
    body = """mov.u32 %r2, 7; setp.ne.s32 %p1, %r0, 0; @!%p1 st.global.u32 [%rd1], %r2; bar.sync 0;
atom.global.max.s32 %r3, [%rd1], %r0; ret;"""
    assert int(ran(entry(body)).read(1, 4).view(np.int32)[0]) == 63
