"""`mx.io`: batches of arrays in memory, as MXNet's iterators give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from ... import nd
from ...nd.array import Array
from ...ops.errors import InputError
from .ndarray import own


class _Named(NamedTuple):
    name: str
    shape: tuple[int, ...]


class DataDesc(_Named):
    """The name and shape of an input, with its element type and layout."""

    dtype: Any
    layout: str

    def __new__(cls, name: str, shape: Sequence[int], dtype: Any = np.float32, layout: str = "NCHW") -> Self:
        desc = super().__new__(cls, name, tuple(shape))
        desc.dtype, desc.layout = dtype, layout
        return desc

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        return 0 if layout is None else layout.find("N")


class DataBatch:
    """Arrays of data and labels, how many of the last ones only fill up, and what they are called."""

    def __init__(
        self, data: Any, label: Any = None, pad: int | None = None, index: Any = None, bucket_key: Any = None,
        provide_data: Any = None, provide_label: Any = None,
    ) -> None:  # fmt: skip
        self.data, self.label, self.pad, self.index = own(data), own(label), pad, index
        self.bucket_key, self.provide_data, self.provide_label = bucket_key, provide_data, provide_label


class DataIter:
    """Base of iterators: `next` gives a batch or raises StopIteration, `reset` begins again."""

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[DataBatch]:
        return self

    def reset(self) -> None:
        """Begin again."""

    def next(self) -> DataBatch:
        """The next batch, of what `iter_next`, `getdata` and the like of a subclass tell."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def iter_next(self) -> bool:
        """Go to the next batch; false if there is none."""
        raise NotImplementedError("an iterator writes next(), or iter_next() and getdata()")

    def getdata(self) -> Any:
        return None

    def getlabel(self) -> Any:
        return None

    def getindex(self) -> Any:
        return None

    def getpad(self) -> int:
        return 0

    def __next__(self) -> DataBatch:
        return self.next()


def _named(data: Any, default: str) -> list[tuple[str, Any]]:
    """Arrays by name: one is called by the default, of several each has a number."""
    if data is None:
        return []
    if isinstance(data, Mapping):
        pairs = sorted(data.items())
    elif isinstance(data, list | tuple):
        many = len(data) > 1
        pairs = [(f"_{i}_{default}" if many else default, x) for i, x in enumerate(data)]
    else:
        pairs = [(default, data)]
    return [(n, x.asnumpy() if isinstance(x, Array) else np.asarray(x, np.float32)) for n, x in pairs]


class NDArrayIter(DataIter):
    """Batches of arrays in memory. The rest of an epoch is filled up from its begin (`pad`), left out (`discard`), or
    kept for the next (`roll_over`). Shuffling draws from NumPy's generator, as in MXNet."""

    def __init__(
        self, data: Any, label: Any = None, batch_size: int = 1, shuffle: bool = False, last_batch_handle: str = "pad",
        data_name: str = "data", label_name: str = "softmax_label",
    ) -> None:  # fmt: skip
        super().__init__(batch_size)
        self.data, self.label = _named(data, data_name), _named(label, label_name)
        sizes = {len(x) for _, x in (*self.data, *self.label)}
        if len(sizes) != 1:
            raise InputError(f"arrays of {sorted(sizes)} rows", where="NDArrayIter")
        if last_batch_handle not in ("pad", "discard", "roll_over"):
            raise InputError(f"last_batch_handle={last_batch_handle!r}", where="NDArrayIter", hint="pad, discard")
        self.num_data, self.shuffle, self.last_batch_handle = sizes.pop(), shuffle, last_batch_handle
        if self.num_data < batch_size:
            raise InputError(f"{self.num_data} rows for batches of {batch_size}", where="NDArrayIter")
        self._kept = np.arange(0)
        self._begin()

    @property
    def provide_data(self) -> list[DataDesc]:
        return [DataDesc(n, (self.batch_size, *x.shape[1:]), _kind(x)) for n, x in self.data]

    @property
    def provide_label(self) -> list[DataDesc]:
        return [DataDesc(n, (self.batch_size, *x.shape[1:]), _kind(x)) for n, x in self.label]

    def _begin(self) -> None:
        order = np.arange(self.num_data)
        if self.shuffle:
            np.random.shuffle(order)
        self._order, self._at, self._rolled = np.concatenate([self._kept, order]), 0, len(self._kept)
        self._kept = np.arange(0)

    def reset(self) -> None:
        self._begin()

    def hard_reset(self) -> None:
        self._kept = np.arange(0)
        self._begin()

    def next(self) -> DataBatch:
        rows = self._order[self._at : self._at + self.batch_size]
        missing = self.batch_size - len(rows)
        if not len(rows) or (missing and self.last_batch_handle != "pad"):
            if self.last_batch_handle == "roll_over":
                self._kept = rows
            raise StopIteration
        self._at += self.batch_size
        if missing:
            rows = np.concatenate([rows, self._order[:missing]])
        data, label = ([_array(x[rows]) for _, x in pairs] for pairs in (self.data, self.label))
        pad, self._rolled = missing or self._rolled, 0  # MXNet tells how many rows were kept, too
        return DataBatch(data, label, pad, rows, None, self.provide_data, self.provide_label)


def _kind(x: Any) -> Any:
    return np.float32 if x.dtype == np.float64 else x.dtype.type


def _array(x: Any) -> Array:
    return nd.asarray(x.astype(_kind(x)))


class ResizeIter(DataIter):
    """Another iterator, with `size` batches an epoch."""

    def __init__(self, data_iter: Any, size: int, reset_internal: bool = True) -> None:
        super().__init__(data_iter.batch_size)
        self.data_iter, self.size, self.reset_internal, self._count = data_iter, size, reset_internal, 0

    @property
    def provide_data(self) -> Any:
        return self.data_iter.provide_data

    @property
    def provide_label(self) -> Any:
        return self.data_iter.provide_label

    def reset(self) -> None:
        self._count = 0
        if self.reset_internal:
            self.data_iter.reset()

    def next(self) -> DataBatch:
        if self._count == self.size:
            raise StopIteration
        self._count += 1
        try:
            return self.data_iter.next()  # type: ignore[no-any-return]
        except StopIteration:
            self.data_iter.reset()
            return self.data_iter.next()  # type: ignore[no-any-return]


class PrefetchingIter(ResizeIter):
    """An iterator whose batches are made when they are asked for: arrays in memory are no work for another thread."""

    def __init__(self, iters: Any, **_: Any) -> None:
        super().__init__(iters[0] if isinstance(iters, list) else iters, 0)

    def reset(self) -> None:
        self.data_iter.reset()

    def next(self) -> DataBatch:
        return self.data_iter.next()  # type: ignore[no-any-return]


class CSVIter(NDArrayIter):
    """Rows of a CSV file, in a shape."""

    def __init__(
        self, data_csv: str, data_shape: Sequence[int], label_csv: str | None = None, label_shape: Sequence[int] = (1,),
        batch_size: int = 1, round_batch: bool = True, **_: Any,
    ) -> None:  # fmt: skip
        rows = np.loadtxt(data_csv, delimiter=",", dtype=np.float32, ndmin=2).reshape(-1, *data_shape)
        labels = np.zeros((len(rows), *label_shape), np.float32)
        if label_csv is not None:
            labels = np.loadtxt(label_csv, delimiter=",", dtype=np.float32, ndmin=2).reshape(-1, *label_shape)
        labels = labels[:, 0] if tuple(label_shape) == (1,) else labels
        super().__init__(rows, labels, batch_size, False, "pad" if round_batch else "discard", label_name="label")
