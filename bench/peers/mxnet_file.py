"""MXNet 1.9.1 on a model's own files: `mxnet_file.py CHILD`, CHILD being the path of tools/compare_child.py.

It runs in an environment of its own, which has no Mezzo (see `environment.py`). The symbol is bound once, so it gets
MXNet's own fusions for oneDNN. Settings: `model`, the path of `NAME-symbol.json`, with `NAME-0001.params` beside it.
"""

from __future__ import annotations

import runpy
import sys
from time import perf_counter

import mxnet as mx


def make(settings, feeds):
    begin = perf_counter()
    symbol, weights, statistics = mx.model.load_checkpoint(settings["model"][: -len("-symbol.json")], 1)
    executor = symbol.simple_bind(mx.cpu(), grad_req="null", **{n: a.shape for n, a in feeds.items()})
    executor.copy_params_from(weights, statistics)
    for name, array in feeds.items():
        executor.arg_dict[name][:] = mx.nd.array(array)
    mx.nd.waitall()
    took = perf_counter() - begin

    def call():
        ys = executor.forward(is_train=False)
        for y in ys:
            y.wait_to_read()
        return ys

    return Ready(call, lambda ys: [y.asnumpy() for y in ys], took, {"version": mx.__version__, "precision": "fp32"})


if __name__ == "__main__":
    child = runpy.run_path(sys.argv[1])
    Ready = child["Ready"]
    child["serve"](make)
