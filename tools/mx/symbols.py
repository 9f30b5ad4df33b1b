"""`mx.sym`: symbols under MXNet's names. What is not here is `mz.sym`'s own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import sym as ours
from ...sym import Group, Symbol, load, load_json
from ...sym.mxnet import FUNCTIONS
from ...sym.symbol import use

fromjson = load_json


def Variable(  # noqa: N802 (MXNet's name)
    name: str, attr: Any = None, shape: Sequence[int] | None = None, lr_mult: Any = None, wd_mult: Any = None,
    dtype: Any = None, init: Any = None, stype: Any = None, **_: Any,
) -> Symbol:  # fmt: skip
    return ours.Variable(name, shape, dtype or np.float32)


var = Variable


def zeros(shape: Any, dtype: Any = None, **_: Any) -> Symbol:
    return use("Identity", np.zeros(shape, dtype or np.float32))


def ones(shape: Any, dtype: Any = None, **_: Any) -> Symbol:
    return use("Identity", np.ones(shape, dtype or np.float32))


def __getattr__(name: str) -> Any:
    """MXNet's operators, then the functions of `mz.sym` (PEP 562)."""
    return FUNCTIONS[name] if name in FUNCTIONS else getattr(ours, name)


__all__ = ["Group", "Symbol", "Variable", "fromjson", "load", "load_json", "ones", "var", "zeros"]
