"""Data sets on disk: arrays in an .npz, a table in a .csv, or a folder of images."""

from __future__ import annotations

from pathlib import Path

from .batches import Data, Reading
from .images import images
from .tables import table


def read(path: Path, how: Reading) -> Data:
    """The data of an .npz or .csv file, or of a folder with one folder of images for each class.

    Raises InputError that names the place where the data are wrong, BudgetError where they are larger than memory.
    """
    if path.is_dir():
        return images(path, how)
    return table(path, how)
