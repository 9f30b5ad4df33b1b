"""`mz.nd.linalg`: what of the standard's extension the operators carry. The rest is listed with its reason in
tests/array_api_gaps.txt.

>>> from mezzo.runtime import arrays as nd
>>> float(nd.linalg.det(nd.asarray([[2.0, 1.0], [1.0, 3.0]])))
5.0
"""

from .products import (
    cross,
    det,
    diagonal,
    matmul,
    matrix_norm,
    matrix_power,
    matrix_transpose,
    outer,
    tensordot,
    trace,
    vecdot,
    vector_norm,
)

__all__ = [
    "cross",
    "det",
    "diagonal",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_transpose",
    "outer",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
