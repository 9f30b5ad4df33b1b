"""Weights of files under the names that the field gives them: torchvision's, timm's, Hugging Face's.

The zoo's blocks have these names already. What is left are the scale and shift of normalisations, which are a weight
and a bias elsewhere, and what `Names` says of a network.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...gluon.block import Block
from ...gluon.parameter import Parameter
from ...ops.errors import InputError, ModelError
from ...ops.regular import open_regular

Array = NDArray[Any]
Source = tuple[tuple[str, ...], Callable[..., Array]]  # names in the file, and what makes our array of theirs


def _one(array: Array) -> Array:
    return array


def _turned(array: Array) -> Array:
    return array.T


def _gates(*arrays: Array) -> Array:
    """Rows of four gates in PyTorch's order (input, forget, candidate, output) in ONNX's (input, output, forget,
    candidate), of one direction; two biases one after the other."""
    ordered = [np.concatenate([np.split(a, 4)[i] for i in (0, 3, 1, 2)]) for a in arrays]
    return np.concatenate(ordered)[None]


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a network's weights in files: `sources` are rules (pattern of our name, names there, function);
    `prefixes` may stand before all names; what matches `unused` is left out; `head` are our weights whose sizes follow
    the number of classes."""

    sources: Sequence[tuple[str, tuple[str, ...], Callable[..., Array]]] = ()
    prefixes: Sequence[str] = ()
    unused: str = ""
    head: str = ""

    def of(self, name: str) -> Iterator[Source]:
        """Yield the arrays that our weight may be made of, the most likely first."""
        for pattern, theirs, function in self.sources:
            if match := re.fullmatch(pattern, name):
                yield tuple(match.expand(t) for t in theirs), function
        yield (name,), _one
        for ours, other in ((".gamma", ".weight"), (".beta", ".bias")):
            if name.endswith(ours):
                yield (name.removesuffix(ours) + other,), _one


TORCH = Names(unused=r".*\.num_batches_tracked", head=r"(classifier\.6|classifier\.1|fc|classifier|head|head\.fc)\..*")
VGG = Names(
    sources=[  # timm's form, whose first dense layers are convolutions
        (r"classifier\.0\.(.*)", (r"pre_logits.fc1.\1",), _one),
        (r"classifier\.3\.(.*)", (r"pre_logits.fc2.\1",), _one),
        (r"classifier\.6\.(.*)", (r"head.fc.\1",), _one),
    ],
    unused=TORCH.unused, head=r"classifier\.6\..*",
)  # fmt: skip
INCEPTION = Names(unused=rf"{TORCH.unused}|AuxLogits\..*", head=r"fc\..*")
UNET = Names(unused=rf"{TORCH.unused}|mask_values", head=r"outc\..*")
SSD = Names(head=r"conf\..*", unused="priors")
BERT = Names(
    prefixes=("bert.",), unused=r"(.*\.)?embeddings\.position_ids|cls\..*", head=r"(classifier|pooler)\..*"
)  # fmt: skip
GPT2 = Names(
    sources=[(r"(.*\.(c_attn|c_proj|c_fc))\.weight", (r"\1.weight",), _turned)],
    prefixes=("transformer.",), unused=r"(.*\.)?h\.\d+\.attn\.(masked_)?bias|lm_head\.weight",
)  # fmt: skip
LLAMA = Names(prefixes=("model.",), unused=r".*\.rotary_emb\.inv_freq")
LLAMA_TIED = Names(prefixes=("model.",), unused=rf"{LLAMA.unused}|lm_head\.weight")
LSTM = Names(
    sources=[
        (r"rnn\.l(\d+)_i2h_weight", (r"rnn.weight_ih_l\1",), _gates),
        (r"rnn\.l(\d+)_h2h_weight", (r"rnn.weight_hh_l\1",), _gates),
        (r"rnn\.l(\d+)_bias", (r"rnn.bias_ih_l\1", r"rnn.bias_hh_l\1"), _gates),
    ]
)


def files_of(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files of a set of weights: one, several, or those that a `.safetensors.index.json` names, which lie beside
    it. Raises ModelError where the index cannot be read, or names a file elsewhere."""
    if not isinstance(path, str | os.PathLike):
        return [Path(p) for p in path]
    where = Path(path)
    if where.suffix != ".json":
        return [where]
    try:
        with open_regular(where) as handle:
            parts = sorted({str(n) for n in json.loads(handle.read())["weight_map"].values()})
        if any(Path(n).name != n for n in parts):
            raise ValueError("it names a file of another folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"no index of weights can be read: {error}", where=str(where)) from error
    return [where.parent / n for n in parts]


def load(
    net: Block, path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], names: Names, *, fresh_head: bool
) -> None:
    """Give a network the weights of safetensors files, one by one, cast to its element types. A head of other sizes is
    left as it is if `fresh_head`.

    Raises InputError that lists all that is missing, unknown or of another shape, ModelError for files that cannot be
    read; the network is unchanged then.
    """
    from safetensors import SafetensorError, safe_open

    paths = files_of(path)
    with ExitStack() as stack:
        try:
            files = [stack.enter_context(safe_open(_regular(p), framework="numpy")) for p in paths]
            stored = {name: file for file in files for name in file.keys()}  # noqa: SIM118 (no mapping)
            shapes = {n: tuple(f.get_slice(n).get_shape()) for n, f in stored.items()}
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"no weights can be read: {error}", where=", ".join(map(str, paths)), hint="give safetensors files"
            ) from error
        matched = _matched(net, shapes, names, fresh_head, str(paths[0]))
        for p, theirs, function in matched:
            value = function(*(stored[n].get_tensor(n) for n in theirs))
            p.set_data(np.ascontiguousarray(value.reshape(p.shape).astype(p.dtype, copy=False)))


def _regular(path: Path) -> str:
    """The path, if a file is there, and no pipe that nobody writes to."""
    with open_regular(path):
        return str(path)


def _matched(
    net: Block, shapes: Mapping[str, tuple[int, ...]], names: Names, fresh_head: bool, where: str
) -> list[tuple[Parameter, tuple[str, ...], Callable[..., Array]]]:
    """Each parameter with what it is made of. Raises InputError where that does not come out even."""
    bare = {}
    for name in shapes:
        prefix = next((p for p in names.prefixes if name.startswith(p)), "")
        bare[name.removeprefix(prefix)] = name
    told, matched, used = [], [], set()
    for name, p in net.collect_params().items():
        p.name = name
        in_head = fresh_head and bool(names.head) and re.fullmatch(names.head, name) is not None
        source = next(((t, f) for t, f in names.of(name) if all(n in bare for n in t)), None)
        if source is None:
            told += [] if in_head else [f"the file lacks {name!r} {p.shape}"]
            continue
        theirs, function = source
        used |= set(theirs)
        # one number of each stands for its array: the rule says what becomes of the sizes
        given = [np.broadcast_to(np.int8(0), shapes[bare[t]]) for t in theirs]
        shape = function(*given).shape
        assert p.shape is not None
        alike = int(np.prod(shape)) == int(np.prod(p.shape)) and shape[:1] == p.shape[:1]
        if alike:
            matched.append((p, tuple(bare[t] for t in theirs), function))
        elif not in_head:
            told.append(f"{name!r} is {p.shape}, and the file's {theirs[0]!r} {shape}")
    unused = re.compile(names.unused or r"(?!)")
    told += [f"the network has no {n!r}" for n in bare if n not in used and not unused.fullmatch(n)]
    if told:
        shown = [*told[:12], *([f"and {len(told) - 12} more"] if len(told) > 12 else [])]
        raise InputError("; ".join(shown), where=where, hint="give the options that the weights were made with")
    return matched


__all__ = ["Names", "files_of", "load"]
