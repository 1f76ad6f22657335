"""Ask the hub once whether it can be had: where it cannot, loading a model keeps asking for half a minute and more."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import LocalEntryNotFoundError

from rlcore.models.adapter_folders import base_of
from rlcore.models.kinds import is_hub_id
from rlcore.models.quiet import first_line, quiet_transformers

CONFIG = "config.json"


def why_out_of_reach(name: str, revision: str) -> str:
    """Say why the configuration of a model that is not on this machine cannot be fetched; nothing where it may be.

    Args:
        name: a hub id or a folder.
        revision: branch, tag or commit.
    """
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
