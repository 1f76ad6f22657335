"""Check once whether the hub can be reached, since loading a model would retry for minutes; silence `transformers`.

Also in this file: files of a model's weights, as `transformers` writes them, written and read one whole tensor at a
time, and compared with those of a policy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_session, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # exported lazily
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME, logging

from rlcore.config.options import from_json
from rlcore.config.yaml_files import existing_path
from rlcore.errors import CheckpointError, ModelError
from rlcore.sharding import INDEX, PARTS, SINGLE, saved_parts, write_weights

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


def check_reach(model: object, revision: str | None, files: Sequence[str] = DESCRIBED, *, what: str = "model") -> None:
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


def file_layout(model: PreTrainedModel, shapes: Mapping[int, torch.Size]) -> dict[str, Tensor] | None:
    """Return name → a tensor without values of the weights in the model's file; tied ones occur once.

    Args:
        model: the model, whose parameters may be empty.
        shapes: identity of a parameter → its shape when it is complete.

    Returns:
        None if `transformers` saves the weights under other names or in other shapes, as it does those of experts.
    """
    own = model.state_dict(keep_vars=True)
    ignored = model._keys_to_ignore_on_save or ()  # noqa: SLF001
    layout = {
        name: torch.empty(shapes.get(id(each), each.shape), dtype=each.dtype, device="meta")
        for name, each in own.items()
        if name not in ignored
    }
    layout = remove_tied_weights_from_state_dict(layout, model)
    try:
        saved = revert_weight_conversion(model, dict(layout))
    except (RuntimeError, NotImplementedError, ValueError):  # the tensors have shapes, and this conversion needs values
        return None
    same = saved.keys() == layout.keys() and all(saved[name].shape == each.shape for name, each in layout.items())
    return layout if same else None


def write_model(
    folder: Path, model: PreTrainedModel, layout: Mapping[str, Tensor], weights: Iterable[tuple[Tensor, Tensor]]
) -> None:
    """Write a model's configuration and weights, which `from_pretrained` loads.

    Args:
        folder: the folder, which is made.
        model: the model, whose parameters may be empty.
        layout: the result of `file_layout`; if it is empty, no file of weights is written.
        weights: each parameter and the whole tensor to write in its place; others may be among them.
    """
    with quiet_transformers():
        model.save_pretrained(folder, state_dict={})  # the configuration, and the code of a model with its own
    (folder / SINGLE).unlink(missing_ok=True)
    own = model.state_dict(keep_vars=True)
    names = {id(own[name]): name for name in layout}
    parameters = {id(each) for each in model.parameters()}
    buffers = ((own[name], own[name]) for name in layout if id(own[name]) not in parameters)
    named = ((names.get(id(each)), whole) for source in (buffers, weights) for each, whole in source)
    write_weights(folder, layout, ((name, whole) for name, whole in named if name is not None))


def read_model(folder: Path, model: PreTrainedModel, layout: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Any]]:
    """Yield each parameter and buffer of a model and its saved values, as a slice of a file that is read when indexed.

    Raises:
        CheckpointError: the files cannot be read, or contain another model.
    """
    own = model.state_dict(keep_vars=True)
    if parts := saved_parts(folder / PARTS):
        found = {name: torch.empty(each.shape, device="meta") for name, each in parts.items()}
        check_same_form(folder, "weights", layout, found)
        yield from ((own[name], each) for name, each in parts.items())
        return
    try:
        with ExitStack() as stack:
            opened = [stack.enter_context(safe_open(folder / file, framework="pt")) for file in _weight_files(folder)]
            held = {name: file for file in opened for name in file.keys()}  # noqa: SIM118  not a dict
            found = {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name, file in held.items()}
            check_same_form(folder, "weights", layout, found)
            for name, file in held.items():
                yield own[name], file.get_slice(name) if layout[name].dim() else file.get_tensor(name)
    except CheckpointError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the model cannot be read: {error}") from error


def _weight_files(folder: Path) -> list[str]:
    if (folder / SINGLE).exists():
        return [SINGLE]
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return sorted(set(index["weight_map"].values()))


def check_same_form(folder: Path, what: str, own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Check that a folder's tensors have the policy's names and shapes.

    Raises:
        CheckpointError: names or shapes differ; the message lists them.
    """
    here = {name: weight.shape for name, weight in own.items()}
    there = {name: weight.shape for name, weight in found.items()}
    differing = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    if not differing:
        return
    name = differing[0]
    raise CheckpointError(
        f"{folder}: its {what} are not this policy's: {', '.join(differing[:5])}; {name} is "
        f"{_shape(there.get(name))} in the folder and {_shape(here.get(name))} in the policy: "
        "build the policy with the options it was saved with"
    )


def _shape(size: torch.Size | None) -> str:
    return "absent" if size is None else "x".join(map(str, size)) or "a number"
