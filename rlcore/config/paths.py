"""Files and folders that options name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}


class ConfigOnly(str):
    """A hub id or folder from which only the configuration is read; the model's weights are then random.

    It is a string, so architectures pass it on like any other name of a model or a critic.
    """

    __slots__ = ()


def existing_path(name: str | os.PathLike[str]) -> Path | None:
    """Return the path that a name denotes, with `~` expanded, or None if nothing is there.

    A name that the file system cannot have (too long, with a null character, in the home of an unknown user) denotes
    nothing. A path that exists but cannot be examined is returned: reading it raises an error with the reason.
    """
    if not os.fspath(name):
        return None
    try:
        path = Path(name).expanduser()
        try:
            path.stat()
        except OSError as error:
            return None if error.errno in _ABSENT else path
    except (ValueError, RuntimeError):  # a null or unencodable character; no such user
        return None
    return path
