"""Run directories with numbers of one's own."""

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
    deal: tuple[list[int], list[int]] | None = None,
) -> Path:
    """A record every five rounds; a client sends 100 bytes and takes ten steps in each."""
    folder.mkdir(parents=True)
    config = {
        "algorithm": {"_target_": f"fedsys.algorithms.{algorithm}", "lr": lr},
        "seed": seed,
        "run": {"dir": str(folder)},
    }
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    records: list[dict[str, float]] = []
    for i, values in enumerate(zip(*curves.values(), strict=True)):
        place = {"step": 50 * i, "round": 5 * i, "bytes_up": 500 * i, "seconds": 0.25 * i}
        records.append({**place, **dict(zip(curves, values, strict=True))})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    if ended:
        summary: dict[str, Any] = {
            "choices": {"algorithm": algorithm.lower(), "problem": "auc"},
            "final": records[-1],
            "seconds_waited_by_rank": list(waits),
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    if deal is not None:
        np.savez(folder / "partition.npz", client=np.array(deal[0]), classes=np.array(deal[1]))
    return folder
