"""Public data sets and how their files are read."""
