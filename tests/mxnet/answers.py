"""Write what MXNet answers to the cases: in an environment with mxnet 1.9.1 and numpy 1.23.5,

    python -m tests.mxnet.answers

from the root of the repository; it adds to tests/mxnet/answers.npz, which has the operands too, what is not there
(`--again`: all), and drops cases that are gone. Each case runs in a process of its own, since MXNet ends some with a
crash.
"""

from __future__ import annotations

import os
import sys
import tempfile
from ast import literal_eval
from pathlib import Path
from typing import Any

import numpy as np

from . import layers, numpy_style, quantised  # noqa: F401  more cases
from .cases import CASES, operands, symbol_of

PAGE = Path(__file__).with_name("answers.npz")


def answer(name: str) -> list[Any]:
    import mxnet as mx
    from mxnet.ndarray.numpy import _internal as eager

    op, attrs = CASES[name][:2]
    if op == "_npi_delete":  # it runs in the eager interface alone
        given = {k: literal_eval(v) for k, v in attrs.items()}
        return [eager.delete(*map(mx.np.array, operands(name).values()), **given).asnumpy()]
    with mx.util.np_shape(op.startswith("_np")):  # shapes of no axes, and sizes of 0
        symbol = mx.sym.load_json(symbol_of(name))
        values = {k: mx.nd.array(v, dtype=v.dtype) for k, v in operands(name).items()}
        auxiliary = {n: values.pop(n) for n in symbol.list_auxiliary_states()}
        bound = symbol.bind(mx.cpu(), values, aux_states=auxiliary)
        outputs = bound.forward(is_train=False)
        if any(o.size == 0 for o in outputs):  # sizes that depend on data: executors have none
            outputs = mx.nd._internal.CachedOp(symbol)(*values.values())
            outputs = outputs if isinstance(outputs, list) else [outputs]
        return [o.asnumpy() for o in outputs]


def in_child(name: str, path: Path) -> None:
    """Answer one case into a file; none is written where MXNet fails."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        outputs = answer(name)
        np.savez(path, **{f"out{i}": v for i, v in enumerate(outputs)})
    except Exception as error:
        print(f"{name}: {str(error).strip().splitlines()[-1][:200]}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(0)


def main() -> None:
    import mxnet  # noqa: F401  once, not in every child

    stored: dict[str, Any] = {}
    if "--again" not in sys.argv and PAGE.exists():
        with np.load(PAGE) as page:
            stored = {k: page[k] for k in page if k.rpartition("/")[0] in CASES}
    known = {k.rpartition("/")[0] for k in stored}
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(n for n in CASES if n not in known):
            path = Path(folder, f"{i}.npz")
            in_child(name, path)
            if not path.exists():
                print(f"{name}: no answer", file=sys.stderr)
                continue
            stored.update({f"{name}/{k}": v for k, v in operands(name).items()})
            stored.update({f"{name}/{k}": v for k, v in np.load(path).items()})
    np.savez_compressed(PAGE, **stored)
    print(f"{len(CASES)} cases, {PAGE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
