"""Group-fair classification."""
