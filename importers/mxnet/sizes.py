"""Sizes that are missing where a model's inputs have no sizes."""

from __future__ import annotations

from ...ops.errors import ShapeError


class UnknownSize(ShapeError):
    """A size or a number of axes that nothing tells, and a rule needs."""
