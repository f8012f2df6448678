"""Computation for all clients that a rank hosts at once."""
