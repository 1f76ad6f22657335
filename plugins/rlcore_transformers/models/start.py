"""Weights of a model that processes divide, as they are in its files until they are divided.

`from_pretrained` leaves weights in their files, from which the system reads them as they are used, unless another dtype
is asked for: then every process would hold the whole model in memory. So a model that a run divides is loaded in the
dtype of its files, and each process converts its own part (`ModelLearner.start_dtypes`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rlcore.config import ConfigOnly, evolve

if TYPE_CHECKING:
    from rlcore_transformers.models.model_options import LanguageModelConfig

MARK = "rlcore_start_dtype"
"""Attribute of a model that is as in its files: the dtype that its weights shall have."""
OPTIONS = ("sampling_dtype", "quantization")
"""Options with which building a policy copies or changes weights."""
_expected: list[str] = []
"""The model of the run that is being built, if the run divides it."""


def expect(name: object) -> None:
    """Set the model of a run, if the run divides it; None if it does not."""
    _expected[:] = [os.fspath(name)] if isinstance(name, (str, os.PathLike)) else []


def forget(built: Any) -> Any:
    """Return a model that has been built; others are loaded as usual."""
    _expected.clear()
    return built


def is_expected(name: str) -> bool:
    """Return whether this is the model that the run divides; true once."""
    is_it = name in _expected
    if is_it:
        _expected.clear()
    return is_it


def options_in_files(name: str, config: LanguageModelConfig, *, has_heads: bool) -> LanguageModelConfig | None:
    """Return the options to load the model with as it is in its files; None if it is to be loaded as usual.

    Args:
        name: the model's folder or hub id.
        config: options of the architecture.
        has_heads: whether heads were saved with the model, which are written over the value function's blocks.
    """
    if not is_expected(name) or isinstance(name, ConfigOnly):
        return None
    critic, layers = getattr(config, "critic", None), getattr(config, "value_layers", None)
    is_copied = critic == "copy" or bool(layers)
    is_changed = any(getattr(config, option, None) for option in OPTIONS) or critic not in (None, "copy")
    if is_changed or (is_copied and (has_heads or config.peft is not None)):
        return None
    return evolve(config, dtype="auto")


def mark(model: PreTrainedModel, dtype: str, *, adapted: bool = False) -> bool:
    """Mark a model that is as in its files; return False if it would not equal one that was loaded in `dtype`.

    Args:
        model: the model.
        dtype: the dtype that its weights shall have.
        adapted: an adapter will be injected, whose first weights are rounded to the dtype of the layers around them.
    """
    wanted = model.dtype if dtype == "auto" else getattr(torch, dtype)
    floating = [each for each in model.buffers() if each.is_floating_point()]
    weights = {each.dtype for each in model.parameters() if each.is_floating_point()}
    if adapted and weights != {wanted}:
        return False
    # Buffers may have been computed in the dtype of the files, and some weights stay in 32 bits where others do not.
    if weights != {wanted} and (any(each.dtype != wanted for each in floating) or wanted != torch.float32):
        return False
    setattr(model, MARK, wanted)
    for config in (model.config, model.config.get_text_config()):
        config.dtype = wanted
    return True


def start_dtypes(*models: object) -> dict[int, torch.dtype]:
    """Return the dtypes that weights of marked models shall have, by the id of the parameter."""
    return {
        id(weight): vars(model)[MARK]
        for model in models if isinstance(model, PreTrainedModel) and MARK in vars(model)
        for weight in model.parameters() if weight.is_floating_point() and _is_in_files(weight, model)
    }  # fmt: skip


def _is_in_files(weight: nn.Parameter, model: PreTrainedModel) -> bool:
    """Return whether a weight of a marked model is none of an adapter, of another dtype than the model (`mark`)."""
    return not getattr(model, "peft_config", None) or bool(weight.dtype == vars(model)[MARK])


def follow(model: PreTrainedModel, *copies: nn.Module) -> None:
    """Mark copies of parts of a model as it is marked, if it is; they are in the same memory (`share`)."""
    for each in copies if MARK in vars(model) else ():
        setattr(each, MARK, vars(model)[MARK])


def share(model: PreTrainedModel) -> dict[int, Any]:
    """Return parameters in the same memory, by id, for a copy of a marked model: neither is changed before the cut."""
    if MARK not in vars(model):
        return {}
    shared = (each for each in model.parameters() if _is_in_files(each, model))
    return {id(each): nn.Parameter(each.data, requires_grad=False) for each in shared}


def complete(*models: object) -> None:
    """Convert the weights of models that are still marked, in place, because nothing divides them."""
    dtypes = start_dtypes(*models)
    for model in (each for each in models if isinstance(each, PreTrainedModel)):
        for weight in model.parameters():
            if (dtype := dtypes.pop(id(weight), None)) is not None:  # copies share the memory of the files no longer
                weight.data = weight.data.to(dtype, copy=True)
        vars(model).pop(MARK, None)
