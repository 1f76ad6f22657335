"""Text that is safe to print and to write: control characters are escaped, and secrets are hidden."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

HIDDEN = "<hidden>"
"""Stands for a secret in every text and file; `rlcore.config.structure` refuses it as a value."""
_SECRET = re.compile(
    r"password|passwd|passphrase|pwd$|secret|credential|authorization|auth$|cookie"
    r"|(?:api|access|private|signing|encryption|ssh|auth)keys?$"
    r"|(?:api|access|auth|bearer|refresh|hf|hub)tokens$|token$"
)
_OF_TEXT = re.compile(r"(?:eos|bos|pad|unk|sep|cls|mask|special|start|end|stop|image|audio|video)token$")
"""Tokens of a tokenizer, which are no secrets."""
_LOGIN = re.compile(r"(\b[a-zA-Z][\w+.-]{1,20}:/{1,2})[^/\s'\"]+(?=@)")  # `Path` makes one slash of two
_PARAMETER = re.compile(r"([?&]([\w.%-]+)=)[^&#\s'\"]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USUAL_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
SHORTEST_KEY = 8
"""Characters of the value of an environment variable that is hidden; shorter ones, such as `true`, are no keys."""
_variables_with_keys: set[str] = set()
"""Environment variables that options name, besides those whose names tell that they hold a key."""


def visible(text: object) -> str:
    """Return text with its control characters escaped, newlines excepted: a terminal would obey them."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in str(text))


def write(text: object, stream: TextIO | None = None) -> None:
    """Write a line of text, escaped, to a stream that may be a terminal; by default to stdout."""
    stream = sys.stdout if stream is None else stream
    stream.write(f"{visible(text)}\n")
    stream.flush()


@lru_cache(maxsize=4096)
def is_secret(name: object) -> bool:
    """Return whether values under this key are secrets, as of `api_key`, `hf_token` and `password`."""
    word = re.sub(r"[^a-z0-9]", "", str(name).lower())
    return bool(_SECRET.search(word)) and not _OF_TEXT.search(word)


def is_variable(name: str) -> bool:
    """Return whether a text is the name of an environment variable: one with small letters only if it is set.

    A key that stands in place of a name is none.
    """
    return bool(_USUAL_VARIABLE.fullmatch(name)) or (bool(_VARIABLE.fullmatch(name)) and name in os.environ)


def names_key(variable: str) -> bool:
    """Return whether this is the name of an environment variable, whose value is hidden as a key from then on."""
    if is_name := is_variable(variable):
        _variables_with_keys.add(variable)
    return is_name


def hide_keys(text: str, further: Iterable[str] = ()) -> str:
    """Hide keys in a text that others wrote, such as the answer of a server, which may repeat what it was sent.

    Keys are the values of environment variables that are named for one, or that an option names (`names_key`), and
    `further` ones.
    """
    if len(text) < SHORTEST_KEY:
        return text
    named = (
        value
        for name, value in os.environ.items()
        if name in _variables_with_keys or (is_secret(name) and not Path(value).exists())  # PWD is a folder
    )
    keys = {key for each in (*named, *further) if len(key := each.strip()) >= SHORTEST_KEY}
    for key in sorted(keys, key=len, reverse=True):
        text = text.replace(key, HIDDEN)
    return text


def hide_logins(text: str) -> str:
    """Hide keys, and the logins and the secret parameters of URLs, as in `https://user:password@host/?token=1`."""
    return _hide_in_urls(hide_keys(text))


def _hide_in_urls(text: str) -> str:
    if ":/" not in text:
        return text
    text = _LOGIN.sub(rf"\1{HIDDEN}", text)
    return _PARAMETER.sub(lambda found: found[1] + HIDDEN if is_secret(found[2]) else found[0], text)


def _hide_options(text: str) -> str:
    """Hide a text that is a key, and logins; one that only contains a key may be an ordinary name."""
    return HIDDEN if text and hide_keys(text) == HIDDEN else _hide_in_urls(text)


def redact(value: Any, hide: Callable[[str], str] = _hide_options) -> Any:
    """Return a plain value with its secrets hidden: values under secret keys, and secrets in texts, at any depth.

    null, true and false are shown under any key. Values other than text, mappings, lists and tuples are unchanged.

    Args:
        value: as JSON and YAML have it.
        hide: hides the secrets of a text. When left out, the text of an option: a key, or a URL with a login.
    """
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if is_secret(key) and _holds_something(part) else redact(part, hide)
            for key, part in value.items()
        }
    if type(value) in {list, tuple}:
        return type(value)(redact(part, hide) for part in value)
    return value


def show(value: object, longest: int = 60) -> str:
    """Return the repr of a value of a configuration for a message, in at most `longest` characters.

    Of mappings only the keys are shown, because a value under an unknown key may be a secret.
    """
    return shorten(_outline(value), longest)


def shorten(value: object, longest: int = 80) -> str:
    """Return the repr of a value for a message, in at most `longest` characters, without the logins of URLs.

    A value whose repr raises an exception, as of a user's class or of a very long integer, is described by its type.
    """
    try:
        text = hide_logins(repr(value))
    except (Exception, SystemExit):  # noqa: BLE001  a user's class may raise anything
        text = f"<{type(value).__name__} that cannot be printed>"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


class _Dots:
    def __repr__(self) -> str:
        return "..."


def _outline(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict.fromkeys(value, _Dots())
    return type(value)(map(_outline, value)) if type(value) in {list, tuple} else value


def _holds_something(value: object) -> bool:
    return value is not None and not isinstance(value, bool) and value not in ("", HIDDEN)
