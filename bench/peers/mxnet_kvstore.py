"""MXNet 1.9.1 for `bench/kvstore.py`, in the role that DMLC_ROLE says: a server ends with its import, a worker answers.

`how` is the number of keys that the bytes are spread over.
"""

import mxnet as mx
from teams import answer


def main():
    kv = mx.kv.create("dist_sync")
    names = {}

    def measure(size, how):
        count = int(how)
        keys = [names.setdefault((size, count, i), len(names)) for i in range(count)]
        shape = (size // 4 // count,)
        given = [mx.nd.ones(shape) * (kv.rank + 1) for _ in keys]
        out = [mx.nd.zeros(shape) for _ in keys]
        kv.init(keys, out)

        def call():
            kv.push(keys, given)
            kv.pull(keys, out=out)
            mx.nd.waitall()

        call()
        if float(out[0][0].asscalar()) != sum(range(1, kv.num_workers + 1)):
            raise ArithmeticError(f"{out[0]} is no sum")
        return call

    answer(measure)


if __name__ == "__main__":
    main()
