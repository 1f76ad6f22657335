"""Write a policy as a folder that plain `transformers` loads, and read it back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlcore.errors import CheckpointError
from rlcore.log import get_logger
from rlcore.models.forward import ActorCritic
from rlcore.models.quiet import quiet_transformers

HEADS_FILE = "heads.safetensors"


def save_policy(folder: Path, module: ActorCritic, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write model and tokenizer as plain `transformers` loads them, and what else estimates values beside them."""
    with quiet_transformers():
        module.model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    heads = {name: weight.detach().cpu().contiguous().clone() for name, weight in head_weights(module).items()}
    (folder / HEADS_FILE).unlink(missing_ok=True)
    if heads:
        save_file(heads, folder / HEADS_FILE, metadata={"format": "pt"})


@torch.no_grad()
def load_policy(folder: Path, module: ActorCritic) -> None:
    """Take the weights, heads included, from a folder that `save_policy` wrote.

    Raises:
        CheckpointError: the folder cannot be read, or holds another model or other heads than `module`.
    """
    model = module.model
    try:
        with quiet_transformers():
            read: Any = type(model).from_pretrained(folder, dtype=model.dtype, output_loading_info=True)
            saved, about = read
        found = load_file(folder / HEADS_FILE) if (folder / HEADS_FILE).exists() else {}
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the model cannot be read: {error}") from error
    _compare(folder, "weights", {name: w.shape for name, w in model.state_dict().items()}, saved.state_dict())
    if about["missing_keys"]:
        raise CheckpointError(f"{folder}: it lacks {', '.join(sorted(about['missing_keys'])[:5])}")
    heads = head_weights(module)
    _compare(folder, "heads", {name: weight.shape for name, weight in heads.items()}, found)
    model.load_state_dict(saved.state_dict())
    for name, weight in heads.items():
        weight.copy_(found[name])


@torch.no_grad()
def load_heads(spec: object, module: ActorCritic) -> None:
    """Take up the value function that lies beside the model in the folder `spec`, where there is one and it fits.

    A head of another make is left, with a warning: the policy's own then starts anew.
    """
    file = Path(os.fspath(spec)).expanduser() / HEADS_FILE if isinstance(spec, (str, os.PathLike)) else None
    heads = head_weights(module)
    if file is None or not heads or not file.exists():
        return
    try:
        found = load_file(file)
        _compare(file.parent, "heads", {name: weight.shape for name, weight in heads.items()}, found)
    except (OSError, SafetensorError, CheckpointError) as error:
        get_logger("rlcore.models").warning("the value function beside the model is not taken up", reason=str(error))
        return
    for name, weight in heads.items():
        weight.copy_(found[name])


def head_weights(module: ActorCritic) -> dict[str, Tensor]:
    """Name the parameters and buffers of the value function that the language model does not hold itself."""
    if module.value is None:
        return {}
    held = {id(weight) for weight in module.model.state_dict(keep_vars=True).values()}
    weights = module.value.state_dict(keep_vars=True)
    return {name: weight for name, weight in weights.items() if id(weight) not in held}


def _compare(folder: Path, what: str, own: dict[str, torch.Size], found: dict[str, Tensor]) -> None:
    """Refuse a folder whose tensors are not those of the policy, by name or shape.

    Raises:
        CheckpointError: naming what differs.
    """
    shapes = {name: weight.shape for name, weight in found.items()}
    differing = sorted(name for name in own.keys() | shapes.keys() if own.get(name) != shapes.get(name))
    if not differing:
        return
    name = differing[0]
    raise CheckpointError(
        f"{folder}: its {what} are not this policy's: {', '.join(differing[:5])}; {name} is "
        f"{_shape(shapes.get(name))} in the folder and {_shape(own.get(name))} in the policy: "
        "build the policy with the options it was saved with"
    )


def _shape(size: torch.Size | None) -> str:
    return "absent" if size is None else "x".join(map(str, size)) or "a number"
