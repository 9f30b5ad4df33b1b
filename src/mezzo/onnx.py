"""mezzo.onnx: ONNX files in and out, and the interface that the official suite calls.

`Backend` is an `onnx.backend.base.Backend`, `coverage` runs the samples of operators and tells what is covered; both
are imported when they are first asked for.

>>> import mezzo as mz
>>> from mezzo.models.digits import digits_model
>>> graph = mz.onnx.load(digits_model())
>>> mz.onnx.to_onnx(graph).ir_version >= 3
True
"""

from .exporters import save_onnx as save
from .exporters import to_onnx
from .importers import OperatorUse, operators_of
from .importers import load_onnx as load
from .tools.lazy import of_onnx as __getattr__  # noqa: F401 (PEP 562: Python calls it for Backend and coverage)

__all__ = ["Backend", "OperatorUse", "coverage", "load", "operators_of", "save", "to_onnx"]  # noqa: F822 (see above)
