"""Secrets: which settings hold one, and that none of them stays in what is written."""

from __future__ import annotations

import pytest

from fedsys.training.redaction import PLACEHOLDER, is_secret, redacted, redacted_override


@pytest.mark.parametrize(
    "name",
    [
        *(
            "password",
            "PASSWORD",
            "db_passwd",
            "token",
            "hub_token",
            "apiKey",
            "api_key",
            "api-key",
        ),
        *("secret", "client_secret", "access_key", "private_key", "passphrase", "credentials"),
    ],
)
def test_a_name_that_looks_like_a_secret_is_one(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["lr", "keep", "max_tokens", "tokenizer", "key", "keys", "bypass_rate", "author", "seed"],
)
def test_other_names_are_not(name: str) -> None:
    assert not is_secret(name)


def test_every_value_below_a_secret_name_is_replaced_and_nothing_else() -> None:
    given = {
        "lr": 0.1,
        "logger": {"token": "abc", "hubs": [{"password": 1234}, {"password": None}]},
        "secret": {"a": "x", "b": ["y"]},
        "uri": "https://me:hush@host:80/x",
        "overrides": ["logger.token=abc", "a={password: 'x y', lr: 0.1}", "lr=0.1"],
    }
    assert redacted(given) == {
        "lr": 0.1,
        "logger": {"token": PLACEHOLDER, "hubs": [{"password": PLACEHOLDER}, {"password": None}]},
        "secret": {"a": PLACEHOLDER, "b": [PLACEHOLDER]},
        "uri": f"https://{PLACEHOLDER}@host:80/x",
        "overrides": [
            f"logger.token={PLACEHOLDER}",
            f"a={{password: {PLACEHOLDER}, lr: 0.1}}",
            "lr=0.1",
        ],
    }
    assert redacted_override("+algorithm.api_key=1") == f"+algorithm.api_key={PLACEHOLDER}"
    assert redacted_override("uri=http://a:b@c") == f"uri=http://{PLACEHOLDER}@c"
