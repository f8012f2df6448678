"""List the files of the package that the seed passes on its way from conf/ to the report.

    python tests/support/seed_path.py

The script runs the default job for two rounds with a seed that occurs nowhere else, writes
its report, and watches every function of fedsys/ that is executed. A file is on the path if one
of these functions names the seed (an argument, a variable, an attribute or a key `seed`), or if it
declares the field `seed` of the settings or of an object that is created.

Files that hold the number under another name are listed separately: they check, redact or flatten
all settings in the same way, and a reader who follows the seed does not open them. Neither list has
functions that only pass on an object that contains the seed, such as the whole configuration, or
files whose code does not run in this job.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SEED = 918_273_645
JOB = ("clients=2", "rounds=2", "evaluate_every=1", f"seed={SEED}", "run.dir=run")
PACKAGE = Path(__file__).resolve().parents[2] / "fedsys"


class SeedWatcher:
    """Collects the files on the path; a profile function of `sys.setprofile`."""

    def __init__(self) -> None:
        self.files: dict[str, set[str]] = {}
        self.holders: dict[str, set[str]] = {}
        self._seen: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Look at a function that is called or returns."""
        code = frame.f_code
        if event not in ("call", "return") or code in self._seen:
            return
        if event == "call" and code.co_filename == "<string>" and code.co_name == "__init__":
            self._add_owner(frame)
        elif code.co_filename.startswith(str(PACKAGE)):
            if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a class or module
                return
            if _names_the_seed(code):
                self._seen.add(code)
                self._add(self.files, code.co_filename, code.co_qualname)
            elif event == "return" and _holds_the_seed(frame):
                self._seen.add(code)
                self._add(self.holders, code.co_filename, code.co_qualname)

    def _add_owner(self, frame: FrameType) -> None:
        """Add the file that declares the field `seed` of a dataclass."""
        if "seed" not in frame.f_code.co_varnames:
            return
        for kind in type(frame.f_locals.get("self")).__mro__:
            if "seed" in vars(kind).get("__annotations__", {}) and "fedsys" in kind.__module__:
                self._seen.add(frame.f_code)
                self.add_field(kind)

    def add_field(self, kind: type) -> None:
        """Add the file of a class that declares the field `seed`."""
        self._add(self.files, inspect.getfile(kind), f"{kind.__qualname__}.seed")

    @staticmethod
    def _add(found: dict[str, set[str]], path: str, name: str) -> None:
        file = str(Path(path).relative_to(PACKAGE.parent))
        found.setdefault(file, set()).add(name)


def _names_the_seed(code: CodeType) -> bool:
    names = (*code.co_varnames, *code.co_freevars, *code.co_names)
    return "seed" in names or "seed" in code.co_consts


def _holds_the_seed(frame: FrameType) -> bool:
    return any(type(value) is int and value == SEED for value in frame.f_locals.values())


def watch(work: Callable[[], None]) -> SeedWatcher:
    """Call `work` and return the watcher that observed it."""
    watcher = SeedWatcher()
    threading.setprofile(watcher)
    sys.setprofile(watcher)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return watcher


def run_and_report() -> None:
    """Run the job in the current folder, and write its report."""
    from fedsys.cli.main import main as run
    from fedsys.report.main import main as report

    for command, arguments in ((run, JOB), (report, ("run",))):
        sys.argv = ["fedsys", *arguments]
        try:
            command()
        except SystemExit as end:
            if end.code:
                raise


def seed_path() -> SeedWatcher:
    """Run the job and its report in a temporary folder, without output."""
    import fedsys.cli.main
    import fedsys.report.main  # noqa: F401  imports are not part of the path

    with (
        open(os.devnull, "w") as nothing,
        contextlib.redirect_stdout(nothing),
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
    ):
        watcher = watch(run_and_report)
    watcher.add_field(settings_type())
    return watcher


def settings_type() -> type:
    """Return the dataclass against which conf/ is validated."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    return OmegaConf.get_type(ConfigStore.instance().load("schema.yaml").node)


def main() -> None:
    """Print the files on the path and their functions."""
    watcher = seed_path()
    for file, names in sorted(watcher.files.items()):
        print(f"{file}: {', '.join(sorted(names))}")
    print(f"{len(watcher.files)} files name the seed")
    others = {file: n for file, n in watcher.holders.items() if file not in watcher.files}
    for file, names in sorted(others.items()):
        print(f"{file}: {', '.join(sorted(names))}")
    print(f"{len(others)} more files hold its number under another name")


if __name__ == "__main__":
    main()
