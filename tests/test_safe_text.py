"""Tests of what is escaped and hidden in texts."""

from __future__ import annotations

import pytest

from rlcore.errors import ConfigError
from rlcore.safe_text import hide_logins, is_secret, redact, show, visible


def test_control_characters_are_escaped_and_letters_are_not() -> None:
    assert visible("caf\u00e9 \u4f60\nnext") == "caf\u00e9 \u4f60\nnext"
    assert visible("\x1b[2J\x07\r\x7f\x9b\u202e\ud800") == r"\x1b[2J\x07\r\x7f\x9b\u202e\ud800"
    assert visible(visible("\x1b")) == visible("\x1b")


@pytest.mark.parametrize(
    "name", ["api_key", "apiKey", "OPENAI-API-KEY", "token", "hf_token", "accessToken", "password", "client_secret",
             "aws_secret_access_key", "credentials", "Authorization"],
)  # fmt: skip
def test_names_of_secret_options_are_recognised(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["eos_token", "pad_token", "max_new_tokens", "tokens", "tokenizer", "eos_token_ids", "min_new_tokens",
             "keep_best", "author", "batch_size", 3],
)  # fmt: skip
def test_names_of_other_options_do_not_count_as_secret(name: str) -> None:
    assert not is_secret(name)


def test_logins_in_urls_are_hidden() -> None:
    assert hide_logins("see https://me:p@ss@host/x and http://host/me@here") == (
        "see https://<hidden>@host/x and http://host/me@here"
    )
    assert hide_logins("https:/me:p@host/x, C:/me@x and a://b") == "https:/<hidden>@host/x, C:/me@x and a://b"
    assert hide_logins("http://host/x?step=1&api_key=s3cret&b=2#c") == "http://host/x?step=1&api_key=<hidden>&b=2#c"
    assert str(ConfigError("run.root = 'ftp://me:s3cret@host'")) == "run.root = 'ftp://<hidden>@host'"


def test_secrets_are_hidden_at_any_depth_and_nothing_else() -> None:
    value = {
        "loggers": [{"name": "acme", "api_key": "s3cret", "tags": ("a", "ftp://me@host")}],
        "password": None,
        "n": 3,
    }
    assert redact(value) == {
        "loggers": [{"name": "acme", "api_key": "<hidden>", "tags": ("a", "ftp://<hidden>@host")}], "password": None,
        "n": 3,
    }  # fmt: skip
    assert value["loggers"][0]["api_key"] == "s3cret"


def test_of_a_mapping_only_the_keys_are_shown() -> None:
    assert show([{"nmae": "s3cret"}, 1]) == "[{'nmae': ...}, 1]"
    assert show("x" * 100) == f"'{'x' * 56}..."
