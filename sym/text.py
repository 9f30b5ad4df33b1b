"""Symbols as JSON, in the outline of MXNet's files: nodes with operators, attributes and inputs, and the heads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..ops import OPS, DType
from ..ops.errors import InputError, ModelError
from . import rules
from .expression import Body, Constant, Entry, Maker, Use, Variable, inside, makers
from .symbol import Symbol

FORMAT = "mezzo.symbol"
VERSION = 1


def written(symbol: Symbol) -> str:
    """Return a symbol as JSON; see `Symbol.tojson`."""
    order = _all(symbol.entries)
    numbers = {m: i for i, m in enumerate(order)}

    def entry(e: Entry | None) -> list[int] | None:
        return None if e is None else [numbers[e[0]], e[1]]

    def value(v: Any) -> Any:
        if isinstance(v, Body):
            return {"body": [numbers[i] for i in v.inputs], "heads": [entry(e) for e in v.outputs]}
        if isinstance(v, np.ndarray):
            return _array(v)
        return list(v) if isinstance(v, tuple) else v

    nodes: list[dict[str, Any]] = []
    for m in order:
        if isinstance(m, Variable):
            dims = None if m.dims is None else [d or 0 for d in m.dims]
            attrs: dict[str, Any] = {
                "shape": dims,
                "dtype": m.dtype.name,
                "auxiliary": m.auxiliary,
                "init": m.init,
                "fixed": m.fixed,
            }
            attrs |= {"attrs": dict(m.attrs)} if m.attrs else {}
            attrs |= {"group": m.group} if m.group else {}
            nodes.append({"op": "null", "name": m.name, "attrs": attrs, "inputs": []})
        elif isinstance(m, Constant):
            nodes.append({"op": "constant", "name": "", "attrs": {**_array(m.value), "weak": m.weak}, "inputs": []})
        else:
            nodes.append({"op": m.op, "domain": m.domain, "name": m.name, "outputs": m.outputs, "loss": entry(m.loss),
                          "attrs": {a: value(v) for a, v in m.attrs.items()},
                          "inputs": [entry(e) for e in m.inputs],
                          **({"group": m.group} if m.group else {})})  # fmt: skip
    arguments = [i for m, i in numbers.items() if isinstance(m, Variable)]
    whole = {"format": FORMAT, "version": VERSION, "nodes": nodes, "arg_nodes": arguments,
             "heads": [entry(e) for e in symbol.entries]}  # fmt: skip
    return json.dumps(whole, indent=1) + "\n"


def _all(entries: Sequence[Entry]) -> list[Maker]:
    """Return all nodes, those of bodies too, operands first."""
    listed: dict[Maker, None] = {}

    def add(several: Sequence[Entry]) -> None:
        for maker in makers(several):
            for v in maker.attrs.values() if isinstance(maker, Use) else ():
                if isinstance(v, Body):
                    listed.update(dict.fromkeys(v.inputs))
                    add(v.outputs)
                    listed.update(dict.fromkeys(inside(v)))
            listed[maker] = None

    add(entries)
    return list(listed)


def _array(value: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"dtype": DType.of(value.dtype).name, "shape": list(value.shape), "data": value.reshape(-1).tolist()}


AGAIN = "the file is damaged, or of another version: save the symbol again"


def load_json(text: str) -> Symbol:
    """The symbol that `Symbol.tojson` has written, or that MXNet's JSON holds. Raises ModelError, with what is wrong,
    for anything else."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"this is no JSON: {error}", where="load_json", hint=AGAIN) from error
    if isinstance(whole, dict) and "format" not in whole and "nodes" in whole and "heads" in whole:
        from .mxnet import from_json  # with the first of MXNet's files

        return from_json(text)
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise ModelError("this is no symbol of Mezzo", where="load_json", hint="models are read by mz.load")
    if whole.get("version") != VERSION:
        raise ModelError(f"version {whole.get('version')}, this build reads {VERSION}", where="load_json", hint=AGAIN)
    try:
        return _read(whole)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, InputError) as error:
        raise ModelError(
            f"the file contradicts itself: {type(error).__name__}: {error}", where="load_json", hint=AGAIN
        ) from error


def load(path: str | os.PathLike[str]) -> Symbol:
    """Read a file that `Symbol.save` has written, or one of MXNet's. Raises ModelError where it cannot be read."""
    try:
        text = Path(path).read_text("utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(str(error), where=str(path), hint="is this the path of a symbol, and is it whole?") from error
    try:
        return load_json(text)
    except ModelError as error:
        error.where = str(path)
        raise


def _read(whole: Mapping[str, Any]) -> Symbol:
    done: list[Maker] = []

    def entry(pair: Any) -> Entry:
        number, index = pair
        if not (isinstance(number, int) and isinstance(index, int) and 0 <= number < len(done)):
            raise ValueError(f"input {pair} of node {len(done)}")
        maker = done[number]
        if not 0 <= index < (maker.outputs if isinstance(maker, Use) else 1):
            raise ValueError(f"node {number} has no output {index}")
        return maker, index

    def value(v: Any) -> Any:
        if isinstance(v, dict) and "body" in v:
            inputs = tuple(done[i] for i in v["body"] if i >= 0)
            if not all(isinstance(i, Variable) for i in inputs):
                raise ValueError("a body takes variables")
            return Body(inputs, tuple(map(entry, v["heads"])))
        if isinstance(v, dict):
            return _numbers(v)
        return tuple(v) if isinstance(v, list) else v

    for node in whole["nodes"]:
        attrs = node["attrs"]
        if node["op"] == "null":
            dims = None if attrs["shape"] is None else tuple(int(d) or None for d in attrs["shape"])
            auxiliary, init, fixed = bool(attrs["auxiliary"]), str(attrs["init"]), bool(attrs["fixed"])
            more = {str(k): str(v) for k, v in attrs.get("attrs", {}).items()}
            group, kind = str(attrs.get("group", "")), DType[attrs["dtype"]]
            done.append(Variable(str(node["name"]), dims, kind, auxiliary, init, "", fixed, more, group))
        elif node["op"] == "constant":
            done.append(Constant(_numbers(attrs), bool(attrs["weak"])))
        else:
            ours = (node["domain"], node["op"]) in OPS
            if not ours and not (node["domain"] == rules.DOMAIN and rules.carried(node["op"])):
                raise ValueError(f"there is no operator {node['domain'] or 'ai.onnx'}::{node['op']}")
            inputs = tuple(None if e is None else entry(e) for e in node["inputs"])
            values = {str(a): value(v) for a, v in attrs.items()}
            loss = None if node["loss"] is None else entry(node["loss"])
            outputs = int(node["outputs"])
            about = node["domain"], outputs, "", loss, str(node.get("group", ""))
            done.append(Use(node["op"], str(node["name"]), inputs, values, *about))
    return Symbol([entry(e) for e in whole["heads"]])


def _numbers(stored: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    shape = tuple(int(d) for d in stored["shape"])
    return np.array(stored["data"], DType[stored["dtype"]].numpy).reshape(shape)
