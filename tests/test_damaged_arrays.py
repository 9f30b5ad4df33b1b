"""Damaged files of arrays, tables and recordings end in errors of ours that name the file, whatever reads them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops.types import f32
from mezzo.runtime.execution.bundled import _read
from mezzo.tools import tables
from mezzo.tools.batches import Reading
from mezzo.tools.fills import given_arrays
from mezzo.tools.sides import Recorded

NAMED = {"a": np.arange(12.0).reshape(3, 4), "target": np.arange(3), "x": np.ones((3, 2), np.float32)}
NUMBERS = np.column_stack([NAMED["x"], NAMED["target"]])
WRITE: dict[str, Callable[[Path], Any]] = {
    "plain.npz": lambda p: np.savez(p, **NAMED),  # type: ignore[arg-type]
    "packed.npz": lambda p: np.savez_compressed(p, **NAMED),  # type: ignore[arg-type]
    "arrays.safetensors": lambda p: mz.nd.save(p, {"a": mz.nd.ones((3, 4))}),
    "one.npy": lambda p: np.save(p, NAMED["a"]),
    "table.csv": lambda p: np.savetxt(p, NUMBERS, header="p,q,target", delimiter=",", comments=""),
    "symbol.json": lambda p: mz.sym.Relu(mz.sym.var("x")).save(str(p)),
}


def table(path: Path) -> Any:
    return tables.table(path, Reading(inputs={"x": f32("n", 2)}, target=("target",)))


READ: dict[str, list[Callable[[Path], Any]]] = {
    ".npz": [mz.nd.load, table, lambda p: Recorded(p, ["a"]).run({}, ["x"])],
    ".safetensors": [mz.nd.load],
    ".npy": [lambda p: given_arrays((f"x={p}",)), lambda p: _read(str(p))],
    ".csv": [table],
    ".json": [lambda p: mz.sym.load(str(p))],
}


def damaged(data: bytes, count: int, rng: Random) -> Iterator[bytes]:
    """Files cut short, with bits or bytes changed, and with pieces in the place of others."""
    for i in range(count):
        found = bytearray(data)
        if i % 4 == 0:
            del found[rng.randrange(len(found)) :]
        elif i % 4 == 1:
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
        elif i % 4 == 2:
            for _ in range(rng.randrange(1, 8)):
                found[rng.randrange(len(found))] = rng.randrange(256)
        else:
            at = rng.randrange(len(found))
            found[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(9))
        yield bytes(found)


@pytest.mark.filterwarnings("ignore")  # of NumPy and zipfile about what they meet
@pytest.mark.parametrize("name", WRITE)
def test_damage_is_told_in_our_words(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITE[name](path)
    whole = path.read_bytes()
    for read in READ[path.suffix]:
        read(path)
    told = list[mz.MezzoError]()
    for data in damaged(whole, 300, Random(5)):
        path.write_bytes(data)
        for read in READ[path.suffix]:
            try:
                read(path)
            except mz.MezzoError as error:
                told.append(error)
    gc.collect()  # NumPy leaves files open whose zip it cannot read: the warnings are to come here
    assert len(told) > 50
    assert all(name in str(error) and error.hint for error in told)
