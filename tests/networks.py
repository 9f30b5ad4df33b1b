"""Small networks to train, as graphs whose weights have the names and shapes that PyTorch gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mezzo.ops import DType, Tensor
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.ir.typed import TypedBuilder

Array = np.ndarray[Any, Any]


class Layers(TypedBuilder):
    """Layers with named weights, drawn at random; values are names."""

    def __init__(self, dtype: DType, *sizes: int, seed: int = 0) -> None:
        super().__init__()
        self.dtype, self.rng = dtype, np.random.default_rng(seed)
        self.x = self.input("x", Tensor(dtype, ("n", *sizes)))

    def weight(self, name: str, *shape: int) -> str:
        """Of rank 1 near zero, of higher rank scaled to what it sums over."""
        spread = 0.1 if len(shape) == 1 else np.prod(shape[1:]) ** -0.5
        self.hold(name, self.rng.normal(0, spread, shape).astype(self.dtype.numpy))
        return name

    def ones(self, name: str, size: int, spread: float = 0.1) -> str:
        self.hold(name, (1 + spread * self.rng.standard_normal(size)).astype(self.dtype.numpy))
        return name

    def linear(self, name: str, x: str, wide: int, out: int) -> str:
        made: str = self.Gemm(x, self.weight(f"{name}.weight", out, wide), self.weight(f"{name}.bias", out), transB=1)
        return made

    def project(self, x: str, weight: str, bias: str) -> str:
        """A linear layer over the last dim of rank 3."""
        made: str = self.Add(self.MatMul(x, self.Transpose(weight, perm=[1, 0])), bias)
        return made

    def conv(self, name: str, x: str, wide: int, out: int, size: int, *, pad: int = 0, stride: int = 1) -> str:
        kernel = self.weight(f"{name}.weight", out, wide, size, size)
        made: str = self.Conv(x, kernel, kernel_shape=[size] * 2, pads=[pad] * 4, strides=[stride] * 2)
        return made

    def norm(self, name: str, x: str, size: int) -> str:
        """As a trained model has it; the Trainer puts it into training mode."""
        scale, bias = self.ones(f"{name}.weight", size), self.weight(f"{name}.bias", size)
        mean, var = self.weight(f"{name}.running_mean", size), self.ones(f"{name}.running_var", size)
        made: str = self.BatchNormalization(x, scale, bias, mean, var, momentum=0.9)
        return made

    def pool(self, x: str) -> str:
        made: str = self.MaxPool(x, kernel_shape=[2, 2], strides=[2, 2])
        return made

    def done(self, y: str) -> Graph:
        return infer(self.graph([y]))


def mlp(dtype: DType = DType.FLOAT) -> Graph:
    """Three dense layers."""
    g = Layers(dtype, 12)
    x = g.Tanh(g.linear("0", g.x, 12, 16))
    return g.done(g.linear("4", g.Relu(g.linear("2", x, 16, 16)), 16, 5))


def lenet(dtype: DType = DType.FLOAT) -> Graph:
    """LeCun et al. 1998 with rectifiers and maxima, for images of 16 x 16."""
    g = Layers(dtype, 1, 16, 16)

    def conv(name: str, x: str, wide: int, out: int, pad: int) -> str:
        bias = g.Reshape(g.weight(f"{name}.bias", out), g.const([1, out, 1, 1]))
        return g.pool(g.Relu(g.Add(g.conv(name, x, wide, out, 5, pad=pad), bias)))

    x = g.Flatten(conv("3", conv("0", g.x, 1, 6, 2), 6, 16, 0))
    x = g.Relu(g.linear("7", x, 64, 120))
    return g.done(g.linear("11", g.Relu(g.linear("9", x, 120, 84)), 84, 10))


def resnet18(dtype: DType = DType.FLOAT, width: int = 8) -> Graph:
    """He et al. 2015 for small images: eight blocks of two convolutions behind a 3x3 stem."""
    g = Layers(dtype, 3, 16, 16)

    def block(name: str, x: str, wide: int, out: int, stride: int) -> str:
        y = g.Relu(g.norm(f"{name}.bn1", g.conv(f"{name}.conv1", x, wide, out, 3, pad=1, stride=stride), out))
        y = g.norm(f"{name}.bn2", g.conv(f"{name}.conv2", y, out, out, 3, pad=1), out)
        if wide != out:
            x = g.norm(f"{name}.short.1", g.conv(f"{name}.short.0", x, wide, out, 1, stride=stride), out)
        made: str = g.Relu(g.Add(y, x))
        return made

    x, wide = g.Relu(g.norm("bn", g.conv("conv", g.x, 3, width, 3, pad=1), width)), width
    for i in range(8):
        out = width * 2 ** (i // 2)
        x, wide = block(f"blocks.{i}", x, wide, out, 1 if wide == out else 2), out
    return g.done(g.linear("fc", g.Flatten(g.GlobalAveragePool(x)), wide, 10))


def noisy(ratio: float | None = 0.5) -> Graph:
    """A small network with batch normalisation and dropout, of which the ratio may be left out."""
    g = Layers(DType.FLOAT, 12)
    x = g.norm("norm", g.linear("first", g.x, 12, 32), 32)
    given = g.const(np.float32(ratio or 0.0))  # made in either case: random numbers follow the names of nodes
    x = g.Dropout(g.Relu(x), *(() if ratio is None else (given,)))
    return g.done(g.linear("last", x, 32, 5))


LENGTH, WIDE, HEADS = 6, 16, 4


def encoder(dtype: DType = DType.FLOAT) -> Graph:
    """Two layers of Vaswani et al. 2017 over sequences of six vectors, and a linear layer over their mean."""
    g = Layers(dtype, LENGTH, WIDE)

    def split(x: str) -> str:
        made: str = g.Transpose(g.Reshape(x, g.const([0, 0, HEADS, -1])), perm=[0, 2, 1, 3])
        return made

    def norm(name: str, x: str) -> str:
        made: str = g.LayerNormalization(x, g.ones(f"{name}.weight", WIDE), g.weight(f"{name}.bias", WIDE), axis=-1)
        return made

    def linear(name: str, x: str, wide: int, out: int) -> str:
        return g.project(x, g.weight(f"{name}.weight", out, wide), g.weight(f"{name}.bias", out))

    def layer(name: str, x: str) -> str:
        own = f"{name}.self_attn"
        joint = g.weight(f"{own}.in_proj_weight", 3 * WIDE, WIDE), g.weight(f"{own}.in_proj_bias", 3 * WIDE)
        q, k, v = map(split, g.op("Split", g.project(x, *joint), outputs=3, axis=2, num_outputs=3))
        scores = g.Mul(g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), g.scalar((WIDE // HEADS) ** -0.5, q))
        mixed = g.Transpose(g.MatMul(g.Softmax(scores, axis=-1), v), perm=[0, 2, 1, 3])
        mixed = linear(f"{own}.out_proj", g.Reshape(mixed, g.const([0, 0, -1])), WIDE, WIDE)
        x = norm(f"{name}.norm1", g.Add(x, mixed))
        inner = g.Gelu(linear(f"{name}.linear1", x, WIDE, 32))
        return norm(f"{name}.norm2", g.Add(x, linear(f"{name}.linear2", inner, 32, WIDE)))

    x = layer("body.layers.1", layer("body.layers.0", g.x))
    return g.done(g.linear("head", g.ReduceMean(x, g.const([1]), keepdims=0), WIDE, 5))


HIDDEN = 10


def lstm(dtype: DType = DType.FLOAT) -> Graph:
    """Hochreiter and Schmidhuber 1997 with forget gates; the last state is read. PyTorch's gates are i f c o, those of
    ONNX i o f c: the weights are put in order inside of the graph."""
    g = Layers(dtype, 7, 4)
    order = g.const(np.arange(4 * HIDDEN).reshape(4, HIDDEN)[[0, 3, 1, 2]].ravel())

    def moved(name: str, *shape: int) -> str:
        made: str = g.Unsqueeze(g.Gather(g.weight(f"body.{name}_l0", *shape), order, axis=0), g.const([0]))
        return made

    w, r = moved("weight_ih", 4 * HIDDEN, 4), moved("weight_hh", 4 * HIDDEN, HIDDEN)
    b = g.Concat(moved("bias_ih", 4 * HIDDEN), moved("bias_hh", 4 * HIDDEN), axis=1)
    _, last = g.op("LSTM", g.Transpose(g.x, perm=[1, 0, 2]), w, r, b, outputs=2, hidden_size=HIDDEN)
    return g.done(g.linear("head", g.Squeeze(last, g.const([0])), HIDDEN, 5))


NETWORKS: dict[str, Callable[[DType], Graph]] = {
    "mlp": mlp,
    "lenet": lenet,
    "resnet18": resnet18,
    "encoder": encoder,
    "lstm": lstm,
}


def batch_for(graph: Graph, number: int, size: int = 8) -> dict[str, Array]:
    """A batch of random inputs for one of these networks, and classes to tell."""
    rng = np.random.default_rng([11, number])
    kind, out = graph.types["x"], graph.types[graph.outputs[0]]
    assert isinstance(kind, Tensor)
    assert isinstance(out, Tensor)
    assert kind.dims
    assert out.dims
    sizes = [n for n in kind.dims[1:] if isinstance(n, int)]
    return {
        "x": rng.standard_normal((size, *sizes)).astype(kind.dtype.numpy),
        "target": rng.integers(0, int(out.dims[-1] or 0), size),
    }


def distance(a: Array, b: Array) -> float:
    """Relative, in the L2 norm."""
    return float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), 1e-30)
