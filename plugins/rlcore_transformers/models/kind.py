"""The kinds of language models, decoder-only, encoder-decoder and those of packages, and the architecture of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import attrs
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PretrainedConfig, PreTrainedModel

from rlcore.config.yaml_files import existing_path
from rlcore.errors import ModelError
from rlcore_transformers.models.gguf import DAMAGED, find_gguf, read_config
from rlcore_transformers.models.hub import base_of, is_hub_id, quiet_transformers, why_out_of_reach


@attrs.frozen
class Kind:
    """A kind of language models.

    Attributes:
        architecture: name of the core's architecture for this kind.
        words: name in messages.
        examples: families of this kind.
        loader: the auto class of `transformers` that loads it.
    """

    architecture: str
    words: str
    examples: str
    loader: Any


DECODER_ONLY = Kind("causal_lm", "decoder-only", "gpt2 or llama", AutoModelForCausalLM)
ENCODER_DECODER = Kind("seq2seq_lm", "encoder-decoder", "t5 or bart", AutoModelForSeq2SeqLM)

FURTHER: dict[Kind, Callable[[PretrainedConfig], bool]] = {}
"""Kinds that packages add: whether a configuration is of the kind. Decoder-only models are loaded as such by name."""


def kind_of(config: PretrainedConfig) -> Kind:
    """Return the kind of the model that `config` describes."""
    for kind, describes in FURTHER.items():
        if describes(config):
            return kind
    return ENCODER_DECODER if getattr(config, "is_encoder_decoder", False) else DECODER_ONLY


def check_kind(config: PretrainedConfig, wanted: Kind, name: str) -> None:
    """Check that a model is of the kind that an architecture takes.

    Raises:
        ModelError: the model is of the other kind.
    """
    found = kind_of(config)
    if found is wanted or (found in FURTHER and wanted is DECODER_ONLY):  # a model of texts and images reads texts
        return
    article = "an" if found is ENCODER_DECODER else "a"
    raise ModelError(
        f"{name} is {article} {found.words} model ({config.model_type}); the architecture {wanted.architecture} takes "
        f"{wanted.words} models such as {wanted.examples}: set model.architecture={found.architecture}, or leave it "
        "out, or give another model"
    )


def without_wrapper(spec: Any) -> Any:
    """Return the model in a `PeftModel`, with its adapter in it; anything else as it is."""
    peft = sys.modules.get("peft")
    return spec.get_base_model() if peft is not None and isinstance(spec, peft.PeftModel) else spec


def declared(spec: Any, revision: str | None = None) -> PretrainedConfig | None:
    """Return the configuration of the model that `spec` names; None if it cannot be read.

    This raises no error, because loading the model afterwards raises a better one.
    """
    spec = without_wrapper(spec)
    if isinstance(spec, PreTrainedModel):
        return spec.config
    if isinstance(spec, PretrainedConfig):
        return spec
    if not isinstance(spec, (str, os.PathLike)):
        return None
    spec = base_of(os.fspath(spec)) or spec
    folder = existing_path(spec)
    if folder is None and (not is_hub_id(os.fspath(spec)) or why_out_of_reach(spec, revision)):
        return None
    try:
        with quiet_transformers():
            if (gguf := find_gguf(spec)) is not None:
                return read_config(gguf)
            where = os.fspath(folder or spec)
            config: PretrainedConfig = AutoConfig.from_pretrained(
                where, revision=revision or "main", trust_remote_code=False
            )
    except (ModelError, AttributeError, ImportError, *DAMAGED):
        return None
    return config


def fits_causal_lm(spec: Any, revision: str | None) -> int:
    """Return 1: of a model that no other architecture takes, loading it as a decoder-only one says what is wrong."""
    del spec, revision
    return 1


def fits_seq2seq_lm(spec: Any, revision: str | None) -> int:
    """Return 2 if a model is an encoder-decoder, otherwise 0."""
    config = declared(spec, revision)
    return 2 if config is not None and kind_of(config) is ENCODER_DECODER else 0
