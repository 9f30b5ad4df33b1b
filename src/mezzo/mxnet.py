"""mezzo.mxnet: models of Apache MXNet, read without it.

>>> import mezzo as mz
>>> sorted(mz.mxnet.__all__)
['Vocabulary', 'load', 'operator_uses', 'read_arrays', 'read_vocabulary']
"""

from .importers.mxnet import Vocabulary, load, operator_uses, read_arrays, read_vocabulary

__all__ = ["Vocabulary", "load", "operator_uses", "read_arrays", "read_vocabulary"]
