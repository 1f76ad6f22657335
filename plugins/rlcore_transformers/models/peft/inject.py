"""Inject an adapter into a model, from the option `model.peft`, a folder, or a `peft` configuration."""

from __future__ import annotations

import copy
import difflib
import numbers
import os
import typing
import warnings
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rlcore.checkpoints.manifest import verify_model
from rlcore.config import unstructure
from rlcore.config.options import arms, phrase
from rlcore.config.yaml_files import existing_path
from rlcore.errors import CheckpointError, ModelError
from rlcore.safe_text import show
from rlcore_transformers.models.hub import WEIGHTS_FILE, first_line
from rlcore_transformers.models.input_layout import ENCODER_DECODER, kind_of, without_wrapper
from rlcore_transformers.models.peft.adapters import Adapters, find_adapters, take_out

GIVEN = "peft_given_to_rlcore"
"""Attribute of a model that holds the option from which its adapter was made."""
REWRITTEN = "weights_rewritten_by_peft"
"""Attribute of a model that is True if making the adapter changed the model's own weights."""
CLASSIFIERS = {"ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS"}
"""How the class of a classifier ends → peft's name of what it is for."""
USUAL = ("lora", "ia3", "loha", "lokr", "oft")
UNFIT = {
    "adalora": "its ranks are reallocated by a training loop of its own",
    "poly": "it needs a task id for every row",
    "xlora": "it mixes adapters that are trained already",
}
OUTSIDE = (
    "it prepends tokens of its own instead of changing layers, which neither positions nor packing nor the sampler's "
    "cache support; train one that changes layers, such as " + ", ".join(USUAL)
)
PROBLEMS = (ValueError, TypeError, KeyError, AttributeError, NotImplementedError, RuntimeError, ImportError, OSError)
"""Errors that peft raises for an unsupported option or layer."""


def attach(model: PreTrainedModel, given: object) -> None:
    """Inject an adapter into the model, in place; afterwards only the adapter trains.

    Args:
        model: the model.
        given: options with a `type`, peft's configuration object, or the folder or hub id of a trained adapter.

    Raises:
        ModelError: peft is missing; there is no such type, option or layer; the adapter was made for another model.
    """
    if find_adapters(model) is not None:
        if unstructure(given) == vars(model).get(GIVEN):
            return
        raise ModelError(
            f"model.peft = {show(given)}: the model carries an adapter already: leave model.peft out to train that, or "
            "give a model without one"
        )
    name = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    config = _configured(given) if name is None else _read_config(name)
    _complete(config, model)
    begins = {id(parameter): _beginning(parameter) for parameter in model.parameters()}
    adapters = _inject(model, config)
    own = [parameter for parameter in model.parameters() if id(parameter) in begins]
    vars(model)[REWRITTEN] = not all(torch.equal(_beginning(p), begins[id(p)]) for p in own)
    if name is not None:
        _take_weights(adapters, name)
    vars(model)[GIVEN] = unstructure(given)
    model.eval()  # new layers are in training mode


def unwrap(spec: Any) -> Any:
    """Return the model in a `PeftModel`, with its adapter in it; anything else as it is.

    Raises:
        ModelError: the adapter is of a type that cannot be trained here.
    """
    model = without_wrapper(spec)
    if model is not spec:
        _check_type(spec.active_peft_config, f"model: a {type(spec).__name__}")
    return model


def activate(model: PreTrainedModel) -> None:
    """Make an adapter trainable that `transformers` loaded with a model, which it does for inference."""
    adapters = find_adapters(model)
    if adapters is None:
        return
    adapters.config.inference_mode = False
    _widen(model, adapters.name)
    model.set_adapter(adapters.name)


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ModelError(f"model.peft: adapters need the package peft: pip install peft ({error})") from error
    return peft


def _configured(given: Any) -> Any:
    """Return a peft configuration from a mapping of options, or a copy of the given configuration."""
    peft = _peft()
    if isinstance(given, peft.PeftConfig):
        return copy.deepcopy(given)
    if not isinstance(given, Mapping):
        raise ModelError(
            f"model.peft = {show(given)}: give a mapping such as {{type: lora, r: 8}}, a peft configuration, or the "
            "folder or hub id of a trained adapter"
        )
    options = {name: value for name, value in given.items() if name not in ("type", "peft_type")}
    kind = given.get("type", given.get("peft_type"))
    types = {each.value.lower(): each for each in peft.PEFT_TYPE_TO_CONFIG_MAPPING}
    if not isinstance(kind, str) or kind.lower() not in types:
        near = [found for known in (USUAL, types) for found in difflib.get_close_matches(str(kind).lower(), known, n=1)]
        meant = f"did you mean '{near[0]}'?" if near else f"such as {', '.join(USUAL)}"
        raise ModelError(f"model.peft.type = {kind!r}: must be a type of adapter that peft has; {meant}")
    cls = peft.PEFT_TYPE_TO_CONFIG_MAPPING[types[kind.lower()]]
    known = [field.name for field in fields(cls) if field.init]
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(str(option), known, n=1)
            meant = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(sorted(known))}"
            raise ModelError(f"model.peft.{option}: {kind.lower()} has no such option; {meant}")
    _check_values(cls, options)
    try:
        return cls(**options)
    except PROBLEMS as error:
        raise ModelError(f"model.peft = {dict(given)}: peft refuses it: {first_line(error)}") from error


def _check_values(cls: type, options: Mapping[str, object], *, whole: bool = False) -> None:
    """Check the types of options, as far as peft annotates them with types of a configuration file.

    Raises:
        ModelError: an option has another type; without `whole`, any number passes for a whole one, as some do in peft.
    """
    try:
        types = typing.get_type_hints(cls)
    except NameError:  # annotations that only a type checker can read
        return
    defaults = {field.name: field.default for field in fields(cls)}
    for option, value in options.items():
        fits = value == defaults[option] or any(_fits(value, arm, whole=whole) for arm in arms(types[option]))
        if not fits:
            raise ModelError(f"model.peft.{option} = {show(value)}: must be {phrase(types[option])}")


def _fits(value: Any, arm: Any, *, whole: bool) -> bool:
    if value is None or isinstance(value, bool):
        return arm in (Any, type(value))
    kind = typing.get_origin(arm) or arm
    plain: dict[Any, Any] = {int: numbers.Integral if whole else numbers.Real, float: numbers.Real, dict: Mapping}
    several = {list: (list, tuple, set), Literal: str}  # peft's literals are not complete
    expected = {str: str, bool: bool, type(None): type(None), **plain, **several}.get(kind)
    return expected is None or isinstance(value, expected)


def _read_config(name: str) -> Any:
    peft = _peft()
    try:
        return peft.PeftConfig.from_pretrained(_place(name))
    except PROBLEMS as error:
        raise ModelError(
            f"model.peft = {name!r}: is neither a folder with an adapter nor the hub id of one: {first_line(error)}"
        ) from error


def _place(name: str) -> str:
    return str(existing_path(name) or name)


def _complete(config: Any, model: PreTrainedModel) -> None:
    """Check the configuration against the model, and fill in the values that follow from the model."""
    _check_type(config, "model.peft")
    task = _task(model)
    if config.task_type not in (None, task):
        raise ModelError(f"model.peft.task_type = {config.task_type!r}: this model's is {task!r}; leave it out")
    config.task_type, config.inference_mode = task, False
    config.base_model_name_or_path = model.name_or_path or None
    if task in CLASSIFIERS.values() and config.is_prompt_learning is False:
        config.modules_to_save = sorted({*(getattr(config, "modules_to_save", None) or ()), *heads_of(model)})
    names = [name for name, _ in model.named_modules() if name]
    for option in ("target_modules", "modules_to_save"):
        wanted = getattr(config, option, None)
        for part in () if wanted is None or isinstance(wanted, str) else sorted(wanted):
            if not any(name == part or name.endswith(f".{part}") for name in names):
                raise ModelError(f"model.peft.{option}: the model has no module {part!r}; {_linear_layers(model)}")


def _task(model: PreTrainedModel) -> str:
    """Return peft's name of what the model is for."""
    for suffix, task in CLASSIFIERS.items():
        if type(model).__name__.endswith(suffix):
            return task
    return "SEQ_2_SEQ_LM" if kind_of(model.config) is ENCODER_DECODER else "CAUSAL_LM"


def heads_of(model: PreTrainedModel) -> list[str]:
    """Return the names of a classifier's modules beside its trunk; they train whole, and are saved with the adapter."""
    parts = model.named_children()
    return [name for name, part in parts if name != model.base_model_prefix and any(True for _ in part.parameters())]


def _check_type(config: Any, what: str) -> None:
    kind = str(getattr(config.peft_type, "value", config.peft_type)).lower()
    if config.is_prompt_learning or config.is_adaption_prompt:
        raise ModelError(f"{what} of type {kind} cannot be trained here: {OUTSIDE}")
    if kind in UNFIT:
        raise ModelError(f"{what} of type {kind} cannot be trained here: {UNFIT[kind]}; take lora, for example")


def _inject(model: PreTrainedModel, config: Any) -> Adapters:
    """Inject the layers with peft; their initial weights depend only on the seed and do not advance the generator."""
    peft = _peft()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="fan_in_fan_out is set to"
            )  # peft then corrects the option itself
            torch.manual_seed(torch.initial_seed())
            peft.inject_adapter_in_model(config, model)
            _widen(model, "default")
    except PROBLEMS as error:
        take_out(model, merge=False)
        _check_values(type(config), {each.name: getattr(config, each.name) for each in fields(config)}, whole=True)
        layers = f"; {_linear_layers(model)}" if "target" in str(error).lower() else ""
        raise ModelError(f"model.peft: peft refuses it: {first_line(error)}{layers}") from error
    adapters = find_adapters(model)
    if adapters is None:
        raise ModelError(f"model.peft: {config.peft_type} has added no layer to the model")
    return adapters


def _widen(model: PreTrainedModel, name: str) -> None:
    """Cast the adapter to float32 whatever the model's type, because low-precision weights lose small updates."""
    from peft.functional import cast_adapter_dtype

    cast_adapter_dtype(model, name)


def _take_weights(adapters: Adapters, name: str) -> None:
    from huggingface_hub import hf_hub_download

    folder = existing_path(name)
    if folder is not None:
        verify_model(folder)
    try:
        adapters.load(folder or Path(hf_hub_download(name, WEIGHTS_FILE)).parent)
    except (CheckpointError, OSError, ValueError) as error:
        raise ModelError(f"model.peft = {name!r}: is no adapter for this model: {error}") from error


def _beginning(parameter: nn.Parameter) -> torch.Tensor:
    """Return the first elements of a weight, enough to detect that it was initialised or decomposed again."""
    return parameter.detach().reshape(-1)[:4096].clone()


def _linear_layers(model: nn.Module) -> str:
    found = {name.rpartition(".")[2] for name, part in model.named_modules() if isinstance(part, (nn.Linear, Conv1D))}
    return f"its linear layers are called {', '.join(sorted(found))}"
