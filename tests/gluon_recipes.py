"""How each block and each function of `mz.nd` is called by tests/test_gluon_same.py. What stands in no table here is
tried with the usual arguments, so that a new one is taken up by itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from mezzo import nd
from mezzo.gluon import loss, nn, rnn
from mezzo.gluon.block import Block
from mezzo.gluon.hybrid import HybridBlock
from mezzo.nd import fft, linalg
from mezzo.nd.array import Array
from mezzo.ops.errors import MezzoError

UNFIT = (MezzoError, TypeError, ValueError)  # what calls with other arguments than are meant end with
BATCHES = (4, 5, 4)  # of the inputs that are given one after the other
Make = Callable[[np.random.Generator, int], tuple[Any, ...]]  # inputs with so many examples


def floats(*shape: int) -> Make:
    def make(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        return (nd.asarray(rng.standard_normal((n, *shape)).astype(np.float32)),)

    return make


def steps(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    return (nd.asarray(rng.standard_normal((5, n, 4)).astype(np.float32)),)


def ids(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    return (nd.asarray(rng.integers(0, 4, (n, 6))),)


def attended(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    """Queries, a memory, and a mask of it that differs from call to call."""
    (x,), (memory,) = floats(5, 4)(rng, n), floats(7, 4)(rng, n)
    mask = rng.random((n, 1, 5, 7)) > 0.4
    mask[..., 0] = True
    return x, memory, nd.asarray(mask)


class Unrolled(HybridBlock):
    """A cell over a sequence."""

    def __init__(self, cell: rnn.RecurrentCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Array) -> Any:
        outputs, states = self.cell.unroll(x.shape[1], x, layout="NTC", merge_outputs=True)
        return [outputs, *states]


def decoded(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    """A sequence, a memory, and masks of both."""
    x, memory, seen = attended(rng, n)
    mask = np.tril(np.ones((5, 5), np.bool_)) & (rng.random((n, 1, 5, 5)) > 0.3) | np.eye(5, dtype=np.bool_)
    return x, memory, nd.asarray(mask), seen


def spoken(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    """Times of classes, labels of several lengths, and how many times count."""
    labels = rng.integers(0, 3, (n, 3))
    labels[rng.random(n) > 0.5, 2:] = -1
    return (
        nd.asarray(rng.standard_normal((n, 7, 4)).astype(np.float32)),
        nd.asarray(labels),
        nd.asarray(rng.integers(6, 8, n)),
    )


INPUTS: tuple[Make, ...] = (
    floats(4), floats(4, 6), floats(4, 6, 6), floats(4, 6, 6, 6), ids, steps,
)  # fmt: skip
# What constructors are given for arguments without a default, by name.
ARGUMENTS: dict[str, Any] = {
    "units": 4, "channels": 4, "kernel_size": 3, "hidden_size": 3, "num_heads": 2, "activation": "relu", "input_dim": 6,
    "output_dim": 3, "rate": 0.5, "function": lambda x: x * 2 + 1, "num_groups": 2, "output_size": 2, "factor": 2,
    "scale": 2, "axis": 1, "in_units": 4, "in_channels": 4, "hidden_units": 6, "num_layers": 2,
}  # fmt: skip
BLOCKS: dict[str, tuple[Callable[[], Block], Make]] = {
    "nn.HybridSequential": (
        lambda: nn.HybridSequential(nn.Dense(3, use_bias=False), nn.BatchNorm(), nn.Dropout(0.3)),
        floats(4),
    ),
    "nn.Sequential": (lambda: nn.Sequential(nn.Dense(3, "tanh"), nn.Dense(2)), floats(4)),
    "nn.MultiHeadAttention": (lambda: nn.MultiHeadAttention(4, 2, dropout=0.2), attended),
    "nn.BatchNorm": (nn.BatchNorm, floats(4, 6, 6)),
    "nn.GroupNorm": (lambda: nn.GroupNorm(2), floats(4, 6)),
    "nn.InstanceNorm": (nn.InstanceNorm, floats(4, 6)),
    "nn.Embedding": (lambda: nn.Embedding(6, 3), ids),
    "rnn.RNN": (lambda: rnn.RNN(3, 2, dropout=0.3, bidirectional=True), steps),
    "rnn.LSTM": (lambda: rnn.LSTM(3, 2, dropout=0.3), steps),
    "rnn.GRU": (lambda: rnn.GRU(3, 2), steps),
    "rnn.RNNCell": (lambda: Unrolled(rnn.RNNCell(4)), floats(3, 4)),
    "rnn.LSTMCell": (lambda: Unrolled(rnn.LSTMCell(4)), floats(3, 4)),
    "rnn.GRUCell": (lambda: Unrolled(rnn.GRUCell(4)), floats(3, 4)),
    "rnn.SequentialRNNCell": (lambda: Unrolled(rnn.SequentialRNNCell(rnn.RNNCell(4), rnn.GRUCell(3))), floats(3, 4)),
    "rnn.HybridSequentialRNNCell": (
        lambda: Unrolled(rnn.HybridSequentialRNNCell(rnn.RNNCell(4), rnn.DropoutCell(0.3), rnn.GRUCell(3))),
        floats(3, 4),
    ),
    "rnn.DropoutCell": (lambda: Unrolled(rnn.DropoutCell(0.4)), floats(3, 4)),
    "rnn.ResidualCell": (lambda: Unrolled(rnn.ResidualCell(rnn.RNNCell(4))), floats(3, 4)),
    "rnn.ZoneoutCell": (lambda: Unrolled(rnn.ZoneoutCell(rnn.RNNCell(4), 0.3, 0.2)), floats(3, 4)),
    "rnn.BidirectionalCell": (lambda: Unrolled(rnn.BidirectionalCell(rnn.RNNCell(4), rnn.GRUCell(3))), floats(3, 4)),
    "nn.TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(4, 2, 6, dropout=0.2), decoded),
    "nn.Upsample": (lambda: nn.Upsample(2, mode="linear"), floats(2, 3, 4)),
    "nn.PixelShuffle3D": (lambda: nn.PixelShuffle3D(2), floats(8, 2, 3, 2)),
    **{f"nn.Activation of {a}": (lambda a=a: nn.Activation(a), floats(4, 6)) for a in nn.activations.NAMED},  # type: ignore[misc]
}


def classes(*modules: ModuleType) -> Iterator[tuple[str, type[Block]]]:
    """The blocks that modules give out."""
    for module in modules:
        for name, found in vars(module).items():
            if not name.startswith("_") and isinstance(found, type) and issubclass(found, Block):
                yield f"{module.__name__.rpartition('.')[2]}.{name}", found


def layers() -> dict[str, type[Block] | None]:
    """All layers by name, and the recipes that are no class of their own."""
    bases = (Block, HybridBlock, rnn.RecurrentCell, rnn.ModifierCell)
    known = {n: c for n, c in classes(nn, rnn) if c not in bases}
    return {**dict.fromkeys(BLOCKS), **known}


def losses() -> dict[str, type[Block]]:
    return {n: c for n, c in classes(loss) if c not in (Block, HybridBlock, loss.Loss)}


def layer(name: str) -> tuple[Callable[[], Block], Make]:
    """How a layer is made, and what it takes: the table's, or the first usual input that it takes."""
    if name in BLOCKS:
        return BLOCKS[name]
    kind = layers()[name]
    assert kind is not None

    def make() -> Block:
        assert kind is not None
        needed = [
            p for p in inspect.signature(kind).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]  # fmt: skip
        return kind(**{p.name: ARGUMENTS[p.name] for p in needed})

    axes = int(name[-2]) if name[-2:] in ("1D", "2D", "3D") else 0
    for inputs in (floats(4, *[6] * axes),) if axes else INPUTS:
        try:
            [y.asnumpy() for y in arrays_of(make().initialize()(*inputs(np.random.default_rng(0), 2)))]
        except UNFIT:  # it takes another input
            continue
        return make, inputs
    raise LookupError(f"{name} takes none of the usual inputs: give it a recipe in tests/gluon_recipes.py")


def labelled(*sorts: str) -> Make:
    """Predictions, and what they are measured by."""

    def make(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        made: dict[str, Callable[[], Any]] = {
            "any": lambda: rng.standard_normal((n, 4)),
            "unit": lambda: rng.uniform(0.05, 0.95, (n, 4)),
            "logs": lambda: np.log(rng.dirichlet(np.ones(4), n)),
            "share": lambda: rng.dirichlet(np.ones(4), n),
            "sign": lambda: rng.choice([-1.0, 1.0], (n, 4)),
            "weights": lambda: rng.uniform(0, 2, (n, 1)),
            "count": lambda: rng.poisson(2.0, (n, 4)),
            "each": lambda: rng.choice([-1.0, 1.0], n),
        }
        arrays = [rng.integers(0, 4, n) if s == "class" else made[s]().astype(np.float32) for s in sorts]
        return tuple(map(nd.asarray, arrays))

    return make


LOSSES: dict[str, Make] = {
    "SoftmaxCrossEntropyLoss": labelled("any", "class"),
    "SoftmaxCELoss": labelled("any", "class"),
    "KLDivLoss": labelled("logs", "share"),
    "HingeLoss": labelled("any", "sign"),
    "SquaredHingeLoss": labelled("any", "sign"),
    "SigmoidBinaryCrossEntropyLoss": labelled("any", "unit", "weights"),
    "SigmoidBCELoss": labelled("any", "unit", "weights"),
    "L2Loss": labelled("any", "any", "weights"),
    "CTCLoss": spoken,
    "HuberLoss": labelled("any", "any", "weights"),
}
USUAL_LOSSES = (
    labelled("any", "any"), labelled("any", "class"), labelled("any", "any", "any"), labelled("any", "any", "each"),
    labelled("any", "count"),
)  # fmt: skip


def measured(name: str) -> tuple[Callable[[], Block], Make]:
    """How a loss is made, and what it takes."""
    kind = losses()[name]
    short = name.partition(".")[2]
    for inputs in (LOSSES[short],) if short in LOSSES else USUAL_LOSSES:
        try:
            kind()(*inputs(np.random.default_rng(0), 2)).asnumpy()
        except UNFIT:  # it takes other labels
            continue
        return kind, inputs
    raise LookupError(f"{name} takes none of the usual labels: give it a recipe in tests/gluon_recipes.py")


# -- functions --------------------------------------------------------------------------------------------------------

# Exports of `mz.nd` that compute nothing from arrays.
NO_FUNCTIONS = {
    "Array", "__array_api_version__", "__array_namespace_info__", "bool", "broadcast_shapes", "can_cast", "complex64",
    "complex128", "e", "finfo", "float16", "float32", "float64", "from_dlpack", "fusion", "iinfo", "inf", "int8",
    "int16", "int32", "int64", "isdtype", "linalg", "load", "namespace", "nan", "newaxis", "pi", "result_type", "save",
    "uint8", "uint16", "uint32", "uint64", "waitall", "Place", "cpu", "gpu", "random", "fft", "bfloat16",
    "RowSparse", "row_sparse_array", "operator",
}  # fmt: skip
# Those whose results have the size that the numbers decide: such a block runs imperatively.
DECIDED = {"nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"}


def unit(rng: np.random.Generator, *shape: int) -> Any:
    return nd.asarray(rng.uniform(0.1, 0.9, shape).astype(np.float32))


def whole(rng: np.random.Generator, *shape: int) -> Any:
    return nd.asarray(rng.integers(0, 3, shape))


def flags(rng: np.random.Generator, *shape: int) -> Any:
    return nd.asarray(rng.random(shape) > 0.5)


Call = Callable[..., Any]
Recipe = tuple[Call, Make]


def _of(call: Call, *sorts: Any, shape: tuple[int, ...] = (4,)) -> Recipe:
    return call, lambda rng, n: tuple(s(rng, n, *shape) for s in sorts)


def _square(call: Call, *sorts: Any) -> Recipe:
    return call, lambda rng, n: tuple(s(rng, n, 3, 3) for s in sorts)


FUNCTIONS: dict[str, Recipe] = {
    "arange": _of(lambda x: x + nd.arange(4), unit),
    "array": _of(lambda x: nd.array(x) + nd.array([1.0, 2, 3, 4]), unit),
    "asarray": _of(lambda x: nd.asarray(x, dtype="float64") * nd.asarray(2.5), unit),
    "astype": _of(lambda x: nd.astype(nd.astype(x * 9, nd.int32), nd.float32) * x, unit),
    "acosh": _of(lambda x: nd.acosh(x + 1), unit),
    "broadcast_arrays": _of(lambda x, y: nd.broadcast_arrays(x, y[:1]), unit, unit),
    "broadcast_to": _of(lambda x: nd.broadcast_to(x, (3, *x.shape)), unit),
    "clip": _of(lambda x: nd.clip(x, 0.3, 0.6), unit),
    "concat": _of(lambda x, y: nd.concat([x, y], axis=1), unit, unit),
    "cross": (nd.linalg.cross, lambda rng, n: (unit(rng, n, 3), unit(rng, n, 3))),
    "depth_to_space": (lambda x: nd.depth_to_space(x, 2), lambda rng, n: (unit(rng, n, 4, 2, 3),)),
    "diagonal": _square(nd.linalg.diagonal, unit),
    "dot": (nd.dot, lambda rng, n: (unit(rng, n, 4), unit(rng, 4, 3))),
    "arccosh": _of(lambda x: nd.arccosh(x + 1), unit),
    "embedding": (nd.embedding, lambda rng, n: (whole(rng, n), unit(rng, 4, 3))),
    "linear": (nd.linear, lambda rng, n: (unit(rng, n, 4), unit(rng, 3, 4), unit(rng, 3))),
    "pad": _of(lambda x: nd.pad(x, (1, 0, 0, 2), constant_value=0.5), unit),
    "pixel_shuffle": (lambda x: nd.pixel_shuffle(x, 2), lambda rng, n: (unit(rng, n, 4, 2, 3),)),
    "prelu": (nd.prelu, lambda rng, n: (unit(rng, n, 4, 3) - 0.5, unit(rng, 4))),
    "space_to_depth": (lambda x: nd.space_to_depth(x, 2), lambda rng, n: (unit(rng, n, 1, 4, 6),)),
    "stop_gradient": _of(lambda x: x * nd.stop_gradient(x), unit),
    "threshold": _of(lambda x: nd.threshold(x, 0.4, 0.2), unit),
    "empty": _of(lambda x: x + nd.empty((4,)), unit),
    "eye": _of(lambda x: nd.matmul(x, nd.eye(4, k=1)), unit),
    "flip": _of(lambda x: nd.flip(x, axis=1), unit),
    "full": _of(lambda x: x * nd.full((4,), 3.0), unit),
    "full_like": _of(lambda x: x * nd.full_like(x, 3.0), unit),
    "gather_nd": (nd.gather_nd, lambda rng, n: (unit(rng, n, 4), whole(rng, 2, n))),
    "isin": _of(nd.isin, whole, whole),
    "linspace": _of(lambda x: x * nd.linspace(0, 1, 4), unit),
    "matmul": (nd.matmul, lambda rng, n: (unit(rng, n, 4), unit(rng, 4, 3))),
    "meshgrid": (lambda x, y: nd.meshgrid(x, y), lambda rng, n: (unit(rng, n), unit(rng, 3))),
    "moveaxis": _of(lambda x: nd.moveaxis(x, 0, 1), unit),
    "nonzero": _of(lambda x: nd.nonzero(x > 0.5)[0].astype("float32").sum() * x, unit),
    "norm": _of(nd.norm, unit),
    "one_hot": _of(lambda i, x: nd.one_hot(i, 4)[..., 0] * x, whole, unit),
    "ones": _of(lambda x: x + nd.ones((4,)), unit),
    "outer": (nd.linalg.outer, lambda rng, n: (unit(rng, n), unit(rng, 3))),
    "permute_dims": _of(lambda x: nd.permute_dims(x, (1, 0)), unit),
    "pick": (lambda x, i: nd.pick(x, i, axis=1), lambda rng, n: (unit(rng, n, 4), whole(rng, n))),
    "repeat": _of(lambda x: nd.repeat(x, 3, axis=1), unit),
    "reshape": _of(lambda x: nd.reshape(x, (-1, 2)), unit),
    "reverse": _of(lambda x: nd.reverse(x, 1), unit),
    "roll": _of(lambda x: nd.roll(x, 1, axis=1), unit),
    "searchsorted": (lambda x, y: nd.searchsorted(nd.sort(x), y), lambda rng, n: (unit(rng, 5), unit(rng, n))),
    "slice_axis": _of(lambda x: nd.slice_axis(x, 1, -3, None), unit),
    "split": _of(lambda x: nd.split(x, 2), unit),
    "squeeze": _of(lambda x: nd.squeeze(x, axis=1), unit, shape=(1, 3)),
    "stack": _of(lambda x, y: nd.stack([x, y], axis=1), unit, unit),
    "swapaxes": _of(lambda x: nd.swapaxes(x, 0, 1), unit),
    "take": (lambda x, i: nd.take(x, i, axis=1), lambda rng, n: (unit(rng, n, 4), whole(rng, 3))),
    "take_along_axis": _of(lambda x, i: nd.take_along_axis(x, i, axis=1), unit, whole),
    "einsum": (lambda x, y: nd.einsum("nk,kj->nj", x, y), lambda rng, n: (unit(rng, n, 4), unit(rng, 4, 3))),
    "tensordot": (lambda x, y: nd.tensordot(x, y, axes=1), lambda rng, n: (unit(rng, n, 4), unit(rng, 4, 3))),
    "tile": _of(lambda x: nd.tile(x, (2, 1)), unit),
    "unique_all": _of(lambda x: nd.unique_all(x.detach()).values.sum() * x, unit),
    "unique_counts": _of(lambda x: nd.unique_counts(x.detach()).values.sum() * x, unit),
    "unique_inverse": _of(lambda x: nd.unique_inverse(x.detach()).values.sum() * x, unit),
    "unique_values": _of(lambda x: nd.unique_values(x.detach()).sum() * x, unit),
    "unstack": _of(lambda x: nd.unstack(x, axis=1), unit),
    "where": _of(lambda m, x, y: nd.where(m, x, y), flags, unit, unit),
    "zeros": _of(lambda x: x + nd.zeros((4,)), unit),
    "cumulative_prod": _of(lambda x: nd.cumulative_prod(x, axis=1), unit),
    "cumulative_sum": _of(lambda x: nd.cumulative_sum(x, axis=1), unit),
    "det": _square(lambda x: nd.linalg.det(x), unit),
    "matrix_power": _square(lambda x: nd.linalg.matrix_power(x, 3), unit),
    "bitwise_left_shift": _of(nd.bitwise_left_shift, whole, whole),
    "bitwise_right_shift": _of(nd.bitwise_right_shift, whole, whole),
}
# Functions that no operators of ONNX make up: graphs with them are kept in .mezzo files.
WITHOUT_ONNX = {
    "cholesky", "eigh", "eigvalsh", "inv", "matrix_rank", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
}  # fmt: skip


def _stacked(call: Call) -> Recipe:
    """A function of stacks of matrices with an inverse."""
    steep = np.diag([3.0, 2.0, 1.0]).astype(np.float32)
    return lambda x, *more: call(x + nd.asarray(steep), *more), lambda rng, n: (unit(rng, n, 3, 3),)


FUNCTIONS |= {
    "cholesky": _stacked(lambda x: nd.linalg.cholesky(x @ x.mT + nd.eye(3))),
    "eigh": _stacked(lambda x: tuple(nd.linalg.eigh(x))),
    "eigvalsh": _stacked(nd.linalg.eigvalsh),
    "inv": _stacked(nd.linalg.inv),
    "matrix_rank": _stacked(nd.linalg.matrix_rank),
    "pinv": _stacked(lambda x: nd.linalg.pinv(x[:, 1:])),
    "qr": _stacked(lambda x: tuple(nd.linalg.qr(x[..., 1:]))),
    "slogdet": _stacked(lambda x: tuple(nd.linalg.slogdet(x))),
    "solve": (nd.linalg.solve, lambda rng, n: (nd.eye(3) * 2 + unit(rng, n, 3, 3), unit(rng, n, 3, 2))),
    "svd": _stacked(lambda x: tuple(nd.linalg.svd(x[:, :2], full_matrices=False))),
    "svdvals": _stacked(nd.linalg.svdvals),
}
FUNCTIONS |= {  # complex numbers on the way, real ones at both ends
    "fft": _of(lambda x, y: abs(nd.fft.fft(x)) * y, unit, unit),
    "ifft": _of(lambda x: nd.imag(nd.fft.ifft(x, n=6, norm="ortho")), unit),
    "fftn": _of(lambda x: nd.real(nd.fft.fftn(x, axes=(1, 2))), unit, shape=(3, 4)),
    "ifftn": _of(lambda x: nd.real(nd.fft.ifftn(x, axes=(1, 2))), unit, shape=(3, 4)),
    "rfft": _of(lambda x: abs(nd.conj(nd.fft.rfft(x))), unit),
    "irfft": _of(lambda x: nd.fft.irfft(nd.fft.rfft(x), n=5), unit),
    "rfftn": _of(lambda x: nd.imag(nd.fft.rfftn(x, axes=(1, 2))), unit, shape=(3, 4)),
    "irfftn": _of(lambda x: nd.fft.irfftn(nd.fft.rfftn(x, axes=(1, 2)), axes=(1, 2)), unit, shape=(3, 4)),
    "hfft": _of(lambda x: nd.fft.hfft(nd.fft.fft(x, n=3)), unit),
    "ihfft": _of(lambda x: nd.imag(nd.fft.ihfft(x)), unit),
    "fftfreq": _of(lambda x: x * nd.fft.fftfreq(4), unit),
    "rfftfreq": _of(lambda x: x[..., :3] * nd.fft.rfftfreq(4), unit),
}
SORTS = (unit, whole, flags)


def functions() -> dict[str, Call]:
    """All functions of `mz.nd` that compute, those of its extensions too."""
    found = {n: getattr(nd, n) for n in nd.__all__ if n not in NO_FUNCTIONS}
    found |= {n: getattr(linalg, n) for n in linalg.__all__ if n not in found}
    found |= {n: getattr(fft, n) for n in fft.__all__ if n not in found}
    return found


def function(name: str) -> Recipe:
    """How a function is called: as the table says, or with one to three arrays of the first sort that it takes."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    call = functions()[name]
    for count in (1, 2, 3):
        for sort in SORTS:
            for shape in ((4,), (3, 3)):

                def make(rng: np.random.Generator, n: int, s: Any = sort, k: int = count, d: Any = shape) -> Any:
                    return tuple(s(rng, n, *d) for _ in range(k))

                try:
                    if [y.asnumpy() for y in arrays_of(call(*make(np.random.default_rng(0), 2)))]:
                        return call, make
                except UNFIT:  # it takes other operands
                    continue
    raise LookupError(f"mz.nd.{name} takes none of the usual operands: give it a recipe in tests/gluon_recipes.py")


def arrays_of(found: Any) -> list[Array]:
    """The arrays of a result."""
    if isinstance(found, Array):
        return [found]
    return [x for part in found for x in arrays_of(part)] if isinstance(found, list | tuple) else []
