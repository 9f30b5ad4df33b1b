"""Data sets on disk: arrays in an .npz, a table in a .csv, images in a .rec or in a folder."""

from __future__ import annotations

from pathlib import Path

from .batches import Data, Reading
from .images import images, records
from .tables import table


def read(path: Path, how: Reading) -> Data:
    """The data of an .npz, .csv or .rec file, or of a folder with one folder of images for each class.

    Raises InputError that names the place where the data are wrong, BudgetError where they are larger than memory.
    """
    if path.is_dir():
        return images(path, how)
    if path.suffix.lower() == ".rec" and path.is_file():
        return records(path, how)
    return table(path, how)
