"""Plan the runs of an entry: the sweeps of its experiments, with seeds and overrides."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsys.cli.hydra_errors import as_fedsys_error
from fedsys.core.errors import InputError
from fedsys.reproduce.composition import Composer
from fedsys.reproduce.entries import SCALES, Entry, Part
from fedsys.reproduce.stacks import stack_key
from fedsys.training import config
from fedsys.training.file_names import slug
from fedsys.training.redaction import redacted

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_IGNORED_SETTINGS = ("seed", "run", "logger", "resume", "checkpoint", "objective")


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A run of an entry; changed settings give another folder, hence another run."""

    folder: Path
    part: str
    """Title of the part to which the run belongs."""
    tags: dict[str, str]
    """Values that the sweep chose, by name of the setting."""
    arguments: tuple[str, ...]
    """Arguments of `fedsys`, without the run directory."""
    label: str = ""
    """Text that distinguishes the run from the others of the entry."""
    stack: str = ""
    """What the runs that can be stepped together with this one have in common; "" for none."""


def scale_of(overrides: Sequence[str]) -> str:
    """Return the scale that the overrides choose, "small" by default."""
    given = dict(o.partition("=")[::2] for o in overrides if "=" in o)
    scale = given.get("scale", SCALES[0])
    if scale not in SCALES:
        raise InputError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    return scale


def count_runs(entry: Entry, overrides: Sequence[str]) -> int:
    """Return the number of runs of an entry."""
    with hydra_context():
        return sum(len(_choices(entry, part, overrides)) for part in entry.parts)


def planned_runs(entry: Entry, overrides: Sequence[str], root: Path) -> list[PlannedRun]:
    """Return the runs of an entry, with folders below `root`."""
    runs = []
    keys: dict[tuple[str, ...], tuple[str, str]] = {}
    with hydra_context() as compose:
        for part in entry.parts:
            for choice in _choices(entry, part, overrides):
                arguments = (f"experiment={part.experiment}", *(f"{k}={v}" for k, v in choice))
                unseeded = tuple(a for a in arguments if not a.startswith("seed="))
                if unseeded not in keys:
                    settings = compose(unseeded)
                    keys[unseeded] = _fingerprint(settings), stack_key(settings)
                fingerprint, stack = keys[unseeded]
                tags = {k: redacted(v, k.rpartition(".")[2]) for k, v in choice if k != "scale"}
                folder = root / f"{slug('_'.join(tags.values()))}-{fingerprint}"
                runs.append(PlannedRun(folder, part.title, tags, arguments, stack=stack))
    if not runs:
        raise InputError(
            "the overrides leave no run: the entry has none of the methods that algorithm= names, "
            "or no such panel"
        )
    return _labelled(runs)


def _labelled(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Label each run by its method and the settings that vary."""
    keys = dict.fromkeys(key for run in runs for key in run.tags)
    varied = {key for key in keys if len({run.tags.get(key) for run in runs}) > 1}

    def label(run: PlannedRun) -> str:
        words = [run.part] if run.part else []
        words += [run.tags["algorithm"]] if "algorithm" in run.tags else []
        more = [key for key in run.tags if key in varied and key != "algorithm"]
        return ", ".join(words + [f"{key.rpartition('.')[2]}={run.tags[key]}" for key in more])

    return [replace(run, label=label(run)) for run in runs]


def _choices(
    entry: Entry, part: Part, overrides: Sequence[str]
) -> list[tuple[tuple[str, str], ...]]:
    """Return the jobs of a sweep; a later value of a setting replaces an earlier one."""
    from hydra import compose
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    scale = scale_of(overrides)
    try:
        whole = compose(
            "config", overrides=[f"experiment={part.experiment}"], return_hydra_config=True
        )
        swept = {key: f"{key}={value}" for key, value in (whole.hydra.sweeper.params or {}).items()}
        parse = OverridesParser.create().parse_overrides
        listed = _values(parse([swept["seed"]])[0]) if "seed" in swept else []
        seeds = _first_seeds(listed, entry.seeds.get(scale, 1))
        given = [*part.overrides, *entry.overrides.get(scale, []), f"seed={seeds}", *overrides]
        parsed = parse([*swept.values(), *given])
    except HydraException as error:
        raise as_fedsys_error(error) from error
    values: dict[str, list[str]] = {}
    for override in parsed:
        values[override.get_key_element()] = _values(override)
    # Overrides select among the methods of a part and the values in its title; they add none.
    for override in parse(part.overrides):
        own, key = _values(override), override.get_key_element()
        if key == "algorithm" or (part.title and len(own) == 1):
            values[key] = [value for value in values[key] if value in own]
    return [tuple(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def _first_seeds(listed: Sequence[str], count: int) -> str:
    """Return the first `count` listed seeds, or 0, 1, ... if the experiment lists fewer."""
    return ",".join(listed[:count] if len(listed) >= count else map(str, range(count)))


def _values(override: Override) -> list[str]:
    """Return the value of an override, or all values of a list."""
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    if not override.is_discrete_sweep():
        key = override.get_key_element()
        raise InputError(f"{key} must be a list of values here, got {override.input_line}")
    return [str(value) for value in override.sweep_string_iterator()]


@contextmanager
def hydra_context() -> Iterator[Any]:
    """Initialise Hydra with conf/; yield a function from overrides to resolved settings."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    composer = Composer()

    def resolved(overrides: Sequence[str]) -> Any:
        try:
            return OmegaConf.to_container(composer.settings(overrides), resolve=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise as_fedsys_error(error) from error

    config.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config.folder()), version_base="1.3"):
        yield resolved


def _fingerprint(settings: dict[str, Any]) -> str:
    """Return a hash of all settings on which a result depends, except the seed."""
    kept = {k: v for k, v in settings.items() if k not in _IGNORED_SETTINGS}
    text = json.dumps(_without_locations(kept), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _without_locations(settings: Any) -> Any:
    """Drop the location of the data, which does not affect a result, and its seed.

    The seed of the data follows that of the run.
    """
    if not isinstance(settings, dict):
        return settings
    locations = {"root", "download", "seed"} if "root" in settings else set()
    return {k: _without_locations(v) for k, v in settings.items() if k not in locations}
