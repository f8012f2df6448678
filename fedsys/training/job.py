"""One run of the command line: from settings to a finished run directory."""

from __future__ import annotations

import os
from collections import Counter
from math import isfinite
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fedsys.communication.values import boolean, optional, text
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
from fedsys.training.checkpoint import Checkpoints
from fedsys.training.checks import check_settings, traceback_in
from fedsys.training.compared_settings import compared_settings
from fedsys.training.config import Settings
from fedsys.training.given_settings import check_given
from fedsys.training.kinds import explain_kind, explain_terms
from fedsys.training.loggers import BackgroundLogger
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
from fedsys.training.run_outputs import RunOutputs
from fedsys.training.runner import Runner
from fedsys.training.summary import numbers, outcome, parse_outcome, parse_record

_SECONDS_FOR_A_RUN_THAT_ENDS = 5.0
"""How long to wait for the ranks of a launcher that was killed; the kernel ends them at once."""


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
    """A prepared runner with its run directory, its checkpoints and, on the first rank, outputs."""

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
        self._config: dict[str, Any] = redacted(OmegaConf.to_container(config))
        self._config["clients"] = runner.site.placement.clients
        self._world, self._runner, self._backend = world, runner, backend
        self._stop_signal = stop_signal
        self._loggers = BackgroundLogger([])
        self._outputs: RunOutputs | None = None

    def run(self) -> Record:
        """Run to the end; return the last record, on every rank."""
        self._world.on_all_ranks(self._build_loggers)
        path = str(run_path(self._settings))
        path = self._world.transport.all_gather_values(path, text)[0]
        with traceback_in(Path(path), self._world.rank):
            return self._run_in(Path(path))

    def _build_loggers(self) -> None:
        if self._world.rank == 0:
            self._loggers = BackgroundLogger(build_loggers(self._settings))  # type: ignore[arg-type]

    def _run_in(self, path: Path) -> Record:
        runner, settings = self._runner, self._settings
        resume = resumes(settings, self._world.is_restart)
        self._directory = directory = RunDirectory(path, print_error)
        if self._world.rank == 0:
            self._outputs = RunOutputs(
                runner, directory, self._loggers, self._config, self._backend
            )
        try:
            compared = self._world.on_all_ranks(lambda: self._open(resume))
            runner.checkpoints = self._checkpoints(resume, compared)
            earlier = self._finished_before(resume, compared)
            return self._train() if earlier is None else earlier
        except InputError:
            directory.forget()
            raise
        except InterruptedRunError as stop:
            self._loggers.finish()
            how = "the same command" if has_fixed_path(settings) else f"run.dir={directory.path}"
            raise self._stop_signal.error(f"{stop.message}; {how} resumes the run") from stop
        finally:
            if self._outputs is not None:
                self._outputs.restore_terminal()
            directory.close()

    def _open(self, resume: bool) -> bool:
        if self._world.rank != 0:
            return False
        # The other ranks wait for this one in a collective; it must answer before they time out.
        patience = self._runner.communicator.connection.timeout / 2
        if not self._world.is_restart:
            patience = min(patience, _SECONDS_FOR_A_RUN_THAT_ENDS)
        return self._directory.open(self._config, resume, patience)

    def _checkpoints(self, resume: bool, compared: bool) -> Checkpoints:
        wanted = self._settings.checkpoint
        return Checkpoints(
            self._directory.checkpoints,
            self._world,
            wanted.every,
            wanted.keep,
            resume,
            wanted.minutes,
            warn=print_error,
            settings=compared_settings(self._config, numbers(self._runner.algorithm)),
            compared=compared,
        )

    def _finished_before(self, resume: bool, compared: bool) -> Record | None:
        """Return the last record of a run that is finished already, on every rank."""
        summary = None
        if self._world.rank == 0 and resume:
            patience = self._runner.best.options.patience
            summary = self._directory.finished(self._runner.plan.is_over, patience)
        gather = self._world.transport.all_gather_values
        found = gather(summary and summary["final"], optional(parse_record))[0]
        is_known = gather(compared, boolean)[0]
        if found is None:
            return None
        if not is_known and self._runner.checkpoints is not None:
            self._runner.checkpoints.newest()  # refuses a checkpoint of other settings
        if summary is not None and self._outputs is not None:
            self._outputs.show_finished(summary)
        return found

    def _train(self) -> Record:
        runner = self._runner
        runner.on_first_step = lambda step, is_recorded: self._world.on_all_ranks(
            lambda: self._begin(step, is_recorded)
        )
        runner.on_record = self._record
        runner.on_warning = lambda line: print_error(f"warning: {line}")
        runner.stops_after = self._stop_signal.is_due
        runner.is_asked_to_stop = self._stop_signal.is_asked_for
        self._stop_signal.begin()
        result = runner.run()
        # After a resume only the first rank has the earlier records.
        outcomes = self._world.transport.all_gather_values(
            outcome(runner.communicator, result), parse_outcome
        )
        if self._outputs is not None:
            waited = [seconds for seconds, _, _ in outcomes]
            dropped = sum((counts for _, counts, _ in outcomes), Counter())
            self._outputs.finish(result, waited, dropped)
        return outcomes[0][2][-1]

    def _begin(self, step: int, is_recorded: bool) -> None:
        if self._outputs is not None:
            self._outputs.begin(step, is_recorded)

    def _record(self, record: Record) -> None:
        _objective(self._settings.objective, record)  # refuses an unknown name at the first record
        if self._outputs is not None:
            self._outputs.record(record)


def _objective(name: str | None, record: Record) -> float:
    """Return the value of the metric that a sweeper optimises."""
    name = name or headline(record)
    if isinstance(record.get(name, []), list):
        known = ", ".join(metrics_of(record))
        raise InputError(f"objective must be one of {known}; got {name}")
    return float(record[name])
