"""`mz.nd.linalg`: the extension of the array API standard, whole.

>>> from mezzo import nd
>>> x = nd.asarray([[2.0, 1.0], [1.0, 3.0]])
>>> float(nd.linalg.det(x))
5.0
>>> nd.linalg.solve(x, nd.asarray([3.0, 4.0])).tolist()
[1.0, 1.0]
"""

from .matrices import (
    cholesky,
    eigh,
    eigvalsh,
    inv,
    matrix_norm,
    matrix_power,
    matrix_rank,
    pinv,
    qr,
    slogdet,
    solve,
    svd,
    svdvals,
)
from .products import (
    cross,
    det,
    diagonal,
    matmul,
    matrix_transpose,
    outer,
    tensordot,
    trace,
    vecdot,
    vector_norm,
)

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
