"""Methods for compositional min-max problems."""
