"""Tests of what is escaped and hidden in texts."""

from __future__ import annotations

import pytest

from rlcore.components import describe_error
from rlcore.errors import ConfigError
from rlcore.safe_text import hide_keys, hide_logins, is_secret, names_key, redact, show, visible


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


def test_keys_in_the_environment_are_hidden_in_texts_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACME_API_KEY": "sk-1234567\n", "JUDGE": "other-key", "MY_TOKEN": "true"}.items():
        monkeypatch.setenv(name, value)
    assert describe_error(ValueError("401: sk-1234567 is wrong")) == "ValueError: 401: <hidden> is wrong"
    assert hide_keys("other-key is true") == "other-key is true"
    assert names_key("JUDGE")
    assert str(ConfigError("no other-key: true")) == "no <hidden>: true"
    assert hide_keys("a secret", ["a secret"]) == "<hidden>"


@pytest.mark.parametrize(
    ("name", "is_name"),
    [("MY_KEY", True), ("judge", True), ("sk_live_1a2b", False), ("0123abcd", False), ("sk-1234567", False)],
)
def test_a_key_is_no_name_of_a_variable(monkeypatch: pytest.MonkeyPatch, name: str, is_name: bool) -> None:
    monkeypatch.setenv("judge", "a key that is set")
    assert names_key(name) is is_name


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


def test_an_option_that_only_contains_a_short_password_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "postgres")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "/0123456789+key")
    assert redact(["postgres-notes.jsonl", "postgres", "/0123456789+key"]) == [
        "postgres-notes.jsonl", "<hidden>", "<hidden>",
    ]  # fmt: skip


def test_of_a_mapping_only_the_keys_are_shown() -> None:
    assert show([{"nmae": "s3cret"}, 1]) == "[{'nmae': ...}, 1]"
    assert show("x" * 100) == f"'{'x' * 56}..."
