"""ONNX Runtime's Python API on our sessions: `mezzo.onnxruntime` has the names, docs/from-onnxruntime.md a table of
them."""
