"""Tell folders that hold an adapter of `peft` alone from those that hold a model."""

from __future__ import annotations

import json
from pathlib import Path

from rlcore.errors import ModelError

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
