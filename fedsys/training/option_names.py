"""What messages call the options that choose a run directory and continue the run in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OptionNames:
    """The names of options on the command line, or in Python.

    Args:
        directory: the option that chooses another run directory.
        folder: the options that choose another disk.
        resume: what continues a run.
    """

    directory: str
    folder: str
    resume: str


COMMAND_LINE = OptionNames("run.name", "run.dir or run.root", "resume=true")
PYTHON = OptionNames("run_dir", "run_dir", "resume=True")
