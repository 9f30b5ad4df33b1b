"""Surfaces of other libraries on ours."""
