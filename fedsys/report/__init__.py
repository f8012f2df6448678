"""What runs left, as a page, as pictures and as tables."""
