"""Bodies of the Open Inference Protocol, version 2: requests to arrays, arrays to responses; no I/O.

A body is JSON, or JSON (`Inference-Header-Content-Length` bytes of it) and the bytes of tensors behind one another.
https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol and the extension for binary tensors
of https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ...ops import DType, Tensor
from ...ops.dataclasses import dataclass
from ...ops.errors import InputError
from ...ops.types import Array
from ...runtime.compile.program import Port

NAMES: Final = {
    DType.BOOL: "BOOL",
    DType.STRING: "BYTES",
    DType.BFLOAT16: "BF16",
    DType.FLOAT16: "FP16",
    DType.FLOAT: "FP32",
    DType.DOUBLE: "FP64",
    DType.UINT8: "UINT8",
    DType.UINT16: "UINT16",
    DType.UINT32: "UINT32",
    DType.UINT64: "UINT64",
    DType.INT8: "INT8",
    DType.INT16: "INT16",
    DType.INT32: "INT32",
    DType.INT64: "INT64",
}
TYPES: Final = {name: dtype for dtype, name in NAMES.items()}
# Parameters of requests that would be ignored: they ask for what is not done here.
REFUSED: Final = ("sequence_id", "sequence_start", "sequence_end", "priority", "shared_memory_region", "classification")
MICROSECONDS: Final = 1e-6
RANK: Final = 32
compact: Final = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` makes one for each call
LARGEST: Final = 2**56  # elements of an array, were it not for axes of size 0, and microseconds of a timeout


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A request for inference: arrays by name, the outputs that are wanted and whether as bytes (None: all), its name,
    and the seconds that it may take (None: no limit of its own)."""

    feeds: dict[str, Array]
    wanted: dict[str, bool] | None
    binary: bool
    identity: str
    seconds: float | None

    def as_bytes(self, name: str) -> bool:
        return self.binary if self.wanted is None else self.wanted[name]


def read(body: bytes | bytearray, head: int | None, inputs: Sequence[Port], outputs: Sequence[Port]) -> Inquiry:
    """A request from its body; `head` is how many bytes of it are JSON (None: all).

    Raises InputError for what is malformed, for tensors that the model does not take, and for parameters that would be
    ignored. Sizes are compared with the bytes that are there before an array is made.
    """
    if head is not None and not 0 <= head <= len(body):
        raise _bad(f"Inference-Header-Content-Length is {head}, the body has {len(body)} bytes")
    try:
        request = json.loads(bytes(memoryview(body)[:head]))
    except (ValueError, RecursionError) as error:
        raise _bad(f"the body is no JSON: {error}") from error
    request = _mapping(request, "the body")
    parameters = _parameters(request, "the request")
    tail, at, feeds = memoryview(body)[len(body) if head is None else head :], 0, dict[str, Array]()
    known = {p.name: p for p in inputs}
    for entry in _list(request.get("inputs"), "inputs"):
        about = _mapping(entry, "an input")
        name = _name(about, "an input")
        if name not in known or name in feeds:
            what = "is given twice" if name in feeds else "is none that the model takes"
            raise _bad(f"input {name!r} {what}", f"it takes {', '.join(map(str, inputs))}")
        size = _parameters(about, f"input {name!r}").get("binary_data_size")
        part: memoryview | None = None
        if size is not None:
            if type(size) is not int or not 0 <= size <= len(tail) - at:
                raise _bad(f"input {name!r}: binary_data_size is {size!r}, {len(tail) - at} bytes are left")
            part, at = tail[at : at + size], at + size
        feeds[name] = _array(about, known[name], part)
    if at != len(tail):
        raise _bad(f"{len(tail) - at} bytes behind the last tensor belong to none")
    return Inquiry(
        feeds,
        _wanted(request.get("outputs"), {p.name for p in outputs}, _flag(parameters, "binary_data_output")),
        _flag(parameters, "binary_data_output"),
        str(request.get("id", "")),
        _seconds(parameters),
    )


def _array(about: Mapping[str, Any], port: Port, part: memoryview | None) -> Array:
    """One input, of the bytes or of the JSON that are given for it."""
    name, shape, kind = about["name"], about.get("shape"), TYPES.get(str(about.get("datatype")))
    where = f"input {name!r}"
    if not isinstance(shape, list) or len(shape) > RANK or any(type(n) is not int or n < 0 for n in shape):
        raise _bad(f"{where}: {shape!r} is no shape")
    if math.prod(n or 1 for n in shape) > LARGEST:
        raise _bad(f"{where}: shape {shape} is larger than any array")
    if not isinstance(port.type, Tensor) or kind is not port.type.dtype:
        raise _bad(f"{where} is {about.get('datatype')}, the model takes {port}")
    count = math.prod(shape)
    if part is not None:
        if "data" in about:
            raise _bad(f"{where} has both data and bytes")
        return _from_bytes(part, kind, shape, count, where)
    data = about.get("data")
    flat = [*_flat(data, where)] if isinstance(data, list) else None
    if flat is None or len(flat) != count:
        raise _bad(f"{where}: shape {shape} has {count} elements, data has {'none' if flat is None else len(flat)}")
    if isinstance(data, list) and any(isinstance(x, list) for x in data) and not _nested(data, shape):
        raise _bad(f"{where}: the lists of data are not nested as shape {shape} says", "nest them so, or not at all")
    return _from_json(flat, kind, where).reshape(shape)


def _from_bytes(part: memoryview, kind: DType, shape: list[int], count: int, where: str) -> Array:
    if kind is DType.STRING:
        return _texts(part, count, where).reshape(shape)
    if count * kind.itemsize != len(part):
        raise _bad(f"{where}: shape {shape} has {count * kind.itemsize} bytes, binary_data_size is {len(part)}")
    array = np.frombuffer(part, kind.numpy).reshape(shape)
    if kind is DType.BOOL and part.nbytes and array.view(np.uint8).max() > 1:
        raise _bad(f"{where}: bytes of BOOL are 0 or 1")
    return array if array.flags.aligned else array.copy()


def _texts(part: memoryview, count: int, where: str) -> Array:
    """Strings, each behind its length in 4 bytes, little end first."""
    if count * 4 > len(part):
        raise _bad(f"{where}: {count} texts do not fit into {len(part)} bytes")
    texts, at = np.empty(count, object), 0
    for i in range(count):
        end = at + 4 + (struct.unpack_from("<I", part, at)[0] if at + 4 <= len(part) else len(part))
        if end > len(part):
            raise _bad(f"{where}: text {i} reaches beyond its {len(part)} bytes")
        try:
            texts[i], at = str(part[at + 4 : end], "utf8"), end
        except UnicodeDecodeError as error:
            raise _bad(f"{where}: text {i} is no UTF-8") from error
    if at != len(part):
        raise _bad(f"{where}: {len(part) - at} bytes behind its last text")
    return texts


def _flat(data: list[Any], where: str, depth: int = 0) -> Iterator[Any]:
    if depth > RANK:
        raise _bad(f"{where}: data is nested more than {RANK} deep")
    for each in data:
        if isinstance(each, list):
            yield from _flat(each, where, depth + 1)
        else:
            yield each


def _nested(data: Any, shape: Sequence[int]) -> bool:
    if not shape:
        return not isinstance(data, list)
    return isinstance(data, list) and len(data) == shape[0] and all(_nested(x, shape[1:]) for x in data)


def _from_json(flat: list[Any], kind: DType, where: str) -> Array:
    """Elements that JSON gives; numbers that the type does not hold are refused."""
    if kind is DType.STRING:
        if not all(isinstance(x, str) for x in flat):
            raise _bad(f"{where}: elements of BYTES are texts")
        try:
            "".join(flat).encode()
        except UnicodeEncodeError as error:
            raise _bad(f"{where}: a text has half of a pair of surrogates") from error
        texts = np.empty(len(flat), object)
        texts[:] = flat
        return texts
    takes: tuple[type, ...] = (bool,) if kind is DType.BOOL else (int,) if kind.integer else (int, float)
    if not all(type(x) in takes for x in flat):
        raise _bad(f"{where}: elements of {NAMES[kind]} are {' or '.join(t.__name__ for t in takes)}")
    try:
        array = np.array(flat, np.float64 if kind.floating else kind.numpy)
    except OverflowError as error:
        raise _bad(f"{where}: {error}") from error
    with np.errstate(over="ignore"):  # an infinity, as for any float that is too large
        return array.astype(kind.numpy, copy=False)


def _wanted(entries: Any, known: set[str], binary: bool) -> dict[str, bool] | None:
    if entries is None or entries == []:
        return None
    wanted = dict[str, bool]()
    for entry in _list(entries, "outputs"):
        about = _mapping(entry, "an output")
        name = _name(about, "an output")
        if name not in known:
            raise _bad(f"there is no output {name!r}", f"there are {', '.join(sorted(known))}")
        parameters = _parameters(about, f"output {name!r}")
        wanted[name] = _flag(parameters, "binary_data", binary)
    return wanted


def _seconds(parameters: Mapping[str, Any]) -> float | None:
    """`timeout`, in microseconds."""
    timeout = parameters.get("timeout")
    if timeout is None or timeout == 0:
        return None
    if type(timeout) is not int or not 0 < timeout <= LARGEST:
        raise _bad(f"the timeout {timeout!r} is no number of microseconds")
    return timeout * MICROSECONDS


def written(asked: Inquiry, results: Mapping[str, Any], model: str, version: str) -> tuple[list[bytes], int | None]:
    """A response: its parts, and how many bytes of it are JSON where bytes of tensors follow."""
    entries, parts = [], [b""]
    for name, value in results.items():
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        kind = DType.of(array.dtype)
        entry: dict[str, Any] = {"name": name, "datatype": NAMES[kind], "shape": [*array.shape]}
        if asked.as_bytes(name):
            parts.append(_bytes_of(array, kind))
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            wide = array.astype(np.float32) if kind in (DType.BFLOAT16, DType.FLOAT16) else array
            entry["data"] = wide.ravel().tolist()
        entries.append(entry)
    about = {"model_name": model, "model_version": version, "outputs": entries}
    if asked.identity:
        about["id"] = asked.identity
    parts[0] = compact(about).encode()
    return parts, len(parts[0]) if len(parts) > 1 else None


def _bytes_of(array: Array, kind: DType) -> bytes:
    if kind is not DType.STRING:
        raw: bytes = array.tobytes()
        return raw
    texts = [str(x).encode() for x in array.ravel()]
    return b"".join(part for text in texts for part in (struct.pack("<I", len(text)), text))


def tensors(ports: Sequence[Port]) -> list[dict[str, Any]]:
    """Inputs or outputs as metadata of a model tells them: dims that are open are -1."""
    metadata = []
    for port in ports:
        if not isinstance(port.type, Tensor) or port.type.dtype not in NAMES:
            raise InputError(
                f"{port} cannot be sent over HTTP", hint="models with such inputs or outputs run in Python"
            )
        dims = [d if isinstance(d, int) else -1 for d in port.type.dims or ()]
        metadata.append({"name": port.name, "datatype": NAMES[port.type.dtype], "shape": dims})
    return metadata


def _flag(parameters: Mapping[str, Any], name: str, usual: bool = False) -> bool:
    value = parameters.get(name, usual)
    if not isinstance(value, bool):
        raise _bad(f"{name} is {value!r}, not true or false")
    return value


def _parameters(of: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    parameters = _mapping(of.get("parameters", {}), f"parameters of {where}")
    for name in REFUSED:
        if parameters.get(name):
            raise _bad(f"{where}: {name} would be ignored", "leave it out")
    return parameters


def _name(about: Mapping[str, Any], what: str) -> str:
    name = about.get("name")
    if not isinstance(name, str):
        raise _bad(f"the name of {what} is {name!r}, no text")
    return name


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _bad(f"{what} is no JSON object")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _bad(f"{what} is no list")
    return value


def _bad(message: str, hint: str = "") -> InputError:
    return InputError(message, where="request", hint=hint)
