"""Optimizers: their part of a training step, or of a server of the KVStore. Each is one class (record.py); write your
own with `mz.optimizer.register`."""

from .adaptive import Adadelta, Adagrad, Adam, AdamW, Ftrl, Nadam, RMSprop
from .plain import DCASGD, NAG, SGD, SGLD, Lion, Signum
from .record import KINDS, OURS, Group, Optimizer, Rules, create, from_dict, named, register
from .whole import LAMB, LARS, LBFGS

OURS.update(KINDS)

__all__ = [
    "DCASGD", "KINDS", "LAMB", "LARS", "LBFGS", "NAG", "SGD", "SGLD", "Adadelta", "Adagrad", "Adam", "AdamW", "Ftrl",
    "Group", "Lion", "Nadam", "Optimizer", "RMSprop", "Rules", "Signum", "create", "from_dict", "named", "register",
]  # fmt: skip
