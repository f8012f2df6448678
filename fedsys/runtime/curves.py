"""The picture of a run: every metric against communication rounds."""

from __future__ import annotations

from pathlib import Path

from fedsys.runtime.display import Record, metrics_of

_LOGARITHMIC = {"relative_error", "operator_norm", "gap", "drift"}


def plot(records: list[Record], path: Path, title: str) -> None:
    """Draw one panel per metric and write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = sorted({name for record in records for name in metrics_of(record)})
    figure, panels = pyplot.subplots(
        1, len(names), figsize=(4.2 * len(names), 3.4), squeeze=False, layout="constrained"
    )
    for name, panel in zip(names, panels[0], strict=True):
        points = [(r["round"], r[name]) for r in records if name in r]
        rounds, values = zip(*points, strict=True)
        panel.plot(rounds, values, marker="." if len(points) < 40 else "")
        if name in _LOGARITHMIC and any(value > 0 for value in values):
            panel.set_yscale("log", nonpositive="mask")
        panel.set_xlabel("communication round")
        panel.set_title(name)
        panel.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
