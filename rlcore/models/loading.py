"""Load models: from a hub id, a folder, a configuration (random weights), or as they are in memory."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlcore.config import evolve
from rlcore.errors import ModelError
from rlcore.models.dropout import disable_dropout as disable_dropout  # noqa: PLC0414  where plugins look for it
from rlcore.models.freezing import vocabulary_size
from rlcore.models.hub import DESCRIBED, WEIGHTS, base_of, check_reach, first_line, is_hub_id, quiet_transformers
from rlcore.models.kind import DECODER_ONLY, Kind, check_kind, declared
from rlcore.models.peft.inject import activate, attach, unwrap
from rlcore.models.speed.activations import fuse_activations

if TYPE_CHECKING:
    from rlcore.models.model_options import LanguageModelConfig

ModelSpec = str | os.PathLike[str] | PretrainedConfig | PreTrainedModel


class ConfigOnly(str):
    """A hub id or folder from which only the configuration is read; the model's weights are then random.

    It stands for the name wherever a model or a critic is named, so architectures pass it on as they pass any name.
    """

    __slots__ = ()


def load_model(spec: ModelSpec, config: LanguageModelConfig, kind: Kind = DECODER_ONLY) -> PreTrainedModel:
    """Return the model `spec` stands for, in evaluation mode; one in memory is itself returned, and will be changed.

    Raises:
        ModelError: the folder or hub id cannot be loaded, or the model is not a language model of this kind.
    """
    # Asked before loading: some families would be read in part, as a kind that they are not.
    if (about := declared(spec, config.revision)) is not None:
        check_kind(about, kind, spec if isinstance(spec, str) else type(spec).__name__)
    spec = unwrap(spec)
    if isinstance(spec, PreTrainedModel):
        model = spec
        if config.attention is not None:
            _attend_with(model, config.attention)
    elif isinstance(spec, PretrainedConfig):
        model = _from_config(spec, config, kind)
    elif isinstance(spec, (str, os.PathLike)):
        name, base = os.fspath(spec), base_of(os.fspath(spec))
        if base and isinstance(name, ConfigOnly):
            base = ConfigOnly(base)
        model = _from_pretrained(kind.loader, base or name, config)
        attach(model, spec) if base else activate(model)
    else:
        raise ModelError(f"model = {spec!r:.80}: give a hub id, a folder, a PretrainedConfig or a PreTrainedModel")
    check_kind(model.config, kind, type(model).__name__)
    if model.get_output_embeddings() is None:
        suffix = "ForCausalLM" if kind is DECODER_ONLY else "ForConditionalGeneration"
        raise ModelError(f"{type(model).__name__} has no language-model head: load it as ...{suffix}")
    _make_savable(model)
    if config.speed.fused_activations:
        fuse_activations(model)
    model.eval()
    return model


def _attend_with(model: PreTrainedModel, attention: str) -> None:
    try:
        with quiet_transformers():
            model.set_attn_implementation(attention)
    except (ValueError, ImportError) as error:
        raise ModelError(
            f"model.attention = {attention!r}: {type(model).__name__} cannot be switched to it: {first_line(error)}"
        ) from error


def _from_config(spec: PretrainedConfig, config: LanguageModelConfig, kind: Kind) -> PreTrainedModel:
    try:
        with quiet_transformers():
            model: PreTrainedModel = kind.loader.from_config(
                copy.deepcopy(spec), trust_remote_code=config.trust_remote_code, **_build_options(config)
            )
    except (ValueError, ImportError) as error:
        raise ModelError(f"model = {type(spec).__name__}: cannot be built: {first_line(error)}") from error
    return model


def _make_savable(model: PreTrainedModel) -> None:
    """Make sure that the generation configuration can be saved, while nothing is lost if it cannot.

    transformers loads, but will not save, options of sampling beside `do_sample=False`, which many models come with.

    Raises:
        ModelError: it says something else that transformers refuses.
    """
    generation: GenerationConfig | None = model.generation_config
    if generation is None:
        return
    try:
        with quiet_transformers():
            generation.validate(strict=True)
        return
    except ValueError:
        generation.do_sample = True
    try:
        with quiet_transformers():
            generation.validate(strict=True)
    except ValueError as error:
        raise ModelError(f"model.generation_config could not be saved: {error}") from error


def _build_options(config: LanguageModelConfig) -> dict[str, Any]:
    """Say what is the same for models from a configuration and from a file; what is left out transformers chooses."""
    options: dict[str, Any] = {}
    if config.dtype != "auto":
        options["dtype"] = getattr(torch, config.dtype)
    if config.attention is not None:
        options["attn_implementation"] = config.attention
    return options


def _from_pretrained(kind: Any, name: str, config: LanguageModelConfig, *, what: str = "model", **options: Any) -> Any:
    """Load with `kind.from_pretrained`, a folder where there is one of that name, else from the hub.

    Raises:
        ModelError: it cannot be loaded; the message begins with `what`.
    """
    folder = Path(name).expanduser()
    if not folder.exists() and not is_hub_id(name):
        raise ModelError(f"{what} = {name!r}: there is no such folder; give a folder or a hub id")
    is_config_only = isinstance(name, ConfigOnly)
    check_reach(name, config.revision, DESCRIBED if is_config_only else WEIGHTS, what=what)
    if kind is not AutoConfig:
        options |= _build_options(config)
        if is_config_only:
            described: PretrainedConfig = _from_pretrained(AutoConfig, name, config, what=what)
            return kind.from_config(described, **({"dtype": described.dtype} | options))
    try:
        with quiet_transformers():
            return kind.from_pretrained(
                str(folder) if folder.exists() else str(name),
                revision=config.revision or "main",
                trust_remote_code=config.trust_remote_code,
                **options,
            )
    except OSError as error:  # files and network: the message is all there is to know
        raise ModelError(f"{what} = {name!r}: cannot be loaded: {first_line(error)}") from None
    except (ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(f"{what} = {name!r}: cannot be loaded: {first_line(error)}") from error


def load_critic(name: str, config: LanguageModelConfig, kind: Kind = DECODER_ONLY) -> PreTrainedModel:
    """Return a model from a hub id or folder: a sequence classifier where it is one, else a language model.

    Raises:
        ModelError: it cannot be loaded, is not of this kind, or scores other than one label.
    """
    config = evolve(config, revision=None)  # a revision is the policy's; the critic is another repository
    found: PretrainedConfig = _from_pretrained(AutoConfig, name, config, what="critic")
    check_kind(found, kind, f"critic = {name!r}")
    is_classifier = any(name.endswith("ForSequenceClassification") for name in found.architectures or ())
    if is_classifier and kind is DECODER_ONLY:  # an encoder-decoder's would judge what has been said as a whole
        if found.num_labels != 1:
            raise ModelError(
                f"critic = {name!r}: it scores {found.num_labels} labels, and a value is one number; "
                "give a reward model (num_labels=1) or a language model"
            )
        loader: Any = AutoModelForSequenceClassification
    else:
        loader = kind.loader
    critic: PreTrainedModel = _from_pretrained(loader, name, config, what="critic")
    if config.speed.fused_activations:
        fuse_activations(critic)
    critic.eval()
    return critic


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """List the ids that end a sequence: the tokenizer's EOS, then those of the generation configuration."""
    generation = getattr(model.generation_config, "eos_token_id", None)
    listed = generation if isinstance(generation, (list, tuple)) else [generation]
    vocabulary = vocabulary_size(model)
    ids = [tokenizer.eos_token_id, *listed]
    return tuple(dict.fromkeys(int(i) for i in ids if i is not None and 0 <= int(i) < vocabulary))


def context_length(model: PreTrainedModel) -> int:
    """Return how many tokens fit in the model's context; 0 where the configuration names no bound."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 0)
