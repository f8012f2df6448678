"""`python -m benchmarks.fedbio_table SWEEP...`: Table 1 of fedbio.txt from the runs of sweeps.

The sweeps are those of experiment=fedbio/table1; runs that are missing leave a gap.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

METRICS = {
    "Test Acc.": "test_accuracy",
    "Train EqOpp.": "train_eqopp",
    "Test EqOpp.": "test_eqopp",
}
TABLES = {"fair_adult": "Adult", "fair_german": "Credit"}
SPLITS = {"iid": "I.I.D", "group": "Non-I.I.D"}
METHODS = {
    "fedavg": "FedAvg",
    "fedreg": "FedReg",
    "fedminmax": "FedMinMax",
    "fcfl": "FCFL",
    "fedbio": "FedBiO",
    "fedbioacc": "FedBiOAcc",
}
PAPER = {
    ("fair_adult", "iid"): {
        "fedavg": (".8239±.0167", ".0391±.0061", ".0420±.0034"),
        "fedreg": (".8240±.0159", ".0361±.0047", ".0425±.0029"),
        "fedminmax": (".8228±.0163", ".0220±.0057", ".0366±.0049"),
        "fcfl": (".8238±.0159", ".0356±.0029", ".0452±.0012"),
        "fedbio": (".8228±.0163", ".0238±.0058", ".0337±.0012"),
        "fedbioacc": (".8391±.0163", ".0222±.0064", ".0335±.0006"),
    },
    ("fair_adult", "group"): {
        "fedavg": (".8283±.0080", ".0261±.0022", ".0507±.0011"),
        "fedreg": (".8271±.0077", ".0244±.0013", ".0498±.0010"),
        "fedminmax": (".8272±.0077", ".0274±.0029", ".0363±.0013"),
        "fcfl": (".8273±.0074", ".0249±.0032", ".0501±.0014"),
        "fedbio": (".8331±.0019", ".0263±.0010", ".0338±.0008"),
        "fedbioacc": (".8204±.0013", ".0289±.0005", ".0356±.0055"),
    },
    ("fair_german", "iid"): {
        "fedavg": (".6873±.0314", ".0788±.0136", ".0599±.0122"),
        "fedreg": (".6870±.0374", ".0836±.0015", ".0575±.0114"),
        "fedminmax": (".6759±.0757", ".0857±.0042", ".0722±.0013"),
        "fcfl": (".6864±.0237", ".0727±.0073", ".0375±.0028"),
        "fedbio": (".7015±.0169", ".0548±.0072", ".0513±.0059"),
        "fedbioacc": (".7067±.0121", ".0665±.0034", ".0501±.0051"),
    },
    ("fair_german", "group"): {
        "fedavg": (".7386±.0011", ".0832±.0248", ".1354±.0128"),
        "fedreg": (".7303±.0097", ".0735±.0216", ".1341±.0088"),
        "fedminmax": (".6966±.0104", ".0477±.0155", ".1222±.0024"),
        "fcfl": (".7266±.0026", ".0777±.0162", ".1463±.0014"),
        "fedbio": (".7339±.0033", ".0782±.0116", ".1260±.0013"),
        "fedbioacc": (".7312±.0023", ".0799±.0152", ".1021±.0011"),
    },
}

Runs = dict[tuple[str, str, str], list[dict[str, float]]]


def read(sweeps: list[Path]) -> Runs:
    """The last records of all runs, by table, split and method."""
    runs: Runs = defaultdict(list)
    for path in sorted(path for sweep in sweeps for path in sweep.glob("*/summary.json")):
        summary = json.loads(path.read_text())
        choices = summary["choices"]
        method = choices["algorithm"].removeprefix("fair/")
        runs[choices["problem"], choices["partition"], method].append(summary["final"])
    return runs


def table(runs: Runs) -> str:
    """The markdown: mean and deviation over the runs, and the paper's beside them."""
    titles = [title for metric in METRICS for title in (metric, "paper")]
    lines = [
        f"| data | split | method | runs | {' | '.join(titles)} | seconds |",
        "| " + " --- |" * (len(titles) + 5),
    ]
    for (data, split), methods in PAPER.items():
        for method, paper in methods.items():
            found = runs.get((data, split, method), [])
            if not found:
                continue
            cells = [TABLES[data], SPLITS[split], METHODS[method], str(len(found))]
            for metric, theirs in zip(METRICS.values(), paper, strict=True):
                cells += [_cell([record[metric] for record in found]), theirs]
            cells.append(f"{mean(record['seconds'] for record in found):.1f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    spread = f"±{stdev(values):.4f}" if len(values) > 1 else ""
    return f"{mean(values):.4f}{spread}".replace("0.", ".")


if __name__ == "__main__":
    print(table(read([Path(argument) for argument in sys.argv[1:]])))
