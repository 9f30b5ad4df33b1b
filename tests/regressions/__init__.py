"""Every wrong answer ever found between operators, as a graph of a few lines: one module for each area.

A case says with `check` that a graph answers as its operators do one by one. What the search finds is printed in these
words (python -m tests.random_graphs).
"""
