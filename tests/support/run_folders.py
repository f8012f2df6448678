"""Write run directories with given metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf


def write_run(
    folder: Path,
    algorithm: str,
    seed: int,
    curves: dict[str, list[float]],
    *,
    lr: float = 0.1,
    ended: bool = True,
    waits: tuple[float, ...] = (0.5,),
    client_split: tuple[list[int], list[int]] | None = None,
) -> Path:
    """Write a run with a record every five rounds, and 100 bytes and ten steps per round."""
    folder.mkdir(parents=True)
    config = {
        "algorithm": {"_target_": f"fedsys.algorithms.{algorithm}", "lr": lr},
        "seed": seed,
        "run": {"dir": str(folder)},
    }
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    records: list[dict[str, float]] = []
    for i, values in enumerate(zip(*curves.values(), strict=True)):
        axes = {"step": 50 * i, "round": 5 * i, "bytes_up": 500 * i, "seconds": 0.25 * i}
        records.append({**axes, **dict(zip(curves, values, strict=True))})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    if ended:
        summary: dict[str, Any] = {
            "choices": {"algorithm": algorithm.lower(), "problem": "auc"},
            "final": records[-1],
            "seconds_waited_by_rank": list(waits),
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    if client_split is not None:
        np.savez(
            folder / "partition.npz",
            client=np.array(client_split[0]),
            classes=np.array(client_split[1]),
        )
    return folder
