"""Opsets at which an operator became another one: renamed, or kept only in the domain `mezzo` (see legacy.py)."""

from __future__ import annotations

import numpy as np

from .form import Change, Form, Scope, UpgradeDeclined, rank_of, unchanged
from .rules import attribute_to_input, broadcast_down, never, rule, stem


def kept_as(op: str, legacy: str, change: Change) -> Change:
    """`change`, whose `up` may make the operator `legacy` of the domain `mezzo`; that one goes down under its own
    old name."""

    def down(form: Form, scope: Scope) -> Form:
        return form.named(op) if form.domain == "mezzo" else change.down(form, scope)

    return Change(change.up, down, made=("mezzo", legacy))


# Softmax and its like: before opset 13 it worked on a matrix of all dims before `axis` by the others


def _flattened(op: str) -> Change:
    legacy = f"{op}Flattened"  # see legacy.py

    def up(form: Form, scope: Scope) -> Form:
        rank, axis = rank_of(form.input(0), scope), form.attrs.get("axis", 1)
        now = form.attrs.get("axis", -1)
        if rank and axis in (-1, rank - 1) and now in (-1, rank - 1):
            return form  # over the last axis both meanings agree
        return form.named(legacy, "mezzo")

    def down(form: Form, scope: Scope) -> Form:
        rank, axis = rank_of(form.input(0), scope), form.attrs.get("axis", -1)
        before = form.attrs.get("axis", 1)
        if not rank or axis not in (-1, rank - 1):
            raise UpgradeDeclined("the meaning of axis changed, and this axis is not known to be the last")
        return form if before in (-1, rank - 1) else form.having(axis=rank - 1)

    return kept_as(op, legacy, Change(up, down))


for _name in ("Softmax", "LogSoftmax", "Hardmax"):
    rule(_name, 13, _flattened(_name))


# Operators under another name


def _old_coordinates(form: Form, scales: str, scope: Scope) -> dict[str, str]:
    """Return the attributes for Resize's and Upsample's former implicit coordinates: from the left edge, and for
    nearest rounded down where an axis grows, up where it shrinks."""
    attrs = {"coordinate_transformation_mode": "asymmetric"}
    if form.attrs.get("mode", "nearest") != "nearest":
        return attrs
    known = scope.value(scales)
    if known is None and scope.source >= 10:
        raise UpgradeDeclined(
            "whether it enlarges or shrinks tells where the nearest point is, and its scales are computed"
        )
    shrinks, grows = known is not None and (known < 1).any(), known is None or (known > 1).any()
    if shrinks and grows:
        raise UpgradeDeclined("it enlarges along one axis and shrinks along another, which round differently")
    return {**attrs, "nearest_mode": "ceil" if shrinks else "floor"}


def _resize_up(form: Form, scope: Scope) -> Form:
    roi = scope.const(stem(form, "roi"), np.zeros(0, np.float32))
    moved = form.with_inputs(form.input(0), roi, form.input(1))
    return moved.having(**_old_coordinates(form, form.input(1), scope))


def _resize_down(form: Form, scope: Scope) -> Form:
    if form.attrs.get("mode", "nearest") not in ("nearest", "linear") or form.input(3):
        raise UpgradeDeclined("sizes and the mode cubic came with this opset")
    wanted = _old_coordinates(form, form.input(2), scope)
    if any(form.attrs.get(a) != v for a, v in wanted.items()):
        raise UpgradeDeclined(f"before this opset, coordinates were always {' and '.join(wanted.values())}")
    if form.input(1):
        scope.take(form.input(1))
    return form.without(*wanted).with_inputs(form.input(0), form.input(2))


def _roi_up(form: Form, scope: Scope) -> Form:
    if form.attrs.get("coordinate_transformation_mode") != "tf_half_pixel_for_nn":
        return form
    # These coordinates lie half a pixel to the right of half_pixel, so that the nearest one has another name.
    nearest = FOR_NEAREST.get(form.attrs.get("nearest_mode", "round_prefer_floor"))
    if form.attrs.get("mode", "nearest") != "nearest" or nearest is None:
        raise UpgradeDeclined(
            "tf_half_pixel_for_nn, except for some ways to find the nearest point, is no longer part of ONNX"
        )
    return form.having(coordinate_transformation_mode="half_pixel", nearest_mode=nearest)


FOR_NEAREST = {"floor": "round_prefer_ceil", "round_prefer_floor": "ceil"}


def _roi_down(form: Form, scope: Scope) -> Form:
    absent = [scope.const(stem(form, part), np.zeros(0, np.float32)) if not form.input(i) else form.input(i)
              for i, part in ((1, "roi"), (2, "scales"))]  # fmt: skip
    return form.with_inputs(form.input(0), *absent, form.input(3))


def renamed(old: str, new: str) -> Change:
    """The operator got another name."""
    return Change(lambda f, _: f.named(new), lambda f, _: f.named(old), made=("", new))


rule("Upsample", 10, renamed("Upsample", "Resize"))
rule("Resize", 11, Change(_resize_up, _resize_down))
rule("Resize", 13, Change(_roi_up, _roi_down))
rule("Scatter", 11, renamed("Scatter", "ScatterElements"))


# Operators whose old meaning has no equal of one node


def _slope_up(form: Form, scope: Scope) -> Form:
    """A slope had one entry, or one per channel; since opset 7 it broadcasts, which is the same for a matrix."""
    slope, rank = scope.type(form.input(1)), rank_of(form.input(0), scope)
    if (rank is not None and rank <= 2) or (slope is not None and slope.dims in ((), (1,))):
        return form
    return form.named("PReluPerChannel", "mezzo")


rule("PRelu", 7, kept_as("PRelu", "PReluPerChannel", Change(_slope_up, broadcast_down)))


def _spatial_up(form: Form, scope: Scope) -> Form:
    if form.attrs.get("spatial", 1):
        return form.without("spatial")
    if any(form.outputs[1:]):
        raise UpgradeDeclined(
            "spatial=0 with statistics among the outputs: training per element is no longer part of ONNX"
        )
    return form.named("BatchNormalizationPerElement", "mezzo")


rule(
    "BatchNormalization",
    9,
    kept_as("BatchNormalization", "BatchNormalizationPerElement", Change(_spatial_up, unchanged)),
)  # spatial was 1 by default
rule("GroupNormalization", 21, kept_as("GroupNormalization", "GroupNormalizationPerGroup", Change(
    lambda f, _: f.named("GroupNormalizationPerGroup", "mezzo"), never("scale and bias were per group before opset 21")
)))  # fmt: skip
rule("Scan", 9, kept_as("Scan", "ScanRows", Change(
    lambda f, _: f.named("ScanRows", "mezzo"), never("before this opset Scan ran once for each row of a batch")
)))  # fmt: skip


# Old words for the same


def _sampled_up(form: Form, scope: Scope) -> Form:
    mode = form.attrs.get("mode", "bilinear")
    return form.having(mode=MODES.get(mode, mode)) if "mode" in form.attrs else form


def _sampled_down(form: Form, scope: Scope) -> Form:
    data = rank_of(form.input(0), scope)
    if data not in (4, None):
        raise UpgradeDeclined("before this opset, only images were sampled")
    old = {new: old for old, new in MODES.items()}
    return form.having(mode=old.get(form.attrs["mode"], form.attrs["mode"])) if "mode" in form.attrs else form


MODES = {"bilinear": "linear", "bicubic": "cubic"}
rule("GridSample", 20, Change(_sampled_up, _sampled_down))


def _aligned_down(form: Form, scope: Scope) -> Form:
    if form.attrs.get("coordinate_transformation_mode", "half_pixel") != OUTPUT:
        raise UpgradeDeclined("before this opset, coordinates were not moved by half a pixel")
    return form.without("coordinate_transformation_mode")


OUTPUT = "output_half_pixel"
rule("RoiAlign", 16, Change(lambda f, _: f.having(coordinate_transformation_mode=OUTPUT), _aligned_down))


def _axis_down(form: Form, scope: Scope) -> Form:
    if not form.input(2):
        return form.having(axis=-2)
    older = attribute_to_input("axis", 2, np.int64, scalar=True).down(form, scope)
    return older.without("axis") if older.attrs["axis"] == 1 else older


rule("DFT", 20, Change(attribute_to_input("axis", 2, np.int64, scalar=True, default=1).up, _axis_down))


def _power_up(form: Form, scope: Scope) -> Form:
    power = form.attrs.get("p", 2.0)
    if power != int(power):
        raise UpgradeDeclined(f"p={power} is no integer")
    return form.having(p=int(power))


rule("LpPool", 2, Change(_power_up))


def _tile_up(form: Form, scope: Scope) -> Form:
    rank = rank_of(form.input(0), scope)
    times, axis = (scope.value(form.input(i)) for i in (1, 2))
    if rank is None or times is None or axis is None:
        raise UpgradeDeclined("how often it repeats which of how many axes has to be known")
    repeats = np.ones(rank, np.int64)
    repeats[int(np.reshape(axis, -1)[0])] = int(np.reshape(times, -1)[0])
    return form.with_inputs(form.input(0), scope.const(stem(form, "repeats"), repeats))


rule("Tile", 6, Change(_tile_up))


def _upsample_up(form: Form, scope: Scope) -> Form:
    scales = (1.0, 1.0, form.attrs["height_scale"], form.attrs["width_scale"])
    mode = form.attrs.get("mode", "nearest")
    return form.without("height_scale", "width_scale").having(scales=scales, mode=MODES.get(mode, mode))


rule("Upsample", 7, Change(_upsample_up))
