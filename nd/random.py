"""`mz.random`: random arrays from counters. https://doi.org/10.1145/2063384.2063405 (Philox, see ops/math/random.py)

The numbers of a draw are a function of the generator's seed and of how many draws came before it: not of threads, of
devices, or of what else runs. Each device has a generator, so that all give the same numbers after `seed`.
"""

from __future__ import annotations

import os
import random as python_random
import threading
import warnings
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from ..ops import DType
from ..ops.errors import InputError
from ..runtime.manifest import Manifest, NotTheSame, read, taken
from .array import Array
from .place import Place, cpu, place_of
from .recording import RECORDING
from .running import as_array, assign, cast, ready, run
from .searching import argsort
from .shaping import take
from .specs import Constant, dtype_of, known

Where = Place | str | None
Shape = int | Sequence[int]
WORD = 2.0**-24  # what the numbers of one draw are multiples of
_LOCK = threading.Lock()


class Generator:
    """A generator of random numbers: `key` is the seed, and a number that distinguishes it from others of that seed.

    >>> one, other = Generator(7), Generator(7)
    >>> bool((one.normal((3,)) == other.normal((3,))).asnumpy().all())
    True
    >>> state = one.state
    >>> first = one.uniform(shape=(2,))
    >>> one.state = state
    >>> bool((one.uniform(shape=(2,)) == first).asnumpy().all())
    True
    """

    def __init__(self, *key: int, device: Where = None) -> None:
        self._key, self._place = key or (0,), None if device is None else place_of(device)
        self._draws = 0

    def __repr__(self) -> str:
        return f"<Generator {self._key}, {self._draws} draws>"

    @property
    def state(self) -> tuple[tuple[int, ...], int]:
        """Key and number of draws so far: what a checkpoint keeps."""
        return self._key, self._draws

    @state.setter
    def state(self, state: tuple[tuple[int, ...], int]) -> None:
        self._key, self._draws = tuple(state[0]), state[1]

    def child(self, number: int) -> Generator:
        """Another one, whose numbers have nothing to do with this one's: for a thread, a worker, an array."""
        return Generator(*self._key, number, device=self._place)

    def advance(self, draws: int = 1) -> tuple[int, ...]:
        """The key of one more draw, or the first key of several, which may be made elsewhere: by a run of a graph."""
        if RECORDING.trace is not None:
            RECORDING.trace.drawn(self)
        with _LOCK:
            number = self._draws
            self._draws += draws
        return (*self._key, number)

    def back(self, before: int, after: int) -> None:
        """Let the draws from `before` to `after` be made once more, if there was none since."""
        with _LOCK:
            if self._draws == after:
                self._draws = before

    def _draw(
        self,
        name: str,
        given: tuple[Array, ...],
        device: Where,
        attrs: dict[str, Any],
        *fixed: Constant,
        outputs: int = 1,
    ) -> Any:
        key = self.advance()
        result = ready(name, (*[x._spec for x in given], *fixed), tuple(attrs.items()), outputs=outputs)
        place = place_of(device) if device is not None else self._place or cpu()
        place = given[0].device if given else place
        return run(result, given, place, result.on(place, key))

    def uniform(
        self, low: float = 0.0, high: float = 1.0, shape: Shape = (), *, dtype: Any = "float32", ctx: Where = None
    ) -> Array:
        """Floats in [low, high): `RandomUniform`. Raises InputError where high is below low."""
        _check(low <= high and isfinite(high - low), f"from {low} to {high}", "uniform", "low <= high, both finite")
        attrs = {"low": float(low), "high": float(high), "shape": _shape(shape), "dtype": _float(dtype)}
        result: Array = self._draw("RandomUniform", (), ctx, attrs)
        return result

    def normal(
        self, shape: Shape = (), loc: float = 0.0, scale: float = 1.0, *, dtype: Any = "float32", ctx: Where = None
    ) -> Array:
        """Floats of a normal distribution: `RandomNormal`. Raises InputError for a scale below 0."""
        good = isfinite(loc) and isfinite(scale) and scale >= 0
        _check(good, f"loc={loc}, scale={scale}", "normal", "finite numbers, scale from 0 on")
        attrs = {"mean": float(loc), "scale": float(scale), "shape": _shape(shape), "dtype": _float(dtype)}
        result: Array = self._draw("RandomNormal", (), ctx, attrs)
        return result

    def randint(self, low: int, high: int, shape: Shape = (), *, dtype: Any = "int64", ctx: Where = None) -> Array:
        """Whole numbers in [low, high). Raises InputError for an empty range, or one beyond 2**48."""
        if not 0 < high - low <= 1 << 48:
            raise InputError(f"from {low} to {high}", where="mezzo.random.randint", hint="1 to 2**48 numbers")
        result = cast(self._fine(shape, ctx) * np.float64(high - low), np.dtype(np.int64)) + low
        return cast(result, dtype_of(dtype))

    def _fine(self, shape: Shape, ctx: Where) -> Array:
        """float64 numbers in [0, 1), multiples of 2**-48."""
        high, low = (self.uniform(shape=shape, dtype="float64", ctx=ctx) for _ in range(2))
        return high + low * WORD

    def bernoulli(self, prob: Array | float = 0.5, shape: Shape | None = None, *, ctx: Where = None) -> Array:
        """Return random booleans that are true with the given probability: `Bernoulli`; in the shape of an array of
        probabilities. Raises InputError for a number that is no probability."""
        if isinstance(prob, Array):
            result: Array = self._draw("Bernoulli", (prob,), None, {"dtype": DType.BOOL.onnx})
            return result
        _check(0 <= prob <= 1, f"prob={prob}", "bernoulli", "a number from 0 to 1")
        return self.uniform(shape=() if shape is None else shape, ctx=ctx) < prob

    def dropout(self, x: Array, rate: float) -> Array:
        """Zeros instead of a share `rate` of the elements, and the others larger in turn: `Dropout`."""
        training = known(rate, np.float32), known(True, np.bool_)
        result: Array = self._draw("Dropout", (x,), None, {}, *training, outputs=2)[0]  # its gradient reads the mask
        return result

    def permutation(self, n: int, *, ctx: Where = None) -> Array:
        """0 to n - 1 in random order. Raises InputError for n below 0."""
        _check(n >= 0, f"n={n}", "permutation", "an integer from 0 on")
        return argsort(self._fine((n,), ctx))

    def shuffle(self, x: Array) -> None:
        """Put the slices of the first axis into random order, in place."""
        assign(x, take(x, self.permutation(x.shape[0], ctx=x.device), axis=0))


def _check(good: bool, what: str, where: str, hint: str) -> None:
    if not good:
        raise InputError(what, where=f"mezzo.random.{where}", hint=hint)


def _shape(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _float(dtype: Any) -> int:
    kind = DType.of(dtype_of(dtype))
    if not kind.floating:
        raise InputError(f"random numbers of {kind}", where="mezzo.random", hint="draw floats, or randint")
    return kind.onnx


_seed = 0
_generators: dict[Place, Generator] = {}


def generator(ctx: Where = None) -> Generator:
    """The generator of a device."""
    place = place_of(ctx)
    known = _generators.get(place)
    return known if known is not None else _generators.setdefault(place, Generator(_seed, device=place))


def seed(number: int, ctx: Where | str = "all") -> None:
    """Start again from this seed: the generators of all devices, or that of one.

    >>> seed(7)
    >>> first = normal((2,))
    >>> seed(7)
    >>> bool((first == normal((2,))).asnumpy().all())
    True
    """
    global _seed
    if ctx == "all":
        _seed = number
        _generators.clear()
    else:
        _generators[place_of(ctx)] = Generator(number, device=ctx)


def state() -> dict[str, Any]:
    """Return the states of the generators of all devices as JSON data, for checkpoints of array code.

    >>> seed(7)
    >>> first, kept, then = normal((2,)), state(), normal((2,)).tolist()
    >>> restore(kept)
    >>> normal((2,)).tolist() == then
    True
    """
    return {
        "seed": _seed,
        "generators": {str(place): _listed(g.state) for place, g in sorted(_generators.items(), key=str)},
    }


def restore(kept: Mapping[str, Any]) -> None:
    """Let the generators go on from what `state` has said. Raises InputError for anything else."""
    try:
        begun = int(kept["seed"])
        states = {str(name): (tuple(map(int, key)), int(draws)) for name, (key, draws) in kept["generators"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"no state of generators: {error!r}", where="mezzo.random.restore", hint="give what mz.random.state() gave"
        ) from error
    seed(begun)
    for name, (key, draws) in states.items():
        place = place_of(name.replace("(", ":").rstrip(")"))
        one = _generators[place] = Generator(*key, device=place)
        one.state = (key, draws)


def _listed(state: tuple[tuple[int, ...], int]) -> list[Any]:
    return [list(state[0]), state[1]]


def seed_all(number: int, path: str | os.PathLike[str] | None = None, /, **ran: Any) -> Manifest:
    """Seed this module, Python's `random` and NumPy's old generator, and write down what the run depends on: seed,
    versions, machine, environment variables, and digests of what is given by name (a model, parameters, data).

    The manifest goes to the file at `path`, which is replaced as a whole, and is returned: `noting` adds digests of
    what is made later, `write` writes it again. `replay` begins the same run. Raises InputError for what has no
    digest, ModelError where the file cannot be written.

    >>> import tempfile
    >>> file = f"{tempfile.mkdtemp()}/run.json"
    >>> manifest = seed_all(7, file, data=np.arange(6))
    >>> first = normal((2,)).tolist()
    >>> replay(file, data=np.arange(6)) == manifest, normal((2,)).tolist() == first
    (True, True)
    """
    _seed_everything(number)
    result = taken(number).noting(**ran)
    if path is not None:
        result.write(path)
    return result


def replay(path: str | os.PathLike[str], /, *, strict: bool = True, **ran: Any) -> Manifest:
    """Begin a run again from its manifest: check that versions, machine, environment and digests of what is given are
    what they were, and seed as `seed_all` did.

    Raises InputError, which names every difference, and with `strict=False` warns of them (NotTheSame). Raises
    ModelError where the file is no manifest. What is made later can be checked by the manifest's `check`.
    """
    manifest = read(path)
    if strict:
        manifest.check(**ran)
    else:
        for difference in manifest.differences(**ran):
            warnings.warn(difference, NotTheSame, stacklevel=2)
    _seed_everything(manifest.seed)
    return manifest


def _seed_everything(number: int) -> None:
    seed(number)
    python_random.seed(number)
    np.random.seed(number % (1 << 32))  # noqa: TID251 (what is asked for)


def uniform(
    low: float = 0.0, high: float = 1.0, shape: Shape = (), *, dtype: Any = "float32", ctx: Where = None
) -> Array:
    """Floats in [low, high), from the generator of a device."""
    return generator(ctx).uniform(low, high, shape, dtype=dtype)


def normal(
    shape: Shape = (), loc: float = 0.0, scale: float = 1.0, *, dtype: Any = "float32", ctx: Where = None
) -> Array:
    """Floats of a normal distribution, from the generator of a device."""
    return generator(ctx).normal(shape, loc, scale, dtype=dtype)


def randn(*shape: int, dtype: Any = "float32", ctx: Where = None) -> Array:
    """Floats of the standard normal distribution."""
    return generator(ctx).normal(shape, dtype=dtype)


def randint(low: int, high: int, shape: Shape = (), *, dtype: Any = "int64", ctx: Where = None) -> Array:
    """Whole numbers in [low, high), from the generator of a device."""
    return generator(ctx).randint(low, high, shape, dtype=dtype)


def bernoulli(prob: Array | float = 0.5, shape: Shape | None = None, *, ctx: Where = None) -> Array:
    """Return random booleans that are true with the given probability."""
    return generator(prob.device if isinstance(prob, Array) else ctx).bernoulli(prob, shape)


def permutation(n: int, *, ctx: Where = None) -> Array:
    """0 to n - 1 in random order."""
    return generator(ctx).permutation(n)


def shuffle(x: Array) -> None:
    """Put the slices of the first axis into random order, in place."""
    generator(as_array(x).device).shuffle(x)
