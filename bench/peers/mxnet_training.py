"""MXNet 1.9.1 as an engine that trains: `mxnet_training.py CHILD`, CHILD being the path of tools/compare_child.py.

Settings: `net` and `weights` (see nets.py), `optimizer` as `Optimizer.to_dict` of ours tells it. Network and loss are
one symbol, bound once; MXNet's own optimizer operators update the weights, several at once as its Trainer has it.
"""

from __future__ import annotations

import runpy
import sys
from time import perf_counter

import mxnet as mx
from mxnet_engine import S, bound, network

TARGET = "target"
OPTIMIZERS = {
    "SGD": lambda o: mx.optimizer.SGD(learning_rate=o["rate"], momentum=o["momentum"]),
    "Adam": lambda o: mx.optimizer.Adam(
        learning_rate=o["rate"], beta1=o["beta1"], beta2=o["beta2"], epsilon=o["epsilon"]
    ),
}


def make(settings, feeds):
    begin = perf_counter()
    inputs = {n: a for n, a in feeds.items() if n != TARGET}
    layers, (scores,) = network(settings, inputs, training=True)
    # as gluon's SoftmaxCrossEntropyLoss has it
    loss = S.MakeLoss(S.mean(-S.pick(S.log_softmax(scores, axis=-1), S.Variable(TARGET), axis=-1)))
    wanted = {**dict.fromkeys(feeds, "null"), **dict.fromkeys(layers.weights, "write")}
    executor = bound(loss, layers, feeds, wanted)
    update = mx.optimizer.get_updater(OPTIMIZERS[settings["optimizer"]["kind"]](settings["optimizer"]))
    places = list(range(len(layers.weights)))
    weights = [executor.arg_dict[n] for n in layers.weights]
    gradients = [executor.grad_dict[n] for n in layers.weights]

    def call():
        (value,) = executor.forward(is_train=True)
        executor.backward()
        update(places, gradients, weights)
        mx.nd.waitall()
        return value

    facts = {"version": mx.__version__, "precision": "fp32"}
    return Ready(call, lambda value: [value.asnumpy().reshape(())], perf_counter() - begin, facts)


if __name__ == "__main__":
    child = runpy.run_path(sys.argv[1])
    Ready = child["Ready"]
    child["serve"](make)
