"""Ask the hub once whether it can be had: where it cannot, loading a model keeps asking for minutes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import get_session, hf_hub_url, try_to_load_from_cache
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME, logging

from rlcore.errors import ModelError

DESCRIBED = ("config.json",)
"""Files one of which describes a model."""
WEIGHTS = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
"""Files one of which its weights begin with."""
PATIENCE_S = 10.0


def is_hub_id(name: str) -> bool:
    """Tell whether a name of no folder may be that of a repository on the hub."""
    return bool(name) and not name.startswith((".", "/", "~")) and name.count("/") <= 1


def why_out_of_reach(model: str | os.PathLike[str], revision: str | None, files: Sequence[str] = DESCRIBED) -> str:
    """Say why a model is not to be had: it is not on this machine, and nobody answers where the hub is; else nothing.

    Args:
        model: a hub id or a folder.
        revision: branch, tag or commit; the main branch if left out.
        files: one of them is needed.
    """
    name, revision = base_of(os.fspath(model)) or os.fspath(model), revision or "main"
    if Path(name).expanduser().exists() or not is_hub_id(name):
        return ""
    if any(isinstance(try_to_load_from_cache(name, file, revision=revision), str) for file in files):
        return ""
    try:
        get_session().head(hf_hub_url(name, files[0], revision=revision), timeout=PATIENCE_S)
    except Exception as error:  # noqa: BLE001  offline, refused, no such proxy: there are as many kinds as libraries
        return f"{first_line(error):.100}"
    return ""


def check_reach(model: Any, revision: str | None, files: Sequence[str] = DESCRIBED, *, what: str = "model") -> None:
    """Refuse the name of a model that is out of reach.

    Whatever the hub answers is left to what loads the model, which has the better message.

    Args:
        model: a hub id or a folder; anything else is let through.
        revision: branch, tag or commit; the main branch if left out.
        files: one of them is needed.
        what: the message begins with this.

    Raises:
        ModelError: none of the files has been fetched before, and none can be now.
    """
    if isinstance(model, (str, os.PathLike)) and (reason := why_out_of_reach(model, revision, files)):
        raise ModelError(
            f"{what} = {os.fspath(model)!r}: cannot be loaded: there is no such folder, its {files[0]} has not been "
            f"fetched before, and the hub cannot be reached ({reason}): name a folder, or go online"
        )


WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


def base_of(name: str) -> str | None:
    """Return the name of the model that the adapter in folder `name` was made for; None where no adapter lies alone.

    Raises:
        ModelError: an adapter does, and names no model.
    """
    folder = Path(name).expanduser()
    if not (folder / CONFIG_FILE).exists() or (folder / "config.json").exists():
        return None
    try:
        about = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        base = about.get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"model = {name!r}: its {CONFIG_FILE} cannot be read: {error}") from error
    if not base:
        raise ModelError(
            f"model = {name!r}: it holds an adapter, and does not say of which model: set model.path to that model and "
            f"model.peft to {name!r}"
        )
    return str(base)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the progress bars and notices that loading and saving print."""
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or what kind of error it is."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
