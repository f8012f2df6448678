"""Generate the reference tables of the documentation from conf/ and from docstrings.

A page asks for a table with a comment such as `<!-- generated: group algorithm -->`. Nothing has to
be edited here, or on any page, when an algorithm, a problem, a data set or an option is added.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
sys.path.insert(0, str(ROOT))

_PLACEHOLDER = re.compile(r"<!-- generated: (\w+)((?: [\w/.]+)*) -->")
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
_AUTHOR = r"[A-Z][\w'’-]+"
_PLACE = r"(?:Algorithms?|Appendix|eqs?\.|Equations?|Figures?|Sections?|Tables?|Theorems?)"
_CITATION = re.compile(
    rf"{_AUTHOR}(?:(?:, {_AUTHOR})*,? and {_AUTHOR}| et al\.)? \([^()]*\d{{4}}\)"
    rf"(?:, arXiv:\d{{4}}\.\d{{4,5}})?(?:, {_PLACE} \(?[\w.]*\w\)?)?"
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace every placeholder of a page by what it asks for (called by mkdocs)."""
    return _PLACEHOLDER.sub(lambda found: _generate(found[1], found[2].split()), markdown)


def _generate(what: str, arguments: list[str]) -> str:
    makers: dict[str, Callable[..., str]] = {
        "group": group,
        "options": options,
        "metrics": metrics,
        "experiments": experiments,
        "count": count,
    }
    return makers[what](*arguments)


# Files of conf/.


@dataclass(frozen=True)
class Setting:
    """One line of a YAML file: a field, its value as it is written, and its comment."""

    name: str
    value: str
    comment: str


@dataclass(frozen=True)
class Choice:
    """A file of a configuration group, such as conf/algorithm/fedavg.yaml."""

    group: str
    name: str
    note: str
    target: type | None
    settings: list[Setting]
    base: str | None
    problem: str | None


def choices(folder: str) -> list[Choice]:
    """Return all files of a group, sorted by name."""
    paths = sorted((CONF / folder).rglob("*.yaml"))
    return [_choice(folder, path) for path in paths]


def _choice(folder: str, path: Path) -> Choice:
    text = path.read_text()
    content = yaml.safe_load(text) or {}
    defaults = content.pop("defaults", [])
    base = next(
        (str(item) for item in defaults if isinstance(item, str) and item != "_self_"), None
    )
    overrides = {
        key: value for item in defaults if isinstance(item, dict) for key, value in item.items()
    }
    own = content.get(folder, content)
    if isinstance(own, dict) and len(own) == 1 and "_target_" not in own:
        (inner,) = own.values()  # a logger is one entry of a dictionary of loggers
        own = inner if isinstance(inner, dict) and "_target_" in inner else own
    target = own.get("_target_") if isinstance(own, dict) else None
    return Choice(
        folder,
        str(path.relative_to(CONF / folder).with_suffix("")),
        _leading_comment(text),
        _imported(target or _inherited_target(folder, base)),
        list(_settings(text)),
        None if base is None else base.rpartition("/")[2].partition("@")[0],
        overrides.get("override /problem"),
    )


def _inherited_target(folder: str, base: str | None) -> str | None:
    if base is None or base == "schema":
        return None
    name = base.removeprefix(f"/{folder}/").partition("@")[0]  # NAME@PACKAGE
    path = CONF / folder / f"{name}.yaml"
    if not path.is_file():
        return None
    content = yaml.safe_load(path.read_text()) or {}
    bases = [item for item in content.get("defaults", []) if isinstance(item, str)]
    own = content.get(folder, content)
    return own.get("_target_") or _inherited_target(folder, bases[0] if bases else None)


def _imported(target: str | None) -> type | None:
    if target is None:
        return None
    module, _, name = target.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    return found if isinstance(found, type) else None


def _leading_comment(text: str) -> str:
    """Return the first comment of a file, which may have several lines."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("# @package"):
            continue
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def _settings(text: str) -> Iterator[Setting]:
    """Yield the fields of a YAML file with dotted names, without Hydra's own."""
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        found = re.match(r"( *)([A-Za-z_]\w*):(?: +(.*?))?(?: +# (.*)| *)$", line)
        if not found or line.lstrip().startswith("#"):
            continue
        indent, name, value, comment = len(found[1]), found[2], found[3] or "", found[4] or ""
        parents = [parent for parent in parents if parent[0] < indent]
        dotted = ".".join([*(parent for _, parent in parents), name])
        parents.append((indent, name))
        top = dotted.partition(".")[0]
        if top not in ("defaults", "hydra") and name != "_target_" and (value or comment):
            yield Setting(dotted, value, comment)


# Docstrings.


def summary(item: Any) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(item) or "").partition("\n\n")[0].split())


def argument_meanings(cls: type) -> dict[str, str]:
    """Return the `Args:` of a class and of its bases; those of the class itself win."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _args(inspect.cleandoc(base.__doc__ or ""))
    return found


def _args(doc: str) -> dict[str, str]:
    block = re.search(r"^(?:Args|Attributes):\n((?:[ ]{4}.*\n?|\n)*)", doc, flags=re.MULTILINE)
    found: dict[str, str] = {}
    name = None
    for line in (block[1] if block else "").splitlines():
        if entry := re.match(r" {4}(\w+)(?: \([^)]*\))?: (.*)", line):
            name = entry[1]
            found[name] = entry[2].strip()
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found


def citations(cls: type) -> list[str]:
    """Return the papers that a class or its module cites, linked where they have an arXiv id."""
    for doc in (inspect.cleandoc(cls.__doc__ or ""), _module_doc(cls)):
        flat = " ".join(doc.split())
        cited = [match[0].strip() for match in _CITATION.finditer(flat)]
        if cited := [one for one in cited if re.search(r"(19|20)\d{2}", one)]:
            return [link_arxiv(one) for one in dict.fromkeys(cited)]
        bracket = re.search(r"\(([^()]*(?:19|20)\d{2}[^()]*)\)", flat)
        if bracket:
            return [link_arxiv(bracket[1])]
    return []


def _module_doc(cls: type) -> str:
    return inspect.cleandoc(sys.modules[cls.__module__].__doc__ or "")


def terms_of(algorithm: type) -> str:
    """Return how an algorithm applies the terms of a problem, from its `term_maps`."""
    maps = getattr(algorithm, "term_maps", ())
    names = [{"prox_x": "x", "prox_y": "y"}[one] for one in maps if one.startswith("prox_")]
    if names:
        plural = "s" if len(names) > 1 else ""
        return f"proximal map{plural} of {' and '.join(names)}"
    whole = {"prox": "proximal map of z", "mirror": "mirror map of z"}
    return " and ".join(whole[one] for one in maps) or "not applied; a problem with one is refused"


def link_arxiv(text: str) -> str:
    """Link every arXiv id in a text."""
    return _ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


# Pages.


def group(folder: str) -> str:
    """Return a table of the files of a group, then a section for each with its fields."""
    found = choices(folder)
    if folder == "algorithm":
        head = ["algorithm=", "What it does", "Problem", "Paper"]
    else:
        head = [f"{folder}=", "What it is"]
    rows = [_row(choice) for choice in found]
    sections = [_section(choice) for choice in found if choice.settings or choice.target]
    return "\n\n".join([table(head, rows), *sections])


def _row(choice: Choice) -> list[str]:
    name = f"[`{choice.name}`](#{_anchor(choice)})"
    if not (choice.settings or choice.target):
        name = f"`{choice.name}`"
    row = [name, choice.note or (summary(choice.target) if choice.target else "")]
    if choice.group == "algorithm" and choice.target is not None:
        row += [getattr(choice.target, "kind", ""), "; ".join(citations(choice.target))]
    return row


def _anchor(choice: Choice) -> str:
    return f"{choice.group}-{choice.name.replace('/', '-')}"


def _section(choice: Choice) -> str:
    """Return the section of one file: what it is, its class, and its fields."""
    lines = [f"## {choice.group}={choice.name} {{#{_anchor(choice)}}}"]
    meanings: dict[str, str] = {}
    if choice.note:
        lines.append(link_arxiv(choice.note))
    if choice.target is not None:
        meanings = argument_meanings(choice.target)
        lines.append(link_arxiv(summary(choice.target)))
        lines.append(f"Class: `{_public_name(choice.target)}`.")
        if choice.group in ("algorithm", "problem") and (cited := citations(choice.target)):
            lines.append(f"Paper: {'; '.join(cited)}.")
    if choice.group == "algorithm" and choice.target is not None:
        lines.append(f"Composite terms and constraints: {terms_of(choice.target)}.")
    if choice.base and choice.base != "schema":
        lines.append(f"Fields that are not listed are those of `{choice.group}={choice.base}`.")
    if choice.problem:
        lines.append(f"Default problem: `problem={choice.problem}`.")
    rows = [
        [f"`{name}`", f"`{setting.value}`" if setting.value else "", meaning]
        for setting in choice.settings
        if (name := _option_name(choice, setting))
        for meaning in [_meaning(choice, setting, meanings)]
    ]
    if rows:
        lines.append(table(["Option", "Default", "Meaning"], rows))
    return "\n\n".join(lines)


def _option_name(choice: Choice, setting: Setting) -> str:
    """Return the name by which the command line sets a field."""
    top = setting.name.partition(".")[0]
    is_global = top in _top_level_options() or top == choice.group
    if choice.group == "logger" or is_global:
        return f"logger.{setting.name}" if choice.group == "logger" else setting.name
    return f"{choice.group}.{setting.name}"


def _top_level_options() -> set[str]:
    content = yaml.safe_load((CONF / "config.yaml").read_text())
    return {name for name in content if name not in ("defaults", "hydra")} - {"seed"}


def _meaning(choice: Choice, setting: Setting, meanings: dict[str, str]) -> str:
    """Return what the comment in the YAML file, or else the docstring, says about a field."""
    name = setting.name.removeprefix(f"{choice.group}.")
    return _sentence(setting.comment or meanings.get(name, ""))


def _public_name(cls: type) -> str:
    """Return the shortest public path of a class."""
    package = ".".join(cls.__module__.split(".")[:2])
    exported = hasattr(sys.modules.get(package), cls.__name__)
    return f"{package}.{cls.__name__}" if exported else f"{cls.__module__}.{cls.__name__}"


def options() -> str:
    """Return a section for each option of conf/config.yaml."""
    text = (CONF / "config.yaml").read_text()
    found = list(_settings(text))
    index = table(
        ["Option", "Default", "Meaning"],
        [
            [
                f"[`{s.name}`](#option-{s.name.replace('.', '-')})",
                f"`{s.value}`",
                _sentence(s.comment),
            ]
            for s in found
        ],
    )
    extra = _option_details()
    sections = [
        f"## {s.name} {{#option-{s.name.replace('.', '-')}}}\n\n"
        f"`{s.name}={s.value}` (default). {_sentence(s.comment)}"
        + (f"\n\n{extra[s.name]}" if s.name in extra else "")
        for s in found
    ]
    return "\n\n".join([index, *sections])


def _option_details() -> dict[str, str]:
    """Return longer explanations, from docs/reference/option_details.yaml."""
    content = yaml.safe_load((ROOT / "docs" / "reference" / "option_details.yaml").read_text())
    return {str(name): str(text).strip() for name, text in content.items()}


def _sentence(text: str) -> str:
    text = re.sub(r"[;,] or$", "", text.strip())  # the comment continues on the next line
    first = text if re.match(r"\w\b", text) else text[:1].upper() + text[1:]  # D stays d, N stays n
    return f"{first.rstrip('.')}." if text else ""


def metrics() -> str:
    """Return a table of the metrics that fedsys.core.metrics declares."""
    module = importlib.import_module("fedsys.core.metrics")
    rows = [
        [f"`{metric.name}`", metric.meaning, metric.better, metric.axis, _cell(metric.headline)]
        for metric in module.registered_metrics().values()
    ]
    return table(["Metric", "Meaning", "Better", "Axis", "Headline"], rows)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def experiments() -> str:
    """Return a table of the pinned runs of conf/experiment."""
    rows = [
        [f"`experiment={path.relative_to(CONF / 'experiment').with_suffix('')}`", link_arxiv(note)]
        for path in sorted((CONF / "experiment").rglob("*.yaml"))
        for note in [_leading_comment(path.read_text())]
    ]
    return table(["Experiment", "What it pins"], rows)


def count(folder: str) -> str:
    """Return how many files a group has."""
    return str(len(choices(folder)))


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_escape(cell) for cell in line)} |" for line in lines)


def _escape(cell: str) -> str:
    """Keep `|` and line breaks of a cell from ending it, and `<` from starting a tag."""
    flat = " ".join(cell.split()).replace("|", "\\|")
    pieces = flat.split("`")
    return "`".join(
        piece
        if index % 2
        else piece.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
        if "](" not in piece
        else piece.replace("<", "&lt;")
        for index, piece in enumerate(pieces)
    )
