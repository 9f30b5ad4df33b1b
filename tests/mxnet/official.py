"""MXNet's own tutorials: their cells are run one after the other, and the numbers that each prints are kept.

The tutorials are no part of this repository: `MXNET_TUTORIALS` names the folder `docs/tutorials` of MXNet's release
1.4.1. In an environment with mxnet 1.9.1 `python -m tests.mxnet.official FOLDER`, from the root of the repository,
writes
tests/mxnet/official.json: what a real MXNet prints, with two seeds.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np

NUMBERS = Path(__file__).with_name("official.json")
NAMES = (
    "basic/ndarray_indexing", "control_flow/ControlFlowTutorial", "gluon/autograd", "gluon/custom_layer", "gluon/gluon",
    "gluon/gotchas_numpy_in_mxnet", "gluon/learning_rate_schedules_advanced", "gluon/logistic_regression_explained",
    "gluon/ndarray", "python/linear-regression",
)  # fmt: skip
CELL = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
# What the texts of arrays have besides their elements.
AROUND = re.compile(
    r"<[^<>]*>|[a-z]*int\d+|float\d+|dtype=\S+|cpu\(\d+\)|gpu\(\d+\)|0x[0-9a-f]+|(?<![\d.])[A-Za-z_]\w*"
)
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def cells(text: str) -> list[str]:
    """The code of a page, without the lines that are for the notebook alone."""
    return [re.sub(r"^[!%].*$", "", c, flags=re.MULTILINE) for c in CELL.findall(text)]


def numbers(text: str) -> list[float]:
    return [float(n) for n in NUMBER.findall(AROUND.sub(" ", text))]


def shown(value: Any) -> str:
    """A value as a notebook shows it, whatever the arrays of a library are called there."""
    picture = type(value).__name__ == "Digraph" or (isinstance(value, str) and value.startswith("<svg"))
    if value is None or picture or isinstance(value, MagicMock):
        return ""
    if isinstance(value, list | tuple):
        return " ".join(map(shown, value))
    is_array = type(value).__name__ in ("NDArray", "Array")  # a symbol has an asnumpy that fails
    return str(value.asnumpy() if is_array else value)


def drawn(*values: Any, **_: Any) -> None:
    """Print some of the points that would be in a picture."""
    for value in values:
        if not isinstance(value, str):
            points = np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value, np.float64).ravel()
            print(*points[:: max(1, len(points) // 40)].tolist())


def run_cell(cell: str, names: dict[str, Any]) -> str:
    """What a cell prints, with the value of its last line."""
    tree, said = ast.parse(cell), io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    assert last is None or isinstance(last, ast.Expr)
    with contextlib.redirect_stdout(said):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = compile(ast.Expression(last.value), "cell", "eval")
            print(shown(eval(value, names)))  # noqa: S307  a line of a tutorial
    return said.getvalue()


def printed(path: Path, seed: int) -> Iterator[list[float] | str]:
    """By cell the numbers that it prints, or the error that it ends with. The pictures are left out."""
    import mxnet as mx

    mx.random.seed(seed)
    np.random.seed(seed)  # noqa: TID251  as MXNet does
    seeding, mx.random.seed = mx.random.seed, lambda *_, **__: None  # cells seed too, and the generators are others
    for part in ("matplotlib", "matplotlib.pyplot"):
        sys.modules[part] = MagicMock()
    for draws in (sys.modules["matplotlib"].pyplot, sys.modules["matplotlib.pyplot"]):
        draws.plot.side_effect = draws.scatter.side_effect = drawn
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in cells(path.read_text("utf8")):
                try:
                    yield numbers(run_cell(cell, names))
                except Exception as error:
                    yield f"{type(error).__name__}: {error}"[:300]
        finally:
            os.chdir(before)
            mx.random.seed = seeding
            for part in ("matplotlib", "matplotlib.pyplot"):
                del sys.modules[part]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    made: dict[str, Any] = {}
    for name in NAMES:
        runs = [[*printed(Path(sys.argv[1], f"{name}.md"), seed)] for seed in (1, 2)]
        failed = [i for i, cell in enumerate(runs[0]) if isinstance(cell, str)]
        print(name, len(runs[0]), "cells, of which fail", failed, [runs[0][i] for i in failed], flush=True)
        # A number is told where both seeds print it; else how many there are.
        made[name] = [
            None if isinstance(a, str) or isinstance(b, str) else a if a == b else len(a)
            for a, b in zip(*runs, strict=True)
        ]
    NUMBERS.write_text(json.dumps(made) + "\n")
