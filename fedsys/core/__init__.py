"""Contracts: what algorithms, problems and communicators agree on."""
