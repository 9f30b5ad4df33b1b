"""The norm of all elements of many tensors, such as the gradients of a step: one launch for their sums of squares, in
float64, and one for the sum of these."""

from __future__ import annotations

from ....ops import Tensor
from ...compile.kernel import Declined, KernelRequest, listed
from ...memory.liveness import aligned
from .generated import Generated
from .launch import In, Launch, Out, Scratch, Written
from .text import THREADS, WARP, Element, elements, launch, reads, writes

SHARE = 32 * THREADS  # elements that a block adds
MOST = 256  # tensors of a launch: a kernel takes 4 KiB of parameters
LAST = 1024  # threads that add what the blocks have added


class TotalNorm(Generated):
    """mezzo::TotalNorm."""

    name = "gpu.total_norm"
    operators = listed("mezzo::TotalNorm")

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, result = elements(request.inputs), elements(request.outputs)
        if forms is None or result is None or not all(e.dtype.floating for e in forms):
            return Declined("an operand is no tensor of floats, or its sizes are not known")
        counts = [t.elements or 0 for t in request.inputs if isinstance(t, Tensor)]
        listed = [i for i, n in enumerate(counts) if n]
        blocks = [-(-n // SHARE) for n in counts]
        launches, at = list[Launch](), 0
        for first in range(0, len(listed), MOST):
            some = listed[first : first + MOST]
            launches.append(_squares(some, [forms[i] for i in some], [counts[i] for i in some], at))
            at += sum(blocks[i] for i in some)
        # each tensor lies in an order of its own, which is all the same to a sum
        layouts = tuple(t.layout if isinstance(t, Tensor) else "" for t in request.inputs)
        return Written(
            (*launches, _root(result[0], at)), aligned(8 * max(at, 1)), layouts=(*layouts, "") if any(layouts) else ()
        )


def _squares(places: list[int], forms: list[Element], counts: list[int], at: int) -> Launch:
    """The sums of squares of shares of some inputs, a block for each, from number `at` of the workspace on."""
    functions = dict[str, str]()
    cases, first = list[str](), 0
    for i, e, n in zip(places, forms, counts, strict=True):
        name = f"KERNEL_{e.dtype}"
        functions[name] = f"""
__device__ __forceinline__ double {name}(const {e.stored}* x, long long n, int share) {{
    double sum = 0;
    const long long begin = (long long)share * {SHARE}, end = min(n, begin + {SHARE});
    #pragma unroll 8
    for (long long j = begin + threadIdx.x; j < end; j += {THREADS}) {{
        const double v = (double){e.read("x[j]")};
        sum += v * v;
    }}
    return sum;
}}
"""
        blocks = -(-n // SHARE)
        cases.append(f"if (block < {first + blocks}) sum = {name}(x{i}, {n}ll, block - {first});")
        first += blocks
    body = [
        "const int block = (int)blockIdx.x;",
        "double sum = 0;",
        *_chosen(cases, [-(-n // SHARE) for n in counts]),
        *_together(THREADS),
        f"if (threadIdx.x == 0) parts[{at} + block] = sum;",
    ]
    parameters = [reads(e, f"x{i}", In(i)) for i, e in zip(places, forms, strict=True)]
    parameters.append(writes("double", "parts", Scratch(0)))
    return launch("squares", parameters, "\n".join(body), first, before="".join(functions.values()))


def _chosen(cases: list[str], blocks: list[int], before: int = 0) -> list[str]:
    """Statements that find the case of a block by halves: all threads of it go the same way."""
    if len(cases) == 1:
        return [cases[0]]
    half = len(cases) // 2
    middle = before + sum(blocks[:half])
    low = _chosen(cases[:half], blocks[:half], before)
    high = _chosen(cases[half:], blocks[half:], middle)
    return [f"if (block < {middle}) {{", *low, "} else {", *high, "}"]


def _together(threads: int) -> list[str]:
    """Statements that add `sum` of all threads of a block, into that of the first."""
    return [
        f"for (int m = {WARP // 2}; m; m >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, m);",
        f"__shared__ double warps[{threads // WARP}];",
        f"if (threadIdx.x % {WARP} == 0) warps[threadIdx.x / {WARP}] = sum;",
        "__syncthreads();",
        "sum = warps[0];",
        f"for (int w = 1; w < {threads // WARP}; ++w) sum += warps[w];",
    ]


def _root(form: Element, count: int) -> Launch:
    """The root of the sum of what the blocks have added."""
    body = [
        "double sum = 0;",
        f"for (int j = threadIdx.x; j < {count}; j += {LAST}) sum += parts[j];",
        *_together(LAST),
        f"if (threadIdx.x == 0) y[0] = {form.write(f'({form.wide})sqrt(sum)')};",
    ]
    parameters = [reads("double", "parts", Scratch(0)), writes(form, "y", Out(0))]
    return launch("total_norm", parameters, "\n".join(body), 1, LAST)
