"""`fedsys predict` and `fedsys export`: use the network of a finished run."""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedsys.core.errors import FedsysError, InputError, StorageError, print_command_error
from fedsys.training.export import FORMATS, export
from fedsys.training.trained_model import TrainedModel, load_model


def main(arguments: Sequence[str]) -> int:
    """Run `fedsys predict ...` or `fedsys export ...`; return the exit code."""
    parser = argparse.ArgumentParser(prog="fedsys", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    predicts = commands.add_parser("predict", help="score new samples")
    predicts.add_argument("run", type=Path, help="the run directory")
    predicts.add_argument("data", type=Path, help="a CSV file, a folder of images, or tensors")
    predicts.add_argument("-o", "--out", type=Path, help="the CSV file to write; default: stdout")
    exports = commands.add_parser("export", help="write the network for other programs")
    exports.add_argument("run", type=Path, help="the run directory")
    exports.add_argument("--format", choices=FORMATS, default="torch")
    exports.add_argument("-o", "--out", type=Path, help="the folder to write; default: RUN/export")
    for command in (predicts, exports):
        command.add_argument("--model", help="the network, if it is your own: package.Net")
    given = parser.parse_args(arguments)
    try:
        model = load_model(given.run, _named(given.model))
        if given.command == "predict":
            _predict(model, given.data, given.out)
        else:
            written = export(model, given.run, given.format, given.out or given.run / "export")
            print("\n".join(map(str, written)))
    except FedsysError as error:
        return print_command_error(f"fedsys {given.command}", error)
    except OSError as error:
        shown = StorageError.of(error, f"cannot write {error.filename}", "choose another --out")
        return print_command_error(f"fedsys {given.command}", shown)
    return 0


def _predict(model: TrainedModel, data: Path, out: Path | None) -> None:
    """Write the score of each sample."""
    given, names = model.read(data)
    scores = model.scores(given)
    columns = [model.classes[-1]] if scores.dim() == 1 else model.classes
    header = ["sample", *(f"score_{name}" for name in columns)]
    rows = [
        [name, *row] for name, row in zip(names, scores.view(len(names), -1).tolist(), strict=True)
    ]
    if out is None:
        csv.writer(sys.stdout).writerows([header, *rows])
        return
    partial = out.with_name(f".{out.name}.partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
        file.flush()
        os.fsync(file.fileno())
    partial.rename(out)


def _named(name: str | None) -> Any:
    """Return the class or function package.Net; None if no name is given."""
    if name is None:
        return None
    module, _, attribute = name.rpartition(".")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"--model {name} cannot be imported: {error}") from error
