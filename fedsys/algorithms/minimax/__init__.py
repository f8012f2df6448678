"""Methods for min-max problems."""
