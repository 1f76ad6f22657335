"""Save a policy to a folder, whole or as adapter and heads only, and load it.

Also in this file: weights in 4 or 8 bits, by bitsandbytes, beneath an adapter that trains (QLoRA: arXiv:2305.14314).
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    BitsAndBytesConfig,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    integrations,
)

from rlcore.config.yaml_files import existing_path
from rlcore.errors import CheckpointError, ModelError
from rlcore.logging import get_logger
from rlcore.safe_text import show
from rlcore.sharding import PARTS
from rlcore_transformers.models.gguf import find_gguf
from rlcore_transformers.models.hub import check_same_form, file_layout, first_line, quiet_transformers, read_model
from rlcore_transformers.models.peft.adapters import bare_twin, find_adapters, merged_twin
from rlcore_transformers.models.peft.inject import REWRITTEN, unwrap

if TYPE_CHECKING:
    from rlcore.types import State
    from rlcore_transformers.models.model_options import LanguageModelConfig


def quantization_options(spec: object, config: LanguageModelConfig) -> dict[str, Any]:
    """Return the arguments for `from_pretrained` that quantise the weights; empty without `model.quantization`.

    Raises:
        ModelError: no adapter trains, the model is no hub id or folder, or bitsandbytes is missing or does not
            support this machine's devices.
    """
    if config.quantization is None:
        return {}
    problem = ""
    if config.peft is None:
        problem = "quantised weights cannot train: set model.peft to train an adapter, such as {type: lora}"
    elif not isinstance(spec, (str, Path)):
        problem = f"needs a hub id or a folder to load, and model is {show(spec)}"
    elif find_gguf(spec) is not None:
        problem = (
            "weights of a GGUF file are dequantised when it is loaded: leave the option out, or give another format"
        )
    elif importlib.util.find_spec("bitsandbytes") is None:
        problem = "needs bitsandbytes, which is not installed: pip install bitsandbytes"
    else:
        problem = _unavailable()
    if problem:
        raise ModelError(f"model.quantization = {config.quantization!r}: {problem}")
    device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    return {"quantization_config": _describe(config), "device_map": {"": device}}


def _unavailable() -> str:
    """Return why bitsandbytes cannot quantise on this machine's devices; empty if it can."""
    try:
        with quiet_transformers():
            validate: Any = vars(integrations.bitsandbytes)["validate_bnb_backend_availability"]
            validate(raise_exception=True)
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        return f"bitsandbytes does not support this machine's devices: {first_line(error)}"
    return ""


def _describe(config: LanguageModelConfig) -> BitsAndBytesConfig:
    if config.quantization == "8bit":
        # It reports at every product that inputs are cast to float16, which is what 8 bits mean.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        return BitsAndBytesConfig(load_in_8bit=True)
    compute = torch.bfloat16 if config.dtype == "auto" else getattr(torch, config.dtype)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute)


def is_quantized(model: PreTrainedModel) -> bool:
    """Return whether weights of the model are in 4 or 8 bits."""
    return getattr(model, "hf_quantizer", None) is not None


def whole_twin(model: PreTrainedModel, adapter: Path) -> PreTrainedModel:
    """Return the model that a quantised one was loaded from, in full precision on the CPU, with an adapter merged.

    Args:
        model: the quantised model, whose name is loaded again.
        adapter: folder of the adapter.

    Raises:
        ModelError: the model cannot be loaded again.
    """
    from peft import PeftModel

    name, commit = model.config.name_or_path, getattr(model.config, "_commit_hash", None)
    try:
        with quiet_transformers():
            base = type(model).from_pretrained(name, revision=commit or "main")
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"model = {name!r}: cannot be loaded again to merge the adapter: {first_line(error)}"
        ) from error
    merged: PreTrainedModel = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    merged.generation_config = model.generation_config
    for name, value in model.config.to_dict().items():
        if name.endswith("_token_id"):  # which the run's tokenizer may have changed
            setattr(merged.config, name, value)
    return merged


class Modelled(Protocol):
    """A module around a model of `transformers`, perhaps with heads beside it."""

    model: PreTrainedModel

    def state_dict(self, *, keep_vars: bool) -> State:
        """Return all weights by name."""
        ...


HEADS_FILE = "heads.safetensors"
ADAPTER = "adapter"
"""Subfolder of a model's folder that holds its adapter."""


def save_policy(
    folder: Path,
    module: Modelled,
    tokenizer: PreTrainedTokenizerBase,
    *,
    save_model: Callable[[Path, PreTrainedModel], None] | None = None,
) -> None:
    """Write the model (or, if it has an adapter, only the adapter), the tokenizer and the heads.

    Args:
        folder: where to write.
        module: the model and its heads.
        tokenizer: the model's tokenizer.
        save_model: writes the model in place of its own `save_pretrained`, before the heads are read.
    """
    adapters = find_adapters(module.model)
    if adapters is None:
        (save_model or _save_model)(folder, module.model)
    else:
        adapters.save(folder)
        _save_generation(folder, module.model)
    _save_beside(folder, module, tokenizer)


def export_policy(folder: Path, module: Modelled, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a model that plain `transformers` loads: an adapter is merged, and also saved in `adapter/`."""
    adapters = find_adapters(module.model)
    if adapters is None:
        save_policy(folder, module, tokenizer)
        return
    adapters.save(folder / ADAPTER)
    quantized = is_quantized(module.model)
    _save_model(folder, whole_twin(module.model, folder / ADAPTER) if quantized else merged_twin(module.model))
    _save_beside(folder, module, tokenizer)


def save_start(folder: Path, module: Modelled, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the model before training; one with an adapter as its base model, with the adapter in `adapter/`.

    Raises:
        ModelError: making the adapter has changed the base model.
    """
    adapters = find_adapters(module.model)
    if adapters is None:
        save_policy(folder, module, tokenizer)
        return
    if vars(module.model).get(REWRITTEN):
        raise ModelError(
            f"model.peft ({adapters.config.peft_type.value}): the adapter's initialisation changed the model's own "
            "weights, which a resumed run could not restore because the model has no name: save the model to a folder "
            "and give that, or choose another initialisation (init_lora_weights)"
        )
    _save_model(folder, bare_twin(module.model))
    adapters.save(folder / ADAPTER)
    with quiet_transformers():
        tokenizer.save_pretrained(folder)


def _save_model(folder: Path, model: PreTrainedModel) -> None:
    with quiet_transformers():
        model.save_pretrained(folder)


def _save_generation(folder: Path, model: PreTrainedModel) -> None:
    """Write how the model generates beside an adapter: the base model's configuration may end texts elsewhere."""
    generation: GenerationConfig | None = getattr(model, "generation_config", None)  # which classifiers have not
    if generation is not None:
        with quiet_transformers():
            generation.save_pretrained(folder)


def _save_beside(folder: Path, module: Modelled, tokenizer: PreTrainedTokenizerBase) -> None:
    with quiet_transformers():
        tokenizer.save_pretrained(folder)
    heads = {name: weight.detach().cpu().contiguous().clone() for name, weight in head_weights(module).items()}
    (folder / HEADS_FILE).unlink(missing_ok=True)
    if heads:
        save_file(heads, folder / HEADS_FILE, metadata={"format": "pt"})


@torch.no_grad()
def load_policy(folder: Path, module: Modelled) -> None:
    """Load the weights, heads included, from a folder that `save_policy` wrote.

    Raises:
        CheckpointError: the folder cannot be read, or holds another model or other heads than `module`.
    """
    adapters = find_adapters(module.model)
    in_parts = (folder / PARTS).is_dir()
    saved = _read_model(folder, module.model) if adapters is None and not in_parts else {}
    heads = read_heads(folder, module)
    if in_parts:
        for weight, part in read_model(folder, module.model, file_layout(module.model, {}) or {}):
            weight.copy_(part[...])
    elif adapters is None:
        module.model.load_state_dict(saved)
    else:
        adapters.load(folder)
    for weight, value in heads:
        weight.copy_(value)


def read_heads(folder: Path, module: Modelled) -> list[tuple[Tensor, Tensor]]:
    """Return each weight of the heads and its value in a folder that `save_policy` wrote.

    Raises:
        CheckpointError: they cannot be read, or are others than those of `module`.
    """
    heads = head_weights(module)
    try:
        found = load_file(folder / HEADS_FILE) if (folder / HEADS_FILE).exists() else {}
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the heads cannot be read: {error}") from error
    check_same_form(folder, "heads", heads, found)
    return [(weight, found[name]) for name, weight in heads.items()]


def load_start(folder: Path, model: PreTrainedModel) -> None:
    """Load the weights that `save_start` wrote into a model in memory.

    Raises:
        CheckpointError: the folder cannot be read, or holds another model.
    """
    adapters = find_adapters(model)
    beneath = model if adapters is None else bare_twin(model)
    beneath.load_state_dict(_read_model(folder, beneath))
    if adapters is not None and (folder / ADAPTER).is_dir():
        adapters.load(folder / ADAPTER)


def starting_point(spec: object, start: Path | None, *, in_place: bool) -> Any:
    """Return the model to build a learner from: `spec`, or in a resumed run the one before training.

    Args:
        spec: the model as the user gave it, no name of one if `start` is set.
        start: the folder that `save_start` wrote; None in a new run.
        in_place: load the weights into a model in memory, which is then trained.

    Raises:
        CheckpointError: the folder cannot be read, or holds another model.
    """
    spec = unwrap(spec)
    if start is None or not isinstance(spec, (PretrainedConfig, PreTrainedModel)):
        return spec
    if not in_place or isinstance(spec, PretrainedConfig):
        return start
    load_start(start, spec)
    return spec


def _read_model(folder: Path, model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights in a folder, which must have the names and shapes of those of `model`."""
    try:
        with quiet_transformers():
            read: Any = type(model).from_pretrained(folder, dtype=model.dtype, output_loading_info=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the model cannot be read: {error}") from error
    saved, about = read
    weights: dict[str, Tensor] = saved.state_dict()
    check_same_form(folder, "weights", model.state_dict(), weights)
    if about["missing_keys"]:
        raise CheckpointError(f"{folder}: missing weights {', '.join(sorted(about['missing_keys'])[:5])}")
    return weights


@torch.no_grad()
def load_heads(spec: object, module: Modelled) -> None:
    """Load the value function and the further heads saved in the model's folder `spec`, if they fit.

    Heads with other names or shapes are not loaded, with a warning; the policy then keeps its new heads.
    """
    file = existing_path(Path(spec, HEADS_FILE)) if isinstance(spec, (str, os.PathLike)) else None
    if file is None or not head_weights(module):
        return
    try:
        everything = load_file(file)
    except (OSError, RuntimeError, SafetensorError) as error:
        _leave(str(error))
        return
    for part in dict.fromkeys(f"{name.partition('.')[0]}." for name in head_weights(module)):
        found = {name: weight for name, weight in everything.items() if name.startswith(part)}
        heads = {name: weight for name, weight in head_weights(module).items() if name.startswith(part)}
        if not found or not heads:
            continue
        try:
            check_same_form(file.parent, "heads", heads, found)
        except CheckpointError as error:
            _leave(str(error))
            continue
        for name, weight in heads.items():
            weight.copy_(found[name])


def _leave(reason: str) -> None:
    get_logger("rlcore_transformers.models").warning("saved heads do not fit and are not loaded", reason=reason)


def head_weights(module: Modelled) -> dict[str, Tensor]:
    """Return the parameters and buffers of the heads that are not part of the language model, by name."""
    own = module.model.state_dict(keep_vars=True)
    held, names = {id(weight) for weight in own.values()}, {f"model.{name}" for name in own}
    # Quantised layers pack their scales into a new tensor at each call, which only its name tells from a head.
    return {
        name: weight
        for name, weight in module.state_dict(keep_vars=True).items()
        if id(weight) not in held and name not in names
    }
