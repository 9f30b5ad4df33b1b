"""Recurrent networks and their gradients."""
