"""Types that a schema allows for a type parameter of an operator, and that none of its samples runs in: the operator,
the parameter, the types ("all", or as the schema writes them), the reason. A row that is no longer needed fails
tests/test_types.py."""

from __future__ import annotations

GAPS: list[tuple[str, str, str, str]] = [
    ("Gradient", "T1", "all", "it means something only in a graph (tests/test_gradient_operator.py)"),
    ("Gradient", "T2", "all", "it means something only in a graph (tests/test_gradient_operator.py)"),
    ("Col2Im", "T", "tensor(string)", "it adds its elements up, and texts have no sum"),
]
