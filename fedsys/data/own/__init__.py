"""Data of the user's own: files and Python objects, which clients own or which are partitioned."""
