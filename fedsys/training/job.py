"""One run of the command line: from settings to a finished run directory."""

from __future__ import annotations

import os
from math import isfinite
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fedsys.communication.values import text
from fedsys.core.errors import (
    InputError,
    InterruptedRunError,
    KindError,
    LostRankError,
    TermError,
    print_error,
)
from fedsys.core.metrics import Record, headline, metrics_of
from fedsys.distributed.stop_signal import StopSignal
from fedsys.distributed.world import World
from fedsys.training.api import connect, make_site
from fedsys.training.building import build, build_loggers
from fedsys.training.checks import check_settings, traceback_in
from fedsys.training.config import Settings
from fedsys.training.given_settings import check_given
from fedsys.training.kinds import explain_kind, explain_terms
from fedsys.training.loggers import BackgroundLogger
from fedsys.training.recorded_run import RecordedRun
from fedsys.training.redaction import redact_file, redacted
from fedsys.training.run_directory import RunDirectory
from fedsys.training.run_options import (
    best_record_of,
    chosen_options,
    has_fixed_path,
    is_sweep,
    plan_of,
    resumes,
    run_path,
)
from fedsys.training.run_outputs import RunAbout
from fedsys.training.runner import Runner


def run_job(config: DictConfig, world: World, stop_signal: StopSignal) -> float | None:
    """Run what the settings describe, together with the other ranks.

    Returns:
        The objective, or None if it is not finite.
    """
    if world.rank == 0 and is_sweep():
        redact_file(Path(HydraConfig.get().sweep.dir) / "multirun.yaml")
    ignored = check_given(config)
    OmegaConf.resolve(config)
    settings: Any = config
    check_settings(settings)
    plan, best = plan_of(settings), best_record_of(settings)
    clients = settings.clients
    if clients is None and "FEDSYS_CLIENTS" in os.environ:
        clients = int(world.from_first_rank("clients", lambda: os.environ["FEDSYS_CLIENTS"]))
    site = make_site(world, clients, settings.seed, settings.dtype, settings.device)
    algorithm, communicator = build(config, "algorithm"), build(config, "communicator")
    backend = connect(world, communicator)
    try:
        world.exchange_hosts()
        stop_signal.listen_to_others()
        if world.ranks > 1:
            world.failure_detector.listen(print_error)
        problem = world.on_all_ranks(lambda: build(config, "problem"))
        runner = Runner(problem, algorithm, communicator, world, site, plan, best=best)
        try:
            runner.prepare()
        except KindError as error:
            raise explain_kind(error, chosen_options(), algorithm.kind) from error
        except TermError as error:
            raise explain_terms(error, chosen_options(), algorithm) from error
        for line in ignored if world.rank == 0 else ():
            print_error(f"warning: {line}")
        final = _Job(config, world, runner, backend, stop_signal).run()
        objective = _objective(settings.objective, final)
    except LostRankError:
        raise  # the process ends; disconnecting from a lost rank could block forever
    except BaseException:
        world.disconnect()
        raise
    world.disconnect()
    return objective if isfinite(objective) else None


class _Job:
    """A prepared runner with what the settings say about its run directory and its outputs."""

    def __init__(
        self,
        config: DictConfig,
        world: World,
        runner: Runner,
        backend: str,
        stop_signal: StopSignal,
    ) -> None:
        self._settings: Settings = config  # type: ignore[assignment]
        # What is written, shown and passed to loggers has no secrets.
        plain: dict[str, Any] = redacted(OmegaConf.to_container(config))
        plain["clients"] = runner.site.placement.clients
        self._about = RunAbout(plain, chosen_options(), backend)
        self._world, self._runner = world, runner
        self._stop_signal = stop_signal
        self._loggers = BackgroundLogger([])

    def run(self) -> Record:
        """Run to the end; return the last record, on every rank."""
        self._world.on_all_ranks(self._build_loggers)
        path = str(run_path(self._settings))
        path = self._world.transport.all_gather_values(path, text)[0]
        with traceback_in(Path(path), self._world.rank):
            return self._run_in(RunDirectory(Path(path), print_error))

    def _build_loggers(self) -> None:
        if self._world.rank == 0:
            self._loggers = BackgroundLogger(build_loggers(self._settings))  # type: ignore[arg-type]

    def _run_in(self, directory: RunDirectory) -> Record:
        settings, loggers = self._settings, self._loggers
        resume = resumes(settings, self._world.is_restart)
        given = self._runner, self._about, directory, settings.checkpoint, resume
        recorded = RecordedRun(*given, print_error, loggers)
        with recorded.opened():
            earlier = recorded.finished()
            if earlier is not None:
                recorded.show_finished()
                return earlier
            self._prepare_to_stop()
            try:
                return recorded.train(self._check_objective)[1]
            except InterruptedRunError as stop:
                loggers.finish()
                how = "the same command"
                if not has_fixed_path(settings):
                    how = f"run.dir={directory.path}"
                message = f"{stop.message}; {how} resumes the run"
                raise self._stop_signal.error(message) from stop

    def _prepare_to_stop(self) -> None:
        runner = self._runner
        runner.on_warning = lambda line: print_error(f"warning: {line}")
        runner.stops_after = self._stop_signal.is_due
        runner.is_asked_to_stop = self._stop_signal.is_asked_for
        self._stop_signal.begin()

    def _check_objective(self, record: Record) -> None:
        """Refuse an unknown objective at the first record; only the first rank has all metrics."""
        if self._world.rank == 0:
            _objective(self._settings.objective, record)


def _objective(name: str | None, record: Record) -> float:
    """Return the value of the metric that a sweeper optimises."""
    name = name or headline(record)
    if isinstance(record.get(name, []), list):
        known = ", ".join(metrics_of(record))
        raise InputError(f"objective must be one of {known}; got {name}")
    return float(record[name])
