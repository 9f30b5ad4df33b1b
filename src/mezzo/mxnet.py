"""mezzo.mxnet: models of Apache MXNet, read without it.

>>> import mezzo as mz
>>> sorted(mz.mxnet.__all__)
['OptimizerStates', 'Vocabulary', 'load', 'operator_uses', 'read_arrays', 'read_states', 'read_vocabulary']
"""

from .importers.mxnet import (
    OptimizerStates,
    Vocabulary,
    load,
    operator_uses,
    read_arrays,
    read_states,
    read_vocabulary,
)

__all__ = [
    "OptimizerStates", "Vocabulary", "load", "operator_uses", "read_arrays", "read_states", "read_vocabulary",
]  # fmt: skip
