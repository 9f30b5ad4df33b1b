"""Rules of MXNet's operators, by kind. Importing this registers all of them."""

from . import algebra, elementwise, indexing, nn, reductions, rnn, shapes, vision

__all__ = ["algebra", "elementwise", "indexing", "nn", "reductions", "rnn", "shapes", "vision"]
