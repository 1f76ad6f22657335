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
OPTIONS = ("peft", "unfrozen_layers", "critic", "sampling_dtype", "quantization", "value_layers")
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


def options_in_files(name: str, config: LanguageModelConfig) -> LanguageModelConfig | None:
    """Return the options to load the model with as it is in its files; None if it is to be loaded as usual."""
    plain = not any(getattr(config, option, None) for option in OPTIONS)
    if not is_expected(name) or isinstance(name, ConfigOnly) or not plain:
        return None
    return evolve(config, dtype="auto")


def mark(model: PreTrainedModel, dtype: str) -> bool:
    """Mark a model that is as in its files; return False if it would not equal one that was loaded in `dtype`."""
    wanted = model.dtype if dtype == "auto" else getattr(torch, dtype)
    floating = [each for each in model.buffers() if each.is_floating_point()]
    weights = {each.dtype for each in model.parameters() if each.is_floating_point()}
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
        for weight in model.parameters() if weight.is_floating_point()
    }  # fmt: skip


def share(model: PreTrainedModel) -> dict[int, Any]:
    """Return parameters in the same memory, by id, for a copy of a marked model: neither is changed before the cut."""
    if MARK not in vars(model):
        return {}
    return {id(each): nn.Parameter(each.data, requires_grad=False) for each in model.parameters()}


def complete(*models: object) -> None:
    """Convert the weights of models that are still marked, in place, because nothing divides them."""
    dtypes = start_dtypes(*models)
    for model in (each for each in models if isinstance(each, PreTrainedModel)):
        for weight in model.parameters():
            if id(weight) in dtypes:  # a reference shares the memory of the files no longer
                weight.data = weight.data.to(dtypes[id(weight)], copy=True)
        vars(model).pop(MARK, None)
