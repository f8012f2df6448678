"""Benchmarks of fedsys against plain PyTorch; see README.md."""

import fedsys

# Must run before a benchmark imports torch. Child processes import this module as well.
fedsys.tune_process()
