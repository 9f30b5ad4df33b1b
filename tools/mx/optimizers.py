"""`mx.optimizer` and `mx.lr_scheduler`: settings under MXNet's names as optimizers and schedules of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...nd.array import Array
from ...ops.dataclasses import replace
from ...ops.errors import InputError
from ...runtime import optimizer as ours
from ...runtime.optimizer import Group, schedule
from ...runtime.optimizer.names import RENAMED
from ...runtime.optimizer.schedule import Schedule
from . import rules

# What MXNet's optimizers take, and is settled elsewhere: names of parameters, precision.
WITHOUT_MEANING = {"param_dict", "multi_precision", "begin_num_update", "aggregate_num", "use_fused_step"}
# MXNet's defaults where ours has others. AdaDelta's rate is 1 there, whatever is given.
DEFAULTS: dict[str, dict[str, Any]] = {
    "adam": {"rate": 0.001}, "rmsprop": {"rate": 0.001, "alpha": 0.9}, "nadam": {"rate": 0.001},
    "adamax": {"rate": 0.002}, "adagrad": {"epsilon": 1e-7}, "adadelta": {"rate": 1.0, "epsilon": 1e-5},
    "ftrl": {"rate": 0.1}, "lamb": {"rate": 0.001}, "nag": {"momentum": 0.0}, "lars": {"momentum": 0.0},
}  # fmt: skip
# These give their own rate to a schedule, where a program gives none: MXNet warns of it.
OVERWRITING = {"adam", "adamax", "lamb", "nadam", "rmsprop", "signum"}


@dataclass
class Optimizer:
    """An optimizer of ours, and what MXNet does with the gradients before: they are multiplied and clipped. An updater
    knows parameters by number: `names` are theirs, and `factors` their attributes (`lr_mult`, `wd_mult`)."""

    rule: ours.Optimizer
    rescale_grad: float = 1.0
    clip_gradient: float | None = None
    asked: Callable[[int], float] | None = None  # a schedule of the program's own: the rate by the number of an update

    names: Mapping[int, str] = field(default_factory=dict)
    factors: dict[str, dict[str, str]] = field(default_factory=dict)

    def set_lr_mult(self, args_lr_mult: Mapping[str, float]) -> None:
        """Factors of the rate by name, before the first step."""
        self._factored("lr_mult", args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Mapping[str, float]) -> None:
        """Factors of the decay by name, before the first step."""
        self._factored("wd_mult", args_wd_mult)

    def _factored(self, kind: str, given: Mapping[str, float]) -> None:
        for name, factor in given.items():
            self.factors.setdefault(name, {})[kind] = str(factor)

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
    numbered, symbol = settings.pop("param_idx2name", None), settings.pop("sym", None)
    rescale, clip = settings.pop("rescale_grad", 1.0), settings.pop("clip_gradient", None)
    rate, scheduler = settings.pop("learning_rate", None), settings.pop("lr_scheduler", None)
    usual = {"rate": 0.01, **DEFAULTS.get(name.lower(), {})}
    asked = None
    if scheduler is not None and rate is None and name.lower() in OVERWRITING:
        rate = usual["rate"]
    if isinstance(scheduler, LRScheduler) and rate is not None:
        scheduler.base_lr = rate
    if isinstance(scheduler, LRScheduler) and type(scheduler).__module__ == __name__:
        rate = scheduler.schedule(rate)
    elif scheduler is not None:
        asked, rate = scheduler, float(scheduler(1))
    if name.lower() == "rmsprop" and not settings.get("centered"):
        settings.pop("gamma2", None)  # MXNet has no momentum there
    elif name.lower() == "rmsprop":
        settings = {"gamma2": 0.9, **settings}
    if rate is not None and name.lower() != "adadelta":
        usual["rate"] = rate
    if name.lower() == "nag" and not settings.get("momentum"):
        name = "sgd"
    renamed = {RENAMED.get(k, k): v for k, v in settings.items() if v is not None}
    kinds = rules.OWN | rules.WITH_MOMENTUM if settings.get("momentum") else rules.OWN
    kind = kinds.get(name.lower())
    rule = ours.create(name, **{**usual, **renamed}) if kind is None else kind(**{**usual, **renamed})
    factors = {n: dict(attributes) for n, attributes in symbol.attr_dict().items()} if symbol is not None else {}
    return Optimizer(rule, rescale, clip, asked, dict(numbered or {}), factors)


def _kind(name: str) -> Callable[..., Optimizer]:
    def make(**settings: Any) -> Optimizer:
        return create(name, **settings)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"mz.optimizer.{name} with MXNet's settings."
    return make


SGD, Adam, NAG, RMSProp, AdaGrad, AdaDelta, Ftrl, Nadam, Signum, SGLD, DCASGD, LAMB, LARS, Adamax, FTML = (
    _kind(n)
    for n in (
        "SGD", "Adam", "NAG", "RMSprop", "Adagrad", "Adadelta", "Ftrl", "Nadam", "Signum", "SGLD", "DCASGD", "LAMB",
        "LARS", "Adamax", "FTML",
    )
)  # fmt: skip


def weighed(
    rule: ours.Optimizer, names: Sequence[str], attrs: Mapping[str, Mapping[str, str]] | None = None
) -> ours.Optimizer:
    """MXNet's modules leave biases and the like without decay: only weights and gammas have it. Attributes of variables
    (`lr_mult`, `wd_mult`) say otherwise."""
    groups: dict[tuple[float, float], list[str]] = {}
    for name in names:
        attributes = (attrs or {}).get(name, {})
        usual = 1.0 if name.endswith(("_weight", "_gamma")) else 0.0
        factors = float(attributes.get("lr_mult", 1.0)), float(attributes.get("wd_mult", usual))
        if factors[0] != 1 or (factors[1] != 1 and rule.weight_decay):
            groups.setdefault(factors, []).append(name)
    if not groups:
        return rule
    more = (Group(tuple(several), lr, rule.weight_decay * wd) for (lr, wd), several in groups.items())
    return replace(rule, groups=(*rule.groups, *more))


class Updater:
    """`updater(index, gradient, weight)`: steps weights one by one, and keeps their states."""

    def __init__(self, optimizer: Optimizer) -> None:
        from ...kvstore import create as store

        self.optimizer, self._store, self._known = optimizer, store("local"), set[str]()

    def __call__(self, index: Any, grad: Array, weight: Array) -> None:
        names = self.optimizer.names
        if not self._known:
            rule = self.optimizer.rule
            self._store.set_optimizer(weighed(rule, [*names.values()], self.optimizer.factors) if names else rule)
        key = names.get(index, str(index))
        if key not in self._known:
            self._known.add(key)
            self._store.init(key, weight)
        self._store.push(key, self.optimizer.ready(grad))
        self._store.pull(key, out=weight)


def get_updater(optimizer: Optimizer) -> Updater:
    return Updater(optimizer)


# Schedules: `scheduler(update)` is a rate, as in MXNet, which counts updates from 1; `schedule(rate)` is one of ours,
# which counts from 0.


class LRScheduler:
    """Base: a schedule that begins with `base_lr`, which an optimizer's learning rate replaces. A subclass of yours
    writes `__call__(num_update)`."""

    earliest = 0  # update of which the rate is told, counted from 0

    def __init__(
        self, base_lr: float = 0.01, warmup_steps: int = 0, warmup_begin_lr: float = 0, warmup_mode: str = "linear"
    ) -> None:
        if warmup_mode not in ("linear", "constant"):
            raise InputError(f"warmup_mode {warmup_mode!r}", where="lr_scheduler", hint="linear or constant")
        self.base_lr, self.warmup_steps = base_lr, warmup_steps
        self.warmup_begin_lr, self.warmup_mode = warmup_begin_lr, warmup_mode

    def schedule(self, rate: float | None = None) -> Schedule | float:
        """As optimizers of ours have it, whose updates are counted from 0."""
        base = self.base_lr if rate is None else rate
        last = self.warmup_steps - 1  # MXNet counts updates from 1
        if last < 1:
            return self.after(base)
        before: Schedule | float = self.warmup_begin_lr
        if self.warmup_mode == "linear":
            step = (base - self.warmup_begin_lr) / self.warmup_steps
            before = schedule.Polynomial(self.warmup_begin_lr + step, last, 1.0, base)
        return schedule.Then(before, self.after(base), last)

    def after(self, base: float) -> Schedule | float:
        """The schedule behind the warm-up, in the number of all updates."""
        return base

    def __call__(self, num_update: int) -> float:
        return schedule.at(self.schedule(), max(num_update - 1, self.earliest))


class FactorScheduler(LRScheduler):
    """The rate times `factor` after every `step` updates, down to `stop_factor_lr`."""

    def __init__(
        self, step: int, factor: float = 1.0, stop_factor_lr: float = 1e-8, base_lr: float = 0.01, **warmup: Any
    ) -> None:
        super().__init__(base_lr, **warmup)
        self.step, self.factor, self.stop_factor_lr = step, factor, stop_factor_lr

    def after(self, base: float) -> Schedule:
        return schedule.AtLeast(schedule.Step(base, self.step, self.factor), self.stop_factor_lr)


class MultiFactorScheduler(LRScheduler):
    """The rate times `factor` after each of the updates in `step`."""

    def __init__(self, step: Sequence[int], factor: float = 1.0, base_lr: float = 0.01, **warmup: Any) -> None:
        super().__init__(base_lr, **warmup)
        self.step, self.factor = tuple(step), factor

    def after(self, base: float) -> Schedule:
        return schedule.MultiStep(base, self.step, self.factor)


class PolyScheduler(LRScheduler):
    """A polynomial down to `final_lr` after `max_update` updates."""

    earliest = -1

    def __init__(
        self, max_update: int, base_lr: float = 0.01, pwr: float = 2, final_lr: float = 0, **warmup: Any
    ) -> None:
        super().__init__(base_lr, **warmup)
        self.max_update, self.power, self.final_lr = max_update, pwr, final_lr

    def after(self, base: float) -> Schedule:
        falling = schedule.Polynomial(base, self.max_update - self.warmup_steps, self.power, self.final_lr)
        return schedule.Ahead(falling, 1 - self.warmup_steps)


class CosineScheduler(LRScheduler):
    """Half a cosine down to `final_lr` after `max_update` updates."""

    earliest = -1

    def __init__(self, max_update: int, base_lr: float = 0.01, final_lr: float = 0, **warmup: Any) -> None:
        super().__init__(base_lr, **warmup)
        self.max_update, self.final_lr = max_update, final_lr

    def after(self, base: float) -> Schedule:
        falling = schedule.Cosine(base, self.max_update - self.warmup_steps, self.final_lr)
        return schedule.Ahead(falling, 1 - self.warmup_steps)
