"""One run of the command line: from settings to a finished run directory."""

from __future__ import annotations

import os
import sys
from collections import Counter
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from fedsys.config import Settings
from fedsys.errors import InputError, InterruptedRunError, KindError, LostRankError, tell
from fedsys.runtime import checkpoint
from fedsys.runtime.api import connect, make_site
from fedsys.runtime.checkpoint import Checkpoints
from fedsys.runtime.deal_files import deal_of, plot_deal, save_deal
from fedsys.runtime.display import Display, headline, metrics_of
from fedsys.runtime.interruption import Interruption
from fedsys.runtime.kinds import explain_kind
from fedsys.runtime.loggers import InBackground
from fedsys.runtime.plan import Plan
from fedsys.runtime.run_directory import RunDirectory, began
from fedsys.runtime.runner import Result, Runner
from fedsys.runtime.summary import best, numbers, theory
from fedsys.runtime.world import World


def run_job(config: DictConfig, world: World, interruption: Interruption) -> float | None:
    """Run what the settings say, together with the other ranks.

    Returns the objective, or None if it is not finite.
    """
    OmegaConf.resolve(config)
    settings: Any = config
    _check(settings)
    plan = _plan(settings)
    clients = settings.clients
    if clients is None and "FEDSYS_CLIENTS" in os.environ:
        clients = int(world.share("clients", lambda: os.environ["FEDSYS_CLIENTS"]))
    site = make_site(world, clients, settings.seed, settings.dtype, settings.device)
    algorithm, communicator = instantiate(config.algorithm), instantiate(config.communicator)
    backend = connect(world, communicator)
    try:
        world.exchange_hosts()
        interruption.listen_to_others()
        if world.ranks > 1:
            world.roll_call.listen(tell)
        problem = world.together(lambda: instantiate(config.problem))
        runner = Runner(problem, algorithm, communicator, world, site, plan)
        try:
            runner.prepare()
        except KindError as error:
            raise explain_kind(error, _choices(), algorithm.kind) from error
        final = _Job(config, world, runner, backend, interruption).run()
        objective = _objective(settings.objective, final)
    except LostRankError:
        raise  # the process ends; to take leave of ranks that are gone might take forever
    except BaseException:
        world.disconnect()
        raise
    world.disconnect()
    return objective if isfinite(objective) else None


class _Job:
    """A runner, and everything that is told of it."""

    def __init__(
        self,
        config: DictConfig,
        world: World,
        runner: Runner,
        backend: str,
        interruption: Interruption,
    ) -> None:
        self._settings: Settings = config  # type: ignore[assignment]
        self._config: dict[str, Any] = OmegaConf.to_container(config)  # type: ignore[assignment]
        self._config["clients"] = runner.site.placement.clients
        self._world, self._runner, self._backend = world, runner, backend
        self._interruption = interruption
        self._deal = deal_of(runner.oracle)
        self._is_first = world.rank == 0
        self._loggers = InBackground([])
        self._display: Display | None = None

    def run(self) -> dict[str, float]:
        """Run it to its end; the last record, on every rank."""
        runner, settings = self._runner, self._settings
        resume = _resumes(settings) or (self._world.is_restart and settings.resume == "auto")
        self._directory = directory = RunDirectory(self._choose_directory())
        self._world.together(lambda: self._open(resume))
        wanted = settings.checkpoint
        runner.checkpoints = Checkpoints(
            directory.checkpoints,
            self._world,
            wanted.every,
            wanted.keep,
            resume,
            wanted.minutes,
            warn=_warn,
        )
        runner.on_first_step = lambda step: self._world.together(lambda: self._begin(step))
        runner.on_record = self._record
        runner.stops_after = self._interruption.is_due
        try:
            result = runner.run()
            communicator = runner.communicator
            # Of a run that was finished before, only the first rank has read the records.
            waited, dropped, records = zip(
                *self._world.transport.all_gather_object(
                    (communicator.traffic.seconds_waited, communicator.dropped, result.records[-1:])
                ),
                strict=True,
            )
            if self._is_first:
                self._finish(result, list(waited), sum(dropped, Counter()))
            final: dict[str, float] = records[0][-1]
            return final
        except InterruptedRunError as stop:
            self._loggers.finish()
            again = "the same command" if _is_named(settings) else f"run.dir={directory.path}"
            raise InterruptedRunError(
                f"{self._interruption.cause}: {stop.message}; {again} goes on from there"
            ) from stop
        finally:
            if self._display is not None:
                self._display.abandon()
            directory.close()

    def _choose_directory(self) -> Path:
        run = self._settings.run
        if run.dir is not None:
            path = Path(run.dir)
        elif HydraConfig.get().mode == RunMode.MULTIRUN:
            path = Path(HydraConfig.get().runtime.output_dir)
        elif run.name is not None:
            path = Path(run.root) / run.name
        else:
            choices = _choices()
            path = Path(run.root) / f"{choices['algorithm']}-{choices['problem']}-{began()}"
        chosen: str = self._world.transport.all_gather_object(str(path.absolute()))[0]
        return Path(chosen)

    def _open(self, resume: bool) -> None:
        if self._is_first:
            loggers = self._settings.logger or {}
            wanted = [instantiate(one) for one in loggers.values() if one is not None]
            self._loggers = InBackground(wanted)
            # Others wait for us, but not longer than for a collective.
            patience = self._runner.communicator.timeout / 2 if self._world.is_restart else 0.0
            self._directory.open(self._config, resume, patience)
            if self._deal is not None:
                with self._directory.writing():
                    save_deal(self._deal, self._directory.path)
            self._directory.note("data.json", self._runner.description())
            self._loggers.begin(self._directory.path, self._config)

    def _begin(self, step: int) -> None:
        self._startup = _seconds_since_start()
        if self._is_first:
            self._runner.records.extend(self._directory.begin_metrics(step))
            plan, place = self._runner.plan, self._runner.site.placement
            choices = _choices()
            where = f"on {place.ranks} ranks by {self._backend}"
            title = (
                f"{choices['algorithm']} on {choices['problem']}: "
                f"{_count(place.clients, 'client')} "
                f"{where if place.ranks > 1 else 'in one process'}, {self._runner.site.device}, "
                f"{_count(torch.get_num_threads(), 'thread')} each"
            )
            if place.ranks > torch.cuda.device_count() > 0 and self._backend == "gloo":
                title += "\nmore ranks than GPUs: ranks share the GPUs and talk through gloo"
            if self._deal is not None and self._deal.note:
                title += f"\n{self._deal.note}"
            if step:
                title += f"\ncontinued from step {step}"
            unit, total = ("step", plan.steps) if plan.steps else ("round", plan.rounds)
            self._display = Display(title, unit, total or 0)

    def _record(self, record: dict[str, float]) -> None:
        _objective(self._settings.objective, record)  # a name nobody reports is told at the start
        if self._is_first and self._display is not None:
            self._directory.record(record)
            self._loggers.record(record)
            self._display.record(record)

    def _finish(self, result: Result, waited: list[float], dropped: Counter[int]) -> None:
        from fedsys.runtime.curves import plot

        path, placement = self._directory.path, self._runner.site.placement
        final = result.records[-1]
        summary = {
            "choices": _choices(),
            "clients": placement.clients,
            "ranks": placement.ranks,
            "final": final,
            "best": best(result.records),
            "hyperparameters": numbers(result.algorithm),
            "theory": theory(result),
            "startup_seconds": self._startup,
            "seconds_waited_by_rank": waited,
            "dropped_by_client": dict(sorted(dropped.items())),
        }
        self._directory.finish(summary, result.variables)
        self._directory.note("report.json", result.report)
        picture = path / "curves.png"
        with self._directory.writing():
            plot(result.records, picture, f"{path.name}")
            if self._deal is not None:
                plot_deal(self._deal, path)
        self._loggers.finish()
        assert self._display is not None
        self._display.finish(summary, {"results": path, "picture": picture})


def _warn(line: str) -> None:
    print(f"fedsys: {line}", file=sys.stderr, flush=True)


def _check(settings: Settings) -> None:
    allowed = {"resume": ("auto", "true", "false"), "scale": ("small", "paper")}
    for name, values in allowed.items():
        value = getattr(settings, name)
        if str(value).lower() not in values:
            raise InputError(f"{name} must be one of {', '.join(values)}, got {value!r}")
    checkpoint.check(
        settings.checkpoint.every, settings.checkpoint.keep, settings.checkpoint.minutes
    )


def _objective(name: str | None, record: dict[str, float]) -> float:
    """The last value of the metric that a sweeper wants to know."""
    name = name or headline(record)
    if name not in record:
        known = ", ".join(metrics_of(record))
        raise InputError(f"objective={name} is not measured here; there are {known}")
    return record[name]


def _plan(settings: Settings) -> Plan:
    """Of steps and rounds, the one on the command line counts; a file may hold the other."""
    given = {override.partition("=")[0] for override in HydraConfig.get().overrides.task}
    steps, rounds = settings.steps, settings.rounds
    if "steps" in given and "rounds" not in given:
        rounds = None
    elif "rounds" in given and "steps" not in given:
        steps = None
    return Plan(steps, rounds, settings.evaluate_every)


def _resumes(settings: Settings) -> bool:
    """auto: a run that was given a name or a folder goes on where it was."""
    wanted = settings.resume.lower()
    return _is_named(settings) if wanted == "auto" else wanted == "true"


def _is_named(settings: Settings) -> bool:
    return settings.run.name is not None or settings.run.dir is not None


def _count(number: int, what: str) -> str:
    """1 client, 2 clients."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _choices() -> dict[str, str]:
    """Which file of each group was chosen."""
    choices: dict[str, Any] = dict(HydraConfig.get().runtime.choices)
    return {group: str(name) for group, name in choices.items() if not group.startswith("hydra/")}


def _seconds_since_start() -> float:
    """Since this process was started, by the kernel's clock."""
    if not sys.platform.startswith("linux"):
        return float("nan")
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - started
