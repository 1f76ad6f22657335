"""Weights in 4 or 8 bits, by bitsandbytes, beneath an adapter that trains (QLoRA: arXiv:2305.14314)."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel, integrations

from rlcore.errors import ModelError
from rlcore.safe_text import show
from rlcore_transformers.models.gguf import find_gguf
from rlcore_transformers.models.hub import first_line, quiet_transformers

if TYPE_CHECKING:
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
