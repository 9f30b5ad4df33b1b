"""Compilation of typed graphs to programs: kernel selection, layouts, order, lowering."""
