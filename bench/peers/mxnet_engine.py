"""MXNet 1.9.1 as an engine of a comparison: `mxnet_engine.py CHILD`, CHILD being the path of tools/compare_child.py.

It runs in an environment of its own, which has no Mezzo (see `environment.py`). The networks are symbols, bound once:
so they get MXNet's own fusions for oneDNN. Settings: `net` and `weights` (see nets.py).
"""

from __future__ import annotations

import runpy
import sys
from time import perf_counter

import mxnet as mx
import numpy as np
from nets import NETS, Stored

S = mx.sym


class Layers:
    """Layers as symbols; weights are kept by name. In training mode, normalisation is by the batch."""

    def __init__(self, stored, training=False):
        self.stored, self.training, self.weights, self.fixed = stored, training, {}, {}

    def keep(self, array, fixed=False):
        name = f"p{len(self.weights) + len(self.fixed)}"
        (self.fixed if fixed else self.weights)[name] = array
        return S.Variable(name, shape=array.shape)

    def take(self, op):
        return [self.keep(a) for a in self.stored.take(op)]

    def conv(self, x, stride=1, pad=0, depthwise=False):
        w, *bias = self.stored.take("Conv")
        channels, _, kernel, _ = w.shape
        return S.Convolution(
            x,
            *(self.keep(a) for a in (w, *bias)),
            num_filter=channels,
            kernel=(kernel, kernel),
            stride=(stride, stride),
            pad=(pad, pad),
            num_group=channels if depthwise else 1,
            no_bias=not bias,
        )

    def norm(self, x):
        scale, bias, mean, variance = self.stored.take("BatchNormalization")
        weights = [self.keep(a) for a in (scale, bias)] + [self.keep(a, fixed=True) for a in (mean, variance)]
        return S.BatchNorm(x, *weights, eps=1e-5, fix_gamma=False, use_global_stats=not self.training)

    def relu(self, x):
        return S.Activation(x, act_type="relu")

    def relu6(self, x):
        return S.clip(x, 0, 6)

    def max_pool(self, x, kernel, stride, pad, ceil=False):
        sizes = {"kernel": (kernel, kernel), "stride": (stride, stride), "pad": (pad, pad)}
        return S.Pooling(x, **sizes, pool_type="max", pooling_convention="full" if ceil else "valid")

    def pooled(self, x):
        return S.Flatten(S.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1)))

    def flat(self, x):
        return S.Flatten(x)

    def concat(self, *xs):
        return S.concat(*xs, dim=1)

    def mean(self, x):
        return S.mean(x, axis=1)

    def first(self, x):
        return S.reshape(x, (-3, 0))

    def gemm(self, x):
        w, b = self.stored.take("Gemm")
        return S.FullyConnected(x, self.keep(w), self.keep(b), num_hidden=len(b), flatten=False)

    def softmax(self, x):
        return S.softmax(x, axis=-1)

    def dense(self, x):
        (w,), (b,) = self.stored.take("MatMul"), self.stored.take("Add")
        weight = self.keep(np.ascontiguousarray(w.T))
        return S.FullyConnected(x, weight, self.keep(b), num_hidden=len(b), flatten=False)

    def gelu(self, x):
        return S.LeakyReLU(x, act_type="gelu")

    def layer_norm(self, x, epsilon):
        return S.LayerNorm(x, *self.take("LayerNormalization"), axis=-1, eps=epsilon)

    def embedding(self, ids):
        (table,) = self.stored.take("Gather")
        return S.Embedding(ids, self.keep(table), input_dim=len(table), output_dim=table.shape[1])

    def places(self, x):
        (table,) = self.stored.take("Gather")
        return S.broadcast_add(x, self.keep(np.ascontiguousarray(table[None, :128])))

    def unseen(self, mask, x):
        return S.reshape((1 - mask) * -10000.0, (0, 1, 1, -1))

    def attention(self, query, key, value, heads, unseen=None):
        def split(x):
            return S.reshape(S.transpose(S.reshape(x, (0, 0, heads, -1)), (0, 2, 1, 3)), (-3, 0, 0))

        scores = S.batch_dot(split(query) * 0.125, split(key), transpose_b=True)
        if unseen is not None:
            scores = S.broadcast_add(S.reshape(scores, (-4, -1, heads, 0, 0)), unseen)
            scores = S.reshape(scores, (-3, 0, 0))
        mixed = S.batch_dot(S.softmax(scores, axis=-1), split(value))
        return S.reshape(S.transpose(S.reshape(mixed, (-4, -1, heads, 0, 0)), (0, 2, 1, 3)), (0, 0, -3))

    def lstm(self, x):
        y = self.recurrent(
            "LSTM", [0, 2, 3, 1], 2, x
        )  # input, output, forget, cell; MXNet: input, forget, cell, output
        return [S.expand_dims(y[0], 1), y[1]]

    def gru(self, x):
        return self.recurrent("GRU", [1, 0, 2], 1, x)[1]  # update, reset, new; MXNet: reset, update, new

    def recurrent(self, op, order, states, x):
        """A recurrent layer whose gates have another order in ONNX; `order` says where those of MXNet are there."""
        w, r, b = (a[0] for a in self.stored.take(op))

        def gates(a):
            parts = np.split(a, len(order))
            return np.concatenate([parts[i] for i in order]).reshape(-1)

        flat = np.concatenate([gates(w), gates(r), *map(gates, np.split(b, 2))])
        hidden = r.shape[1]
        begin = [S.zeros((1, self.batch, hidden)) for _ in range(states)]
        return S.RNN(x, self.keep(flat), *begin, mode=op.lower(), state_size=hidden, num_layers=1, state_outputs=True)


def network(settings, feeds, training=False):
    """The network's layers and outputs."""
    with np.load(settings["weights"], allow_pickle=False) as weights:
        layers = Layers(Stored(dict(weights)), training)
    first = next(iter(feeds.values()))
    layers.batch = first.shape[1] if settings["net"].startswith(("lstm", "gru")) else first.shape[0]
    return layers, NETS[settings["net"]](layers, *(S.Variable(n) for n in feeds))


def bound(symbol, layers, feeds, wanted):
    """The executor of a symbol, with weights and inputs in their places; `wanted` tells of what gradients are kept."""
    executor = symbol.simple_bind(mx.cpu(), grad_req=wanted, **{n: a.shape for n, a in feeds.items()})
    for name, array in {**layers.weights, **{n: a.astype(np.float32) for n, a in feeds.items()}}.items():
        executor.arg_dict[name][:] = mx.nd.array(array)
    for name, array in layers.fixed.items():
        executor.aux_dict[name][:] = mx.nd.array(array)
    mx.nd.waitall()
    return executor


def make(settings, feeds):
    begin = perf_counter()
    layers, outputs = network(settings, feeds)
    executor = bound(S.Group(outputs), layers, feeds, "null")

    def call():
        ys = executor.forward(is_train=False)
        for y in ys:
            y.wait_to_read()
        return ys

    facts = {"version": mx.__version__, "precision": "fp32"}
    return Ready(call, lambda ys: [y.asnumpy() for y in ys], perf_counter() - begin, facts)


if __name__ == "__main__":
    child = runpy.run_path(sys.argv[1])
    Ready = child["Ready"]
    child["serve"](make)
