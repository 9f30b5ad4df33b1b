"""The official suite there and back: import, export at an opset, import again, run.

`python -m tests.round_trip` prints, for each target, how many cases pass and which are refused, with the reason.

Whether a refusal is right is not asked of the exporter: `objections` holds each node, as it stands in the file, against
the schema that onnx has for the target's opset.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.defs
import onnx.shape_inference

from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx
from mezzo.ops.errors import UnsupportedModel
from mezzo.tools.backend import Backend

from .official import CANNOT_PASS, Suite, cases_of, in_fifth

# Cases whose nodes an older schema would take as they stand, and where they would mean something else.
IMAGES = "GridSample of opset 16 samples images, of rank 4, as its text says; its types do not"
MEANT_OTHERWISE = {
    f"test_gridsample_volumetric_{mode}_align_corners_{aligned}": IMAGES
    for mode in ("bilinear", "nearest")
    for aligned in (0, 1)
}


class Refused(Exception):
    """The exporter says that the opset cannot express the model."""

    def __init__(self, error: UnsupportedModel) -> None:
        super().__init__("; ".join(dict.fromkeys(p.message for p in error.parts)) or error.message)


def there_and_back(opset: int | None) -> Any:
    """Our backend; each model leaves as ONNX and comes in again before it is prepared."""

    class RoundTrip(Backend):
        objections: tuple[str, ...] = ()  # what onnx's own schemas have against the latest model

        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> Any:
            cls.objections = () if opset is None else objections(model, opset)
            graph = load_onnx(model)
            try:
                made = to_onnx(graph, opset=opset)
            except UnsupportedModel as error:
                raise Refused(error) from error
            found = {o.domain: o.version for o in made.opset_import}
            assert found[""] == opset or opset is None
            return super().prepare(made.SerializeToString(), device, onednn=False)

    return RoundTrip


@dataclass(frozen=True)
class Outcome:
    """What became of one case: it passed, or was refused, or failed."""

    name: str
    how: str
    why: str = ""
    objections: tuple[str, ...] = ()

    @property
    def fine(self) -> bool:
        """Whether it passed, cannot pass whatever we do, or may be refused."""
        if self.how == "refused":
            return bool(self.objections) or self.name in MEANT_OTHERWISE
        return self.how == "passed" or self.name in CANNOT_PASS


def outcomes(opset: int | None, chosen: Callable[[str], bool] = lambda name: True) -> Iterator[Outcome]:
    """What becomes of each chosen case on its way through one opset (None: the lowest that expresses it)."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        former = os.environ.get("ONNX_MODELS")
        os.environ["ONNX_MODELS"] = folder  # the runner lays files of its models down there
        try:
            backend = there_and_back(opset)
            for name, case in cases_of(Suite(backend, __name__)):
                if chosen(name):
                    how, why = attempt(case)
                    yield Outcome(name, how, why, backend.objections)
        finally:
            os.environ.pop("ONNX_MODELS") if former is None else os.environ.update(ONNX_MODELS=former)


def attempt(case: Callable[[], None]) -> tuple[str, str]:
    """Run one case: how it went, and why so."""
    try:
        case()
    except Refused as error:
        return "refused", str(error)
    except Exception as error:  # whatever else it raises, it fails, and is told
        return "failed", f"{type(error).__name__}: {error}"[:500]
    return "passed", ""


# What onnx's schemas say


def objections(model: onnx.ModelProto, opset: int) -> tuple[str, ...]:
    """What the schemas of an opset do not allow of a model as it stands: operators, attributes, types and arity."""
    types: dict[str, str] = {}
    try:
        typed = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError:  # what it cannot infer is not held against the model
        typed = model
    return tuple(dict.fromkeys(_objections(typed.graph, opset, types)))


def _objections(graph: onnx.GraphProto, opset: int, types: dict[str, str]) -> Iterator[str]:
    for info in (*graph.input, *graph.value_info, *graph.output):
        types[info.name] = _word(info.type)
    for tensor in graph.initializer:
        types[tensor.name] = f"tensor({_element(tensor.data_type)})"
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _objections(attribute.g, opset, types)
        if node.domain in ("", "ai.onnx"):
            yield from _against(node, opset, types)


def _against(node: onnx.NodeProto, opset: int, types: Mapping[str, str]) -> Iterator[str]:
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        yield f"opset {opset} has no {node.op_type}"
        return
    if schema.deprecated:
        yield f"opset {opset} has no {node.op_type}"
    given = {a.name for a in node.attribute}
    yield from (f"{node.op_type} of opset {opset} has no attribute {a}" for a in sorted(given - set(schema.attributes)))
    yield from (f"{node.op_type} of opset {opset} needs the attribute {a}" for a, d in schema.attributes.items()
                if d.required and a not in given)  # fmt: skip
    for kind, names, formal, least, most in (
        ("inputs", node.input, schema.inputs, schema.min_input, schema.max_input),
        ("outputs", node.output, schema.outputs, schema.min_output, schema.max_output),
    ):
        if not least <= len(names) <= most or (kind == "inputs" and not all(names[:least])):
            yield f"{node.op_type} of opset {opset} has {least} to {most} {kind}"
            continue
        for i, name in enumerate(names):
            word, param = types.get(name, ""), formal[min(i, len(formal) - 1)]
            if word and word not in param.types:
                yield f"{node.op_type} of opset {opset} does not take {word} for {param.name}"


def _element(number: int) -> str:
    return str(onnx.TensorProto.DataType.Name(number)).lower()


def _word(kind: onnx.TypeProto) -> str:
    """A type as schemas spell it; empty if it is not known."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            return f"tensor({_element(kind.tensor_type.elem_type)})" if kind.tensor_type.elem_type else ""
        case "sequence_type":
            inner = _word(kind.sequence_type.elem_type)
            return inner and f"seq({inner})"
        case "optional_type":
            inner = _word(kind.optional_type.elem_type)
            return inner and f"optional({inner})"
        case _:
            return ""


def counts(found: Sequence[Outcome]) -> str:
    """In one line: how many passed, and how many of those that the schemas allow as they stand."""
    allowed = [o for o in found if not o.objections]
    hows = ", ".join(f"{n} {how}" for how, n in sorted(Counter(o.how for o in found).items()))
    passed = sum(o.how == "passed" for o in allowed)
    return f"{len(found)} cases: {hows}; {len(allowed)} are allowed as they stand, of which {passed} pass"


def table(found: Sequence[Outcome]) -> str:
    """Counts, and what did not pass by name."""
    lines = [counts(found)]
    for title, some in (
        ("refused by the schemas", [o for o in found if o.how == "refused" and o.objections]),
        ("refused, since it would mean something else",
         [o for o in found if o.how == "refused" and not o.objections and o.fine]),
        ("refused without need", [o for o in found if o.how == "refused" and not o.fine]),
        ("cannot pass, exported or not", [o for o in found if o.how == "failed" and o.fine]),
        ("failed", [o for o in found if o.how == "failed" and not o.fine]),
    ):  # fmt: skip
        if some:
            lines.append(f"{title}: {len(some)}")
            lines += [f"  {o.name}: {_reason(o)}" for o in some]
    return "\n".join(lines)


def _reason(o: Outcome) -> str:
    known = MEANT_OTHERWISE if o.how == "refused" else CANNOT_PASS
    return known.get(o.name) or (o.objections or (o.why,))[0]


def main(arguments: list[str]) -> int:
    """Print the tables; the exit code is 1 if anything failed or was refused without need."""
    parser = argparse.ArgumentParser(prog="python -m tests.round_trip", description=__doc__.splitlines()[0])
    parser.add_argument("--opset", type=int, action="append", help="A target (default: the lowest, 17 and 13).")
    parser.add_argument("--fifth", action="store_true", help="Only the fixed fifth of the cases.")
    options = parser.parse_args(arguments)
    bad = 0
    for opset in options.opset or (None, 17, 13):
        found = list(outcomes(opset, in_fifth if options.fifth else lambda name: True))
        print(f"== {'the lowest opset' if opset is None else f'opset {opset}'}: {table(found)}", flush=True)
        bad += sum(not o.fine for o in found)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
