"""Elements computed from their position: constants, ranges, diagonals, one-hot codes, parts, reversed sequences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....ops import DType, Tensor
from ....ops.core.rules import axis_of, sliced
from ....ops.types import Array
from ...compile.kernel import Declined, KernelRequest
from ...ir.graph import Node
from .generated import Generated
from .launch import In, Launch, Out, Written
from .text import constant, dot, each, element, has_input, raw, reads, strides_of, writes

Maker = Callable[[KernelRequest, Tensor], "Launch | Declined"]


class Made(Generated):
    """One thread for each element of the result."""

    name = "gpu.made"
    spares = (1,)

    def serves(self, node: Node) -> bool:
        return (node.domain, node.op) in MAKERS

    def write(self, request: KernelRequest) -> Written | Declined:
        y, ins = request.outputs[0], [t for t in request.inputs if t is not None]
        if not isinstance(y, Tensor) or not y.static or not all(isinstance(t, Tensor) and t.static for t in ins):
            return Declined("an operand is no tensor of numbers, or its sizes are not known")
        if y.dtype.itemsize > 8:
            return Declined(f"elements of {y.dtype.itemsize} bytes")
        if not y.elements:
            return Written(())
        launch = MAKERS[request.node.domain, request.node.op](request, y)
        return launch if isinstance(launch, Declined) else Written((launch,))


def _bits(value: Array) -> str:
    """An element as the bits that it consists of."""
    return f"{int(np.ascontiguousarray(value).reshape(-1)[:1].view(f'u{value.dtype.itemsize}')[0])}ull"


def _tensor(request: KernelRequest, i: int) -> Tensor:
    t = request.inputs[i]
    assert isinstance(t, Tensor)
    return t


def _filled(request: KernelRequest, y: Tensor) -> Launch | Declined:
    value = request.node.attrs.get("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    unit = raw(y.dtype.itemsize)
    return each("filled", [writes(unit, "y", Out(0))], (y.elements or 0,), f"y[i] = ({unit}){_bits(fill)};")


def _numbers(request: KernelRequest, y: Tensor) -> Launch | Declined:
    """Sizes of a tensor, which its type tells."""
    x = _tensor(request, 0)
    attrs = request.node.attrs
    if request.node.op == "Size":
        values = [x.elements or 0]
    else:
        values = list(x.sizes[slice(attrs.get("start", 0), attrs.get("end"))])
    listed = ", ".join(f"{v}ll" for v in values)
    body = f"const long long values[] = {{{listed}}};\ny[i] = values[i];"
    return each("sizes", [writes("long long", "y", Out(0))], (len(values),), body)


def _range(request: KernelRequest, y: Tensor) -> Launch | Declined:
    e = element(y.dtype)
    if e is None or e.dtype is DType.BOOL:
        return Declined(f"{y.dtype} is not computed with here")
    parameters = [reads(e, "start", In(0)), reads(e, "delta", In(2)), writes(e, "y", Out(0))]
    start, delta = (f"({e.sums}){e.read(f'{name}[0]')}" for name in ("start", "delta"))
    body = f"y[i] = {e.write(f'({start} + ({e.sums})i * {delta})')};"
    return each("range", parameters, y.sizes, body)


def _eye(request: KernelRequest, y: Tensor) -> Launch | Declined:
    unit, one = raw(y.dtype.itemsize), _bits(np.ones(1, y.dtype.numpy))
    body = f"y[i] = (int)c1 - (int)c0 == {request.node.attrs.get('k', 0)} ? ({unit}){one} : ({unit})0;"
    return each("eye", [writes(unit, "y", Out(0))], y.sizes, body)


def _one_hot(request: KernelRequest, y: Tensor) -> Launch | Declined:
    indices = _tensor(request, 0)
    e, unit = element(indices.dtype), raw(y.dtype.itemsize)
    if e is None:
        return Declined(f"indices of {indices.dtype}")
    axis = axis_of(request.node.attrs.get("axis", -1), y.rank)
    strides = list(strides_of(indices.sizes))
    strides.insert(axis, 0)
    n = y.sizes[axis]
    body = f"""
long long k = (long long){e.read(f"at[{dot(strides)}]")};
if (k < 0) k += {n};
y[i] = values[k == c{axis}];
"""
    parameters = [reads(e, "at", In(0)), reads(unit, "values", In(2)), writes(unit, "y", Out(0))]
    return each("one_hot", parameters, y.sizes, body)


def _triangle(request: KernelRequest, y: Tensor) -> Launch | Declined:
    unit, a, b = raw(y.dtype.itemsize), y.rank - 2, y.rank - 1
    kept = ">=" if request.node.attrs.get("upper", 1) else "<="
    parameters = [reads(unit, "x", In(0)), writes(unit, "y", Out(0))]
    k = "0"
    if has_input(request, 1):
        kind = element(_tensor(request, 1).dtype)
        if kind is None:
            return Declined(f"a diagonal of {_tensor(request, 1)}")
        parameters.append(reads(kind, "k", In(1)))
        k = "(long long)k[0]"
    body = f"y[i] = (long long)c{b} - (long long)c{a} {kept} {k} ? x[i] : ({unit})0;"
    return each("triangle", parameters, y.sizes, body)


def _turned(request: KernelRequest, y: Tensor) -> Launch | Declined:
    attrs, lengths = request.node.attrs, element(_tensor(request, 1).dtype)
    assert lengths is not None
    batch, time = attrs.get("batch_axis", 1), attrs.get("time_axis", 0)
    unit, strides = raw(y.dtype.itemsize), list(strides_of(y.sizes))
    step, strides[time] = strides[time], 0
    body = f"""
const long long end = ends[c{batch}];
const long long from = c{time} < end ? end - 1 - c{time} : c{time};
y[i] = x[{dot(strides)} + from * {step}];
"""
    parameters = [reads(unit, "x", In(0)), reads(lengths, "ends", In(1)), writes(unit, "y", Out(0))]
    return each("turned", parameters, y.sizes, body)


def _put_back(request: KernelRequest, y: Tensor) -> Launch | Declined:
    """The gradient of a slice: what it took, and zeros around."""
    dy, known = _tensor(request, 0), [constant(request, i) if has_input(request, i) else None for i in range(2, 6)]
    if any(has_input(request, i) and known[i - 2] is None for i in range(2, 6)):
        return Declined("the slice is no small constant")
    starts, ends, axes, steps = (None if v is None else np.array(v, np.int64) for v in known)
    assert starts is not None and ends is not None
    tests, places = [], []
    where = sliced(y.sizes, starts, ends, axes, steps)
    for d, (part, n, m, stride) in enumerate(zip(where, y.sizes, dy.sizes, strides_of(dy.sizes), strict=True)):
        taken = range(*part.indices(n))
        if (taken.start, taken.step, m) == (0, 1, n):
            places.append(f"c{d} * {stride}")
            continue
        steps_away = f"((int)c{d} - {taken.start}) * {1 if taken.step > 0 else -1}"
        tests.append(f"{steps_away} >= 0 && {steps_away} % {abs(taken.step)} == 0")
        tests.append(f"{steps_away} / {abs(taken.step)} < {m}")
        places.append(f"({steps_away} / {abs(taken.step)}) * {stride}")
    unit = raw(y.dtype.itemsize)
    if not dy.elements:
        return each("put_back", [writes(unit, "y", Out(0))], y.sizes, f"y[i] = ({unit})0;")
    body = f"y[i] = {' && '.join(tests) or 'true'} ? x[{' + '.join(places) or 0}] : ({unit})0;"
    return each("put_back", [reads(unit, "x", In(0)), writes(unit, "y", Out(0))], y.sizes, body)


def _kept(request: KernelRequest, y: Tensor) -> Launch | Declined:
    """Dropout that does not train: everything, and a mask of it."""
    training = request.inputs[2] if has_input(request, 2) else None
    if training is not None and constant(request, 2) != [0]:
        return Declined("it may be training")
    unit = raw(y.dtype.itemsize)
    parameters, body = [reads(unit, "x", In(0)), writes(unit, "y", Out(0))], "y[i] = x[i];"
    if len(request.node.outputs) > 1 and request.node.outputs[1]:
        parameters.append(writes("bool", "mask", Out(1)))
        body += "\nmask[i] = true;"
    return each("kept", parameters, (y.elements or 0,), body)


MAKERS: dict[tuple[str, str], Maker] = {
    ("", "ConstantOfShape"): _filled,
    ("", "Shape"): _numbers,
    ("", "Size"): _numbers,
    ("", "Range"): _range,
    ("", "EyeLike"): _eye,
    ("", "OneHot"): _one_hot,
    ("", "Trilu"): _triangle,
    ("", "ReverseSequence"): _turned,
    ("", "Dropout"): _kept,
    ("mezzo", "SliceGrad"): _put_back,
}
