"""Types that a schema allows for a type parameter of an operator, and that none of its samples runs in: the operator,
the parameter, the types ("all", or as the schema writes them), the reason. A row that is no longer needed fails
tests/test_types.py."""

from __future__ import annotations

GAPS: list[tuple[str, str, str, str]] = [
    ("Col2Im", "T", "tensor(string)", "it adds its elements up, and texts have no sum"),
]
