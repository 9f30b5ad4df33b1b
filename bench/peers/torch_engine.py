"""PyTorch as an engine of a comparison: `torch_engine.py CHILD`, CHILD being the path of tools/compare_child.py.

Settings: `net` and `weights` (see nets.py), `precision` fp32 or bf16, `compiled` for torch.compile with weights frozen
into the program, as its documents advise for inference.
"""

from __future__ import annotations

import runpy
import sys
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from nets import NETS, Stored
from torch import nn


class Net(nn.Module):
    """A network over stored weights; made to be traced, so that no Python of ours is left in a run."""

    def __init__(self, name: str, stored: Stored) -> None:
        super().__init__()
        self.net, self.stored, self.count = NETS[name], stored, 0
        for (_, op), weights in stored.nodes.items():  # tracing finds modules that are there before
            if op in RECURRENT:
                self.layer = recurrent(op, *(a[0] for a in weights))

    def take(self, op: str) -> list[nn.Parameter]:
        return [self.keep(a) for a in self.stored.take(op)]

    def keep(self, array: np.ndarray, fixed: bool = False) -> torch.Tensor:
        self.count += 1
        made = torch.from_numpy(np.array(array))
        if fixed:
            self.register_buffer(f"p{self.count}", made)
            return made
        learned = nn.Parameter(made, requires_grad=False)
        self.register_parameter(f"p{self.count}", learned)
        return learned

    def conv(self, x, stride=1, pad=0, depthwise=False):
        w, *bias = self.take("Conv")
        return torch.conv2d(x, w, *(bias or [None]), stride, pad, 1, w.shape[0] if depthwise else 1)

    def norm(self, x):
        scale, bias, *running = self.stored.take("BatchNormalization")
        mean, variance = (self.keep(a, fixed=True) for a in running)
        return F.batch_norm(x, mean, variance, self.keep(scale), self.keep(bias), self.training, 0.1, 1e-5)

    def relu(self, x):
        return torch.relu(x)

    def relu6(self, x):
        return F.relu6(x)

    def max_pool(self, x, kernel, stride, pad, ceil=False):
        return F.max_pool2d(x, kernel, stride, pad, ceil_mode=ceil)

    def pooled(self, x):
        return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)

    def flat(self, x):
        return torch.flatten(x, 1)

    def concat(self, *xs):
        return torch.cat(xs, 1)

    def mean(self, x):
        return x.mean(1)

    def first(self, x):
        return x[0]

    def gemm(self, x):
        return F.linear(x, *self.take("Gemm"))

    def softmax(self, x):
        return torch.softmax(x, -1)

    def dense(self, x):
        (w,), (b,) = self.stored.take("MatMul"), self.take("Add")
        return F.linear(x, self.keep(np.ascontiguousarray(w.T)), b)

    def gelu(self, x):
        return F.gelu(x)

    def layer_norm(self, x, epsilon):
        scale, bias = self.take("LayerNormalization")
        return F.layer_norm(x, scale.shape, scale, bias, epsilon)

    def embedding(self, ids):
        return F.embedding(ids, *self.take("Gather"))

    def places(self, x):
        (table,) = self.stored.take("Gather")
        return x + self.keep(table[None, :128])

    def unseen(self, mask, x):
        return ((1 - mask) * -10000.0).type_as(x)[:, None, None, :]

    def attention(self, query, key, value, heads, unseen=None):
        def split(x):
            return x.unflatten(-1, (heads, -1)).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(split(query), split(key), split(value), attn_mask=unseen)
        return mixed.transpose(1, 2).flatten(2)

    def lstm(self, x):
        self.stored.take("LSTM")
        y, (h, _) = self.layer(x)
        return [y.unsqueeze(1), h]

    def gru(self, x):
        self.stored.take("GRU")
        return self.layer(x)[1]


# ONNX has i, o, f, c, PyTorch i, f, c, o; of GRU ONNX has z, r, h, PyTorch r, z, h
RECURRENT = {"LSTM": (nn.LSTM, [0, 2, 3, 1]), "GRU": (nn.GRU, [1, 0, 2])}


def recurrent(op: str, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> nn.RNNBase:
    """A recurrent layer with the weights of ONNX's."""
    kind, order = RECURRENT[op]

    def gates(a: np.ndarray) -> torch.Tensor:
        parts = np.split(a, len(order))
        return torch.from_numpy(np.concatenate([parts[i] for i in order]))

    layer = kind(w.shape[1], r.shape[1])
    values = (gates(w), gates(r), *map(gates, np.split(b, 2)))
    for weight, value in zip(layer.parameters(), values, strict=True):
        weight.data = value
    return layer


class OneInput(Net):
    def forward(self, x):
        return self.net(self, x)


class ThreeInputs(Net):
    def forward(self, a, b, c):
        return self.net(self, a, b, c)


def network(settings, inputs, training=False):
    """The network with its weights; in training mode, normalisation is by the batch."""
    with np.load(settings["weights"], allow_pickle=False) as weights:
        net = (OneInput if inputs == 1 else ThreeInputs)(settings["net"], Stored(dict(weights)))
    return torch.fx.symbolic_trace(net.train(training)).train(training)


def make(settings, feeds):
    torch.set_num_threads(settings["threads"])
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[settings["precision"]]
    begin = perf_counter()
    model = network(settings, len(feeds)).to(dtype)
    if settings["compiled"]:
        from torch._inductor import config

        config.freezing = True
        model = torch.compile(model, dynamic=False)
    inputs = [torch.from_numpy(a) for a in feeds.values()]
    inputs = [a.to(dtype) if a.is_floating_point() else a for a in inputs]

    def call():
        with torch.inference_mode():
            return model(*inputs)

    facts = {"version": torch.__version__, "precision": settings["precision"]}
    return Ready(call, lambda ys: [y.float().numpy() for y in ys], perf_counter() - begin, facts)


if __name__ == "__main__":
    child = runpy.run_path(sys.argv[1])
    Ready = child["Ready"]
    child["serve"](make)
