"""Damaged run directories: reports and resumes keep what can be read and name what cannot.

Nothing here may end in a traceback, lose a record, or write to a run that is refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.processes import Done

from fedsys.report.main import main as report
from fedsys.training.run_files import is_number, read_metrics
from fuzz.run_damages import CASES, CONFIG, METRICS, SUMMARY
from fuzz.test_resume import GAME, files_of

Command = Callable[..., Done]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A run of 4 rounds with two checkpoints, and what it ends with after 6."""
    from support.processes import command

    folder = tmp_path_factory.mktemp("whole")
    assert command(folder, 1, *GAME).returncode == 0
    run = folder / "runs/mine"
    (run / ".lock").unlink()
    shutil.copytree(folder / "runs", folder / "continued/runs")
    assert command(folder / "continued", 1, *GAME, "rounds=6").returncode == 0
    return run, (folder / "continued/runs/mine/final.safetensors").read_bytes()


def listing(folder: Path) -> dict[str, bytes]:
    """All names below a folder, with the content of regular files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else b"special"
        for path in sorted(folder.rglob("*"))
    }


def lines_of(said: str, program: str) -> list[str]:
    lines = said.splitlines()
    assert all(line.startswith(f"{program}: ") for line in lines), said
    assert not any(" " * 4 in line or "Traceback" in line for line in lines), said
    return lines


def test_there_are_at_least_sixty_damaged_runs() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", CASES)
def test_a_report_of_a_damaged_run_names_what_it_cannot_read_and_writes_to_its_folder_only(
    whole: tuple[Path, bytes],
    tmp_path: Path,
    name: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    case = CASES[name]
    run = tmp_path / "inner/runs/mine"
    shutil.copytree(whole[0], run)
    case.damage(run)
    before = listing(tmp_path)
    outside = Path("/tmp/fedsys-x.png").exists()
    drawn = [] if "a metric" in name else ["--page-only"]
    code = report([str(run), "--out", str(tmp_path / "out"), *drawn])
    said = lines_of(capfd.readouterr().err, "fedsys-report")
    assert code == case.report, said
    after = {n: c for n, c in listing(tmp_path).items() if n != "out" and not n.startswith("out/")}
    assert after == before
    assert Path("/tmp/fedsys-x.png").exists() == outside
    if code:
        assert len(said) == 1
        assert not (tmp_path / "out").exists()
    elif case.names:
        assert any(case.names in line for line in said), said
    if "a metric" in name:
        assert all(path.parent == tmp_path / "out" for path in (tmp_path / "out").rglob("*"))


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_run_is_continued_with_all_that_can_be_read_or_refused_untouched(
    whole: tuple[Path, bytes], fedsys: Command, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    run = tmp_path / "runs/mine"
    shutil.copytree(whole[0], run)
    case.damage(run)
    before = listing(run)
    readable = [line for line in before.get(METRICS, b"").split(b"\n") if is_record(line)]
    done = fedsys(*GAME, "rounds=6")
    said = lines_of(done.stderr, "fedsys")
    assert done.returncode == case.resume, (done.stdout, said)
    assert not (tmp_path / "exploded").exists()
    if done.returncode:
        assert {n: c for n, c in listing(run).items() if n != ".lock"} == before
        assert 1 <= len(said) <= 4, said
        return
    assert (run / "final.safetensors").read_bytes() == whole[1]
    kept = b"\n".join(c for n, c in files_of(run).items() if n.startswith(METRICS))
    lost = [
        line for line in readable if line not in kept.split(b"\n") and "seconds" not in str(line)
    ]
    assert not lost
    if name in UNREAD:
        damaged = [n for n in listing(run) if ".damaged-1" in n]
        assert damaged, "what cannot be read is kept"
        assert any(".damaged-1" in line for line in said), said
    json.loads((run / SUMMARY).read_text())
    assert not read_metrics(run / METRICS).unread


UNREAD = [
    name
    for name, case in CASES.items()
    if case.resume == 0 and case.names in ("line 2", "is a folder", "not a regular file", "line")
]


def is_record(line: bytes) -> bool:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and all(map(is_number, content.values()))


def test_a_finished_run_whose_metrics_are_gone_is_still_finished(
    whole: tuple[Path, bytes], fedsys: Command, tmp_path: Path
) -> None:
    run = tmp_path / "runs/mine"
    shutil.copytree(whole[0], run)
    (run / METRICS).unlink()
    before = listing(run)
    done = fedsys(*GAME)
    assert (done.returncode, done.stderr) == (0, "")
    assert "this run is finished" in done.stdout
    assert {n: c for n, c in listing(run).items() if n != ".lock"} == before


@pytest.mark.timeout(600)
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    name=st.sampled_from([METRICS, SUMMARY, CONFIG]),
    start=st.floats(0, 1),
    cut_off=st.integers(0, 400),
    added=st.one_of(
        st.binary(max_size=60),
        st.text(max_size=60).map(str.encode),
        st.sampled_from(
            [b"\n", b"{", b"}", b"[", b":", b"null", b"NaN", b"1e999", b"- ", b"&a *a"]
        ),
    ),
)
def test_a_report_answers_any_edit_of_any_file(
    whole: tuple[Path, bytes],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    start: float,
    cut_off: int,
    added: bytes,
) -> None:
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole[0], run)
    old = (run / name).read_bytes()
    at = int(start * len(old))
    (run / name).write_bytes(old[:at] + added + old[at + cut_off :])
    before = listing(run)
    assert report([str(run), "--out", str(tmp_path / "out"), "--page-only"]) in (0, 2)
    lines_of(capfd.readouterr().err, "fedsys-report")
    assert listing(run) == before
