"""Element types that a schema allows for an operator's main type parameter, and that none of its samples runs in: the
operator, the types ("all", or their names), the reason. A row that is no longer needed fails tests/test_types.py."""

BODIES = "its samples have subgraphs, which tests/test_session.py and tests/test_random_models.py run"
LISTS = "its samples hold lists or dicts, which tests/test_host_ops.py runs; it never looks at the elements"
AS_THEY_ARE = "the attribute is handed on as it is"

GAPS: dict[str, tuple[str, str]] = {
    "BitCast": ("COMPLEX128", "no other element type is as wide"),
    "CastMap": ("all", LISTS),
    "Col2Im": ("STRING", "it adds its elements up, and texts have no sum"),
    "ConcatFromSequence": ("all", LISTS),
    "Constant": (
        "UINT8 INT8 UINT16 INT16 BOOL FLOAT16 DOUBLE UINT32 UINT64 COMPLEX64 COMPLEX128 BFLOAT16 FLOAT8E4M3FN "
        "FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ UINT4 INT4 FLOAT4E2M1 FLOAT8E8M0 UINT2 INT2",
        AS_THEY_ARE,
    ),
    "DictVectorizer": ("all", LISTS),
    "If": ("all", BODIES),
    "Loop": ("all", BODIES),
    "Optional": ("all", LISTS),
    "RandomNormal": ("FLOAT16 BFLOAT16", "it has no input to take another type; its numbers are rounded to `dtype`"),
    "RandomUniform": ("FLOAT16 DOUBLE", "it has no input to take another type; its numbers are rounded to `dtype`"),
    "Scan": ("all", BODIES),
    "SequenceAt": ("all", LISTS),
    "SequenceConstruct": ("all", LISTS),
    "SequenceErase": ("all", LISTS),
    "SequenceInsert": ("all", LISTS),
    "SequenceLength": ("all", LISTS),
    "SequenceMap": ("all", BODIES),
    "SplitToSequence": ("all", LISTS),
}
