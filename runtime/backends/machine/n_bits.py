"""MatMulNBits of com.microsoft over weights as the file packs them: nothing is unpacked, and each is read once."""

from __future__ import annotations

import math
from enum import IntEnum

from ....ops import DType, Tensor
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed
from ...ir.graph import Node
from ..onednn.library import library
from .blobs import Loaded, loaded
from .blocks import Chunked, NBits, words
from .call import MachineCall, address, code_for, parallel

WORDS = 8  # of four bytes, in a vector
CHUNK = 48  # rows of weights that a thread takes at a time: a multiple of those of a tile (emit/n_bits.py)
MOST = 128  # rows of activations, beyond which unpacking for a product of oneDNN pays
ALONE = 1 << 17  # bytes of weights below which waking a second thread takes longer than it saves


def arrangement(bits: int, row_bytes: int) -> tuple[int, int]:
    """Whole vectors of a row of weights, and how many float32 a row of activations takes while it waits."""
    vectors = row_bytes // (4 * WORDS)
    return vectors, vectors * WORDS * (32 // bits + 1)


class MatMulNBits(Listed):
    """Weights of 4 or 8 bits, in blocks of one scale, with float32 activations and sums."""

    name = "machine.matmul_n_bits"
    operators = listed("com.microsoft::MatMulNBits")

    def select(self, request: KernelRequest) -> Choice | Declined:
        code = code_for(request)
        if isinstance(code, str):
            return Declined(code)
        reason = self._problem(request)
        if reason is not None:
            return Declined(reason)
        a = request.inputs[0]
        assert isinstance(a, Tensor)
        _, _, bits, _, row, _ = _sizes(request.node)
        rows = math.prod(a.sizes[:-1])
        if rows > MOST and library() is not None:
            return Declined(f"{rows} rows: oneDNN multiplies unpacked parts faster")
        _, stride = arrangement(bits, row)
        return Choice(self.name, {"code": code.tier.name}, workspace=4 * rows * (stride + 1))

    @staticmethod
    def _problem(request: KernelRequest) -> str | None:
        inputs = [*request.inputs, *[None] * (6 - len(request.inputs))]
        K, N, bits, block, row, zero_row = _sizes(request.node)
        if bits not in (4, 8):
            return f"{bits} bits"
        if block < 16 or block & (block - 1):
            return f"blocks of {block}"
        if inputs[4] is not None:
            return "weights in another order (g_idx)"
        blocks = -(-K // block)
        wanted = [
            (DType.FLOAT, None), (DType.UINT8, N * row), (DType.FLOAT, N * blocks), (DType.UINT8, N * zero_row), None,
            (DType.FLOAT, N),
        ]  # fmt: skip
        names = ("activations", "weights", "scales", "zero points", "", "bias")
        for name, type, want in zip(names, inputs, wanted, strict=True):
            if type is None or want is None:
                continue
            if not isinstance(type, Tensor) or not type.static:
                return f"{name} of unknown size"
            if type.dtype is not want[0]:
                return f"{name} are {type.dtype.name.lower()}"
            if want[1] is not None and type.elements != want[1]:
                return f"{type.elements} {name}, where {want[1]} are expected"
        assert isinstance(inputs[0], Tensor)
        return None if inputs[0].elements and N else "nothing to compute"

    def prepare(self, args: KernelArgs) -> Call:
        code = loaded()
        assert isinstance(code, Loaded), code
        K, N, bits, block, row, zero_row = _sizes(args.node)
        operands = [*args.inputs, *[None] * 6]
        x, packed, scales, zeros, bias = (operands[i] for i in (0, 1, 2, 3, 5))
        (y,) = args.outputs
        assert x is not None and packed is not None and y is not None
        rows = x.size // K
        vectors, stride = arrangement(bits, row)
        work = args.scratch(DType.FLOAT, (rows * (stride + 1),))
        nbytes = N * row * min(rows, 4)
        threads = args.request.target.threads if nbytes > ALONE else 1
        chunk = CHUNK if 4 * CHUNK * threads <= N else max(3, -(-N // (12 * threads)) * 3)
        values: dict[IntEnum, int] = {
            Chunked.CHUNKS: -(-N // chunk), Chunked.THREADS: threads,
            Chunked.PARALLEL: parallel() if threads > 1 else 0,
            NBits.X: address(x), NBits.BITS: address(packed), NBits.SCALES: address(scales),
            NBits.ZEROS: address(zeros), NBits.BIAS: address(bias), NBits.Y: address(y), NBits.WORK: address(work),
            NBits.M: rows, NBits.N: N, NBits.K: K, NBits.BLOCK: block, NBits.ROW: row, NBits.ZERO_ROW: zero_row,
            NBits.VECTORS: vectors, NBits.STRIDE: stride, NBits.CHUNK: chunk,
        }  # fmt: skip
        name = name_of(bits, min(WORDS, block * bits // 32), zeros is not None)
        places = {("in", i): word for i, word in enumerate((NBits.X, NBits.BITS, NBits.SCALES, NBits.ZEROS))}
        places |= {("in", 5): NBits.BIAS, ("out", 0): NBits.Y}
        return MachineCall(code.functions[name], words(values), places, threads, short=nbytes <= ALONE)


def name_of(bits: int, words: int, zeros: bool) -> str:
    """The name of the function for weights of so many bits, words of a vector with one scale, and packed zeros."""
    return f"n_bits_{bits}_{words}{'_zeros' if zeros else ''}"


def _sizes(node: Node) -> tuple[int, int, int, int, int, int]:
    """K, N, bits, numbers of a block, bytes of a row of weights, bytes of a row of zero points."""
    attrs = {**node.record.attrs, **node.attrs}
    K, N, bits, block = (int(attrs[name]) for name in ("K", "N", "bits", "block_size"))
    blocks = -(-K // block)
    return K, N, bits, block, blocks * block * bits // 8, -(-blocks * bits // 8)
