"""Replies of judges on disk: one line of JSON for each, appended at once and found again by what was asked."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from rlcore.errors import ConfigError

NAME = "judge_cache.jsonl"


def key_of(request: Mapping[str, Any]) -> str:
    """Return the key of a request, which depends on everything in it."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


class ReplyCache:
    """The replies in a file, which several processes may append to.

    Args:
        folder: the folder of the file, created if needed.

    Raises:
        ConfigError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._lock = folder / NAME, Lock()
        self._replies: dict[str, str] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = self.path.read_bytes() if self.path.exists() else b""
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            if text and not text.endswith(b"\n"):  # a line that a crash cut off
                os.write(self._file, b"\n")
        except OSError as error:
            raise ConfigError(f"judge.cache: {self.path} cannot be written: {error}; name another folder") from error
        for line in text.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                self._replies[row["key"]] = str(row["reply"])

    def get(self, key: str) -> str | None:
        """Return the reply to a request, or None."""
        return self._replies.get(key)

    def put(self, key: str, reply: str) -> None:
        """Keep a reply; the line is written in one piece."""
        with self._lock:
            self._replies[key] = reply
            os.write(self._file, (json.dumps({"key": key, "reply": reply}) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
