"""Matrix products of our own: for element types that libraries lack, and where they decline.

A block computes a square of the product from squares of both operands in shared memory; each thread up to 4 x 4
elements in registers (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#shared-memory).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....ops import DType, Tensor
from ....ops.dataclasses import dataclass
from ...compile.kernel import Declined, KernelRequest, listed
from .generated import Generated, operands
from .launch import In, Launch, Operand, Out, Written
from .quantised import step_of
from .text import Element, coordinates, dot, element, has_input, launch, reads, strides_of, writes

SIDE, DEPTH = 16, 16  # threads along each side of a block, and how much of the inner axis is in shared memory
Parameter = tuple[str, str, Operand]


@dataclass(frozen=True, slots=True)
class GemmProduct:
    """`batch` products of matrices [rows, inner] and [inner, columns], as pieces of source.

    `left` and `right` are the values at `row`, `k` and at `k`, `column` of product number `z`, which `before` may take
    apart; they are read only inside of the matrices. `result` is the statement that stores `sum` at `row`, `column`.
    `left_runs` and `right_runs` tell whether neighbours along the inner axis are neighbours in memory. `kind` is the
    type of the sum.
    """

    family: str
    kind: str
    batch: int
    rows: int
    columns: int
    inner: int
    left: str
    right: str
    result: str
    parameters: tuple[Parameter, ...]
    before: tuple[str, ...] = ()
    left_runs: bool = True
    right_runs: bool = False

    def launch(self) -> Launch:
        """One launch, a block for each square of each product."""
        high, wide = (4 if n >= 4 * SIDE else 1 for n in (self.rows, self.columns))
        m, n, kind = SIDE * high, SIDE * wide, self.kind
        across, down = -(-self.columns // n), -(-self.rows // m)

        def load(square: str, side: int, runs: bool, outer: str, begin: str, size: int, value: str) -> list[str]:
            place = (f"q / {DEPTH}", f"q % {DEPTH}") if runs else (f"q % {side}", f"q / {side}")
            return [
                f"for (int q = threadIdx.x; q < {side * DEPTH}; q += {SIDE * SIDE}) {{",
                f"    const int at = {place[0]}, deep = {place[1]}, {outer} = {begin} + at, k = k0 + deep;",
                f"    {kind} value = 0;",
                f"    if ({outer} < {size} && k < {self.inner}) {{ {value} }}",
                f"    {square}[deep][at] = value;",
                "}",
            ]

        steps = [
            f"__shared__ {kind} as[{DEPTH}][{m + 1}];",
            f"__shared__ {kind} bs[{DEPTH}][{n + 1}];",
            f"for (int k0 = 0; k0 < {self.inner}; k0 += {DEPTH}) {{",
            *load("as", m, self.left_runs, "row", "row0", self.rows, self.left),
            *load("bs", n, self.right_runs, "column", "column0", self.columns, self.right),
            "__syncthreads();",
            "#pragma unroll",
            f"for (int deep = 0; deep < {DEPTH}; ++deep) {{",
            f"    {kind} a[{high}], b[{wide}];",
            f"    for (int r = 0; r < {high}; ++r) a[r] = as[deep][ty + r * {SIDE}];",
            f"    for (int s = 0; s < {wide}; ++s) b[s] = bs[deep][tx + s * {SIDE}];",
            f"    for (int r = 0; r < {high}; ++r) for (int s = 0; s < {wide}; ++s) sums[r][s] += a[r] * b[s];",
            "}",
            "__syncthreads();",
            "}",
        ]
        body = [
            f"const int column0 = (int)(blockIdx.x % {across}) * {n};",
            f"const int row0 = (int)(blockIdx.x / {across} % {down}) * {m};",
            f"const int z = (int)(blockIdx.x / {across * down});",
            f"const int tx = threadIdx.x % {SIDE}, ty = threadIdx.x / {SIDE};",
            *self.before,
            f"{kind} sums[{high}][{wide}] = {{}};",
            *(steps if self.inner else []),
            "#pragma unroll",
            f"for (int r = 0; r < {high}; ++r) for (int s = 0; s < {wide}; ++s) {{",
            f"    const int row = row0 + ty + r * {SIDE}, column = column0 + tx + s * {SIDE};",
            f"    if (row >= {self.rows} || column >= {self.columns}) continue;",
            f"    const {kind} sum = sums[r][s];",
            f"    {self.result}",
            "}",
        ]
        return launch(self.family, self.parameters, "\n".join(body), self.batch * across * down, SIDE * SIDE)


class Gemm(Generated):
    """MatMul and Gemm of all element types, MatMulInteger and QLinearMatMul."""

    name = "gpu.gemm"
    operators = listed("MatMul Gemm MatMulInteger QLinearMatMul")

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, _, y = operands(request)
        if any(e.dtype is DType.BOOL for e in forms):
            return Declined("an operand is of truth values")
        if not y.elements:
            return Written(())
        if y.elements >= 2**31 or any((t.elements or 0) >= 2**31 for t in request.inputs if isinstance(t, Tensor)):
            return Declined("too many elements for 32-bit indices")
        product = _gemm(request, y) if request.node.op == "Gemm" else _matmul(request, y)
        return product if isinstance(product, Declined) else Written((product.launch(),))


def _tensor(request: KernelRequest, i: int) -> Tensor:
    t = request.inputs[i]
    assert isinstance(t, Tensor)
    return t


def _e(t: Tensor) -> Element:
    form = element(t.dtype)
    assert form is not None  # `written` has looked
    return form


def _gemm(request: KernelRequest, y: Tensor) -> GemmProduct | Declined:
    a, b, attrs = _tensor(request, 0), _tensor(request, 1), request.node.attrs
    e, (rows, columns) = _e(a), y.sizes
    alpha, beta = attrs.get("alpha", 1.0), attrs.get("beta", 1.0)
    if not e.dtype.floating and (alpha != 1 or beta not in (0, 1)):
        return Declined("integers are scaled by fractions")
    turned = attrs.get("transA", 0), attrs.get("transB", 0)
    inner = a.sizes[0 if turned[0] else 1]
    left = f"k * {rows} + row" if turned[0] else f"row * {inner} + k"
    right = f"column * {inner} + k" if turned[1] else f"k * {columns} + column"
    parameters = [reads(e, "a", In(0)), reads(e, "b", In(1))]
    value = "sum" if alpha == 1 else f"{e.number(alpha)} * sum"
    if has_input(request, 2) and beta != 0:
        c = _tensor(request, 2)
        shape = (1,) * (2 - c.rank) + c.sizes
        places = [0 if n == 1 else s for n, s in zip(shape, strides_of(shape), strict=True)]
        bias = _e(c).read(f"c[row * {places[0]} + column * {places[1]}]")
        value += f" + {bias}" if beta == 1 else f" + {e.number(beta)} * {bias}"
        parameters.append(reads(_e(c), "c", In(2)))
    return GemmProduct(
        *("gemm", e.sums, 1, rows, columns, inner),
        f"value = ({e.sums}){e.read(f'a[{left}]')};",
        f"value = ({e.sums}){_e(b).read(f'b[{right}]')};",
        f"y[row * {columns} + column] = {_e(y).write(value)};",
        (*parameters, writes(_e(y), "y", Out(0))),
        left_runs=not turned[0],
        right_runs=bool(turned[1]),
    )


def _matmul(request: KernelRequest, y: Tensor) -> GemmProduct | Declined:
    quantised = request.node.op == "QLinearMatMul"
    a, b = _tensor(request, 0), _tensor(request, 3 if quantised else 1)
    zeros = (2, 5) if quantised else (2, 3) if request.node.op == "MatMulInteger" else ()
    matrices = (1, *a.sizes) if a.rank == 1 else a.sizes, (*b.sizes, 1) if b.rank == 1 else b.sizes
    rows, inner, columns = matrices[0][-2], matrices[0][-1], matrices[1][-1]
    lead = y.sizes[: y.rank - (a.rank > 1) - (b.rank > 1)]
    batch = math.prod(lead)
    kind = "int" if zeros else _e(a).sums
    if quantised and inner > 30000:
        return Declined("sums do not fit 32 bits")
    parameters = [reads(_e(a), "a", In(0)), reads(_e(b), "b", In(3 if quantised else 1))]
    before, values = [*coordinates("int", "z", lead, "z")], []
    for name, t, sizes, places in (("a", a, matrices[0], ("row", "k")), ("b", b, matrices[1], ("k", "column"))):
        before.append(f"const int {name}0 = {_into(sizes, lead)};")
        at = f"{name}0 + {places[0]} * {sizes[-1]} + {places[1]}"
        value = f"({kind}){_e(t).read(f'{name}[{at}]')}"
        i = zeros[name == "b"] if zeros else 0
        if zeros and has_input(request, i):
            z = _tensor(request, i)
            by_row = name == "a" and z.rank == 1 and (z.elements or 0) > 1
            shape = (*z.sizes, 1) if by_row else z.sizes
            shape = (1,) * max(2 - len(shape), 0) + shape
            steps = [0 if n == 1 else s for n, s in zip(shape[-2:], strides_of(shape)[-2:], strict=True)]
            before.append(f"const int {name}z0 = {_into(shape, lead)};")
            value += f" - (int){name}z[{name}z0 + {places[0]} * {steps[0]} + {places[1]} * {steps[1]}]"
            parameters.append(reads(_e(z), f"{name}z", In(i)))
        values.append(f"value = {value};")
    result, e = "sum", _e(y)
    store = f"y[(z * {rows} + row) * {columns} + column]"
    if quantised:
        scales = [(1, "row"), (4, "column"), (6, "")]
        if any((_tensor(request, i).elements or 0) > 1 and _tensor(request, i).rank > 1 for i, _ in scales):
            return Declined("scales by more than rows and columns")
        parts = []
        for i, place in scales:
            t = _tensor(request, i)
            parts.append(_e(t).read(f"s{i}[{place if (t.elements or 0) > 1 else 0}]"))
            parameters.append(reads(_e(t), f"s{i}", In(i)))
        parameters.append(reads(_e(_tensor(request, 7)), "yz", In(7)))
        step = step_of(e, f"(float)sum * ({parts[0]} * {parts[1]} / {parts[2]})", "yz[0]")
        if isinstance(step, Declined):
            return step
        result = step
    return GemmProduct(
        *("matmul", kind, batch, rows, columns, inner),
        *(values[0], values[1]),
        f"{store} = {e.write(result)};",
        (*parameters, writes(e, "y", Out(0))),
        tuple(before),
    )


def _into(sizes: Sequence[int], lead: Sequence[int]) -> str:
    """Return the source of the offset of product `z0`, `z1`, ... in an operand that is broadcast against the others."""
    own = sizes[:-2]
    strides = [0 if n == 1 else s for n, s in zip(sizes, strides_of(sizes), strict=True)][: len(own)]
    return dot([*[0] * (len(lead) - len(own)), *strides], "z")
