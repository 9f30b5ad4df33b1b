"""The tables of a `.mezzo` file, field by field, as docs/mezzo.fbs declares them (a test compares the two).

Lists of small things are stored as columns: one vector per property instead of one table per node, slot or type. A
column is read and checked in a few calls, however long it is, and reading starts from plain integers.
"""

from __future__ import annotations

from ...ops.dataclasses import dataclass, field

MAGIC = b"\x89MEZZO\r\n"  # not text, and spoilt by whatever rewrites line ends
IDENTIFIER = b"MZZO"
FORMAT = 1
ALIGN = 64
SCALARS = {"ubyte": "B", "uint": "I", "ulong": "Q"}  # as `struct` and memoryviews name them
COLUMNS = {"[ubyte]": "B", "[uint]": "I", "[ulong]": "Q", "[long]": "q"}


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its flatbuffers type, the table that it holds, if any, the typecode of its numbers, if any, and what a
    column is aligned to where that is more than its numbers ask for."""

    number: int
    kind: str
    table: Layout | None = None
    code: str = ""
    align: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A table: its fields by name, in the order of their numbers."""

    name: str
    fields: dict[str, Field] = field(default_factory=dict[str, Field])


TABLES: dict[str, Layout] = {}


def _table(name: str, /, **fields: str) -> Layout:
    entries: dict[str, Field] = {}
    for number, (key, kind) in enumerate(fields.items()):
        code = COLUMNS.get(kind) or SCALARS.get(kind, "")
        entries[key] = Field(number, kind, TABLES.get(kind.strip("[]")), code)
    TABLES[name] = Layout(name, entries)
    return TABLES[name]


def _all(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


STRINGS = _table("Strings", utf8="[ubyte]", ends="[uint]")
ARRAYS = _table(
    "Arrays", dtype="[ubyte]", rank="[ubyte]", dims="[ulong]", at="[ulong]", digest="[ubyte]", strings="Strings"
)
POOL = _table(
    "Pool",
    strings="Strings",
    type_kinds="[ubyte]",
    type_data="[uint]",
    type_dtypes="[ubyte]",
    dims_end="[uint]",
    dims="[long]",
    value_kinds="[ubyte]",
    value_data="[long]",
    elements_end="[uint]",
    elements="[uint]",
)
NODES = _table(
    "Nodes",
    **_all(
        "[uint]",
        "op domain name where device inputs_end inputs outputs_end outputs attrs_end attr_names attr_values "
        "origins_end origins",
    ),
)
GRAPH = _table(
    "Graph",
    name="uint",
    doc="uint",
    ir_version="uint",
    **_all("[uint]", "inputs outputs initializers types states opsets metadata"),
    nodes="Nodes",
)
SLOTS = _table(
    "Slots",
    value="[uint]",
    nbytes="[ulong]",
    first="[uint]",
    last="[uint]",
    space="[ubyte]",
    buffer="[uint]",
    offset="[ulong]",
    content="[uint]",
    delta="[long]",
)
STEPS = _table(
    "Steps",
    nodes="Nodes",
    kernel="[uint]",
    workspace="[ulong]",
    flags="[ubyte]",
    **_all(
        "[uint]",
        "params_end param_names param_values aliases_end alias_output alias_input alias_kind",
    ),
    alias_delta="[long]",
    **_all(
        "[uint]",
        "layouts_end layouts saved_end saved bodies_end body_names body_programs declined_end declined frees_end frees "
        "implementation primitives_end primitives asked_end asked",
    ),
)
PROGRAM = _table(
    "Program",
    device="uint",
    **_all("[uint]", "inputs outputs results weights captures states types"),
    steps="Steps",
    arena="ulong",
    bound="ulong",
    strategy="uint",
    slots="Slots",
    **_all("[uint]", "shared_value shared_other shared_kind"),
    shared_delta="[long]",
)
VARIANT = _table(
    "Variant",
    device="string",
    isa="string",
    kernels="string",
    precision="string",
    strategy="string",
    signature="string",
    pool="Pool",
    constants="[uint]",
    programs="[Program]",
)
ROUNDED = _table(
    "RoundedProgram",
    facts="[uint]",
    read="[uint]",
    sized="Nodes",
    pool="Pool",
    constants="[uint]",
    programs="[Program]",
)
PATTERN = _table(
    "Pattern",
    **_all("string", "device isa kernels precision strategy signature"),
    pool="Pool",
    outputs="[uint]",
    facts="[uint]",
    programs="[RoundedProgram]",
)
ABOUT = _table(
    "About", written_by="string", source="string", producer="string", vocabulary="[string]", versions="[uint]"
)
FILE = _table(
    "File",
    about="About",
    arrays="Arrays",
    pool="Pool",
    operators="[uint]",
    since="[uint]",
    graphs="[Graph]",
    variants="[Variant]",
    patterns="[Pattern]",
)
