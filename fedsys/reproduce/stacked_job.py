"""Execute several runs of an entry together; each leaves a run directory of its own.

The run directories have the configuration, the records, the final variables and the summary of
separate runs. They have no checkpoints and no picture: a stack that is interrupted starts again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from fedsys.core.errors import InputError, NonFiniteError
from fedsys.core.oracles import Oracle
from fedsys.distributed.world import World
from fedsys.reproduce.composition import Composer
from fedsys.reproduce.sweep import PlannedRun, hydra_context
from fedsys.training.api import connect, make_site
from fedsys.training.building import build
from fedsys.training.checks import check_settings
from fedsys.training.redaction import redacted
from fedsys.training.result import Result
from fedsys.training.run_directory import RunDirectory
from fedsys.training.run_options import chosen_options, plan_of
from fedsys.training.stack import Lane, Outcome, run_lanes
from fedsys.training.start import seconds_since_start
from fedsys.training.summary import summary_of


def run_stack(runs: Sequence[PlannedRun], output: str) -> None:
    """Execute the runs; one that is refused leaves nothing and is to be started alone.

    Args:
        runs: runs with the same `stack`.
        output: the file in each folder for the error of a run that diverges.
    """
    world = World.from_environment()
    prepare = _Preparation(world)
    directories: dict[int, _Directory] = {}
    lanes = []
    with hydra_context():
        for run in runs:
            (run.folder / output).unlink(missing_ok=True)
            try:
                lane, directory = prepare.lane(run)
                directory.open(lane, output)
            except InputError:
                continue
            directories[id(lane)] = directory
            lanes.append(lane)

    def end(lane: Lane, outcome: Outcome) -> None:
        directories[id(lane)].end(lane, outcome)

    run_lanes(lanes, end)
    world.disconnect()


class _Preparation:
    """Builds the lanes of a stack, which share problems and oracles."""

    def __init__(self, world: World) -> None:
        self._world, self._is_connected = world, False
        self._oracles: dict[Any, Oracle] = {}
        self._problems: dict[str, Any] = {}
        self._composer = Composer()

    def lane(self, run: PlannedRun) -> tuple[Lane, _Directory]:
        config = self._settings(run)
        settings: Any = config
        check_settings(settings)
        site = make_site(
            self._world, settings.clients, settings.seed, settings.dtype, settings.device
        )
        text = OmegaConf.to_yaml(config.problem)
        if text not in self._problems:
            self._problems[text] = build(config, "problem")
        communicator = build(config, "communicator")
        if not self._is_connected:
            connect(self._world, communicator)
            self._is_connected = True
        lane = Lane(
            self._problems[text],
            build(config, "algorithm"),
            communicator,
            self._world,
            site,
            plan_of(settings),
            oracles=self._oracles,
        )
        lane.prepare()
        written: dict[str, Any] = redacted(OmegaConf.to_container(config))
        written["clients"] = site.placement.clients
        return lane, _Directory(run.folder, written, chosen_options())

    def _settings(self, run: PlannedRun) -> Any:
        """Return the resolved settings of a run; those of other seeds are composed once."""
        seeds = [a.partition("=")[2] for a in run.arguments if a.startswith("seed=")]
        unseeded = [a for a in run.arguments if not a.startswith("seed=")]
        config = self._composer.settings(unseeded)
        HydraConfig.instance().set_config(self._composer.hydra_config(unseeded))
        if seeds:
            config.seed = int(seeds[-1])
        config.run.dir = str(run.folder.absolute())
        OmegaConf.resolve(config)
        return config


class _Directory:
    """The run directory of a lane."""

    def __init__(self, path: Path, config: dict[str, Any], choices: dict[str, str]) -> None:
        self._path, self._config, self._choices = path, config, choices
        self._directory = RunDirectory(path)

    def open(self, lane: Lane, output: str) -> None:
        """Open the folder, and write the lane's records to it."""
        self._output = output
        self._directory.open(self._config, resume=True)
        lane.on_first_step = lambda step, is_recorded: self._begin(lane)
        lane.on_record = self._directory.record

    def _begin(self, lane: Lane) -> None:
        self._startup = seconds_since_start()
        self._directory.begin(self._config, 0)
        self._directory.note("data.json", lane.description())

    def end(self, lane: Lane, outcome: Outcome) -> None:
        """Write the results, or the error of a run that diverged."""
        if isinstance(outcome, Result):
            waited = [lane.communicator.traffic.seconds_waited]
            given = lane.site.placement, self._choices, self._startup, waited, Counter[int]()
            self._directory.finish(summary_of(outcome, *given), outcome.variables)
            self._directory.note("report.json", outcome.report)
        elif isinstance(outcome, NonFiniteError):
            (self._path / self._output).write_text(f"fedsys: {outcome}\n")
        self._directory.close()
