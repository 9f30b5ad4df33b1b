"""mezzo.mxnet: models of Apache MXNet, read without it.

>>> import mezzo as mz
>>> sorted(mz.mxnet.__all__)
['load', 'operator_uses', 'read_arrays']
"""

from .importers.mxnet import load, operator_uses, read_arrays

__all__ = ["load", "operator_uses", "read_arrays"]
