"""Containers on this machine, by docker or podman, and an image to build on without a registry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from cluster.runs import REPOSITORY

BASE = "localhost/debian:bookworm"

# podman where cgroups are of the first kind and limits cannot be raised: this works elsewhere, too.
_PODMAN = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
"""


class Engine:
    """docker if it answers, else podman; with the compose of either.

    Args:
        folder: for the engine's settings.
    """

    def __init__(self, folder: Path) -> None:
        has_docker = shutil.which("docker") is not None
        uses_docker = has_docker and self._answers(["docker", "info"])
        self.name = "docker" if uses_docker else "podman"
        self._compose = ["docker", "compose"]
        if not uses_docker:
            self._compose = [str(Path(sys.executable).parent / "podman-compose")]
        settings = folder / "containers.conf"
        settings.write_text(_PODMAN)
        # The other format of podman's images has no health check.
        variables = {"CONTAINERS_CONF": str(settings), "BUILDAH_FORMAT": "docker"}
        self.environment = {**os.environ, **variables}

    def missing(self) -> str:
        """What this machine lacks to run containers, or nothing."""
        for program in (self.name, self._compose[0]):
            if shutil.which(program) is None:
                return f"there is no {Path(program).name} on this machine"
        return "" if self._answers([self.name, "info"]) else f"{self.name} does not answer"

    def say(self, *command: str) -> str:
        """What the engine prints."""
        done = subprocess.run(
            [self.name, *command], env=self.environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise OSError(f"{self.name} {' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def compose(self, project: str, *command: str, **variables: str) -> None:
        """docker/compose.yaml, under a name of its own."""
        file = REPOSITORY / "docker" / "compose.yaml"
        done = subprocess.run(
            [*self._compose, "-p", project, "-f", str(file), *command],
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise OSError(f"compose {' '.join(command)}: {done.stdout[-2000:]}")

    def containers(self, project: str, service: str) -> list[dict[str, Any]]:
        """All that is known of the containers of a service, by name."""
        label = f"label=com.docker.compose.project={project}"
        service_label = f"label=com.docker.compose.service={service}"
        found = self.say("ps", "-aq", "--filter", label, "--filter", service_label).split()
        inspected = [json.loads(self.say("inspect", one))[0] for one in found]
        return sorted(inspected, key=lambda one: str(one["Name"]))

    def is_healthy(self, container: dict[str, Any]) -> bool:
        """What the image's health check says now; docker may not have asked it yet."""
        check = container["Config"]["Healthcheck"]["Test"][1:]
        own = ["healthcheck", "run", container["Id"]]
        asks = own if self.name == "podman" else ["exec", container["Id"], *check]
        return self._answers([self.name, *asks])

    def base_image(self, folder: Path) -> str:
        """An image with our version of Python: one that is here, can be fetched, or can be made."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        public = f"docker.io/library/python:{version}-slim-bookworm"
        images = (BASE, public) if version == "3.11" else (public,)
        for image in images:
            if self._answers([self.name, "image", "inspect", image]):
                return image
        if self._answers([self.name, "pull", public]):
            return public
        if version != "3.11":
            raise OSError(f"{public} cannot be fetched, and Debian's own Python is 3.11")
        return self._bootstrap(folder / "root")

    def _bootstrap(self, root: Path) -> str:
        packages = "--include=python3,python3-venv,ca-certificates"
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", packages, "bookworm", str(root)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise OSError(f"debootstrap: {done.stdout[-300:]}")
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run([self.name, "import", "-", BASE], stdin=tar.stdout, check=True)
        shutil.rmtree(root)
        return BASE

    def _answers(self, command: list[str]) -> bool:
        done = subprocess.run(
            command, env=getattr(self, "environment", None), capture_output=True, timeout=300
        )
        return done.returncode == 0


def collect_wheels() -> None:
    """Fill docker/wheels with all that the image installs, unless it is newer than what is pinned.

    The image is then built without a network, from what pip finds on this machine.
    """
    folder = REPOSITORY / "docker" / "wheels"
    stamp = folder / ".collected"
    pinned = [REPOSITORY / name for name in ("constraints.txt", "pyproject.toml")]
    if stamp.exists() and stamp.stat().st_mtime > max(file.stat().st_mtime for file in pinned):
        return
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    options = ["-c", str(pinned[0]), "-w", str(folder)]
    subprocess.run([*pip, *options, str(REPOSITORY), "hatchling"], check=True)
    for own in folder.glob("fedsys-*.whl"):
        own.unlink()
    stamp.touch()
