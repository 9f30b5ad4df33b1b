"""`mx.optimizer` and `mx.lr_scheduler`: settings under MXNet's names as optimizers and schedules of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...gluon.trainer import OLD
from ...nd.array import Array
from ...runtime import optimizer as ours
from ...runtime.optimizer import Group, schedule
from ...runtime.optimizer.schedule import Schedule

# What MXNet's optimizers take, and is settled elsewhere: names of parameters, precision.
WITHOUT_MEANING = {"param_idx2name", "param_dict", "sym", "multi_precision", "begin_num_update", "aggregate_num",
                   "use_fused_step"}  # fmt: skip
DEFAULT_RATE = {"adam": 0.001, "rmsprop": 0.001, "nadam": 0.001, "adamax": 0.002, "adagrad": 0.01}


@dataclass(frozen=True)
class Optimizer:
    """An optimizer of ours, and what MXNet does with the gradients before: they are multiplied and clipped."""

    rule: ours.Optimizer
    rescale_grad: float = 1.0
    clip_gradient: float | None = None

    @property
    def learning_rate(self) -> float:
        return schedule.at(self.rule.rate, 0)

    def ready(self, grad: Array) -> Array:
        scaled = grad if self.rescale_grad == 1 else grad * self.rescale_grad
        return scaled if self.clip_gradient is None else scaled.clip(-self.clip_gradient, self.clip_gradient)


def create(name: str | Optimizer | ours.Optimizer, **settings: Any) -> Optimizer:
    """An optimizer by its name, with MXNet's settings."""
    if isinstance(name, Optimizer):
        return name
    if isinstance(name, ours.Optimizer):
        return Optimizer(name)
    settings = {k: v for k, v in settings.items() if k not in WITHOUT_MEANING}
    rescale, clip = settings.pop("rescale_grad", 1.0), settings.pop("clip_gradient", None)
    rate, scheduler = settings.pop("learning_rate", None), settings.pop("lr_scheduler", None)
    if scheduler is not None:
        rate = scheduler.schedule(rate) if isinstance(scheduler, LRScheduler) else scheduler
    if rate is None:
        rate = DEFAULT_RATE.get(name.lower(), 0.01)
    renamed = {OLD.get(k, k): v for k, v in settings.items() if v is not None}
    return Optimizer(ours.create(name, rate=rate, **renamed), rescale, clip)


def _kind(name: str) -> Callable[..., Optimizer]:
    def make(**settings: Any) -> Optimizer:
        return create(name, **settings)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"mz.optimizer.{name} with MXNet's settings."
    return make


SGD, Adam, NAG, RMSProp, AdaGrad, AdaDelta, Ftrl, Nadam, Signum, SGLD, DCASGD, LAMB, LARS = (
    _kind(n)
    for n in (
        "SGD", "Adam", "NAG", "RMSprop", "Adagrad", "Adadelta", "Ftrl", "Nadam", "Signum", "SGLD", "DCASGD", "LAMB",
        "LARS",
    )
)  # fmt: skip


def weighed(rule: ours.Optimizer, names: Sequence[str]) -> ours.Optimizer:
    """MXNet's modules leave biases and the like without decay: only weights and gammas have it."""
    bare = tuple(n for n in names if not n.endswith(("_weight", "_gamma")))
    if not rule.weight_decay or not bare:
        return rule
    return ours.from_dict({**rule.to_dict(), "groups": [*rule.to_dict().get("groups", []), _group(bare)]})


def _group(names: Sequence[str]) -> Mapping[str, Any]:
    group = Group(tuple(names), 1.0, 0.0)
    return {"patterns": list(group.patterns), "scale": group.scale, "weight_decay": group.weight_decay}


class Updater:
    """`updater(index, gradient, weight)`: steps weights one by one, and keeps their states."""

    def __init__(self, optimizer: Optimizer) -> None:
        from ...kvstore import create as store

        self.optimizer, self._store, self._known = optimizer, store("local"), set[str]()
        self._store.set_optimizer(optimizer.rule)

    def __call__(self, index: Any, grad: Array, weight: Array) -> None:
        key = str(index)
        if key not in self._known:
            self._known.add(key)
            self._store.init(key, weight)
        self._store.push(key, self.optimizer.ready(grad))
        self._store.pull(key, out=weight)


def get_updater(optimizer: Optimizer) -> Updater:
    return Updater(optimizer)


# Schedules: `scheduler(update)` is a rate, as in MXNet, which counts updates from 1; `schedule(rate)` is one of ours,
# which counts from 0.


@dataclass
class LRScheduler:
    """Base: a schedule that begins with `base_lr`, which an optimizer's learning rate replaces."""

    base_lr: float = 0.01

    def schedule(self, rate: float | None = None) -> Schedule | float:
        return self._base(rate)

    def __call__(self, num_update: int) -> float:
        return schedule.at(self.schedule(), max(num_update - 1, 0))

    def _base(self, rate: float | None) -> float:
        return self.base_lr if rate is None else rate


class FactorScheduler(LRScheduler):
    """The rate times `factor` after every `step` updates."""

    def __init__(self, step: int, factor: float = 1.0, stop_factor_lr: float = 1e-8, base_lr: float = 0.01) -> None:
        super().__init__(base_lr)
        self.step, self.factor, self.stop_factor_lr = step, factor, stop_factor_lr

    def schedule(self, rate: float | None = None) -> Schedule:
        return schedule.Step(self._base(rate), self.step, self.factor)


class MultiFactorScheduler(LRScheduler):
    """The rate times `factor` after each of the updates in `step`."""

    def __init__(self, step: Sequence[int], factor: float = 1.0, base_lr: float = 0.01) -> None:
        super().__init__(base_lr)
        self.step, self.factor = tuple(step), factor

    def schedule(self, rate: float | None = None) -> Schedule:
        return schedule.MultiStep(self._base(rate), self.step, self.factor)


class PolyScheduler(LRScheduler):
    """A polynomial down to `final_lr` after `max_update` updates."""

    def __init__(self, max_update: int, base_lr: float = 0.01, pwr: float = 2, final_lr: float = 0) -> None:
        super().__init__(base_lr)
        self.max_update, self.power, self.final_lr = max_update, pwr, final_lr

    def schedule(self, rate: float | None = None) -> Schedule:
        return schedule.Ahead(schedule.Polynomial(self._base(rate), self.max_update, self.power, self.final_lr))

    def __call__(self, num_update: int) -> float:
        return schedule.at(self.schedule(), num_update - 1)


class CosineScheduler(LRScheduler):
    """Half a cosine down to `final_lr` after `max_update` updates."""

    def __init__(self, max_update: int, base_lr: float = 0.01, final_lr: float = 0) -> None:
        super().__init__(base_lr)
        self.max_update, self.final_lr = max_update, final_lr

    def schedule(self, rate: float | None = None) -> Schedule:
        return schedule.Ahead(schedule.Cosine(self._base(rate), self.max_update, self.final_lr))

    def __call__(self, num_update: int) -> float:
        return schedule.at(self.schedule(), num_update - 1)
