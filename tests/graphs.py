"""Graphs for tests: one operator sample as a graph (mezzo.tools.samples), and graphs in float64."""

from __future__ import annotations

from mezzo.tools.finite import in_float64, wide
from mezzo.tools.samples import arrays, hosted, sample_graph

__all__ = ["arrays", "hosted", "in_float64", "sample_graph", "wide"]
