"""Opsets at which a node has to be rewritten: attributes that became inputs, defaults that changed, new names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..types import DType
from .form import Change, Form, Scope, UpgradeDeclined, rank_of, unchanged

RULES: dict[tuple[str, str, int], Change] = {}


def rule(ops: str, opset: int, change: Change) -> None:
    """Enter one change for operators of the default domain."""
    RULES.update({("", op, opset): change for op in ops.split()})


def stem(form: Form, part: str) -> str:
    """The name of an initialiser made for a node: that of its first used output and the operand."""
    return f"{next(filter(None, form.outputs), form.op)}.{part}"


# Attributes that became inputs


def attribute_to_input(attr: str, index: int, dtype: type[Any], *, scalar: bool = False, default: Any = None) -> Change:
    """The attribute became the input at `index`. `scalar`: as a tensor without dims. `default` is written where
    the attribute was left out; None leaves the input out as well."""

    def up(form: Form, scope: Scope) -> Form:
        value = form.attrs.get(attr, default)
        name = "" if value is None else scope.const(stem(form, attr), np.asarray(value, dtype))
        padded = [form.input(i) for i in range(max(index, len(form.inputs)))]
        return form.without(attr).with_inputs(*padded[:index], name, *padded[index:])

    def down(form: Form, scope: Scope) -> Form:
        name = form.input(index)
        shorter = form.with_inputs(*form.inputs[:index], *form.inputs[index + 1 :])
        if not name:
            return shorter
        value = scope.take(name)
        if not scalar:
            return shorter.having(**{attr: tuple(value.ravel().tolist())})
        if value.size != 1:
            raise UpgradeDeclined(f"its {attr} has {value.size} elements")
        return shorter.having(**{attr: value.ravel().tolist()[0]})

    return Change(up, down)


def never(reason: str) -> Callable[[Form, Scope], Form]:
    """A change that is not crossed in one direction."""

    def decline(form: Form, scope: Scope) -> Form:
        raise UpgradeDeclined(reason)

    return decline


def without(attr: str, default: Any, change: Change) -> Change:
    """`change`, where the newer operator has one more attribute that the older lacks: it must be at its default."""

    def down(form: Form, scope: Scope) -> Form:
        if form.attrs.get(attr, default) != default:
            raise UpgradeDeclined(f"{attr}={form.attrs[attr]} came with this opset")
        return change.down(form.without(attr), scope)

    return Change(change.up, down)


AXES = attribute_to_input("axes", 1, np.int64)


def _reduce_down(form: Form, scope: Scope) -> Form:
    axes = scope.value(form.input(1))
    if form.attrs.get("noop_with_empty_axes", 0) and (axes is None or not axes.size):
        raise UpgradeDeclined("before this opset, no axes always meant all axes")
    return AXES.down(form.without("noop_with_empty_axes"), scope)


REDUCE = Change(AXES.up, _reduce_down)
rule("Squeeze Unsqueeze", 13, AXES)
rule("ReduceSum", 13, REDUCE)
rule("ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2", 18, REDUCE)
rule("ReduceLogSum ReduceLogSumExp ReduceSumSquare", 18, REDUCE)
rule("Split", 13, attribute_to_input("split", 1, np.int64))
rule("Reshape", 5, attribute_to_input("shape", 1, np.int64))
rule("Upsample", 9, attribute_to_input("scales", 1, np.float32))


def _top_k_up(form: Form, scope: Scope) -> Form:
    count = scope.const(stem(form, "k"), np.array([form.attrs["k"]], np.int64))
    return form.without("k").with_inputs(form.input(0), count)


rule("TopK", 10, Change(_top_k_up, attribute_to_input("k", 1, np.int64, scalar=True).down))


def _dtype_of(name: str, scope: Scope) -> Any:
    known = scope.type(name)
    return np.float32 if known is None else known.dtype.numpy


def _typed_scalars(*attrs: str) -> Change:
    """Float attributes that became optional scalar inputs of the element type of the first input."""
    parts = [attribute_to_input(a, i + 1, np.float32, scalar=True) for i, a in enumerate(attrs)]

    def up(form: Form, scope: Scope) -> Form:
        kind = _dtype_of(form.input(0), scope)
        scalars = [
            scope.const(stem(form, a), np.asarray(form.attrs[a], kind)) if a in form.attrs else "" for a in attrs
        ]
        return form.without(*attrs).with_inputs(form.input(0), *scalars)

    def down(form: Form, scope: Scope) -> Form:
        for part in reversed(parts):
            form = part.down(form, scope)
        return form

    return Change(up, down)


rule("Clip", 11, _typed_scalars("min", "max"))
rule("Dropout", 12, without("seed", None, attribute_to_input("ratio", 1, np.float32, scalar=True)))


def _slice_down(form: Form, scope: Scope) -> Form:
    steps = form.input(4)
    if steps and (np.asarray(scope.take(steps)) != 1).any():
        raise UpgradeDeclined("steps other than 1 came with this opset")
    for index, attr in ((3, "axes"), (2, "ends"), (1, "starts")):
        form = attribute_to_input(attr, index, np.int64).down(form.with_inputs(*form.inputs[:4]), scope)
    return form


def _slice_up(form: Form, scope: Scope) -> Form:
    for index, attr in ((1, "starts"), (2, "ends"), (3, "axes")):
        form = attribute_to_input(attr, index, np.int64).up(form, scope)
    return form


rule("Slice", 10, Change(_slice_up, _slice_down))


def _pad_up(form: Form, scope: Scope) -> Form:
    pads = scope.const(stem(form, "pads"), np.asarray(form.attrs["pads"], np.int64))
    value = ""
    if "value" in form.attrs:
        value = scope.const(stem(form, "value"), np.asarray(form.attrs["value"], _dtype_of(form.input(0), scope)))
    return form.without("pads", "value").with_inputs(form.input(0), pads, value)


def _pad_down(form: Form, scope: Scope) -> Form:
    form = attribute_to_input("value", 2, np.float32, scalar=True).down(form, scope)
    return attribute_to_input("pads", 1, np.int64).down(form, scope)


def _pad_all_axes(form: Form, scope: Scope) -> Form:
    """Pads for some axes as pads for all."""
    rank = rank_of(form.input(0), scope)
    if not form.input(3):
        return form
    if rank is None:
        raise UpgradeDeclined("before this opset all axes were padded, and it is not known how many there are")
    pads, axes = np.zeros((2, rank), np.int64), scope.take(form.input(3)).ravel()
    pads[:, axes] = scope.take(form.input(1)).reshape(2, -1)
    return form.with_inputs(form.input(0), scope.const(stem(form, "pads"), pads.ravel()), form.input(2))


rule("Pad", 18, Change(unchanged, _pad_all_axes))
rule("Pad", 11, Change(_pad_up, _pad_down))
rule("Pad", 2, Change(lambda f, _: f.without("paddings").having(pads=f.attrs["paddings"]),
                      lambda f, _: f.without("pads").having(paddings=f.attrs["pads"])))  # fmt: skip


def _reshape_down(form: Form, scope: Scope) -> Form:
    if form.attrs.get("allowzero", 0):
        shape = scope.value(form.input(1))
        if shape is None or not shape.all():
            raise UpgradeDeclined("before this opset, a 0 in a shape always stood for the size of the input")
    return form.without("allowzero") if "allowzero" in form.attrs else form


rule("Reshape", 14, Change(unchanged, _reshape_down))


def _resize_all_axes(form: Form, scope: Scope) -> Form:
    """Scales or sizes of some axes as those of all."""
    known, axes = scope.type(form.input(0)), list(form.attrs.get("axes") or ())
    if not axes or form.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return form
    if known is None or known.dims is None or form.input(1):
        raise UpgradeDeclined("before this opset all axes were resized, and it is not known how many there are")
    scales, sizes = form.input(2), form.input(3)
    if scales:
        each = np.ones(len(known.dims), np.float32)
        each[axes] = scope.take(scales).ravel()
        return form.without("axes").with_inputs(form.input(0), "", scope.const(stem(form, "scales"), each))
    kept = [d for i, d in enumerate(known.dims) if i not in {a % len(known.dims) for a in axes}]
    if not all(isinstance(d, int) for d in kept):
        raise UpgradeDeclined("before this opset all sizes had to be said, and not all are known")
    whole = np.array([d if isinstance(d, int) else 0 for d in known.dims], np.int64)
    whole[axes] = scope.take(sizes).ravel()
    return form.without("axes").with_inputs(form.input(0), "", "", scope.const(stem(form, "sizes"), whole))


rule("Resize", 18, Change(unchanged, _resize_all_axes, same=True))


def _constant_down(form: Form, scope: Scope) -> Form:
    """One of the attributes for plain numbers and texts, as a tensor."""
    kinds: dict[str, Any] = {"float": np.float32, "int": np.int64, "string": object}
    for attr in form.attrs:
        kind = kinds.get(attr.removeprefix("value_").rstrip("s"))
        if kind is not None:
            return form.without(attr).having(value=np.array(form.attrs[attr], kind))
    return form


rule("Constant", 12, Change(unchanged, _constant_down, same=True))


def _quantize_down(form: Form, scope: Scope) -> Form:
    """The type that an absent zero point would have, as a zero point of 0; one that is there has it already."""
    asked, scale = form.attrs.get("output_dtype", 0), scope.type(form.input(1))
    if asked and not form.input(2) and asked != DType.UINT8.onnx:
        if scale is None or not scale.static:
            raise UpgradeDeclined(
                "before this opset a zero point told the type, and it is not known how many there are"
            )
        zero = np.zeros(scale.sizes, DType.from_onnx(asked).numpy)
        form = form.with_inputs(*form.inputs[:2], scope.const(stem(form, "zero_point"), zero))
    return form.without("output_dtype")


rule("QuantizeLinear", 21, Change(unchanged, _quantize_down, same=True))


# Attributes that went away, or must now be said


def dropped(attr: str, default: Any, reason: str) -> Change:
    """An attribute went away: what remains is what it meant at `default`."""

    def up(form: Form, scope: Scope) -> Form:
        if form.attrs.get(attr, default) != default:
            raise UpgradeDeclined(f"{attr}={form.attrs[attr]}: {reason}")
        return form.without(attr)

    return Change(up)


def _chain(*changes: Change) -> Change:
    """Several changes of one opset."""

    def up(form: Form, scope: Scope) -> Form:
        for change in changes:
            form = change.up(form, scope)
        return form

    def down(form: Form, scope: Scope) -> Form:
        for change in reversed(changes):
            form = change.down(form, scope)
        return form

    return Change(up, down)


def _broadcast_up(form: Form, scope: Scope) -> Form:
    if form.attrs.get("broadcast", 0):
        first, second = (rank_of(form.input(i), scope) for i in (0, 1))
        axis = form.attrs.get("axis", -1)
        at_end = second == 0 or (first is not None and second is not None and axis in (-1, first - second, -second))
        if "axis" in form.attrs and not at_end:
            raise UpgradeDeclined("the second operand is aligned in the middle (attribute axis)")
    return form.without("broadcast", "axis")


def broadcast_down(form: Form, scope: Scope) -> Form:
    raise UpgradeDeclined("broadcasting was limited before this opset")


rule("Add Sub Mul Div Pow And Or Xor Equal Less Greater", 7, Change(_broadcast_up, broadcast_down))


def _alike_down(form: Form, scope: Scope) -> Form:
    shapes = [t.dims if (t := scope.type(i)) else None for i in form.inputs]
    first = shapes[0]
    if len(shapes) > 1 and (first is None or None in first or any(s != first for s in shapes)):
        raise UpgradeDeclined("before this opset all operands had one shape, and these may differ")
    return form


rule("Max Min Sum Mean", 8, Change(down=_alike_down))
CONSUMED = Change(lambda f, _: f.without("consumed_inputs"))
rule(
    """Add Sub Mul Div Neg Abs Exp Log Sqrt Reciprocal Floor Ceil Tanh Sigmoid Relu LeakyRelu PRelu Elu Selu
    HardSigmoid Clip Max Min Sum Mean InstanceNormalization""",
    6,
    CONSUMED,
)
rule("Gemm", 7, Change(lambda f, _: f.without("broadcast"), broadcast_down))
rule("Concat", 4, Change(lambda f, _: f.having(axis=f.attrs.get("axis", 1))))
rule("Split", 2, Change(lambda f, _: f.having(axis=f.attrs.get("axis", 0))))
rule("LSTM GRU RNN", 7, Change(lambda f, _: f.without("output_sequence")))


def _split_up(form: Form, scope: Scope) -> Form:
    return form if form.input(1) else form.having(num_outputs=len(form.outputs))


def _split_down(form: Form, scope: Scope) -> Form:
    if "num_outputs" not in form.attrs:
        return form
    parts, data = form.attrs["num_outputs"], scope.type(form.input(0))
    axis, dims = form.attrs.get("axis", 0), (data.dims if data else None) or ()
    size = dims[axis] if -len(dims) <= axis < len(dims) else None
    # A file of an older opset promised equal parts; `num_outputs` alone allows a smaller last one.
    even = size % parts == 0 if isinstance(size, int) else 0 < scope.source < 18
    if parts != len(form.outputs):
        raise UpgradeDeclined("it has fewer outputs than parts")
    form = form.without("num_outputs")
    if even:
        return form
    if not isinstance(size, int):
        raise UpgradeDeclined("the parts may be of unequal size")
    each = -(-size // parts)
    sizes = np.array([*[each] * (parts - 1), size - each * (parts - 1)], np.int64)
    return form.with_inputs(form.input(0), scope.const(stem(form, "split"), sizes))


rule("Split", 18, Change(_split_up, _split_down))


def _to_number(form: Form, scope: Scope) -> Form:
    numbers = "FLOAT UINT8 INT8 UINT16 INT16 INT32 INT64 STRING BOOL FLOAT16 DOUBLE UINT32 UINT64".split()
    to = form.attrs.get("to")
    return form.having(to=numbers.index(to.upper()) + 1) if isinstance(to, str) and to.upper() in numbers else form


rule("Cast", 6, Change(_to_number))


# Normalisation and dropout: training became an attribute


def _batch_norm_up(form: Form, scope: Scope) -> Form:
    if any(form.outputs[3:]):
        raise UpgradeDeclined("saved_mean and saved_var are outputs no longer")
    if any(form.outputs[1:]):
        form = form.having(training_mode=1)
    return Form(form.op, form.inputs, form.outputs[:3], form.attrs, form.domain)


def _batch_norm_down(form: Form, scope: Scope) -> Form:
    if form.attrs.get("training_mode", 0) or any(form.outputs[1:]):
        raise UpgradeDeclined("before this opset, a node that trains had four more outputs")
    return form.without("training_mode")


rule("BatchNormalization", 14, Change(_batch_norm_up, _batch_norm_down))
rule("BatchNormalization", 6, CONSUMED)
NOT_TEST = "an operator that trains has other outputs since opset 7"
rule("BatchNormalization", 7, Change(lambda f, s: dropped("is_test", 1, NOT_TEST).up(f.having(
    is_test=f.attrs.get("is_test", int(not any(f.outputs[1:])))), s)))  # fmt: skip


def _mask_kept(form: Form, scope: Scope) -> Form:
    if any(scope.used(o) for o in form.outputs[1:] if o):
        raise UpgradeDeclined("the mask changed its element type")
    return form


rule("Dropout", 6, CONSUMED)
rule("Dropout", 7, Change(lambda f, s: dropped("is_test", 1, NOT_TEST).up(f, s)))
rule("Dropout", 10, Change(_mask_kept, _mask_kept))


# ai.onnx.ml


def _label_encoder_up(form: Form, scope: Scope) -> Form:
    """Words stood for their places, one way or the other as the input is words or numbers."""
    words = tuple(form.attrs.get("classes_strings", ()))
    known = scope.type(form.input(0))
    if known is None:
        raise UpgradeDeclined("the type of its input says which way it maps, and is not known")
    numbers = tuple(range(len(words)))
    keys, values = ("strings", "int64s") if known.dtype is DType.STRING else ("int64s", "strings")
    both = {"strings": words, "int64s": numbers}
    return form.without("classes_strings").having(**{f"keys_{keys}": both[keys], f"values_{values}": both[values]})


RULES["ai.onnx.ml", "LabelEncoder", 2] = Change(
    _label_encoder_up, never("before this opset it maps between words and their places only")
)
