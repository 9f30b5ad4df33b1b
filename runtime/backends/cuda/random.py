"""Random numbers on a device, with the counters, words and rounding of ops/math/random.py, so that they are the same.

The key of a run lies in the device's memory (`Key`, keys.py), so that a captured graph draws anew each time. What could
be contracted to a fused multiplication and addition is written so that it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ....ops import DType, Tensor
from ....ops.math.random import COS, LOG, MULTIPLIERS, ROUNDS, SIN, WEYL
from ...compile.kernel import Alias, Declined, KernelRequest
from ...ir.graph import Node
from .generated import Generated
from .launch import In, Launch, LaunchKey, Operand, Out, Scratch, Written
from .source import Unwritten, cast
from .text import THREADS, Element, constant, element, has_input, launch, reads, writes

Parameter = tuple[str, str, Operand]
Writer = Callable[[KernelRequest, Tensor], "Written | Declined"]
KEY: Parameter = ("const unsigned int* __restrict__", "key", LaunchKey())
EACH = 4  # numbers of one counter
SINGLE, WIDE = Element(DType.FLOAT, "float", "float"), Element(DType.DOUBLE, "double", "double")


class Random(Generated):
    """Draws of uniform and normal numbers, and operators that compare with them; one thread for four numbers."""

    name = "gpu.random"
    spares = (1,)

    def serves(self, node: Node) -> bool:
        return not node.domain and node.op in WRITERS

    def write(self, request: KernelRequest) -> Written | Declined:
        y, ins = request.outputs[0], [t for t in request.inputs if t is not None]
        if not isinstance(y, Tensor) or not y.static or not all(isinstance(t, Tensor) and t.static for t in ins):
            return Declined("an operand is no tensor of numbers, or its sizes are not known")
        if request.target.numpy_random and request.node.attrs.get("seed") is not None:
            return Declined("NumPy's numbers are drawn by the CPU")
        if not y.elements:
            return Written(())
        return WRITERS[request.node.op](request, y)


DRAWN = f"""
struct KERNEL_four {{ float v[4]; }};
__device__ __forceinline__ KERNEL_four KERNEL_drawn(const unsigned int* key, unsigned long long block) {{
    unsigned int a = (unsigned int)block, b = (unsigned int)(block >> 32), c = 0, d = 0, k0 = key[0], k1 = key[1];
#pragma unroll
    for (int round = 0; round < {ROUNDS}; ++round) {{
        const unsigned int left = __umulhi({MULTIPLIERS[0]}u, a), right = __umulhi({MULTIPLIERS[1]}u, c);
        const unsigned int low = {MULTIPLIERS[0]}u * a, other = {MULTIPLIERS[1]}u * c;
        a = right ^ b ^ k0;
        b = other;
        c = left ^ d ^ k1;
        d = low;
        k0 += {WEYL[0]}u;
        k1 += {WEYL[1]}u;
    }}
    const KERNEL_four u = {{{{(float)(a >> 8) * {2.0**-24!r}f, (float)(b >> 8) * {2.0**-24!r}f,
                              (float)(c >> 8) * {2.0**-24!r}f, (float)(d >> 8) * {2.0**-24!r}f}}}};
    return u;
}}
"""


def _series(x: str, coefficients: Sequence[float]) -> str:
    series = f"__dmul_rn({x}, {coefficients[-1]!r})"
    for c in coefficients[-2:0:-1]:
        series = f"__dmul_rn(__dadd_rn({series}, {c!r}), {x})"
    return f"__dadd_rn({series}, {coefficients[0]!r})"


NORMAL = f"""
struct KERNEL_two {{ double v[2]; }};
__device__ __forceinline__ KERNEL_two KERNEL_normal(double u, double turns) {{
    int exponent;
    double part = frexp(1.0 - u, &exponent);
    if (part < {math.sqrt(0.5)!r}) {{ part *= 2.0; exponent -= 1; }}
    const double s = (part - 1.0) / (part + 1.0), ss = __dmul_rn(s, s);
    const double log = __dadd_rn(__dmul_rn((double)exponent, {math.log(2)!r}), __dmul_rn(s, {_series("ss", LOG)}));
    const double radius = sqrt(-2.0 * log);
    const double quarter = rint(4.0 * turns), x = __dmul_rn(4.0 * turns - quarter, {math.pi / 2!r});
    const double xx = __dmul_rn(x, x), cosine = {_series("xx", COS)}, sine = __dmul_rn(x, {_series("xx", SIN)});
    const int q = (int)quarter & 3;
    const double across = q & 1 ? sine : cosine, up = q & 1 ? cosine : sine;
    const KERNEL_two made = {{{{__dmul_rn(radius, q == 1 || q == 2 ? -across : across),
                                __dmul_rn(radius, q == 2 || q == 3 ? -up : up)}}}};
    return made;
}}
"""


def _fours(
    family: str, parameters: Sequence[Parameter], count: int, ahead: str, store: str, *, before: str = ""
) -> Launch:
    """A thread for each counter: `ahead` once, `store` for each number `k` of it that stands at a place `at`."""
    blocks = -(-count // EACH)
    body = f"""
const long long i = (long long)blockIdx.x * {THREADS} + threadIdx.x;
if (i >= {blocks}) return;
const KERNEL_four u = KERNEL_drawn(key, i);
{ahead}
#pragma unroll
for (int k = 0; k < {EACH}; ++k) {{
    const long long at = i * {EACH} + k;
    if (at >= {count}) break;
{store}
}}
"""
    return launch(family, [KEY, *parameters], body, -(-blocks // THREADS), before=DRAWN + before)


def _element(tensor: Tensor) -> Element:
    form = element(tensor.dtype)
    if form is None:
        raise Unwritten(f"random numbers of {tensor.dtype}")
    return form


def _stored(value: str, of: DType, y: Element) -> tuple[str, str]:
    """A number of float32 or float64 as the result has it, and the functions that this takes."""
    functions: dict[str, str] = {}
    text = y.write(cast(value, of, y.dtype, functions, rounds=True))
    return text, "".join(functions.values())


def _uniform(request: KernelRequest, y: Tensor) -> Written:
    attrs, e = request.node.attrs, _element(y)
    low = float(attrs.get("low", 0))
    width = float(attrs.get("high", 1)) - low
    single = f"__fadd_rn(__fmul_rn(u.v[k], {SINGLE.number(width)}), {SINGLE.number(low)})"
    text, functions = _stored(single, DType.FLOAT, e)
    store = f"    y[at] = {text};"
    return Written((_fours("uniform", [writes(e, "y", Out(0))], y.elements or 0, "", store, before=functions),))


def _normal(request: KernelRequest, y: Tensor) -> Written:
    attrs, e = request.node.attrs, _element(y)
    mean, scale = float(attrs.get("mean", 0)), float(attrs.get("scale", 1))
    ahead = "const KERNEL_two n[] = {KERNEL_normal(u.v[0], u.v[1]), KERNEL_normal(u.v[2], u.v[3])};"
    number = f"__dadd_rn(__dmul_rn(n[k / 2].v[k % 2], {WIDE.number(scale)}), {WIDE.number(mean)})"
    text, functions = _stored(number, DType.DOUBLE, e)
    before, store = NORMAL + functions, f"    y[at] = {text};"
    return Written((_fours("normal", [writes(e, "y", Out(0))], y.elements or 0, ahead, store, before=before),))


def _bernoulli(request: KernelRequest, y: Tensor) -> Written | Declined:
    p = request.inputs[0]
    assert isinstance(p, Tensor)
    if not p.dtype.floating:
        return Declined(f"probabilities of {p.dtype}")
    e, probability = _element(y), _element(p)
    happens = f"(({probability.wide})u.v[k] < {probability.read('p[at]')} ? 1 : 0)"
    store = f"    y[at] = {e.write(happens)};"
    return Written(
        (_fours("bernoulli", [reads(probability, "p", In(0)), writes(e, "y", Out(0))], y.elements or 0, "", store),)
    )


def _dropout(request: KernelRequest, y: Tensor) -> Written | Declined:
    """Return the launch of Dropout in training: kept elements are scaled up. The mode may be an input at run time."""
    if not has_input(request, 2) or constant(request, 2) == [0]:
        return Declined("it does not train")  # and draws nothing: see made.py
    e, node = _element(y), request.node
    alias = Alias(0, 0)
    parameters: list[Parameter] = [(f"const {e.stored}*", "x", In(0)), (f"{e.stored}*", "y", Out(0))]
    masks = len(node.outputs) > 1 and bool(node.outputs[1])
    if masks:
        parameters.append(writes("bool", "mask", Out(1)))
    mask = "\n    mask[at] = {};" if masks else ""
    parameters.append(reads("bool", "training", In(2)))
    rate = "0.5"
    if has_input(request, 1):
        ratio = request.inputs[1]
        assert isinstance(ratio, Tensor)
        of = _element(ratio)
        parameters.append(reads(of, "ratio", In(1)))
        rate = f"(double){of.read('ratio[0]')}"
    ahead = f"const double rate = {rate};\nconst bool drops = training[0] && rate != 0;"
    wide = f"({e.wide})"
    store = f"""
    const bool kept = !drops || u.v[k] >= (float)rate;
    const {e.wide} value = {e.read("x[at]")};
    y[at] = {e.write(f"(!drops ? value : kept ? value / {wide}(1 - rate) : {wide}0)")};{mask.format("kept")}"""
    return Written((_fours("dropout", parameters, y.elements or 0, ahead, store),), 0, (alias,))


def _multinomial(request: KernelRequest, y: Tensor) -> Written | Declined:
    """The ends of all outcomes' shares of a row, added in their order, and then a place between them."""
    x = request.inputs[0]
    assert isinstance(x, Tensor)
    if not x.dtype.floating or not x.elements:
        return Declined(f"logits {x}")
    (rows, classes), of, e = x.sizes, _element(x), _element(y)
    ends = ("double* __restrict__", "ends", Scratch(0))
    shares = f"""
__shared__ double most[{THREADS}];
const long long row = (long long)blockIdx.x * {classes};
double m = -1.0 / 0.0;
for (int j = threadIdx.x; j < {classes}; j += {THREADS}) {{
    const double v = (double){of.read("x[row + j]")};
    m = v > m || v != v ? v : m;
}}
most[threadIdx.x] = m;
__syncthreads();
for (int half = {THREADS // 2}; half; half /= 2) {{
    if (threadIdx.x < half) {{
        const double v = most[threadIdx.x + half], w = most[threadIdx.x];
        most[threadIdx.x] = v > w || v != v ? v : w;
    }}
    __syncthreads();
}}
for (int j = threadIdx.x; j < {classes}; j += {THREADS}) ends[row + j] = exp((double){of.read("x[row + j]")} - most[0]);
__syncthreads();
if (threadIdx.x == 0)
    for (int j = 1; j < {classes}; ++j) ends[row + j] += ends[row + j - 1];
"""
    samples = y.sizes[1]
    store = f"""
    const double* row = ends + at / {samples} * {classes};
    const double place = __dmul_rn((double)u.v[k], row[{classes - 1}]);
    int low = 0, high = {classes - 1};
    while (low < high) {{
        const int middle = (low + high) / 2;
        if (place >= row[middle]) low = middle + 1;
        else high = middle;
    }}
    y[at] = {e.write("low")};"""
    first = launch("shares", [reads(of, "x", In(0)), ends], shares, rows)
    place: Parameter = ("const double* __restrict__", "ends", Scratch(0))
    second = _fours("multinomial", [place, writes(e, "y", Out(0))], y.elements or 0, "", store)
    return Written((first, second), rows * classes * 8)


WRITERS: dict[str, Writer] = {
    "RandomUniform": _uniform,
    "RandomUniformLike": _uniform,
    "RandomNormal": _normal,
    "RandomNormalLike": _normal,
    "Bernoulli": _bernoulli,
    "Dropout": _dropout,
    "Multinomial": _multinomial,
}
