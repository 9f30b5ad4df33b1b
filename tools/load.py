"""`mz.load`: from a model file to a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

from ..importers import first_bytes, is_mxnet, load_graph
from ..ops.budget import Budget
from ..ops.errors import InputError
from ..ops.types import Array, Dim
from ..runtime.devices import Placement
from ..runtime.execution.session import Session
from ..runtime.file import Opened, is_mezzo, open_file
from ..runtime.ir.graph import Graph
from ..runtime.memory.plan import Strategy

if TYPE_CHECKING:
    from ..runtime.execution.cache_pairs import Patterns
    from ..runtime.execution.cached_session import CachedSession
    from ..train.ranges import Feeds

Source = str | os.PathLike[str] | bytes


class LoadOptions(TypedDict, total=False):
    """Arguments of `load` that mean the same whether the model has caches or not."""

    params: Source | Mapping[str, Array] | None
    shapes: Mapping[str, Sequence[Dim]] | None

    device: str
    place: Placement | None
    budget: Budget | None
    strategy: Strategy | str
    instances: int | None
    max_programs: int | None
    max_memory: int | None
    fuse: bool
    threads: int | None
    onednn: bool
    precision: str
    calibration: Iterable[Feeds | Array | Sequence[Array]] | None
    buckets: Mapping[str, Sequence[int]] | Literal["auto"] | None
    seed: int


@overload
def load(source: Source, *, cache: None = None, **options: Unpack[LoadOptions]) -> Session: ...
@overload
def load(
    source: Source,
    *,
    cache: Patterns,
    capacity: int | None = None,
    max_cache_bytes: int | None = None,
    **options: Unpack[LoadOptions],
) -> CachedSession: ...
def load(
    source: Source,
    *,
    cache: Patterns | None = None,
    capacity: int | None = None,
    max_cache_bytes: int | None = None,
    params: Source | Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[Dim]] | None = None,
    device: str = "cpu",
    place: Placement | None = None,
    budget: Budget | None = None,
    strategy: Strategy | str = Strategy.BOTH,
    instances: int | None = None,
    max_programs: int | None = None,
    max_memory: int | None = None,
    fuse: bool = False,
    threads: int | None = None,
    onednn: bool = True,
    precision: str = "auto",
    calibration: Iterable[Feeds | Array | Sequence[Array]] | None = None,
    buckets: Mapping[str, Sequence[int]] | Literal["auto"] | None = None,
    seed: int = 0,
) -> Session:
    """Load a model and make a session of it.

    `source` is the path of an ONNX or a `.mezzo` file, or one of a registered format (`importers.register_importer`),
    which are told apart by how they begin, or its bytes. Of a model of MXNet it is the symbol; `params` is its file of
    parameters, found beside it when left out, and `shapes` are sizes of its inputs; where those are left out, and the
    model has no graph without them, the first run tells them (see FirstFeedSession). `budget` limits what the model may
    ask for; see Session for the rest. `precision="int8"` quantises a float model by what its
    activations are on `calibration` (see train/quantize.py). A model whose input sizes are all known is planned here,
    so that the first run only replays; the programs in a `.mezzo` file are taken where they were made for such a
    machine.

    `cache` makes a CachedSession of a decoder, whose conversations keep its caches from run to run: "auto", or patterns
    of inputs and outputs such as {"past_key_values.*": "present.*"}; `capacity` is how many tokens a conversation may
    hold, `max_cache_bytes` how many bytes the caches of all of them may take.

    Raises ModelError if the file is malformed, UnsupportedModel if it needs what is not carried (all at once),
    ShapeError if its operands do not fit, BudgetError if a limit would be passed, MissingPackage for a device that is
    not there, InputError if arguments do not fit each other or the model.

    >>> from mezzo.models.digits import digits_model
    >>> print(*load(digits_model()).inputs)
    image: float32[batch,1,8,8]
    """
    kind: Callable[..., Session] = Session
    if cache is not None and place is not None:
        raise InputError("place= beside cache=", where="load", hint="a conversation's caches lie on one device")
    if cache is not None:
        from ..runtime.execution.cached_session import CachedSession

        kind = partial(CachedSession, cache=cache, capacity=capacity, max_cache_bytes=max_cache_bytes)
    elif capacity is not None or max_cache_bytes is not None:
        raise InputError("capacity and max_cache_bytes need a cache", where="load", hint='give cache="auto"')
    if calibration is not None and precision != "int8":
        raise InputError(
            "calibration needs precision 'int8'", where="load", hint='give precision="int8", or leave it out'
        )
    name = file_name(source)

    int8 = precision == "int8"
    session_of: Callable[[Graph | Opened], Session] = partial(
        kind,
        device=device,
        place=place,
        budget=budget,
        strategy=strategy,
        instances=instances,
        max_programs=max_programs,
        max_memory=max_memory,
        fuse=fuse,
        threads=threads,
        onednn=onednn,
        precision="auto" if int8 else precision,
        buckets=buckets,
        seed=seed,
        name=name,
    )
    make = (lambda model: session_of(_quantized(model, calibration))) if int8 else session_of
    if params is not None or shapes is not None or is_mxnet(first_bytes(source)):
        return _mxnet(source, params, shapes, budget, make, sized=int8)
    return make(open_file(source, budget) if is_mezzo(source) else load_graph(source, budget=budget, mapped=True))


def _quantized(model: Graph | Opened, calibration: Iterable[Feeds | Array | Sequence[Array]] | None) -> Graph:
    if calibration is None:
        raise InputError("precision 'int8' needs data", where="load", hint="give calibration=[inputs, ...]")
    from ..train.quantize import quantize

    return quantize(model if isinstance(model, Graph) else model.graph, calibration)


def _mxnet(
    source: Source,
    params: Source | Mapping[str, Array] | None,
    shapes: Mapping[str, Sequence[Dim]] | None,
    budget: Budget | None,
    make: Callable[[Graph], Session],
    *,
    sized: bool,
) -> Session:
    """A session of MXNet's files: at once where the sizes are known, or can stay open; else at its first run, unless
    it has to be `sized`."""
    from ..importers import mxnet

    if not is_mxnet(first_bytes(source)):
        raise InputError(
            "params= and shapes= are for models of MXNet, and this file is none",
            where=file_name(source) or "load",
            hint="leave them out: other files hold their parameters and sizes",
        )
    model = mxnet.open_model(source, params, budget)
    try:
        return make(model.graph(shapes))
    except mxnet.UnknownSize:
        if shapes is not None or sized:
            raise
    from .first_feed import FirstFeedSession

    return FirstFeedSession(model.inputs(), model.graph, make, file_name(source))


def file_name(source: object) -> str:
    """The name of a model's file, by which errors call it; empty for what is no path.

    >>> file_name("models/digits.onnx"), file_name(b"")
    ('digits.onnx', '')
    """
    return Path(source).name if isinstance(source, str | os.PathLike) else ""
