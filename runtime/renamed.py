"""Former names of modules, which keep working for one release, with a DeprecationWarning.

>>> import warnings
>>> with warnings.catch_warnings(record=True) as seen:
...     warnings.simplefilter("always")
...     from mezzo.runtime.graph import Graph
>>> Graph.__module__, str(seen[0].message)
('mezzo.runtime.ir.graph', 'mezzo.runtime.graph is mezzo.runtime.ir.graph now')
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final
from warnings import warn

RENAMED: Final = {  # below `mezzo`
    "runtime.arrays": "nd",
    "runtime.autodiff": "runtime.ir.autodiff",
    "runtime.autograd": "nd.autograd",
    "runtime.device": "runtime.devices",
    "runtime.eager": "runtime.ir.interpreter",
    "runtime.graph": "runtime.ir.graph",
    "runtime.infer": "runtime.ir.infer",
    "runtime.kernels": "runtime.backends.cpu",
    "runtime.pool": "runtime.memory.pool",
    "runtime.schedule": "runtime.optimizer.schedule",
    "runtime.session": "runtime.execution.session",
    "runtime.symbols": "sym",
}
TOP: Final = __name__.partition(".")[0]


class Renamed:
    """Import finder and loader of former names, also of modules inside packages. Its base classes are left out: the
    module that has them (importlib.abc) imports a dozen others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(FORMER) or not now(fullname):
            return None
        return ModuleSpec(fullname, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new name in place of this one."""
        name = now(module.__name__)
        warn(f"{module.__name__} is {name} now", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(name)


FORMER: Final = f"{TOP}.runtime."


def now(name: str) -> str:
    """The name that a module has now; empty where it is no former name."""
    parts = name.split(".", 3)
    new = RENAMED.get(".".join(parts[1:3]))
    return "" if new is None else ".".join([TOP, new, *parts[3:]])


sys.meta_path.insert(0, Renamed())
