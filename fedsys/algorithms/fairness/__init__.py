"""Methods for group fairness."""
