"""The documentation: its code runs and prints what it says, and its search finds the answers."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from types import ModuleType
from urllib.parse import quote

import pytest
from hydra import compose, initialize_config_dir
from support.browser import ADVICE, CHROMIUM, Browser
from support.processes import run_python

import fedsys
from fedsys.cli.arguments import with_quoted_paths
from fedsys.problems import BilinearGame
from fedsys.training import config

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
GROUPS = {
    "algorithm": "algorithms",
    "problem": "problems",
    "model": "models",
    "dataset": "datasets",
    "partition": "partitions",
    "communicator": "communicators",
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page: language and text."""
    return _FENCE.findall(page.read_text())


def scripts() -> Iterator[tuple[str, str, str]]:
    """Yield the Python blocks that print something: a name, the code, and the block after it."""
    for page in [*PAGES]:
        found = blocks(page)
        for number, (language, text) in enumerate(found):
            if language == "python" and "print(" in text:
                after = found[number + 1] if number + 1 < len(found) else ("", "")
                printed = after[1] if after[0] == "text" else ""
                yield f"{page.relative_to(DOCS)}-{number}", text, printed


SCRIPTS = list(scripts())


@pytest.mark.parametrize(("code", "printed"), [s[1:] for s in SCRIPTS], ids=[s[0] for s in SCRIPTS])
def test_a_python_block_prints_what_the_page_says(
    code: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = io.StringIO()
    with redirect_stdout(output):
        exec(compile(code, "<page>", "exec"), {"__name__": "__main__"})
    assert output.getvalue() == printed


def user_folder(page: str, tmp_path: Path, module: str, yaml: str) -> Path:
    """Write the Python module and the YAML file of a page into a folder."""
    found = blocks(DOCS / page)
    (tmp_path / module).write_text(next(text for language, text in found if language == "python"))
    path = tmp_path / "mine" / yaml
    path.parent.mkdir(parents=True)
    path.write_text(next(text for language, text in found if language == "yaml"))
    return tmp_path


def command_with(page: str, words: str) -> list[str]:
    """Return the arguments of the command of a page that has these words, without `python`."""
    lines = [line for _, text in blocks(DOCS / page) for line in text.splitlines()]
    return shlex.split(next(line for line in lines if words in line))[2:]


def final_record(folder: Path, *arguments: str) -> dict[str, float]:
    """Run Python in a folder and return the last record of its run."""
    done = run_python(folder, *arguments, "run.dir=run")
    assert done.returncode == 0, done.stderr
    final: dict[str, float] = json.loads((folder / "run" / "summary.json").read_text())["final"]
    return final


PROMISE = re.compile(r"`relative_error` (\S+); `local_sgda` .*? ends with\s+(\S+)\. ", re.DOTALL)


def promised() -> tuple[float, float]:
    """Return the two errors that the tutorial of an algorithm promises."""
    found = PROMISE.search((DOCS / "tutorials/own-algorithm.md").read_text())
    assert found is not None
    return float(found[1]), float(found[2])


def test_the_algorithm_of_the_tutorial_ends_where_the_page_says(tmp_path: Path) -> None:
    page = "tutorials/own-algorithm.md"
    folder = user_folder(page, tmp_path, "local_optimistic.py", "algorithm/local_optimistic.yaml")
    final = final_record(folder, *command_with(page, "algorithm=local_optimistic"))
    assert final["relative_error"] == pytest.approx(promised()[0], rel=0.01)


def test_local_sgda_ends_where_the_tutorial_says() -> None:
    algorithm = fedsys.LocalSGDA(lr_x=0.2, lr_y=0.2, local_steps=5)
    records = fedsys.run(BilinearGame(), algorithm, rounds=100, clients=4).records
    assert records[-1]["relative_error"] == pytest.approx(promised()[1], rel=0.01)


def test_the_data_set_of_the_guide_can_be_trained_on(tmp_path: Path) -> None:
    folder = user_folder("guides/data.md", tmp_path, "spirals.py", "dataset/spirals.yaml")
    final = final_record(folder, *command_with("guides/data.md", "dataset=spirals"))
    assert final["test_accuracy"] > 0.5


# Commands.

_VARIABLES = re.compile(r"^(?:[A-Z_]+=(?:\"[^\"]*\"|\S+)\s+)+")


def overrides_of(line: str) -> list[str] | None:
    """Return the Hydra overrides of a command line, or None if it does not run fedsys."""
    arguments = shlex.split(line, comments=True)
    given = dict(word.split("=", 1) for word in arguments if re.match(r"^[A-Z_]+=", word))
    words = [word for word in arguments if not re.match(r"^[A-Z_]+=", word)]
    if words[:1] == ["fedsys"] and words[1:2] not in (["predict"], ["export"]):
        return words[1:]
    if words[:3] == ["python", "-m", "fedsys"] and "--config-dir" not in words:
        return words[3:]
    if words[:1] == ["launch/torchrun.sh"]:
        return words[1:]
    if "launch/slurm.sbatch" in words:
        return words[words.index("launch/slurm.sbatch") + 1 :]
    if words[:2] == ["make", "run"] or words[:2] == ["docker", "compose"]:
        return shlex.split(given.get("ARGS", ""))
    return None


def commands() -> list[str]:
    """Return every command of a console block in the documentation and the README."""
    texts = [
        text
        for page in [ROOT / "README.md", *PAGES]
        for lang, text in blocks(page)
        if lang == "console"
    ]
    lines = [line.removeprefix("$ ") for text in texts for line in text.splitlines()]
    return list(dict.fromkeys(line for line in lines if overrides_of(line) is not None))


def variants(overrides: list[str]) -> Iterator[list[str]]:
    """Yield each run of a sweep; a command that is no sweep is one."""
    if "--multirun" not in overrides:
        yield overrides
        return
    rest = [word for word in overrides if word != "--multirun"]
    choices = [
        [f"{word.split('=')[0]}={v}" for v in word.split("=")[1].split(",")] for word in rest
    ]
    yield from (list(one) for one in product(*choices))


def test_every_command_composes() -> None:
    assert len(commands()) > 20
    config.register()
    with initialize_config_dir(str(config.folder()), version_base="1.3"):
        for command in commands():
            for given in variants(overrides_of(command) or []):
                overrides = with_quoted_paths(given)
                assert compose("config", overrides=overrides), command


# Generated pages.


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """The module that generates the tables."""
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_hooks"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("group", GROUPS)
def test_the_reference_has_every_file_of_the_group(group: str, hooks: ModuleType) -> None:
    page = hooks.on_page_markdown((DOCS / "reference" / f"{GROUPS[group]}.md").read_text())
    files = sorted((config.folder() / group).rglob("*.yaml"))
    names = [str(file.relative_to(config.folder() / group).with_suffix("")) for file in files]
    assert [name for name in names if f"`{name}`" not in page] == []
    assert [name for name in names if f"## {group}={name} " not in page] == []


def test_every_algorithm_of_the_reference_has_a_class_with_a_summary(hooks: ModuleType) -> None:
    found = hooks.choices("algorithm")
    assert [choice.name for choice in found if choice.target is None] == []
    assert all(hooks.summary(choice.target) for choice in found)


def test_the_reference_says_how_every_algorithm_applies_terms(hooks: ModuleType) -> None:
    sections = re.split(r"^## algorithm=", hooks.group("algorithm"), flags=re.MULTILINE)[1:]
    said = {
        section.partition(" ")[0]: re.search(
            r"Composite terms and constraints: (.*)\.$", section, re.M
        )
        for section in sections
    }
    assert [name for name, found in said.items() if found is None] == []
    texts = {name: found[1] for name, found in said.items() if found is not None}
    assert texts["lsgd"] == "proximal map of z"
    assert texts["lde"] == "mirror map of z"
    assert texts["local_sgda"] == "proximal maps of x and y"
    assert texts["fedbio"] == "proximal map of x"
    for name in ("fedavg", "lippax", "localscgdam"):
        assert texts[name] == "not applied; a problem with one is refused"


def test_the_options_page_explains_every_option(hooks: ModuleType) -> None:
    page = hooks.options()
    for name in ("clients", "evaluate_every", "seed", "checkpoint.every", "run.name", "resume"):
        assert f"## {name} " in page
    assert "Rounds between two records" in page


def test_details_are_of_options_that_exist(hooks: ModuleType) -> None:
    page = hooks.options()
    assert [name for name in hooks._option_details() if f"## {name} " not in page] == []


def test_every_environment_variable_is_documented() -> None:
    page = (DOCS / "reference" / "environment.md").read_text()
    files = [*(ROOT / "fedsys").rglob("*.py"), *(ROOT / "launch").iterdir()]
    used = {name for file in files for name in re.findall(r"FEDSYS_[A-Z_]+", file.read_text())}
    assert sorted(name for name in used if f"`{name}`" not in page) == []


def test_every_file_that_the_documentation_names_exists() -> None:
    pattern = re.compile(r"\b(?:fedsys|conf|launch|docker|benchmarks|examples)/[\w/-]+(?:\.\w+)+")
    named = {path for page in PAGES for path in pattern.findall(page.read_text())}
    assert len(named) > 20
    assert sorted(path for path in named if not (ROOT / path).is_file()) == []


# The built site.

QUESTIONS = {
    "evaluate_every": "reference/options.html#option-evaluate_every",
    "what does this option mean": "reference/options.html",
    "lr=theory": "guides/theory.html#what-is-lrtheory",
    "what is lr=theory": "guides/theory.html#what-is-lrtheory",
    "how are bytes counted": "guides/communication.html#how-are-bytes-counted",
    "how do I add a data set": "guides/data.html#how-do-i-add-a-data-set",
    "how do I resume": "guides/checkpoints.html#how-do-i-resume-a-run",
    "how do I cite": "papers.html#how-do-i-cite-fedsys",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built strictly."""
    pytest.importorskip("material", reason="`make docs` installs the packages of the documentation")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_loads_nothing_from_a_network(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|link rel=\"(?:stylesheet|icon|preconnect)\")[^>]*https?://")
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text())] == []


@pytest.mark.skipif(CHROMIUM is None, reason=ADVICE)
def test_the_first_hit_of_the_search_answers_the_question(site: Path) -> None:
    handler = partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        browser = Browser()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            hits = {question: _first_hit(browser, address, question) for question in QUESTIONS}
        finally:
            with suppress(OSError):  # Chromium may still write to its profile as it is removed
                browser.close()
            server.shutdown()
    missed = {q: links for q, links in hits.items() if QUESTIONS[q] not in links}
    assert missed == {}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def _first_hit(browser: Browser, address: str, question: str) -> list[str]:
    """Return the links of the first hit of a search: a page and its matching sections."""
    browser._call("Page.navigate", url=f"{address}/index.html?q={quote(question)}")
    script = """[...(document.querySelector('.md-search-result__item')
        ?.querySelectorAll('a') ?? [])].map(link => link.href)"""
    end = monotonic() + 20
    while monotonic() < end:
        links: list[str] = browser(script)
        if links and quote(question.split()[0])[:3] in browser("location.search"):
            return [re.sub(r"\?h=[^#]*", "", link.removeprefix(f"{address}/")) for link in links]
        sleep(0.1)
    return []
