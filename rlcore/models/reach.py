"""Ask the hub once whether it can be had: where it cannot, loading a model keeps asking for half a minute and more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import LocalEntryNotFoundError

from rlcore.errors import ModelError
from rlcore.models.adapter_folders import base_of
from rlcore.models.kinds import is_hub_id
from rlcore.models.quiet import first_line, quiet_transformers

CONFIG = "config.json"


def check_reach(model: Any, revision: str | None) -> None:
    """Refuse the name of a model that is not on this machine while the hub cannot be reached.

    Args:
        model: a hub id or a folder; anything else is let through.
        revision: branch, tag or commit; the main branch if left out.

    Raises:
        ModelError: its configuration has not been fetched before, and cannot be now.
    """
    if not isinstance(model, (str, os.PathLike)):
        return
    if reason := _why_out_of_reach(os.fspath(model), revision or "main"):
        raise ModelError(
            f"model = {os.fspath(model)!r}: cannot be loaded: there is no such folder, it has not been fetched before, "
            f"and the hub cannot be reached ({reason:.100}): name a folder with a config.json, or go online"
        )


def _why_out_of_reach(name: str, revision: str) -> str:
    """Say why the configuration of a model cannot be fetched; nothing where it is here already, or may be."""
    name = base_of(name) or name
    if Path(name).expanduser().exists() or not is_hub_id(name):
        return ""
    try:
        if isinstance(try_to_load_from_cache(name, CONFIG, revision=revision), str):
            return ""
        with quiet_transformers():
            snapshot_download(name, revision=revision, allow_patterns=CONFIG)
    except LocalEntryNotFoundError as error:
        return str(error.__cause__) if error.__cause__ else first_line(error)
    except (OSError, ValueError):  # the hub has answered, or no repository can have that name
        return ""
    return ""
