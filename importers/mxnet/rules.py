"""Rules that write an operator of MXNet as operators of ONNX, and how their attributes are read.

The signature of a rule is the operator's schema: positional parameters are its inputs (optional ones have None as
default, `*rest` stands for any number), keyword-only ones its attributes with MXNet's defaults.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops.dataclasses import dataclass
from ...ops.errors import ModelError, UnsupportedModel
from ...ops.op import NO_ATTRIBUTES

if TYPE_CHECKING:
    from .converter import Converter

RULES: dict[str, Rule] = {}
REQUIRED = inspect.Parameter.empty
# How a library computes, and where: of no meaning here.
WITHOUT_MEANING = {
    "workspace", "cudnn_tune", "cudnn_off", "ctx", "name", "num_args", "sparse_grad", "forward_stype", "is_int",
    "min_calib_range", "max_calib_range", "num_weights", "__profiler_scope__",
}  # fmt: skip
LONGEST = 1 << 16  # letters of an attribute
WORDS: dict[str, Any] = {
    "True": True, "true": True, "False": False, "false": False, "None": None, "inf": float("inf"),
    "-inf": float("-inf"), "nan": float("nan"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A way to write an operator of MXNet: `write(converter, *inputs, **attributes)` returns the name of its result,
    or a tuple of names."""

    name: str
    write: Callable[..., Any]
    inputs: tuple[str, ...]
    needed: int
    variadic: bool
    attrs: Mapping[str, Any]  # defaults; REQUIRED where the file has to tell
    keeps_axes: bool = False
    fills: bool = False  # takes operands of which MXNet infers the sizes

    def __call__(self, c: Converter, inputs: list[str], attrs: Mapping[str, str]) -> Any:
        """Write one use. Raises ModelError for inputs or attributes that the operator does not have."""
        if not self.variadic and len(inputs) > len(self.inputs):
            raise ModelError(f"it has {len(inputs)} inputs, and takes at most {len(self.inputs)}")
        if len(inputs) < self.needed:
            raise ModelError(f"it lacks its input {self.inputs[len(inputs)]!r}")
        return self.write(c, *inputs, **self.bind(attrs))

    def bind(self, attrs: Mapping[str, str]) -> dict[str, Any]:
        """Attributes by name, each of the kind that its default has."""
        values = {}
        for key, text in attrs.items():
            if key in self.attrs:
                values[key] = _like(literal(text), self.attrs[key], key)
            elif key not in WITHOUT_MEANING and not key.startswith("__"):
                raise UnsupportedModel(f"its attribute {key}={text!r} is not known")
        missing = [k for k, default in self.attrs.items() if default is REQUIRED and k not in values]
        if missing:
            raise ModelError(f"it lacks its attribute {missing[0]!r}")
        return values

    def arranged(
        self, operands: Sequence[Any], settings: Mapping[str, Any], operand: Callable[[Any], Any]
    ) -> tuple[list[Any], dict[str, str]]:
        """A call as MXNet's functions take it: operands in their order or by name, then attributes in theirs or by
        name. Returns the operands, None for those left out, and the attributes as the texts that files have.

        `operand` converts what can be one, and answers None for the rest. Raises ModelError for what has no place.
        """
        given = {k: v for k, v in settings.items() if k not in WITHOUT_MEANING}
        free = [a for a in self.attrs if a not in given]
        inputs: list[Any] = []
        for x in operands:
            taken = operand(x)
            if taken is not None or (x is None and len(inputs) < len(self.inputs)):
                inputs.append(taken)
            elif not free:
                raise ModelError(f"{self.name} does not take {type(x).__name__} {x!r}")
            else:
                given[free.pop(0)] = x
        for at, name in enumerate(self.inputs):
            if name in given:
                value = given.pop(name)
                if at < len(inputs) and inputs[at] is not None:
                    raise ModelError(f"{self.name} is given {name} twice")
                inputs += [None] * (at + 1 - len(inputs))
                inputs[at] = None if value is None else operand(value)
        return inputs, {k: text(v) for k, v in given.items()}


def rule(
    *names: str,
    keeps_axes: bool = False,
    fills: bool = False,
    attributes: Mapping[str, Any] = NO_ATTRIBUTES,
    **fixed: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the rule of operators; `attributes` are more of them with their defaults, which several
    rules share and take by `**`, `fixed` are keyword arguments that the file does not give, and `keeps_axes` says that
    the result has the axes of the first operand, `fills` that operands may be fills with open sizes."""

    def register(write: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(write).parameters.values())[1:]
        inputs = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        attrs = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in fixed}
        attrs.update(attributes)
        needed = sum(p.default is p.empty for p in inputs)
        variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)

        def written(c: Converter, /, *values: Any, **given: Any) -> Any:
            return write(c, *values, **fixed, **given)

        for name in names:
            RULES[name] = Rule(name, written, tuple(p.name for p in inputs), needed, variadic, attrs, keeps_axes, fills)
        return write

    return register


def text(value: Any) -> str:
    """The text that a file has for an attribute.

    >>> text((2, 2)), text(np.float32), text(True), text("relu")
    ('(2, 2)', 'float32', 'True', 'relu')
    """
    if isinstance(value, type | np.dtype):
        return np.dtype(value).name
    if isinstance(value, np.generic):
        return str(value.item())
    if isinstance(value, list | tuple | np.ndarray):
        return f"({', '.join(map(text, value))}{',' * (len(value) == 1)})"
    return str(value)


def literal(text: str) -> Any:
    """The value that an attribute's text stands for: a number, a truth, None, a tuple of such, or the text itself.

    >>> literal("(2, 2)"), literal("[1,None]"), literal("False"), literal("3L"), literal("relu")
    ((2, 2), (1, None), False, 3, 'relu')
    """
    if len(text) > LONGEST:
        raise ModelError(f"an attribute has {len(text)} letters")
    word = text.strip()
    if word in WORDS:
        return WORDS[word]
    plain = word
    for end in ("L,", "L)", "L]"):  # long integers of Python 2
        plain = plain.replace(end, end[1:])
    if plain.endswith("L") and plain[:-1].lstrip("-").isdigit():
        plain = plain[:-1]
    try:
        return _frozen(ast.literal_eval(plain))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return word


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    raise ValueError(value)


def _like(value: Any, default: Any, key: str) -> Any:
    """The value as the kind that its default has: `kernel="3"` is (3,), `no_bias="1"` is True."""
    if isinstance(default, bool):
        if isinstance(value, bool | int | float):
            return bool(value)
    elif isinstance(default, tuple):
        if isinstance(value, int | float):
            return (value,)
        if value is None:
            return default
        if isinstance(value, tuple):
            return value
    elif isinstance(default, int):
        if isinstance(value, int | float) and value == int(value):
            return int(value)
        if value is None:
            return value
    elif isinstance(default, float):
        if isinstance(value, int | float):
            return float(value)
        if value is None:
            return value
    else:
        return value
    raise ModelError(f"its attribute {key} is {value!r}")
