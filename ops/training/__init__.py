"""Optimizer steps, gradients as operators, and the exchange of gradients with a store."""
