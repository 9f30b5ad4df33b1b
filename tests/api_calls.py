"""A model, and calls of ONNX Runtime's API that any module with its names can make."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from mezzo import onnxruntime as ours


def model(**more: Any) -> bytes:
    """x + w, its Relu, its sum, and a list of both; w may be fed."""
    nodes = [
        helper.make_node("Add", ["x", "w"], ["s"], name="add"),
        helper.make_node("Relu", ["s"], ["y"], name="relu"),
        helper.make_node("ReduceSum", ["s"], ["z"], keepdims=0),
        helper.make_node("SequenceConstruct", ["s", "y"], ["q"]),
    ]
    lists = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    floats = TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("x", floats, ["n", None, 3]),
        helper.make_tensor_value_info("w", floats, [3]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", floats, ["n", None, 3]),
        helper.make_tensor_value_info("z", floats, []),
        helper.make_value_info("q", lists),
    ]
    weights = [helper.make_tensor("w", floats, [3], [1.0, -2.0, 3.0])]
    graph = helper.make_graph(nodes, "told", inputs, outputs, weights, doc_string="of the graph")
    made: Any = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8, producer_name="a test", domain="of tests",
        doc_string="of the model", model_version=7, **more,
    )  # fmt: skip
    made.metadata_props.add(key="who", value="me")
    return bytes(made.SerializeToString())


MODEL = model()
X = np.random.default_rng(0).standard_normal((2, 1, 3), np.float32)


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


Call = Callable[[Any, Any], Any]  # of a module and a session


def bound(m: Any, s: Any, *outputs: str, x: Any = X) -> Any:
    made = s.io_binding()
    made.bind_cpu_input("x", x)
    for name in outputs:
        made.bind_output(name)
    return made


def ran(m: Any, s: Any, binding: Any) -> Any:
    s.run_with_iobinding(binding)
    return [v.numpy() for v in binding.get_outputs()], binding.copy_outputs_to_cpu()


def told(m: Any, s: Any, x: Any) -> Any:
    """What a callback of run_async is given; errors as whether there was one."""
    done, got = threading.Event(), []

    def callback(results: Any, data: Any, error: str) -> None:
        got.append((results, data, bool(error), threading.current_thread() is threading.main_thread()))
        done.set()

    s.run_async(["y"], {"x": x}, callback, {"mine": 1})
    assert done.wait(20)
    return got


def into(m: Any, s: Any, shape: Any, kind: Any = np.float32) -> Any:
    binding, value = bound(m, s), m.OrtValue.ortvalue_from_shape_and_type(shape, kind)
    binding.bind_ortvalue_output("y", value)
    s.run_with_iobinding(binding)
    return value.numpy(), binding.get_outputs()[0].data_ptr() == value.data_ptr()


def at_address(m: Any, s: Any) -> Any:
    binding, x, y = s.io_binding(), X.copy(), np.empty_like(X)
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    s.run_with_iobinding(binding)
    return y


def handed_on(m: Any) -> Any:
    """An input that is an output too: it is no array of the caller's, and stays as it is."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "hands on", [x], [y, x])
    made: Any = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session, made_before = m.InferenceSession(made.SerializeToString()), []
    for count in range(4):
        fed = np.full((2, 2), count, np.float32)
        results = session.run(None, {"x": fed})
        made_before.append((*results, np.shares_memory(results[1], fed)))
    return made_before


def texts(m: Any, fed: Any) -> Any:
    """Strings that a model hands on."""
    kind = helper.make_tensor_value_info("x", TensorProto.STRING, [1, 2])
    named = helper.make_tensor_value_info("y", TensorProto.STRING, [1, 2])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "texts", [kind], [named])
    made: Any = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return m.InferenceSession(made.SerializeToString()).run(None, {"x": fed})[0].tolist()


def unbound(binding: Any) -> Any:
    for call in ("clear_binding_inputs", "clear_binding_outputs", "synchronize_inputs", "synchronize_outputs"):
        assert getattr(binding, call)() is None
    return binding.get_outputs()


def described(value: Any) -> Any:
    calls = ("data_type", "element_type", "has_value", "is_tensor", "is_tensor_sequence")
    return [getattr(value, call)() for call in calls]


def meta(s: Any) -> Any:
    found = s.get_modelmeta()
    return {name: getattr(found, name) for name in public(ours.ModelMetadata)}


def opened(m: Any, source: Any, **said: Any) -> Any:
    options = m.SessionOptions()
    for name, value in said.items():
        getattr(options, name)(*value) if isinstance(value, tuple) else setattr(options, name, value)
    return m.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def broken(**changes: Any) -> bytes:
    made = onnx.load_model_from_string(MODEL)
    for name, value in changes.items():
        if name == "op":
            made.graph.node[1].op_type = value
        elif name == "reads":
            made.graph.node[1].input[0] = value
        elif name == "opset":
            made.opset_import[0].version = value
        else:
            made.graph.input[0].type.tensor_type.shape.dim[2].dim_value = value
    return bytes(made.SerializeToString())


def value(m: Any, array: Any = X) -> Any:
    return m.OrtValue.ortvalue_from_numpy(array)


def updated(m: Any, array: Any) -> Any:
    own = X.copy()
    value(m, own).update_inplace(array)
    return own


def nodes(args: Any) -> Any:
    return [(a.name, a.type, a.shape) for a in args]


CALLS: dict[str, Call] = {
    # what a session tells
    "inputs": lambda m, s: nodes(s.get_inputs()),
    "outputs": lambda m, s: nodes(s.get_outputs()),
    "overridable": lambda m, s: nodes(s.get_overridable_initializers()),
    "meta": lambda m, s: meta(s),
    "memory": lambda m, s: [(i.name, i.device_id, int(i.mem_type)) for i in s.get_input_memory_infos()],
    "memory out": lambda m, s: len(s.get_output_memory_infos()),
    "devices": lambda m, s: [d.ep_name for d in s.get_input_epdevices()],
    "device list": lambda m, s: [(d.ep_name, int(d.device.type)) for d in m.get_ep_devices()],
    "tuning": lambda m, s: (s.get_tuning_results(), s.set_tuning_results([])),
    "captured": lambda m, s: s.release_captured_graph(),
    "no profile": lambda m, s: (s.end_profiling(), s.get_profiling_start_time_ns()),
    "assignment not asked": lambda m, s: s.get_provider_graph_assignment_info(),
    "options": lambda m, s: s.get_session_options().intra_op_num_threads,
    "set providers": lambda m, s: (s.set_providers(["CPUExecutionProvider"]), s.get_providers(), s.run(None, {"x": X})),
    "set unknown providers": lambda m, s: s.set_providers(["Nope"]),
    # runs
    "all": lambda m, s: s.run(None, {"x": X}),
    "none named": lambda m, s: s.run([], {"x": X}),
    "chosen": lambda m, s: s.run(["z", "y"], {"x": X}),
    "twice": lambda m, s: s.run(["y", "y"], {"x": X}),
    "overridden": lambda m, s: s.run(["y"], {"x": X, "w": np.zeros(3, np.float32)}),
    "a list is fed": lambda m, s: s.run(["y"], {"x": X.tolist()}),
    "columns first": lambda m, s: s.run(["y"], {"x": np.asfortranarray(np.repeat(X, 2, 1))}),
    "a value is fed": lambda m, s: s.run(["y"], {"x": value(m)}),
    "scalars": lambda m, s: [type(r) for r in s.run(["z"], {"x": X})],
    "texts are fed": lambda m, s: [
        texts(m, fed) for fed in (np.array([["a", "b"]]), np.array([["a", "b"]], object), [["a", "b"]])],
    "wrong type": lambda m, s: s.run(None, {"x": X.astype(np.float64)}),
    "wrong rank": lambda m, s: s.run(None, {"x": X[0]}),
    "wrong size": lambda m, s: s.run(None, {"x": np.ones((2, 1, 4), np.float32)}),
    "unknown input": lambda m, s: s.run(None, {"x": X, "what": X}),
    "nothing fed": lambda m, s: s.run(None, {}),
    "unknown output": lambda m, s: s.run(["what"], {"x": X}),
    "async": lambda m, s: told(m, s, X),
    "async, wrong": lambda m, s: told(m, s, X.astype(np.float64)),
    # values
    "values": lambda m, s: [v.numpy() for v in s.run_with_ort_values(["y", "z"], {"x": value(m)})],
    "value of a list": lambda m, s: described(s.run_with_ort_values(["q"], {"x": value(m)})[0]),
    "a list is no array": lambda m, s: s.run_with_ort_values(["q"], {"x": value(m)})[0].numpy(),
    "a list has no shape": lambda m, s: s.run_with_ort_values(["q"], {"x": value(m)})[0].shape(),
    "values missing": lambda m, s: s.run_with_ort_values(None, {}),
    "value of a wrong type": lambda m, s: s.run_with_ort_values(["y"], {"x": value(m, X.astype(np.float64))}),
    "described": lambda m, s: (described(value(m)), value(m).shape(), value(m).device_name()),
    "shared": lambda m, s: (value(m).data_ptr() == X.ctypes.data, np.shares_memory(value(m).numpy(), X)),
    "as an array": lambda m, s: (np.asarray(value(m)), np.asarray(value(m), np.float64)),
    "turned": lambda m, s: value(m, np.arange(6.0).reshape(2, 3).T).numpy(),
    "dlpack": lambda m, s: (np.from_dlpack(value(m)), value(m).__dlpack_device__()),
    "from dlpack": lambda m, s: m.OrtValue.from_dlpack(X.copy()).numpy(),
    "from a capsule": lambda m, s: m.OrtValue.from_dlpack(X.copy().__dlpack__()).numpy(),
    "updated": lambda m, s: updated(m, X * 2),
    "updated, other shape": lambda m, s: updated(m, X.reshape(-1)),
    "updated, other size": lambda m, s: updated(m, X[:1]),
    "bfloat16": lambda m, s: m.OrtValue.ortvalue_from_shape_and_type([2, 3], 16).data_type(),
    "bfloat16 of bytes": lambda m, s: m.OrtValue.ortvalue_from_numpy_with_onnx_type(
        np.zeros(2, np.uint16), 16
    ).data_type(),
    "bfloat16 of too few": lambda m, s: m.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, np.uint8), 16),
    "no such type": lambda m, s: m.OrtValue.ortvalue_from_shape_and_type([2], 99),
    "negative size": lambda m, s: m.OrtValue.ortvalue_from_shape_and_type([-2], np.float32),
    "texts": lambda m, s: value(m, np.array(["a"])),
    "not sparse": lambda m, s: value(m).as_sparse_tensor(),
    "on cuda": lambda m, s: m.OrtValue.ortvalue_from_numpy(X, "cuda", 0),
    "a device": lambda m, s: [getattr(m.OrtDevice.make("cpu", 0), n)() for n in sorted(public(ours.OrtDevice))
                              if n.startswith("device_")],
    "another device": lambda m, s: [m.OrtDevice.make(k, 1).device_vendor_id() for k in ("cuda", "cann", "gpu")],
    "of memory": lambda m, s: [
        (i.name, int(i.allocator_type), i.device_id, int(i.mem_type), int(i.device_mem_type), i.device_vendor_id)
        for i in (
            m.OrtMemoryInfo("Cpu", m.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, m.OrtMemType.DEFAULT),
            m.OrtMemoryInfo.create_v2("T", m.OrtMemoryInfoDeviceType.CPU, 0, 0, m.OrtDeviceMemoryType.DEFAULT, 128,
                                      m.OrtAllocatorType.ORT_ARENA_ALLOCATOR))],
    "handed on": lambda m, s: handed_on(m),
    "copies": lambda m, s: m.copy_tensors([value(m)], []),
    "of a session": lambda m, s: s.create_ortvalue_from_shape_and_type([2], np.int64, "cpu").data_type(),
    # bindings
    "bound": lambda m, s: ran(m, s, bound(m, s, "z", "y", "z")),
    "bound to nothing": lambda m, s: ran(m, s, bound(m, s)),
    "bound unknown input": lambda m, s: s.io_binding().bind_cpu_input("what", X),
    "bound unknown output": lambda m, s: ran(m, s, bound(m, s, "what")),
    "bound to a wrong type": lambda m, s: ran(m, s, bound(m, s, "y", x=X.astype(np.float64))),
    "bound to a list": lambda m, s: bound(m, s, "y", x=[1]),
    "bound to a value": lambda m, s: into(m, s, [2, 1, 3]),
    "bound to a wrong size": lambda m, s: into(m, s, [2, 2, 3]),
    "bound to a value of a wrong type": lambda m, s: into(m, s, [2, 1, 3], np.float64),
    "bound to addresses": lambda m, s: at_address(m, s),
    "bound to memory of no size": lambda m, s: s.io_binding().bind_output("y", "cpu", 0, None, None, X.ctypes.data),
    "bound before a run": lambda m, s: (s.io_binding().get_outputs(), s.io_binding().copy_outputs_to_cpu()),
    "bound elsewhere": lambda m, s: s.run_with_iobinding(opened(m, MODEL).io_binding()),
    "unbound": lambda m, s: unbound(bound(m, s, "y")),
    # files
    "no file": lambda m, s: opened(m, "/nowhere/model.onnx"),
    "no model": lambda m, s: opened(m, b"abcdef"),
    "no bytes": lambda m, s: m.InferenceSession(3),
    "no such operator": lambda m, s: opened(m, broken(op="Nope")),
    "no such opset": lambda m, s: opened(m, broken(opset=99)),
    "misfits": lambda m, s: opened(m, broken(size=4)),
    # options
    "a dim": lambda m, s: nodes(opened(m, MODEL, add_free_dimension_override_by_name=("n", 2)).get_inputs()),
    "another dim": lambda m, s: opened(m, MODEL, add_free_dimension_override_by_name=("n", 3)).run(None, {"x": X}),
    "a weight": lambda m, s: opened(
        m, MODEL, add_initializer=("w", value(m, np.full(3, 9, np.float32)))
    ).run(["y"], {"x": X}),
    "no option": lambda m, s: opened(m, MODEL, no_such_option=1),
    "no number": lambda m, s: opened(m, MODEL, intra_op_num_threads="2"),
    "no text": lambda m, s: opened(m, MODEL, logid=3),
    "no level": lambda m, s: opened(m, MODEL, graph_optimization_level=77),
    "no entry": lambda m, s: m.SessionOptions().get_session_config_entry("what"),
    "no entry of a run": lambda m, s: m.RunOptions().get_run_config_entry("what"),
    "no options": lambda m, s: m.InferenceSession(MODEL, {"a": 1}),
    "no run options": lambda m, s: s.run(None, {"x": X}, {}),
    "no passes": lambda m, s: opened(
        m, MODEL, graph_optimization_level=m.GraphOptimizationLevel.ORT_DISABLE_ALL
    ).run(None, {"x": X}),
    "providers of options": lambda m, s: opened(m, MODEL, add_provider=("CPUExecutionProvider", {})).get_providers(),
    "has providers": lambda m, s: m.SessionOptions().has_providers(),
    # the module
    "functions": lambda m, s: (m.get_device(), m.has_collective_ops(), m.get_version_string(), m.cuda_version),
    "telemetry": lambda m, s: m.disable_telemetry_events(),
    "severity": lambda m, s: m.set_default_logger_severity(9),
    "callback": lambda m, s: m.set_default_logger_callback("what"),
    "last provider": lambda m, s: (m.get_all_providers()[-1], m.get_available_providers()[-1]),
}  # fmt: skip


def outcome(call: Call, module: Any) -> tuple[str, Any]:
    session = module.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return "answers", call(module, session)
    except Exception as error:
        return "raises", {kind.__name__ for kind in type(error).__mro__} - {"Exception", "BaseException", "object"}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and np.allclose(a, b, 1e-5, 1e-6))
    return bool(a == b)
