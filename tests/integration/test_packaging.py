"""The wheel: it holds all that a run needs, and runs where the repository is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*build, str(REPOSITORY)], check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """A fresh environment with the wheel; it borrows the dependencies of this one.

    A folder named in a .pth file does not have its own .pth files read, so an editable install of
    the repository stays behind.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    packages = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", vars=packages))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    install = [*pip, "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall"]
    subprocess.run([*install, str(wheel)], check=True)
    return folder


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, as a user without the repository would."""
    ours = ("PYTHONPATH", "FEDSYS_DATA", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)


def test_the_installed_package_and_its_configuration_are_those_of_the_wheel(
    environment: Path, tmp_path: Path
) -> None:
    where = "import fedsys.training.config as c; print(c.__file__, c.folder())"
    done = run(tmp_path, environment / "bin" / "python", "-c", where)
    assert done.returncode == 0, done.stderr
    code, conf = (Path(path) for path in done.stdout.split())
    assert environment in code.parents
    assert conf == code.parents[1] / "conf"


def test_the_wheel_holds_every_configuration_of_the_repository(environment: Path) -> None:
    (installed,) = environment.glob("lib/python*/site-packages/fedsys/conf")
    ours = REPOSITORY / "conf"
    files = {path.relative_to(ours) for path in ours.rglob("*.yaml")}
    assert files == {path.relative_to(installed) for path in installed.rglob("*.yaml")}


def test_the_wheel_holds_the_page_of_reports_and_the_papers(environment: Path) -> None:
    (installed,) = environment.glob("lib/python*/site-packages/fedsys")
    ours = REPOSITORY / "fedsys"
    page = {path.name for path in (ours / "report").glob("page.*")}
    assert len(page) >= 3
    assert page == {path.name for path in (installed / "report").glob("page.*")}
    papers = {path.parent.name for path in (REPOSITORY / "papers").glob("*/entries.yaml")}
    assert len(papers) >= 5
    assert papers == {path.parent.name for path in installed.glob("papers/*/entries.yaml")}


def test_the_installed_wheel_knows_the_papers(environment: Path, tmp_path: Path) -> None:
    done = run(tmp_path, environment / "bin" / "fedsys-reproduce", "list")
    assert done.returncode == 0, done.stderr
    assert "proxskip_fig1" in done.stdout


def test_the_installed_wheel_runs_in_another_folder(environment: Path, tmp_path: Path) -> None:
    done = run(
        tmp_path,
        *(environment / "bin" / "python", "-m", "fedsys"),
        *("problem=quadratic_game", "algorithm=local_sgda"),
        *("clients=3", "rounds=3", "dtype=float64", "evaluate_every=1"),
    )
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    assert {path.name for path in directory.iterdir() if not path.name.startswith(".")} == {
        "config.yaml",
        "metrics.jsonl",
        "summary.json",
        "final.safetensors",
        "checkpoints",
        "curves.png",
    }
    assert str(directory / "curves.png") in done.stdout
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [0, 1, 2, 3]
    assert records[-1]["relative_error"] < records[0]["relative_error"] == 1.0
    assert json.loads((directory / "summary.json").read_text())["clients"] == 3


def test_the_console_script_finds_the_configuration_too(environment: Path, tmp_path: Path) -> None:
    done = run(tmp_path, environment / "bin" / "fedsys", "algorithm=nonsense")
    assert done.returncode == 2
    assert "local_sgda" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_image_is_built_from_every_folder_that_the_wheel_includes() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    included = {*wheel["packages"], *wheel["force-include"]}
    stage = (REPOSITORY / "docker" / "Dockerfile").read_text().split("FROM scratch AS sources")[1]
    lines = stage.split("FROM ")[0].splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert {path.split("/")[0] for path in included} <= copied
