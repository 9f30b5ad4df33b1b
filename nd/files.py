"""Arrays in files: safetensors, and NumPy's .npz. Pickles are neither read nor written."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..ops.errors import InputError, ModelError
from ..ops.regular import open_regular
from ..runtime.files import replace_file
from ..runtime.tensors import decode, encode
from .array import Array
from .place import Place, place_of
from .running import adopt

Held = Array | Sequence[Array] | Mapping[str, Array]


def save(path: str | os.PathLike[str], data: Held, *, ending: str | None = None) -> None:
    """Write an array, a list or a dict of arrays to a `.safetensors` or `.npz` file, which is replaced as a whole;
    `ending` says which, whatever the file is called.

    Raises InputError for another ending, ModelError where the file cannot be written.

    >>> import tempfile
    >>> from mezzo import nd
    >>> path = tempfile.mkdtemp() + "/weights.safetensors"
    >>> nd.save(path, {"w": nd.ones((2,))})
    >>> nd.load(path)["w"].asnumpy()
    array([1., 1.], dtype=float32)
    """
    ending = ending or _ending(path)
    if isinstance(data, Array):
        data = [data]
    named = data if isinstance(data, Mapping) else {str(i): x for i, x in enumerate(data)}
    arrays = {str(n): x.asnumpy() for n, x in named.items()}
    if ending == ".npz":
        held = io.BytesIO()
        np.savez(held, allow_pickle=False, **arrays)
        content: Any = held.getbuffer()
    else:
        try:
            content = encode(arrays)
        except (ValueError, TypeError) as error:
            raise InputError(f"safetensors has no place for it: {error}", where=str(path), hint="use .npz") from error
    replace_file(path, [content])


def load(
    path: str | os.PathLike[str],
    *,
    device: Place | str | None = None,
    ctx: Place | None = None,
    ending: str | None = None,
) -> dict[str, Array]:
    """The arrays of a file by name; those of a list are called "0", "1" and so on.

    Raises InputError for another ending, ModelError for a file that is damaged or holds a pickle.
    """
    ending, place = ending or _ending(path), place_of(device or ctx)
    try:
        if ending == ".npz":
            with open_regular(path) as handle, np.load(handle, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        else:
            arrays = {n: a.copy() for n, a in decode(_content(path))[0].items()}
    except Exception as error:  # zipfile, zlib and NumPy raise all kinds for damage
        raise ModelError(
            f"no arrays can be read: {type(error).__name__}: {error}",
            where=str(path),
            hint="give a file that mz.nd.save wrote",
        ) from error
    return {name: adopt(a, place) for name, a in arrays.items()}


def _content(path: str | os.PathLike[str]) -> bytes:
    with open_regular(path) as handle:
        return handle.read()


def ending_of_content(path: str | os.PathLike[str]) -> str | None:
    """The ending that a file's first bytes tell, whatever it is called; None if it is of neither format."""
    with open_regular(path) as handle:
        first = handle.read(9)
    return ".npz" if first[:2] == b"PK" else ".safetensors" if first[8:] == b"{" else None


def _ending(path: str | os.PathLike[str]) -> str:
    ending = Path(path).suffix
    if ending not in (".npz", ".safetensors"):
        raise InputError(
            f"the ending {ending!r} names no format",
            where=str(path),
            hint="name it .safetensors or .npz; for MXNet's .params files see mezzo convert",
        )
    return ending
