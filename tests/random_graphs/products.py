"""Moves that contract or normalise: products, convolutions, pooling, norms, softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from .elementwise import activated, partner_shape, swapped
from .maker import CHANNELS, Maker, Unfit
from .moves import move


def solid(m: Maker, least: int = 1) -> str:
    return m.pick(lambda n: m.rank(n) >= least and 0 not in m.shape(n))


def biased(m: Maker, y: str, size: int) -> str:
    """A bias behind a product, in one of the shapes that models have."""
    bias = m.weight(*m.one(((size,), (size,), (1, size), (1, 1, size), (1,), ())))
    return m.add("Add", *((y, bias) if m.chance(0.7) else (bias, y)))


@move(12, "products")
def matmul(m: Maker) -> str:
    x = solid(m)
    depth, wide = m.shape(x)[-1], int(m.one(CHANNELS))
    front = m.one(((), (), (), (), (1,), m.shape(x)[:-2]))
    shape = (*front, depth, wide) if m.chance(0.93) else (depth,)
    y = m.add("MatMul", x, m.weight(*shape, fan=depth))
    if len(shape) > 1 and m.chance(0.45):
        y = biased(m, y, wide)
    if m.chance(0.25):
        y = activated(m, y)
    return transposed(m, y, 0.3)


def transposed(m: Maker, y: str, of: float) -> str:
    """Sometimes turned at once, which asks the product for its result in another layout."""
    if m.rank(y) > 1 and m.chance(of):
        return m.add("Transpose", y, perm=m.rng.permutation(m.rank(y)).tolist())
    return y


@move(4, "products")
def matmul_of_two(m: Maker) -> str:
    """Both operands are values: attention, bilinear forms."""
    x = solid(m, 2)
    depth, front = m.shape(x)[-1], m.shape(x)[:-2]
    partners = m.pick(lambda n: m.rank(n) > 1 and depth in m.shape(n)[-2:] and 0 not in m.shape(n)
                      and m.shape(n)[:-2] in (front, ()))  # fmt: skip
    if m.shape(partners)[-2] != depth or m.chance(0.3):
        if m.shape(partners)[-1] != depth:
            raise Unfit("no common depth")
        order = list(range(m.rank(partners)))
        order[-2:] = order[-1], order[-2]
        partners = m.add("Transpose", partners, perm=order)
    y = m.add("MatMul", x, partners)
    return m.add("Mul", y, m.const(depth**-0.5))


@move(5, "products")
def gemm(m: Maker) -> str:
    x = m.ranked(2)
    turned = int(m.chance(0.25))
    depth, wide = m.shape(x)[0 if turned else 1], int(m.one(CHANNELS))
    flip = int(m.chance(0.5))
    w = m.weight(*((wide, depth) if flip else (depth, wide)), fan=depth)
    rows = m.shape(x)[1 if turned else 0]
    bias = m.one((None, (wide,), (1, wide), (rows, wide), (rows, 1), (), (1,)))
    attrs: dict[str, Any] = {"transA": turned, "transB": flip}
    if m.chance(0.2):
        attrs |= {"alpha": 0.5, "beta": m.one((1.0, 2.0, 0.0))}
    y = m.add("Gemm", x, w, None if bias is None else m.weight(*bias), **attrs)
    return activated(m, y) if m.chance(0.3) else transposed(m, y, 0.15)


@move(1.5, "products")
def neighbours(m: Maker) -> str:
    """A layer over a sampled graph: rows that are read are summed up by their weights for each of the first rows, and
    these are added themselves (https://arxiv.org/abs/1810.00826)."""
    x = m.ranked(2)
    rows, wide = m.shape(x)
    if rows < 3:
        raise Unfit("no neighbours")
    x, kept = m.add(m.one(("Relu", "Tanh", "Abs")), x), int(m.rng.integers(2, rows))
    own = m.add("Slice", x, m.ints([0]), m.ints([kept]), m.ints([0]))
    y = m.add("MatMul", m.weight(kept, rows, fan=rows), x)
    y = m.add("Add", *swapped(m, y, own))
    return m.add("MatMul", y, m.weight(wide, int(m.one(CHANNELS)), fan=wide))


@move(1, "products")
def einsum(m: Maker) -> str:
    x = solid(m, 2)
    rank, depth = m.rank(x), m.shape(x)[-1]
    if rank > 4:
        raise Unfit("a high rank")
    wide = int(m.one(CHANNELS))
    front = "abcd"[: rank - 1]
    out = "".join(m.rng.permutation(list(front + "z")))
    return m.add("Einsum", x, m.weight(depth, wide, fan=depth), equation=f"{front}k,kz->{out}")


def windows(m: Maker, sizes: tuple[int, ...], *, dilated: bool = True) -> dict[str, Any]:
    """Attributes of windows that fit an image."""
    kernel = [int(m.one((1, 1, 2, 3, 3, 3, 5))) for _ in sizes]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    if m.chance(0.4):
        attrs["strides"] = [int(m.one((1, 2, 2, 3))) for _ in sizes]
    if dilated and m.chance(0.15):
        attrs["dilations"] = [int(m.one((1, 2))) for _ in sizes]
    reach = attrs.get("dilations", [1] * len(sizes))
    kind = m.rng.random()
    if kind < 0.5:
        attrs["pads"] = [min(k // 2, 2) for k in kernel] * 2
    elif kind < 0.65:
        attrs["auto_pad"] = m.one(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif kind < 0.8:
        attrs["pads"] = [int(m.rng.integers(0, k)) for k in [*kernel, *kernel]]
    for i, (k, n) in enumerate(zip(kernel, sizes, strict=True)):
        if (k - 1) * reach[i] + 1 > n + sum(attrs.get("pads", [0] * 99)[i :: len(sizes)]):
            kernel[i] = 1
            if "pads" in attrs:
                attrs["pads"][i] = attrs["pads"][i + len(sizes)] = 0
    return attrs


@move(11, "convolutions")
def conv(m: Maker) -> str:
    x = m.ranked(3, 4, 4, 4, 4, 5)
    channels, sizes = m.shape(x)[1], m.shape(x)[2:]
    if not channels:
        raise Unfit("no channels")
    divisors = [d for d in range(1, channels + 1) if channels % d == 0]
    group = int(m.one((1, 1, 1, channels, m.one(divisors))))
    wide = (
        sizes[-1] if m.chance(0.1) else int(m.one(CHANNELS))
    )  # as many channels as columns: which ones a constant is for
    out = group * max(1, wide // group)
    attrs = windows(m, sizes)
    fan = channels // group * int(np.prod(attrs["kernel_shape"]))
    w = m.weight(out, channels // group, *attrs["kernel_shape"], fan=fan)
    if m.chance(0.1):
        del attrs["kernel_shape"]
    y = m.add("Conv", x, w, m.weight(out) if m.chance(0.6) else None, group=group, **attrs)
    if m.chance(0.25):
        y = normalised(m, y)
    elif m.chance(0.25):
        y = scaled(m, y)
    if m.chance(0.15):
        y = added(m, y)
    if m.chance(0.45):
        y = activated(m, y)
    return y


def scaled(m: Maker, y: str) -> str:
    """A constant behind a convolution, of one number for all, for each channel or for each column."""
    channels, columns = m.shape(y)[1], m.shape(y)[-1]
    shape: tuple[int, ...] = (columns,)
    if channels != columns or m.chance(0.5):  # as many of both: which axis is meant is easily mistaken
        rest = (channels, *[1] * (m.rank(y) - 2))
        shape = m.one(((), (1,), rest, (1, *rest), (columns,)))
    return m.add(m.one(("Mul", "Mul", "Div", "Add", "Sub")), y, m.positive(*shape))


def added(m: Maker, y: str) -> str:
    """A value of the same shape is added, and sometimes read again."""
    branch = m.pick(lambda n: m.shape(n) == m.shape(y) and n != y)
    total = m.add("Add", *((y, branch) if m.chance(0.5) else (branch, y)))
    return m.add(m.one(("Mul", "Sub")), total, branch) if m.chance(0.4) else total


@move(1.5, "convolutions")
def conv_transpose(m: Maker) -> str:
    x = m.ranked(3, 4, 4)
    channels, sizes = m.shape(x)[1], m.shape(x)[2:]
    group = int(m.one((1, 1, max(channels, 1))))
    each = int(m.one((1, 2, 3, 4, 8, 16)))
    kernel = [int(m.one((1, 2, 3, 4))) for _ in sizes]
    attrs: dict[str, Any] = {"strides": [int(m.one((1, 2))) for _ in sizes], "group": group}
    if m.chance(0.3):
        attrs["pads"] = [min(1, k - 1) for k in kernel] * 2
    if m.chance(0.15):
        attrs["output_padding"] = [s - 1 for s in attrs["strides"]]
    w = m.weight(channels, each, *kernel, fan=channels // group * int(np.prod(kernel)))
    return m.add("ConvTranspose", x, w, m.weight(each * group) if m.chance(0.6) else None, **attrs)


@move(5, "pools")
def pool(m: Maker) -> object:
    x = m.ranked(3, 4, 4, 4, 5)
    op = m.one(("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"))
    attrs = windows(m, m.shape(x)[2:], dilated=op == "MaxPool")
    if any(p >= k for p, k in zip(attrs.get("pads", ()), attrs["kernel_shape"] * 2, strict=False)):
        del attrs["pads"]
    if m.chance(0.25):
        attrs["ceil_mode"] = 1
    if op == "AveragePool" and m.chance(0.4):
        attrs["count_include_pad"] = 1
    if op == "MaxPool" and m.chance(0.15):
        return m.several(op, x, outputs=2, **attrs)
    return m.add(op, x, **attrs)


@move(4, "pools")
def global_pool(m: Maker) -> str:
    x = m.ranked(3, 4, 4, 4, 5)
    y = m.add(m.one(("GlobalAveragePool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")), x)
    return m.add("Flatten", y) if m.chance(0.4) else y


@move(1, "pools")
def resize(m: Maker) -> str:
    x = m.ranked(3, 4, 4)
    mode = m.one(("nearest", "linear", "cubic")) if m.rank(x) == 4 else m.one(("nearest", "linear"))
    attrs: dict[str, Any] = {"mode": mode}
    attrs["coordinate_transformation_mode"] = m.one(("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"))
    if mode == "nearest":
        attrs["nearest_mode"] = m.one(("floor", "round_prefer_floor", "ceil"))
    if m.chance(0.5):
        scales = [1.0, 1.0, *(m.one((0.5, 2.0, 1.0, 2.0)) for _ in m.shape(x)[2:])]
        return m.add("Resize", x, None, m.const(scales), **attrs)
    sizes = [*m.shape(x)[:2], *(m.size() for _ in m.shape(x)[2:])]
    return m.add("Resize", x, None, None, m.ints(sizes), **attrs)


def normalised(m: Maker, x: str) -> str:
    """Batch normalisation with statistics that are there."""
    c = m.shape(x)[1]
    return m.add(
        "BatchNormalization", x, m.weight(c), m.weight(c), m.weight(c), m.positive(c), epsilon=m.one((1e-5, 1e-3))
    )  # fmt: skip


@move(4, "norms")
def batch_norm(m: Maker) -> str:
    return normalised(m, m.pick(lambda n: m.rank(n) > 1 and 0 not in m.shape(n)))


@move(5, "norms")
def layer_norm(m: Maker) -> object:
    x = solid(m)
    axis = m.rank(x) - 1 if m.chance(0.7) else int(m.rng.integers(m.rank(x)))
    shape = m.shape(x)[axis:]
    given = axis - m.rank(x) if m.chance(0.6) else axis
    bias = m.weight(*shape) if m.chance(0.7) else None
    if m.chance(0.2):
        return m.add("RMSNormalization", x, m.weight(*shape), axis=given, epsilon=1e-3)
    outputs = 3 if m.chance(0.1) else 1
    return m.several("LayerNormalization", x, m.weight(*shape), bias, axis=given, epsilon=1e-3, outputs=outputs)


@move(2, "norms")
def spelled_norm(m: Maker) -> str:
    """Layer normalisation as exporters of old wrote it."""
    x = solid(m, 2)
    axes = m.one(([-1], [-1], [1], list(range(1, m.rank(x)))))
    centred = m.add("Sub", x, m.add("ReduceMean", x, m.ints(axes), keepdims=1))
    square = m.add("Mul", centred, centred) if m.chance(0.5) else m.add("Pow", centred, m.const(2.0))
    variance = m.add("ReduceMean", square, m.ints(axes), keepdims=1)
    y = m.add("Div", centred, m.add("Sqrt", m.add("Add", variance, m.const(1e-2))))
    y = m.add("Mul", y, m.weight(*partner_shape(m, m.shape(y))))
    return m.add("Add", y, m.weight(*partner_shape(m, m.shape(y))))


@move(3, "norms")
def other_norm(m: Maker) -> str:
    x = m.ranked(3, 4, 4, 5)
    c = m.shape(x)[1]
    op = m.one(("InstanceNormalization", "InstanceNormalization", "GroupNormalization", "LRN", "LpNormalization",
                "MeanVarianceNormalization"))  # fmt: skip
    if op == "InstanceNormalization":
        return m.add(op, x, m.weight(c), m.weight(c), epsilon=1e-2)
    if op == "GroupNormalization":
        groups = int(m.one([d for d in range(1, c + 1) if c % d == 0]))
        return m.add(op, x, m.weight(c), m.weight(c), num_groups=groups, epsilon=1e-2)
    if op == "LRN":
        return m.add(op, x, size=int(m.one((1, 3, 5))), alpha=0.01, bias=1.0)
    if op == "LpNormalization":
        return m.add(op, x, axis=int(m.rng.integers(-m.rank(x), m.rank(x))), p=int(m.one((1, 2))))
    over: dict[str, Any] = {"axes": [0, *range(2, m.rank(x))]} if m.chance(0.5) else {}
    return m.add(op, x, **over)


@move(6, "norms")
def softmax(m: Maker) -> str:
    x = solid(m)
    axis = m.one((-1, -1, -1, 1, int(m.rng.integers(m.rank(x)))))
    y = m.add(m.one(("Softmax", "Softmax", "Softmax", "LogSoftmax", "Hardmax")), x, axis=min(axis, m.rank(x) - 1))
    if m.chance(0.25):
        y = m.add("Mul", y, m.weight(*partner_shape(m, m.shape(y))))
    return y


@move(2, "products")
def attention(m: Maker) -> str:
    """Heads cut out of a projection, scores, their softmax, and the way back."""
    x = m.ranked(3)
    _, length, width = m.shape(x)
    heads, each = int(m.one((1, 2, 4))), int(m.one((1, 4, 8)))
    parts = []
    for turn in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        y = biased(m, m.add("MatMul", x, m.weight(width, heads * each, fan=width)), heads * each)
        y = m.add("Reshape", y, m.ints(m.one(([0, 0, heads, each], [0, length, heads, -1], [-1, length, heads, each]))))
        parts.append(m.add("Transpose", y, perm=turn))
    scores = m.add(m.one(("Mul", "Div")), m.add("MatMul", *parts[:2]), m.const(each**0.5))
    if m.chance(0.5):
        scores = m.add("Add", scores, m.weight(*m.one(((1, 1, length, length), (length, length), (1, 1, 1, length)))))
    y = m.add("Transpose", m.add("MatMul", m.add("Softmax", scores), parts[2]), perm=[0, 2, 1, 3])
    y = m.add("Reshape", y, m.ints([0, 0, heads * each]))
    y = m.add("MatMul", y, m.weight(heads * each, width, fan=heads * each))
    return m.add("Add", x, y)


@move(2, "convolutions")
def block(m: Maker) -> str:
    """A residual block, with squeeze and excitation sometimes."""
    x = m.ranked(4)
    c = m.shape(x)[1]
    y = x
    for _ in range(int(m.one((1, 2)))):
        y = m.add("Conv", y, m.weight(c, c, 3, 3, fan=9 * c), m.weight(c) if m.chance(0.5) else None, pads=[1] * 4)
        if m.chance(0.6):
            y = normalised(m, y)
        if m.chance(0.7):
            y = m.add(m.one(("Relu", "Relu", "HardSwish", "Clip", "Sigmoid")), y)
    if m.chance(0.35):
        gate = m.add("GlobalAveragePool", y) if m.chance(0.6) else m.add("ReduceMean", y, m.ints([2, 3]), keepdims=1)
        gate = m.add("Conv", gate, m.weight(c, c, 1, 1, fan=c), m.weight(c))
        y = m.add("Mul", y, m.add(m.one(("Sigmoid", "HardSigmoid")), gate))
    y = m.add("Add", *((x, y) if m.chance(0.5) else (y, x)))
    return m.add("Relu", y) if m.chance(0.6) else y


@move(1.5, "convolutions")
def joined_residual(m: Maker) -> str:
    """A branch or several side by side, brought back to the width of the first and added to it: by a convolution as in
    residual dense blocks (https://arxiv.org/abs/1802.08797), by a product as in long skips
    (https://arxiv.org/abs/2209.12152)."""
    image = m.chance(0.7)
    x = m.ranked(3, 4, 4) if image else solid(m, 2)
    axis = 1 if image else m.rank(x) - 1
    parts = [m.add("Relu", x) if x in m.inputs else x]
    for _ in range(int(m.one((0, 0, 1, 2)))):
        parts.append(m.add(m.one(("Tanh", "Sigmoid", "Relu", "Neg")), parts[-1]))
    wide, narrow, k = len(parts) * m.shape(x)[axis], m.shape(x)[axis], int(m.one((1, 3)))
    y = m.add("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]
    if image:
        spatial = m.rank(x) - 2
        w = m.weight(narrow, wide, *[k] * spatial, fan=wide * k**spatial)
        y = m.add("Add", *swapped(m, m.add("Conv", y, w, pads=[k // 2] * 2 * spatial), parts[0]))
        return m.add("GlobalAveragePool", y) if m.chance(0.4) else y
    y = m.add("Add", *swapped(m, m.add("MatMul", y, m.weight(wide, narrow, fan=wide)), parts[0]))
    return m.add("Softmax", y) if m.chance(0.4) else y


@move(1.5, "layouts")
def channels_last(m: Maker) -> str:
    """A norm or a product over channels between two transposes, as ConvNeXt and SegFormer have it."""
    x = m.ranked(4)
    c = m.shape(x)[1]
    if m.chance(0.5):
        y = m.add("Transpose", x, perm=[0, 2, 3, 1])
        y = m.add("LayerNormalization", y, m.weight(c), m.weight(c), epsilon=1e-3)
        if m.chance(0.6):
            y = biased(m, m.add("MatMul", y, m.weight(c, c, fan=c)), c)
        y = activated(m, y)
        return m.add("Transpose", y, perm=[0, 3, 1, 2])
    flat = m.add("Transpose", m.add("Reshape", x, m.ints([0, 0, -1])), perm=[0, 2, 1])
    y = biased(m, m.add("MatMul", flat, m.weight(c, c, fan=c)), c)
    y = m.add("Transpose", y, perm=[0, 2, 1])
    return m.add("Reshape", y, m.ints([0, c, *m.shape(x)[2:]]))


@move(1, "layouts")
def shuffle(m: Maker) -> str:
    x = m.ranked(4)
    c = m.shape(x)[1]
    groups = int(m.one([d for d in range(1, c + 1) if c % d == 0]))
    y = m.add("Reshape", x, m.ints([0, groups, c // groups, *m.shape(x)[2:]]))
    y = m.add("Transpose", y, perm=[0, 2, 1, 3, 4])
    return m.add("Reshape", y, m.ints([0, c, *m.shape(x)[2:]]))


@move(1, "elementwise")
def spelled_gelu(m: Maker) -> str:
    """Gelu as exporters write it, with erf or tanh, and the half in any place. Networks without normalisation scale
    each activation, and that factor is folded into the half (https://arxiv.org/abs/2102.06171)."""
    x = m.pick()
    if m.chance(0.6):
        root = m.one((("Div", 2**0.5), ("Mul", 0.5**0.5)))
        wave = m.add("Erf", m.add(root[0], x, m.const(root[1])))
    else:
        cube = m.add("Mul", m.add("Pow", x, m.const(3.0)), m.const(0.044715))
        wave = m.add("Tanh", m.add("Mul", m.add("Add", x, cube), m.const((2 / np.pi) ** 0.5)))
    y, half = m.add("Add", wave, m.const(1.0)), m.const(m.one((0.5, 0.5, 0.5, 0.8507522, 1.0)))
    where = m.rng.random()
    if where < 0.4:
        return m.add("Mul", m.add("Mul", x, y), half)
    if where < 0.7:
        return m.add("Mul", m.add("Mul", x, half), y)
    return m.add("Mul", x, m.add("Mul", y, half))
