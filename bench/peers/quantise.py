"""`quantise.py FROM.onnx TO.onnx`: ONNX Runtime's static quantisation (QDQ, one scale per channel of the weights) on 32
random pictures of the graph's input."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static


class Pictures(CalibrationDataReader):
    def __init__(self, name: str, shape: list[int]) -> None:
        rng = np.random.default_rng(2)
        self.left = iter([{name: rng.standard_normal(shape, np.float32)} for _ in range(32)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


def main(source: str, target: str) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with TemporaryDirectory() as folder:
        # normalisations go into the convolutions first, as its guide advises
        options.optimized_model_filepath = folded = str(Path(folder) / "folded.onnx")
        (entry,) = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]).get_inputs()
        quantize_static(
            folded,
            target,
            Pictures(entry.name, entry.shape),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
