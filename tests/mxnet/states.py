"""States of optimizers as a real MXNet 1.9.1 writes them, with what stands in them.

In an environment with mxnet 1.9.1 `python -m tests.mxnet.states`, from the root of the repository, writes
tests/mxnet/states.npz: `NAME.states` has the bytes of a file, `NAME/INDEX/...` each of its arrays. `step.NAME/INDEX`
has the parameter then and after one more update, `step.NAME/rate` the rate of that.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("states.npz")
PROTOCOLS = (0, 1, 2, 3, 4, 5)  # 2 is what MXNet wrote under Python 2 at most, 3 and 4 under Python 3


def slope(value: Any, step: int) -> Any:
    """What update `step` has as the gradient of a parameter, over a batch of 4."""
    return np.arange(value.size, dtype=value.dtype).reshape(value.shape) * (step + 1)


def trained(mx: Any, name: str, **settings: Any) -> tuple[bytes, Any, Callable[[], dict[str, Any]]]:
    """A file of `Trainer.save_states` after two steps of a parameter of shape (2, 3) and one of shape (3,); what makes
    a third one, and tells the parameters around it."""
    dtype = "float16" if settings.get("multi_precision") else "float32"
    params = mx.gluon.ParameterDict("net_")
    for number, shape in enumerate([(2, 3), (3,)]):
        p = params.get(f"w{number}", shape=shape, dtype=dtype, init=mx.init.Constant(0.25 * number - 0.5))
        p.initialize()
    trainer = mx.gluon.Trainer(params, name, settings, update_on_kvstore=False)

    def make(step: int) -> None:
        with mx.autograd.record():
            loss = sum((p.data() * mx.nd.array(slope(p.data(), step), dtype=dtype)).sum() for p in params.values())
        loss.backward()
        trainer.step(4)

    def again() -> dict[str, Any]:
        before = [p.data().asnumpy() for p in params.values()]
        make(2)
        after = [p.data().asnumpy() for p in params.values()]
        both = {str(i): np.stack(pair) for i, pair in enumerate(zip(before, after, strict=True))}
        return {**both, "rate": trainer.learning_rate}

    make(0)
    make(1)
    updater = trainer._updaters[0]
    return updater.get_states(dump_optimizer=True), updater, again


def flat(prefix: str, state: Any) -> dict[str, Any]:
    if state is None:
        return {}
    if isinstance(state, list | tuple):
        return {k: v for i, s in enumerate(state) for k, v in flat(f"{prefix}/{i}", s).items()}
    return {prefix: state.asnumpy()}


def make() -> dict[str, Any]:
    import mxnet as mx

    schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.2)
    kinds = {
        "sgd": ("sgd", {"learning_rate": 0.1}),
        "momentum": ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3}),
        "half": ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "multi_precision": True}),
        "nag": ("nag", {"learning_rate": 0.1, "momentum": 0.9}),
        "adam": ("adam", {"learning_rate": 0.01, "beta1": 0.8, "lr_scheduler": schedule}),
        "signum": ("signum", {"learning_rate": 0.1, "momentum": 0.9}),
        "rms": ("rmsprop", {"learning_rate": 0.01}),
        "rmsprop": ("rmsprop", {"learning_rate": 0.01, "centered": True}),
        "ftrl": ("ftrl", {"learning_rate": 0.1}),
        "adagrad": ("adagrad", {"learning_rate": 0.1, "clip_gradient": 0.5}),
        "adadelta": ("adadelta", {}),
        "nadam": ("nadam", {"learning_rate": 0.01}),
        "dcasgd": ("dcasgd", {"learning_rate": 0.1}),
        "lamb": ("lamb", {"learning_rate": 0.1}),
    }
    stored: dict[str, Any] = {}
    for name, (kind, settings) in kinds.items():
        content, updater, again = trained(mx, kind, **settings)
        stored[f"{name}.states"] = np.frombuffer(content, np.uint8)
        for index, state in updater.states.items():
            stored |= flat(f"{name}/{index}", state)
        if name == "momentum":
            plain = updater.get_states(dump_optimizer=False)  # as a module's file, and those of kvstores
            stored["module.states"] = np.frombuffer(plain, np.uint8)
            stored |= {k.replace(name, "module", 1): v for k, v in stored.items() if k.startswith(f"{name}/")}
            for protocol in PROTOCOLS:
                written = io.BytesIO()
                kept = (updater.states, updater.optimizer)
                write = mx.optimizer.optimizer.pickle._Pickler  # as Python 2's did
                write(written, protocol).dump(kept)
                stored[f"protocol{protocol}.states"] = np.frombuffer(written.getvalue(), np.uint8)
                label = f"protocol{protocol}"
                stored |= {k.replace(name, label, 1): v for k, v in stored.items() if k.startswith(f"{name}/")}
        stored |= {f"step.{name}/{key}": v for key, v in again().items()}
    return stored


if __name__ == "__main__":
    np.savez_compressed(FILE, **make())
