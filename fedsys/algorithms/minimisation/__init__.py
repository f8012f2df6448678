"""Methods for minimisation."""
