"""A private SLURM cluster: a controller on this machine and a node on each host."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from cluster.hosts import Hosts

# Jobs of `high` preempt jobs of `low`, which are requeued. A requeued job waits cred_expire seconds
# (two minutes by default) before it can start again.
_CONFIGURATION = """
ClusterName=fedsys
SlurmctldHost={here}({gateway})
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
{nodes}
PartitionName=low Nodes=ALL Default=YES State=UP MaxTime=INFINITE PriorityTier=1
PartitionName=high Nodes=ALL State=UP MaxTime=INFINITE PriorityTier=10
"""


class Slurm:
    """munged, slurmctld and one slurmd per host, with all their files in one folder."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self._hosts = hosts
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    def open(self) -> None:
        """Start the daemons and wait until every node is idle."""
        key = self._folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = {"key": key, "socket": self._folder / "munge.socket"}
        files |= {name: self._folder / f"munged.{name}" for name in ("pid", "log", "seed")}
        options = [
            f"--{name}{'' if name == 'socket' else '-file'}={p}" for name, p in files.items()
        ]
        self._start("munged", "--foreground", "--force", *options)
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={name} NodeAddr={self._hosts.address(name)} CPUs=2"
            for name in self._hosts.names
        )
        names = {"here": socket.gethostname(), "gateway": self._hosts.gateway}
        Path(self.environment["SLURM_CONF"]).write_text(
            _CONFIGURATION.format(**names, folder=self._folder, nodes=nodes)
        )
        (self._folder / "state").mkdir()
        self._start("slurmctld", "-D")
        for name in self._hosts.names:
            self._start(*self._hosts.on(name, "slurmd", "-D", "-N", name))
        self._wait_for_nodes()

    def close(self) -> None:
        """Cancel all jobs, then terminate the daemons."""
        subprocess.run(["scancel", "--user=root"], env=self._environment(), capture_output=True)
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline and self._output("squeue", "--noheader", check=False):
            time.sleep(0.5)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def submit(self, *arguments: str | Path, **variables: str) -> str:
        """Run `sbatch ...`; return the job id."""
        return self._output("sbatch", "--parsable", *map(str, arguments), variables=variables)

    def signal(self, job: str, name: str) -> None:
        """Send a signal to the steps of a job, as SLURM does before the time limit."""
        self._output("scancel", f"--signal={name}", job)

    def show(self, job: str) -> dict[str, str]:
        """Return JobState, Restarts, ExitCode, ... of a job."""
        words = self._output("scontrol", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, seconds: float) -> dict[str, str]:
        """Wait until a job has reached a final state; return its fields."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            fields = self.show(job)
            if fields["JobState"] in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"):
                return fields
            time.sleep(1)
        raise TimeoutError(f"job {job} is still {self.show(job)['JobState']} after {seconds} s")

    def _start(self, *command: str) -> None:
        log = (self._folder / "daemons.log").open("ab")
        self._daemons.append(
            subprocess.Popen(command, env=self._environment(), stdout=log, stderr=log)
        )

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + 120
        states: list[str] = []
        while time.monotonic() < deadline:
            states = self._output("sinfo", "-N", "-h", "-p", "low", "-o", "%T", check=False).split()
            if states == ["idle"] * len(self._hosts.names):
                return
            time.sleep(0.5)
        log = (self._folder / "daemons.log").read_text()[-2000:]
        raise TimeoutError(f"the nodes are {states or 'unknown'} after two minutes: {log}")

    def _output(
        self, *command: str, check: bool = True, variables: Mapping[str, str] | None = None
    ) -> str:
        done = subprocess.run(
            command, env=self._environment() | dict(variables or {}), capture_output=True, text=True
        )
        if check and done.returncode != 0:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}
