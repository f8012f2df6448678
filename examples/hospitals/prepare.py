"""Cut the breast cancer data into the files of four hospitals of different sizes.

Usage: python prepare.py [FOLDER]; it writes FOLDER/hospital-M/train.csv and test.csv, M = 0..3.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

SHARES = (0.4, 0.3, 0.2, 0.1)
MALIGNANT = (0.5, 0.35, 0.25, 0.15)
"""The sizes of the hospitals, and their rates of malignant tumours."""


def main(folder: Path) -> None:
    """Write a training and a test file for each hospital."""
    table = load_breast_cancer()
    stream = np.random.default_rng(0)
    malignant, benign = (
        list(stream.permutation(np.flatnonzero(table.target == c))) for c in (0, 1)
    )
    names = [str(name).replace(" ", "_") for name in table.feature_names]
    for hospital, (share, rate) in enumerate(zip(SHARES, MALIGNANT, strict=True)):
        size = round(share * 500)
        sick = [malignant.pop() for _ in range(round(rate * size))]
        well = [benign.pop() for _ in range(min(size - len(sick), len(benign)))]
        rows = stream.permutation(sick + well)
        cut = round(0.7 * len(rows))
        for part, chosen in (("train", rows[:cut]), ("test", rows[cut:])):
            path = folder / f"hospital-{hospital}" / f"{part}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow([*names, "diagnosis"])
                for row in chosen:
                    diagnosis = "malignant" if table.target[row] == 0 else "benign"
                    writer.writerow([*table.data[row], diagnosis])
        print(f"hospital-{hospital}: {len(rows)} patients, {len(sick)} malignant")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "hospitals"))
