"""Reports on run directories: an HTML page, figures and tables."""
