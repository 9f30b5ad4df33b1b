"""Operators that move, select, create or convert elements; control flow, sequences, strings."""
