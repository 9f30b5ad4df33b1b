"""Defects around the libraries: descriptors of cuBLASLt, graphs of cuDNN, handles, offsets."""

from __future__ import annotations

from .mutation import Mutation


def _lt(what: str, file: str, old: str, new: str, missed: str = "") -> Mutation:
    return Mutation(what, f"cublaslt/{file}", old, new, ("test_gpu_cublaslt",), "", missed)


def _dnn(what: str, file: str, old: str, new: str, missed: str = "") -> Mutation:
    return Mutation(what, f"cudnn/{file}", old, new, ("test_gpu_cudnn",), "", missed)


LIBRARIES = (
    _lt(
        "A and B are not swapped for columns",
        "library.py",
        'for key, matrix in (("a", p.b), ("b", p.a),',
        'for key, matrix in (("a", p.a), ("b", p.b),',
    ),
    _lt(
        "the other operand is transposed",
        "library.py",
        "self._set(name.TRANSA, turned.T if p.b.turned else turned.N)",
        "self._set(name.TRANSA, turned.T if p.a.turned else turned.N)",
    ),
    _lt(
        "matrices of a batch lie side by side",
        "library.py",
        "(name.STRIDED_BATCH_OFFSET, m.apart)",
        "(name.STRIDED_BATCH_OFFSET, m.rows * m.columns)",
    ),
    _lt(
        "TF32 where float32 is asked for",
        "library.py",
        'fast = p.d.dtype is DType.FLOAT and p.math == "tf32"',
        "fast = p.d.dtype is DType.FLOAT",
    ),
    _lt("beta is forgotten", "library.py", "np.array([self.product.beta], kind)", "np.array([0], kind)"),
    _lt(
        "the bias has no address",
        "kernel.py",
        "            descriptors.point_bias(_address(args, product.bias))\n        aligned",
        "            descriptors.point_bias(_address(args, product.a.place))\n        aligned",
    ),
    _lt(
        "calls of a batch begin at their elements as bytes",
        "kernel.py",
        "_address(args, m.place) + n * m.dtype.itemsize for m",
        "_address(args, m.place) + n for m",
    ),
    _lt(
        "operands are not checked for their ends",
        "kernel.py",
        "+ max(start[side] for start in p.starts)",
        "+ min(start[side] for start in p.starts)",
    ),
    _lt(
        "a residual is overwritten that is read again",
        "kernel.py",
        "request.node.inputs.count(request.node.inputs[added]) == 1",
        "request.node.inputs.count(request.node.inputs[added]) >= 1",
    ),
    _lt(
        "views of less alignment take what was chosen for more",
        "kernel.py",
        "        if aligned < ALIGNED:  #",
        "        if aligned < 1:  #",
    ),
    _lt(
        "rows that do not follow each other are one matrix",
        "product.py",
        "return s.batch[dim] == rows * s.strides[0] and",
        "return",
    ),
    _dnn(
        "padding behind the image is that before it",
        "conv.py",
        '"post_padding": (0,) * more + tuple(w.after for w in windows),',
        '"post_padding": (0,) * more + tuple(w.before for w in windows),',
    ),
    _dnn(
        "strides and dilations change places",
        "conv.py",
        '"stride": (1,) * more + tuple(w.stride for w in windows),',
        '"stride": (1,) * more + tuple(w.dilation for w in windows),',
    ),
    _dnn(
        "a clip ends at its beginning", "epilogue.py", 'return x if high is None else e.add("min", x, high)', "return x"
    ),
    _dnn(
        "operands of a subtraction change places",
        "epilogue.py",
        "return self.add(op, value, other) if link.operands[0] == PREVIOUS else self.add(op, other, value)",
        "return self.add(op, value, other)",
    ),
    _dnn(
        "TF32 in strict convolutions",
        "build.py",
        "            barred.append(notes.TENSOR_CORE)  # whose float32 is TF32\n",
        "            pass\n",
    ),
    _dnn(
        "plans that answer otherwise each time",
        "build.py",
        "barred = [notes.NONDETERMINISTIC]",
        "barred: list[object] = []",
    ),
)
