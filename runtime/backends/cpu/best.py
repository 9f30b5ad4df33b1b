"""Kernels for the best of many: TopK without sorting all, and suppression of boxes a block of them at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....ops import Context, Tensor
from ....ops.core.rules import axis_of, ints, widen
from ....ops.nn.detection import detections
from ....ops.types import Array
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed

SCARCE = 4  # times fewer elements than there are: beyond, sorting all is as fast
FEW = 4096  # elements, of all rows, that are sorted as soon
WORD = 64  # boxes whose overlaps with another one are the bits of a word
CHUNK = 256  # boxes that are compared with those kept, as many of these at a time
POWERS = np.left_shift(np.uint64(1), np.arange(WORD, dtype=np.uint64))


class TopK(Listed):
    """The k-th value of each row by `np.partition`; what lies beyond it, and the first that equal it, are sorted."""

    name = "numpy.top_k"
    operators = listed("TopK")

    def select(self, request: KernelRequest) -> Choice | Declined:
        x = request.inputs[0]
        if not isinstance(x, Tensor) or x.dtype.numpy.isbuiltin != 1:
            return Declined("the elements are not of one of NumPy's own types")
        return Choice(self.name, allocates=True, capturable=False)

    def prepare(self, args: KernelArgs) -> Call:
        x, counts = args.inputs[:2]
        assert x is not None and counts is not None
        record, k = args.node.record, Context(np, args.node.wanted, check=args.check)
        attrs = record.bind({**record.attrs, **args.node.attrs})
        axis = axis_of(attrs["axis"], x.ndim)

        def run() -> tuple[Any, ...]:
            count, size = ints(counts)[0], x.shape[axis]
            if 0 < count * SCARCE <= size and x.size > FEW:
                rows = np.moveaxis(x, axis, -1)
                places = _best(widen(rows).reshape(-1, size), count, bool(attrs["largest"]))
                if places is not None:
                    places = np.moveaxis(places.reshape(*rows.shape[:-1], count), -1, axis)
                    return np.take_along_axis(x, places, axis), places
            results: tuple[Any, ...] = record.reference(k, x, counts, **attrs)
            return results

        return run


def _best(rows: Array, count: int, largest: bool) -> Array | None:
    """The places of the best elements of each row, best first and of equals the first one; None where one of them might
    be NaN."""
    size = rows.shape[1]
    at = size - count if largest else count - 1
    last = np.partition(rows, at, 1)[:, at : at + 1]
    if np.isnan(last).any():
        return None
    better = ~(rows <= last) if largest else rows < last  # NaN is the largest
    equal = rows == last
    wanted = count - np.count_nonzero(better, 1)
    for row in np.flatnonzero(np.count_nonzero(equal, 1) > wanted):
        equal[row, np.flatnonzero(equal[row])[wanted[row] :]] = False
    places = np.nonzero(better | equal)[1].reshape(len(rows), count)
    values = np.take_along_axis(rows, places, 1)
    if largest:  # ascending from behind, read backwards: of equals the first comes first
        order = count - 1 - np.argsort(values[:, ::-1], 1, kind="stable")[:, ::-1]
    else:
        order = np.argsort(values, 1, kind="stable")
    return np.take_along_axis(places, order, 1)


class Boxes(Listed):
    """NonMaxSuppression: boxes are compared with many others at a time, and a block of them among each other."""

    name = "numpy.boxes"
    operators = listed("NonMaxSuppression")

    def select(self, request: KernelRequest) -> Choice | Declined:
        return Choice(self.name, allocates=True, capturable=False)

    def prepare(self, args: KernelArgs) -> Call:
        boxes, scores, *limits = args.inputs
        assert boxes is not None and scores is not None
        most, overlap, least = [*limits, None, None, None][:3]
        centred = bool(args.node.attrs.get("center_point_box", 0))

        def run() -> tuple[Array]:
            count = 0 if most is None else ints(most)[0]
            ratio = 0.0 if overlap is None else float(overlap.reshape(-1)[0])
            chosen = [np.empty((0, 3), np.int64)]
            for n, image in enumerate(scores if count > 0 else ()):
                sides = _Sides(boxes[n], centred, ratio, args.check)
                for c, row in enumerate(image):
                    places = np.arange(len(row)) if least is None else np.flatnonzero(row > float(least.reshape(-1)[0]))
                    order = places[np.argsort(-row[places], kind="stable")]
                    kept = sides.kept(order, count)
                    chosen.append(np.stack([np.full_like(kept, n), np.full_like(kept, c), kept], 1))
            return (np.concatenate(chosen),)

        return run


class Kept(Listed):
    """KeepBoxes in the same way: a block of boxes that are alive is compared with those kept, and among each other."""

    name = "numpy.keep_boxes"
    operators = listed("mezzo::KeepBoxes")

    def select(self, request: KernelRequest) -> Choice | Declined:
        return Choice(self.name, capturable=False)

    def prepare(self, args: KernelArgs) -> Call:
        boxes, alive, classes = [*args.inputs, None][:3]
        (kept,) = args.outputs
        assert boxes is not None and alive is not None and kept is not None
        attrs = args.node.record.bind({**args.node.record.attrs, **args.node.attrs})
        most, inclusive = boxes.dtype.type(attrs["overlap"]), bool(attrs["inclusive"])

        def run() -> None:
            kept[...] = False
            for n, image in enumerate(boxes):
                places = np.flatnonzero(alive[n])
                of = None if classes is None else classes[n, places]
                kept[n, places] = _Shares(image[places], of, most, inclusive, args.check).stay()

        return run


class Detections(Listed):
    """DetectBoxes, whose boxes are compared so."""

    name = "numpy.detect_boxes"
    operators = listed("mezzo::DetectBoxes")

    def select(self, request: KernelRequest) -> Choice | Declined:
        return Choice(self.name, allocates=True, capturable=False)

    def prepare(self, args: KernelArgs) -> Call:
        scores, shifts, anchors = args.inputs
        assert scores is not None and shifts is not None and anchors is not None
        attrs = args.node.record.bind({**args.node.record.attrs, **args.node.attrs})
        settings = attrs["together"], attrs["clip"], attrs["variances"], attrs["most"]

        def keep(corners: Array, classes: Array | None, overlap: float) -> Array:
            shares = _Shares(corners, classes, corners.dtype.type(overlap), True, args.check)
            return shares.stay()

        def run() -> tuple[Array]:
            given = scores, shifts, anchors
            return (detections(np, given, keep, attrs["threshold"], attrs["overlap"], *settings),)

        return run


class _Sides:
    """The boxes of an image: where each begins and ends along both axes, and its area."""

    def __init__(self, boxes: Array, centred: bool, ratio: float, check: Callable[[], None]) -> None:
        first, second = boxes[:, :2], boxes[:, 2:]
        ends = (first - second / 2, first + second / 2) if centred else (first, second)
        low, high = ends if centred else (np.minimum(*ends), np.maximum(*ends))
        self.ends = [(np.ascontiguousarray(low[:, d]), np.ascontiguousarray(high[:, d])) for d in (0, 1)]
        self.area, self.ratio, self.check = (high - low).prod(-1), ratio, check

    def over(self, ones: Array, others: Array) -> Array:
        """True where a box of `ones` overlaps one of `others` too much: [ones, others]."""
        common = np.float32(1)
        for low, high in self.ends:
            side = np.minimum(high[ones, None], high[others])
            side -= np.maximum(low[ones, None], low[others])
            common = np.maximum(side, 0, out=side) * common
        both = self.area[ones, None] + self.area[others]
        both -= common
        both *= self.ratio
        overlapping: Array = common > both
        return overlapping

    def kept(self, order: Array, most: int) -> Array:
        """The first boxes in an order that overlap none before them too much."""
        kept = np.empty(0, np.int64)
        while len(order) and len(kept) < most:
            self.check()
            chunk, order = order[:CHUNK], order[CHUNK:]
            for at in range(0, len(kept), CHUNK):
                chunk = chunk[~self.over(kept[at : at + CHUNK], chunk).any(0)]
            while len(chunk) and len(kept) < most:
                head, chunk = chunk[:WORD], chunk[WORD:]
                new = head[_first(self.over(head, head))][: most - len(kept)]
                kept = np.concatenate([kept, new])
                if len(chunk):
                    chunk = chunk[~self.over(new, chunk).any(0)]
        return kept


class _Shares(_Sides):
    """Boxes of an image by their corners, and their classes; one is over another by its share of their union."""

    def __init__(
        self, corners: Array, classes: Array | None, most: Any, inclusive: bool, check: Callable[[], None]
    ) -> None:
        left, top, right, bottom = np.ascontiguousarray(corners.T)
        self.ends = [(left, right), (top, bottom)]
        self.area = np.maximum(right - left, 0) * np.maximum(bottom - top, 0)
        self.classes, self.ratio, self.inclusive, self.check = classes, most, inclusive, check

    def stay(self) -> Array:
        """True for each box that stays."""
        count = len(self.area)
        stay = np.zeros(count, np.bool_)
        if 0 < count <= WORD:
            stay[_first(self._among(slice(None), slice(None)))] = True
        elif count:
            stay[self.kept(np.arange(count), count)] = True
        return stay

    def over(self, ones: Array, others: Array) -> Array:
        return self._among(ones, others)

    def _among(self, ones: Any, others: Any) -> Array:
        sides = []
        for low, high in self.ends:
            side = np.minimum(high[ones][:, None], high[others])
            side -= np.maximum(low[ones][:, None], low[others])
            sides.append(np.maximum(side, 0, out=side))
        common = np.multiply(sides[0], sides[1], out=sides[0])
        union = self.area[ones][:, None] + self.area[others]
        union -= common
        share = np.divide(common, union, out=common, where=union > 0)  # where not, nothing is common
        overlapping: Array = share >= self.ratio if self.inclusive else share > self.ratio
        if self.classes is not None:
            overlapping &= self.classes[ones][:, None] == self.classes[others]
        return overlapping


def _first(over: Array) -> list[int]:
    """The rows that no row before them, of those taken, is over."""
    taken, gone = list[int](), 0
    for row, bits in enumerate((over * POWERS[: len(over)]).sum(1, dtype=np.uint64).tolist()):
        if not gone >> row & 1:
            taken.append(row)
            gone |= bits
    return taken
