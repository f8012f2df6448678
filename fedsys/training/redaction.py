"""Redaction: settings whose names look like those of secrets are never written to a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsys.core.errors import StorageError

PLACEHOLDER = "<not kept>"

_SECRET = re.compile(
    r"(^|_)(pass(word|wd|phrase|code)?|pwd|secrets?|token|credentials?|auth(orization)?|bearer|cookie"
    r"|(api|access|private|signing|encryption|secret|auth|account|ssh)_?keys?)(_|$)"
)
_KEY = re.compile(r"[+~]*[\w./@-]+")
_IN_BRACES = re.compile(r"""(?P<before>(?P<name>[\w.'"-]+)\s*:\s*)('[^']*'|"[^"]*"|[^,{}\[\]]+)""")
_IN_URL = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")


def is_secret(name: object) -> bool:
    """Return whether a setting of this name is a secret: `password`, `apiKey`, `hub_token`, ..."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(name)).lower()
    return _SECRET.search(re.sub(r"[^a-z0-9]+", "_", words)) is not None


def redacted(value: Any, name: object = "") -> Any:
    """Return a copy of nested settings with a placeholder for each secret.

    Secrets are all values under a name that looks like one, and user:password@ in a URL.
    """
    if isinstance(value, Mapping):
        return {
            key: redacted(inner, name if is_secret(name) else key) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted(inner, name) for inner in value]
    if is_secret(name) and value not in (None, "") and not isinstance(value, bool):
        return PLACEHOLDER
    return redacted_override(value) if isinstance(value, str) else value


def redacted_override(override: str) -> str:
    """Return `name=value`, or any other text, with a placeholder for a secret value."""
    key, equals, _ = override.partition("=")
    if equals and _KEY.fullmatch(key) and is_secret(key.rpartition(".")[2]):
        return f"{key}={PLACEHOLDER}"
    if equals and "{" in override:  # name={inner: value, ...}
        override = _IN_BRACES.sub(_redacted_inner, override)
    return _IN_URL.sub(PLACEHOLDER, override)


def _redacted_inner(found: re.Match[str]) -> str:
    return f"{found['before']}{PLACEHOLDER}" if is_secret(found["name"].strip("'\"")) else found[0]


def redact_file(path: Path) -> None:
    """Replace the secrets in a YAML file that Hydra wrote; leave a file without secrets alone."""
    from omegaconf import OmegaConf

    if not path.is_file():
        return
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
        kept = redacted(content)
        if kept != content:
            partial = path.with_name(f".{path.name}.partial")
            OmegaConf.save(OmegaConf.create(kept), partial)
            partial.rename(path)
    except OSError as error:
        what = f"cannot remove the secrets from {path}"
        raise StorageError.of(error, what, "free some space and start the run again") from error
