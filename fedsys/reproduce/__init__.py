"""The papers' figures and tables, made again by one command each."""
