"""Containers on this machine, by docker or podman, and a base image without a registry."""

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

# Settings for podman with cgroups v1 and fixed limits; they work elsewhere as well.
_PODMAN = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
"""


class Engine:
    """docker if it responds, otherwise podman, with the compose command of either.

    Args:
        folder: folder for the settings of the engine.
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
        # The OCI image format, podman's default, has no health check.
        variables = {"CONTAINERS_CONF": str(settings), "BUILDAH_FORMAT": "docker"}
        self.environment = {**os.environ, **variables}

    def missing(self) -> str:
        """Return what this machine lacks to run containers, or an empty string."""
        for program in (self.name, self._compose[0]):
            if shutil.which(program) is None:
                return f"missing program: {Path(program).name}"
        return "" if self._answers([self.name, "info"]) else f"{self.name} does not respond"

    def say(self, *command: str) -> str:
        """Run a command of the engine and return its output."""
        done = subprocess.run(
            [self.name, *command], env=self.environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise OSError(f"{self.name} {' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def compose(self, project: str, *command: str, **variables: str) -> None:
        """Run a compose command on docker/compose.yaml with its own project name."""
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
        """Return the inspected containers of a service, sorted by name."""
        label = f"label=com.docker.compose.project={project}"
        service_label = f"label=com.docker.compose.service={service}"
        found = self.say("ps", "-aq", "--filter", label, "--filter", service_label).split()
        inspected = [json.loads(self.say("inspect", container))[0] for container in found]
        return sorted(inspected, key=lambda container: str(container["Name"]))

    def is_healthy(self, container: dict[str, Any]) -> bool:
        """Run the health check of the image now; docker may not have run it yet."""
        check = container["Config"]["Healthcheck"]["Test"][1:]
        podman = ["healthcheck", "run", container["Id"]]
        command = podman if self.name == "podman" else ["exec", container["Id"], *check]
        return self._answers([self.name, *command])

    def base_image(self, folder: Path) -> str:
        """Return an image with our version of Python: a local, a pulled or a bootstrapped one."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        public = f"docker.io/library/python:{version}-slim-bookworm"
        images = (BASE, public) if version == "3.11" else (public,)
        for image in images:
            if self._answers([self.name, "image", "inspect", image]):
                return image
        if self._answers([self.name, "pull", public]):
            return public
        if version != "3.11":
            raise OSError(f"{public} cannot be pulled, and the Python of Debian is 3.11")
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
    """Fill docker/wheels with all packages of the image, unless it is up to date.

    The image is then built without a network, from the wheels that pip finds on this machine.
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
