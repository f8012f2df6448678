"""Reproduce the figures and tables of the papers, with one command each."""
