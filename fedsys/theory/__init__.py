"""Step sizes and bounds of theorems: one file per paper, constants in, numbers out."""
