"""Models to test with: real ones inside installed packages (located, never imported), and small ones made here.

The nine `light/` models in the onnx wheel have no input files. Their expected outputs (`*_output_0.pb`) belong to the
input that onnx.backend.test makes up for them (`Runner.generate_dummy_data` in onnx/backend/test/runner): for each
input that is not an initialiser, `arange(n) / n` in the input's shape, as float32.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

from .peers import peer

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Real:
    """A model inside a package. `sizes` gives its symbolic dims a size for which it works."""

    package: str
    version: str
    file: str
    sizes: tuple[tuple[str, int], ...] = ()
    light: bool = False

    @property
    def name(self) -> str:
        return Path(self.file).stem

    def path(self) -> Path:
        """Where the file lies; skips the test where the package is absent."""
        found = importlib.util.find_spec(self.package)
        if found is None or not found.submodule_search_locations:
            pytest.skip(f"the package {self.package} is not installed (tests/model-packages.txt)")
        path = Path(next(iter(found.submodule_search_locations))) / self.file
        if not path.exists():
            installed = importlib.metadata.version(self.package.replace("_", "-"))
            pytest.skip(f"{self.package} {installed} has no {self.file}; version {self.version} has it")
        return path

    def feeds(self, seed: int = 0) -> dict[str, Array]:
        """Inputs for which the model computes something: those of the official suite for `light`, else random."""
        model = onnx.load(str(self.path()), load_external_data=False)
        known = {t.name for t in model.graph.initializer}
        rng, sizes = np.random.default_rng(seed), dict(self.sizes)
        return {i.name: self._feed(i, sizes, rng) for i in model.graph.input if i.name not in known}

    def _feed(self, info: onnx.ValueInfoProto, sizes: dict[str, int], rng: np.random.Generator) -> Array:
        kind = info.type.tensor_type
        dims = [self._size(info.name, n, d, sizes) for n, d in enumerate(kind.shape.dim)]
        if self.light:
            count = int(np.prod(dims))
            return (np.arange(count).reshape(dims) / count).astype(np.float32)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if info.name == "sr":
            return np.array(16000, dtype)
        if dtype.kind in "iu":
            return rng.integers(0, 256, dims).astype(dtype)
        return rng.standard_normal(dims).astype(dtype)

    @staticmethod
    def _size(name: str, index: int, dim: Any, sizes: dict[str, int]) -> int:
        size = int(dim.dim_value) if dim.dim_value > 0 else 1
        return sizes.get(f"{name}.{index}", size)

    def expected(self) -> list[Array]:
        """The stored outputs of a `light` model."""
        path = self.path()
        tensor = onnx.load_tensor(str(path.with_name(f"{path.stem}_output_0.pb")))
        return [onnx.numpy_helper.to_array(tensor)]


def _light(name: str) -> Real:
    return Real("onnx", "1.23.2", f"backend/test/data/light/light_{name}.onnx", light=True)


def _speech(name: str, *sizes: tuple[str, int]) -> Real:
    return Real("silero_vad", "6.2.3", f"data/{name}.onnx", (("input.1", 576), ("state.1", 1), *sizes))


def _text(name: str, *sizes: tuple[str, int]) -> Real:
    return Real("rapidocr_onnxruntime", "1.4.4", f"models/{name}.onnx", sizes)


LIGHT = [
    _light(name)
    for name in (
        "bvlc_alexnet",
        "densenet121",
        "inception_v1",
        "inception_v2",
        "resnet50",
        "shufflenet",
        "squeezenet",
        "vgg19",
        "zfnet512",
    )
]
OTHERS = [
    _text("ch_PP-OCRv4_det_infer", ("x.2", 64), ("x.3", 96)),
    _text("ch_PP-OCRv4_rec_infer", ("x.2", 48), ("x.3", 96)),
    _text("ch_ppocr_mobile_v2.0_cls_infer", ("x.2", 48), ("x.3", 192)),
    _speech("silero_vad"),
    _speech("silero_vad_16k_op15"),
    _speech("silero_vad_16k_sequence"),
    _speech("silero_vad_half"),
    _speech("silero_vad_op18_ifless"),
    _speech("silero_vad_openvino_16k"),
    Real("magika", "1.0.3", "models/standard_v3_3/model.onnx"),
    Real("nudenet", "3.4.2", "320n.onnx", (("images.2", 320), ("images.3", 320))),
]
REAL = [*LIGHT, *OTHERS]
real_models = pytest.mark.parametrize("real", REAL, ids=lambda r: r.name)


def referee() -> Any:
    """ONNX Runtime; skips the test where it is absent."""
    return peer("onnxruntime")


def ort_run(model: bytes | str | Path | onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """What ONNX Runtime answers on one thread, by output name."""
    ort = referee()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    given = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    session = ort.InferenceSession(
        given if isinstance(given, bytes) else str(given), options, providers=["CPUExecutionProvider"]
    )
    wanted = {i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())}
    answers = session.run(None, {n: a for n, a in feeds.items() if n in wanted})
    return dict(zip([o.name for o in session.get_outputs()], answers, strict=True))


# Small models made here

FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL


def value(name: str, *dims: int | str | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    """A declared value."""
    return onnx.helper.make_tensor_value_info(name, kind, list(dims))


def node(op: str, inputs: str, outputs: str, /, name: str = "", domain: str = "", **attrs: Any) -> onnx.NodeProto:
    """A node from names separated by blanks; `-` stands for an absent one."""
    ins, outs = ([n.replace("-", "") if n == "-" else n for n in text.split()] for text in (inputs, outputs))
    return onnx.helper.make_node(op, ins, outs, name=name, domain=domain, **attrs)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    *,
    opset: int = 17,
    ir: int = 8,
    initializers: dict[str, Array] | None = None,
    domains: dict[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model of these parts."""
    tensors = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in (initializers or {}).items()]
    graph = onnx.helper.make_graph(list(nodes), "made", list(inputs), list(outputs), tensors)
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in {"": opset, **(domains or {})}.items()]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=ir, functions=list(functions))


def subgraph(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    """A body."""
    return onnx.helper.make_graph(list(nodes), "body", list(inputs), list(outputs))
