"""Determinants of square matrices: Gaussian elimination with the largest pivots, a block for each matrix."""

from __future__ import annotations

from ...compile.kernel import Declined, KernelRequest, listed
from .generated import Generated, operands
from .launch import In, Out, Scratch, Written
from .text import THREADS, launch, reads, writes

MOST = 512  # rows: the columns follow one another, and libraries know better for large matrices


class Determinant(Generated):
    """Det, computed in float64: cofactors, which are the usual use, are differences of large products."""

    name = "gpu.determinant"
    operators = listed("Det")

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, x, y = operands(request, floats=True)
        n, e = x.sizes[-1], forms[0]
        if not y.elements:
            return Written(())
        if n > MOST or (x.elements or 0) >= 2**31:
            return Declined(f"matrices of {n} rows")
        threads = THREADS if n > 16 else 32
        body = f"""
double* const a = work + (long long)blockIdx.x * {n * n};
for (int i = threadIdx.x; i < {n * n}; i += {threads}) a[i] = {e.read(f"x[(long long)blockIdx.x * {n * n} + i]")};
__shared__ int pivot;
double product = 1;
for (int k = 0; k < {n}; ++k) {{
    __syncthreads();
    if (threadIdx.x == 0) {{
        int best = k;
        for (int r = k + 1; r < {n}; ++r) if (fabs(a[r * {n} + k]) > fabs(a[best * {n} + k])) best = r;
        pivot = best;
    }}
    __syncthreads();
    const int p = pivot;
    const double top = a[p * {n} + k];
    product *= p == k ? top : -top;
    if (top == 0) break;
    __syncthreads();
    if (p != k) for (int c = k + threadIdx.x; c < {n}; c += {threads}) {{
        const double held = a[k * {n} + c];
        a[k * {n} + c] = a[p * {n} + c];
        a[p * {n} + c] = held;
    }}
    __syncthreads();
    const int below = {n} - 1 - k;
    for (int i = threadIdx.x; i < below * below; i += {threads}) {{
        const int r = k + 1 + i / below, c = k + 1 + i % below;
        a[r * {n} + c] -= a[r * {n} + k] / top * a[k * {n} + c];
    }}
}}
if (threadIdx.x == 0) y[blockIdx.x] = {e.write(f"({e.wide})product")};
"""
        if not n:
            body = f"y[blockIdx.x] = {e.write('1')};"
        parameters = [reads(e, "x", In(0)), writes(e, "y", Out(0)), ("double*", "work", Scratch(0))]
        return Written((launch("det", parameters, body, y.elements, threads),), 8 * max(x.elements or 0, 1))
