"""The networks of `mezzo.models.workloads` and `mezzo.models.training` for the peers, described over layers that each
peer has in its own way.

Weights are those of our graph: `cases.weights` stores them in the order of its nodes, and the layers take them in the
same order, since the networks below call them in it. Those that are trained end in scores, before a softmax.
"""

from __future__ import annotations

STAGES = ((1, 1, 1), (6, 2, 2), (6, 3, 2), (6, 4, 2), (6, 3, 1), (6, 3, 2), (6, 1, 1))  # of MobileNetV2
HEADS = 12


class Stored:
    """The weights of a graph, node by node."""

    def __init__(self, arrays):
        self.nodes = {}
        for name in sorted(arrays):
            index, op, _ = name.split(".")
            self.nodes.setdefault((index, op), []).append(arrays[name])
        self.left = iter(self.nodes.items())

    def take(self, op):
        """The weights of the next node, which must be of this operator."""
        (_, found), weights = next(self.left)
        assert found == op, f"the graph has {found} where the network has {op}"
        return weights


def resnet50(net, x):
    x = net.max_pool(net.relu(net.norm(net.conv(x, 2, 3))), 3, 2, 1)
    for stage, count in enumerate((3, 4, 6, 3)):
        for i in range(count):
            stride = 2 if stage and not i else 1
            y = net.relu(net.norm(net.conv(x)))
            y = net.relu(net.norm(net.conv(y, stride, 1)))
            y = net.norm(net.conv(y))
            x = net.relu(y + (x if i else net.norm(net.conv(x, stride))))
    return [net.softmax(net.gemm(net.pooled(x)))]


def mobilenetv2(net, x):
    x = net.relu6(net.norm(net.conv(x, 2, 1)))
    for expansion, repeats, first in STAGES:
        for i in range(repeats):
            y = net.relu6(net.norm(net.conv(x))) if expansion > 1 else x
            y = net.relu6(net.norm(net.conv(y, 1 if i else first, 1, depthwise=True)))
            y = net.norm(net.conv(y))
            x = x + y if i else y
    return [net.softmax(net.gemm(net.pooled(net.relu6(net.norm(net.conv(x))))))]


def mlp(net, x):
    return [net.gemm(net.relu(net.gemm(net.relu(net.gemm(x)))))]


def bert(net, ids, kinds, mask):
    words, types = net.embedding(ids), net.embedding(kinds)
    x = net.layer_norm(net.places(words + types), 1e-12)
    unseen = net.unseen(mask, x)
    for _ in range(12):
        query, key, value = (net.dense(x) for _ in range(3))
        x = net.layer_norm(net.dense(net.attention(query, key, value, HEADS, unseen)) + x, 1e-12)
        x = net.layer_norm(net.dense(net.gelu(net.dense(x))) + x, 1e-12)
    return [x]


def lstm(net, x):
    return net.lstm(x)


def resnet18(net, x):
    x = net.max_pool(net.relu(net.norm(net.conv(x, 2, 3))), 3, 2, 1)
    for stage in range(4):
        for i in range(2):
            stride = 2 if stage and not i else 1
            y = net.norm(net.conv(net.relu(net.norm(net.conv(x, stride, 1))), 1, 1))
            x = net.relu(y + (x if stride == 1 else net.norm(net.conv(x, stride))))
    return [net.gemm(net.pooled(x))]


def transformer(net, x):
    for _ in range(4):
        query, key, value = (net.dense(x) for _ in range(3))
        x = net.layer_norm(x + net.dense(net.attention(query, key, value, 4)), 1e-5)
        x = net.layer_norm(x + net.dense(net.relu(net.dense(x))), 1e-5)
    return [net.gemm(net.mean(x))]


def lstm_classifier(net, x):
    _, last = net.lstm(x)
    return [net.gemm(net.first(last))]


def alexnet_owt(net, x):
    x = net.max_pool(net.relu(net.conv(x, 4, 2)), 3, 2, 0)
    x = net.max_pool(net.relu(net.conv(x, 1, 2)), 3, 2, 0)
    for _ in range(3):
        x = net.relu(net.conv(x, 1, 1))
    return [_three_dense(net, net.max_pool(x, 3, 2, 0))]


def vgg_a(net, x):
    for count in (1, 1, 2, 2, 2):
        for _ in range(count):
            x = net.relu(net.conv(x, 1, 1))
        x = net.max_pool(x, 2, 2, 0)
    return [_three_dense(net, x)]


def _three_dense(net, x):
    return net.gemm(net.relu(net.gemm(net.relu(net.gemm(net.flat(x))))))


def googlenet_v1(net, x):
    def inception(x):
        a = net.relu(net.conv(x))
        b = net.relu(net.conv(net.relu(net.conv(x)), 1, 1))
        c = net.relu(net.conv(net.relu(net.conv(x)), 1, 2))
        return net.concat(a, b, c, net.relu(net.conv(net.max_pool(x, 3, 1, 1))))

    def halved(x):
        return net.max_pool(x, 3, 2, 0, ceil=True)

    x = halved(net.relu(net.conv(x, 2, 3)))
    x = halved(net.relu(net.conv(net.relu(net.conv(x)), 1, 1)))
    for stage, modules in enumerate((2, 5, 2)):
        x = halved(x) if stage else x
        for _ in range(modules):
            x = inception(x)
    return [net.gemm(net.pooled(x))]


def gru_classifier(net, x):
    return [net.gemm(net.first(net.gru(x)))]


TRAINED = (resnet18, transformer, lstm_classifier, gru_classifier, alexnet_owt, googlenet_v1, vgg_a)
NETS = {f.__name__: f for f in (resnet50, mobilenetv2, mlp, bert, lstm, *TRAINED)}
