"""ONNX Runtime's own tests of its Python API that ours answer otherwise, each with the reason: see
test_onnxruntime_replaced.py. They pass there on the ONNX Runtime that is installed."""

from __future__ import annotations

MODULES = (  # of onnxruntime/test/python
    "onnxruntime_test_python",
    "onnxruntime_test_python_autoep",
    "onnxruntime_test_python_backend",
    "onnxruntime_test_python_backend_mlops",
    "onnxruntime_test_python_compile_api",
    "onnxruntime_test_python_cudagraph",
    "onnxruntime_test_python_dmlgraph",
    "onnxruntime_test_python_ep_compatibility",
    "onnxruntime_test_python_global_threadpool",
    "onnxruntime_test_python_iobinding",
    "onnxruntime_test_python_mlops",
    "onnxruntime_test_python_nested_control_flow_op",
    "onnxruntime_test_python_sparse_matmul",
    "onnxruntime_test_python_symlink_data",
)

SPARSE = "refused: no operator takes or gives sparse tensors"
EXAMPLES = "its module imports onnxruntime.datasets, which has no part here"

# By a test, a class of tests or a module: the reason.
DIFFERS: dict[str, str] = {
    "onnxruntime_test_python.TestInferenceSession.test_run_model_symbolic_input": (
        'a dim that a file calls "None" has no name: exporters wrote that for the lack of one'
    ),
    "onnxruntime_test_python.TestInferenceSession.test_run_session_owned_output_is_zero_copy": (
        "results are arrays of the caller's own, which no session has a part in"
    ),
    "onnxruntime_test_python.TestInferenceSession.test_session_options_add_config_entry": (
        "refused: an entry that nobody knows would be ignored"
    ),
    "onnxruntime_test_python.TestInferenceSession.test_sparse_tensor_coo_format": SPARSE,
    "onnxruntime_test_python.TestInferenceSession.test_sparse_tensor_csr_format": SPARSE,
    "onnxruntime_test_python_autoep.TestAutoEP.test_ortvalue_from_shape_and_type_memory_info_no_allocator": (
        "values need no allocator: they are made in the memory of the host"
    ),
    "onnxruntime_test_python_backend_mlops": EXAMPLES,
    "onnxruntime_test_python_compile_api.TestCompileApi.test_compile_graph_optimization_level": (
        "passes are all done, or none: it counts what those of one level leave"
    ),
    "onnxruntime_test_python_compile_api.TestCompileApi.test_compile_with_initializer_func_that_reuses": (
        "refused: weights lie in the folder of their model, or below"
    ),
    "onnxruntime_test_python_global_threadpool.TestGlobalThreadPool.test_raise_error_if_use_per_session_threads": (
        "a session may have threads of its own beside those of the process"
    ),
    "onnxruntime_test_python_sparse_matmul": SPARSE,
    "onnxruntime_test_python_symlink_data.TestSymLinkOnnxModelExternalData."
    "test_symlink_with_data_not_in_model_sub_dir": "refused too, in other words: it looks for ONNX Runtime's",
}


def reason(test: str) -> str | None:
    """The reason why ours answers a test otherwise, if it does."""
    parts = test.split(".")
    return next((DIFFERS[name] for n in range(3, 0, -1) if (name := ".".join(parts[:n])) in DIFFERS), None)
