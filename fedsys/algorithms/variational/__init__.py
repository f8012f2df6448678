"""Algorithms for variational inequalities."""
