"""Check once whether the hub can be reached, since loading a model would retry for minutes; silence `transformers`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from huggingface_hub import get_session, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # exported lazily
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME, logging

from rlcore.config.paths import existing_path
from rlcore.config.plain import from_json
from rlcore.errors import ModelError

DESCRIBED = ("config.json",)
"""Files that describe a model; one of them is enough."""
WEIGHTS = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
"""Files with a model's weights or their index; one of them is enough."""
PATIENCE_S = 10.0


def is_hub_id(name: str) -> bool:
    """Return whether a name that is no folder can be a repository on the hub."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def why_out_of_reach(model: str | os.PathLike[str], revision: str | None, files: Sequence[str] = DESCRIBED) -> str:
    """Return why a model cannot be loaded: it is not on this machine and the hub does not answer; else an empty string.

    Args:
        model: a hub id or a folder.
        revision: branch, tag or commit; default: the main branch.
        files: one of these files is needed.
    """
    name, revision = base_of(os.fspath(model)) or os.fspath(model), revision or "main"
    if existing_path(name) or not is_hub_id(name):
        return ""
    if any(isinstance(try_to_load_from_cache(name, file, revision=revision), str) for file in files):
        return ""
    try:
        get_session().head(hf_hub_url(name, files[0], revision=revision), timeout=PATIENCE_S)
    except Exception as error:  # noqa: BLE001  offline, refused, no proxy: each library raises its own error
        return f"{first_line(error):.100}"
    return ""


def check_reach(model: Any, revision: str | None, files: Sequence[str] = DESCRIBED, *, what: str = "model") -> None:
    """Raise an error for the name of a model that cannot be reached.

    Any answer of the hub passes, because loading the model afterwards raises a better error.

    Args:
        model: a hub id or a folder; anything else passes.
        revision: branch, tag or commit; default: the main branch.
        files: one of these files is needed.
        what: prefix of the message.

    Raises:
        ModelError: none of the files is in the local cache, and the hub cannot be reached.
    """
    if isinstance(model, (str, os.PathLike)) and (reason := why_out_of_reach(model, revision, files)):
        raise ModelError(
            f"{what} = {os.fspath(model)!r}: cannot be loaded: there is no such folder, its {files[0]} has not been "
            f"fetched before, and the hub cannot be reached ({reason}): name a folder, or go online"
        )


WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


def base_of(name: str) -> str | None:
    """Return the name of the base model of the adapter in folder `name`; None if the folder holds no adapter alone.

    Raises:
        ModelError: the folder holds an adapter without the name of its base model.
    """
    folder = existing_path(name)
    if folder is None or not (folder / CONFIG_FILE).exists() or (folder / "config.json").exists():
        return None
    try:
        about = from_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        base = about.get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"model = {name!r}: its {CONFIG_FILE} cannot be read: {error}") from error
    if not base:
        raise ModelError(
            f"model = {name!r}: it contains an adapter without the name of its base model: set model.path to that "
            f"model and model.peft to {name!r}"
        )
    return str(base)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the progress bars and messages of loading and saving."""
    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # saving a model imports deepspeed, which warns if it finds none
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
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
