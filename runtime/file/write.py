"""Writing flatbuffers tables from nested dicts. The only module that needs the flatbuffers package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...ops.errors import MissingPackage, ModelError
from .layout import COLUMNS, IDENTIFIER, SCALARS, Field, Layout


def pack(layout: Layout, content: Mapping[str, Any], identifier: bytes = IDENTIFIER) -> bytes:
    """A flatbuffer of this root table and kind.

    Columns are sequences of integers, tables are dicts, vectors of tables are lists of dicts. Raises ModelError for a
    number that does not fit its column, MissingPackage without the flatbuffers package.
    """
    try:
        import flatbuffers  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingPackage("writing .mezzo files needs flatbuffers", hint="pip install flatbuffers") from error
    builder = flatbuffers.Builder(1 << 16)
    try:
        builder.Finish(_table(builder, layout, content), file_identifier=identifier)
    except flatbuffers.builder.BuilderSizeError as error:
        raise ModelError(
            "the graph and its programs are more than 2 GiB without weights", hint="save fewer variants"
        ) from error
    return bytes(builder.Output())


def _table(builder: Any, layout: Layout, content: Mapping[str, Any]) -> int:
    unknown = set(content) - set(layout.fields)
    assert not unknown, f"{layout.name} has no {unknown}"
    # what a table points to is written before it
    placed = {n: _outside(builder, layout.fields[n], v) for n, v in content.items() if not _empty(v)}
    builder.StartObject(len(layout.fields))
    for name, value in placed.items():
        field = layout.fields[name]
        if field.kind in SCALARS:
            put = {"ubyte": builder.PrependUint8Slot, "uint": builder.PrependUint32Slot}
            put.get(field.kind, builder.PrependUint64Slot)(field.number, value, 0)
        else:
            builder.PrependUOffsetTRelativeSlot(field.number, value, 0)
    return int(builder.EndObject())


def _empty(value: Any) -> bool:
    return isinstance(value, (list, str)) and not value


def _outside(builder: Any, field: Field, value: Any) -> int:
    if field.kind in SCALARS:
        return int(value)
    if field.kind in COLUMNS:
        try:
            column = np.array(value, f"<{field.code}")
            builder.Prep(field.align, column.nbytes)
            return int(builder.CreateNumpyVector(column))
        except OverflowError as error:
            raise ModelError(f"a number does not fit {field.kind}: {error}", hint="the graph is too large") from error
    if field.kind == "string":
        return int(builder.CreateString(value))
    if field.kind == "[string]":
        return _references(builder, [builder.CreateString(v) for v in value])
    assert field.table is not None
    if field.kind.startswith("["):
        return _references(builder, [_table(builder, field.table, v) for v in value])
    return _table(builder, field.table, value)


def _references(builder: Any, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())
