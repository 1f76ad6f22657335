"""Load models and tokenizers: from a hub id, a folder, a configuration (random weights), or as they are in memory."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlcore.config import evolve
from rlcore.errors import ModelError
from rlcore.models.activations import fuse_activations
from rlcore.models.blocks import vocabulary_size
from rlcore.models.quiet import quiet_transformers

if TYPE_CHECKING:
    from rlcore.models.settings import CausalLMConfig

ModelSpec = str | os.PathLike[str] | PretrainedConfig | PreTrainedModel


def load_model(spec: ModelSpec, config: CausalLMConfig) -> PreTrainedModel:
    """Return the model `spec` stands for, in evaluation mode; one in memory is itself returned, and will be changed.

    Raises:
        ModelError: the folder or hub id cannot be loaded, or the model is not a decoder-only language model.
    """
    if isinstance(spec, PreTrainedModel):
        model = spec
    elif isinstance(spec, PretrainedConfig):
        model = _from_config(spec, config)
    elif isinstance(spec, (str, os.PathLike)):
        model = _from_pretrained(AutoModelForCausalLM, os.fspath(spec), config)
    else:
        raise ModelError(f"model = {spec!r:.80}: give a hub id, a folder, a PretrainedConfig or a PreTrainedModel")
    _check_decoder_only(model.config, type(model).__name__)
    if model.get_output_embeddings() is None:
        raise ModelError(f"{type(model).__name__} has no language-model head: load it as ...ForCausalLM")
    _make_savable(model)
    if config.fused_activations:
        fuse_activations(model)
    model.eval()
    return model


def _from_config(spec: PretrainedConfig, config: CausalLMConfig) -> PreTrainedModel:
    _check_decoder_only(spec, type(spec).__name__)
    try:
        with quiet_transformers():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                copy.deepcopy(spec), trust_remote_code=config.trust_remote_code, **_build_options(config)
            )
    except (ValueError, ImportError) as error:
        raise ModelError(f"model = {type(spec).__name__}: cannot be built: {_first_line(error)}") from error
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


def _build_options(config: CausalLMConfig) -> dict[str, Any]:
    """Say what is the same for models from a configuration and from a file; what is left out transformers chooses."""
    options: dict[str, Any] = {}
    if config.dtype != "auto":
        options["dtype"] = getattr(torch, config.dtype)
    if config.attention is not None:
        options["attn_implementation"] = config.attention
    return options


def _from_pretrained(kind: Any, name: str, config: CausalLMConfig, *, what: str = "model", **options: Any) -> Any:
    """Load with `kind.from_pretrained`, a folder where there is one of that name, else from the hub.

    Raises:
        ModelError: it cannot be loaded; the message begins with `what`.
    """
    folder = Path(name).expanduser()
    if not folder.exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1 or not name):
        raise ModelError(f"{what} = {name!r}: there is no such folder; give a folder or a hub id")
    if kind is not AutoConfig:
        options |= _build_options(config)
    try:
        with quiet_transformers():
            return kind.from_pretrained(
                str(folder) if folder.exists() else name,
                revision=config.revision or "main",
                trust_remote_code=config.trust_remote_code,
                **options,
            )
    except OSError as error:  # files and network: the message is all there is to know
        raise ModelError(f"{what} = {name!r}: cannot be loaded: {_first_line(error)}") from None
    except (ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(f"{what} = {name!r}: cannot be loaded: {_first_line(error)}") from error


def load_critic(name: str, config: CausalLMConfig) -> PreTrainedModel:
    """Return a model from a hub id or folder: a sequence classifier where it is one, else a language model.

    Raises:
        ModelError: it cannot be loaded, is not decoder-only, or scores other than one label.
    """
    config = evolve(config, revision=None)  # a revision is the policy's; the critic is another repository
    found: PretrainedConfig = _from_pretrained(AutoConfig, name, config, what="critic")
    _check_decoder_only(found, f"critic = {name!r}")
    if any(architecture.endswith("ForSequenceClassification") for architecture in found.architectures or ()):
        if found.num_labels != 1:
            raise ModelError(
                f"critic = {name!r}: it scores {found.num_labels} labels, and a value is one number; "
                "give a reward model (num_labels=1) or a language model"
            )
        kind: Any = AutoModelForSequenceClassification
    else:
        kind = AutoModelForCausalLM
    critic: PreTrainedModel = _from_pretrained(kind, name, config, what="critic")
    if config.fused_activations:
        fuse_activations(critic)
    critic.eval()
    return critic


def load_tokenizer(
    spec: ModelSpec, given: object = None, config: CausalLMConfig | None = None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer: the one given (object, hub id or folder), else the model's own, at the model's revision.

    A tokenizer without a padding token is copied and pads with EOS, which is safe here: masks tell padding, never ids.

    Raises:
        ModelError: none is given and the model brings none, or it has neither a padding nor an EOS token.
    """
    if isinstance(given, PreTrainedTokenizerBase):
        tokenizer = given
    else:
        name = given or (spec if isinstance(spec, (str, os.PathLike)) else getattr(spec, "name_or_path", ""))
        if not isinstance(name, (str, os.PathLike)) or not os.fspath(name):
            raise ModelError(
                f"tokenizer = {given!r:.80}: a {type(spec).__name__} brings none of its own; pass tokenizer=, "
                "an object, folder or hub id"
            )
        own = {} if given or config is None else {"revision": config.revision or "main"}
        trusted = config is not None and config.trust_remote_code
        tokenizer = _read_tokenizer(os.fspath(name), trust_remote_code=trusted, **own)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer has neither a padding nor an EOS token: set tokenizer.eos_token")
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _read_tokenizer(name: str, **options: Any) -> PreTrainedTokenizerBase:
    folder = Path(name).expanduser()
    try:
        with quiet_transformers():
            where = str(folder) if folder.exists() else name
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(where, **options)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if not folder.exists():
            raise ModelError(
                f"{name!r}: there is no such folder under {Path.cwd()}, and as a hub id it cannot be loaded: "
                f"{_first_line(error)}"
            ) from None
        raise _no_tokenizer(name, _first_line(error)) from None
    # Where its files are missing, transformers makes an empty one of the kind the model's configuration tells.
    if not set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab()) - set(tokenizer.all_special_tokens):
        raise _no_tokenizer(name, "its vocabulary is empty")
    return tokenizer


def _no_tokenizer(name: str, reason: str) -> ModelError:
    return ModelError(
        f"{name!r} holds no tokenizer that transformers can load ({reason}): pass tokenizer= "
        "(in a configuration file model.tokenizer), a folder or hub id"
    )


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


def disable_dropout(module: nn.Module) -> None:
    """Set every dropout probability to 0, so that what learns is the distribution that was sampled from."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):  # noqa: SLF001  the base of them all
            part.p = 0.0
        for name, value in vars(part).items():
            if ("dropout" in name or name == "layerdrop") and isinstance(value, float):
                setattr(part, name, 0.0)


def _check_decoder_only(config: PretrainedConfig, name: str) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder ({config.model_type}); the architecture causal_lm takes decoder-only models "
            "such as gpt2 or llama: name an architecture for encoder-decoders (model.architecture; rlcore list-plugins "
            "shows which are installed), or another model"
        )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
