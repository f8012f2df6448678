"""Games with known solutions and constants."""
