"""The processors of models that see: which one a run reads images with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoProcessor, PreTrainedConfig, PreTrainedTokenizerBase, ProcessorMixin

from rlcore.config.paths import existing_path
from rlcore.errors import ModelError
from rlcore.logging import get_logger
from rlcore_transformers.models.hub import base_of, first_line, quiet_transformers
from rlcore_transformers.models.tokenizers import load_tokenizer
from rlcore_vision.image_store import ImageStore
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.tokenizer import make_blind, make_seeing

log = get_logger("models")

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
PLACE_OPTIONS = ("path", "revision", "trust_remote_code")
"""Options of a tokenizer that say where it is; all others change it."""


def read_processor(spec: Any, given: object, config: VisionLanguageConfig, about: PreTrainedConfig) -> Any:
    """Return the tokenizer that reads images, made of the processor of the model or of the one that is given.

    Raises:
        ModelError: there is none, or it processes no images.
    """
    is_loaded = isinstance(given, ProcessorMixin | PreTrainedTokenizerBase)
    processor: Any = given if is_loaded else load_processor(spec, given, config)
    if isinstance(processor, PreTrainedTokenizerBase):
        log.warning("the tokenizer comes without an image processor: rows with images are refused")
        return make_blind(load_tokenizer(spec, processor, config))
    if not hasattr(processor, "image_processor") or not hasattr(processor, "image_token"):
        raise ModelError(f"tokenizer = {type(processor).__name__}: has no image processor; pass the model's processor")
    stated = given if isinstance(given, Mapping) and set(given) - set(PLACE_OPTIONS) else {}
    plain = load_tokenizer(spec, stated or processor.tokenizer, config)
    if stated:
        processor.tokenizer = plain  # which is saved with the processor
    if stated.get("chat_template"):
        processor.chat_template = plain.chat_template
    if not plain.chat_template and getattr(processor, "chat_template", None):
        plain.chat_template = processor.chat_template
    images = ImageStore(
        processor, int(about.image_token_id), allow_urls=config.allow_urls,
        cache_bytes=config.image_cache_gb * 1e9,
    )  # fmt: skip
    return make_seeing(plain, images)


def load_processor(spec: Any, given: object, config: VisionLanguageConfig) -> ProcessorMixin | PreTrainedTokenizerBase:
    """Return the processor that is named, or else that of the model; the tokenizer of a folder without a processor.

    Raises:
        ModelError: there is none that can be loaded.
    """
    path = given.get("path") if isinstance(given, Mapping) else given
    own = spec if isinstance(spec, str | os.PathLike) else getattr(spec, "name_or_path", "")
    name = path or own
    if not isinstance(name, str | os.PathLike) or not os.fspath(name):
        raise ModelError(
            f"tokenizer = {given!r:.80}: a model that sees images needs its processor, which a {type(spec).__name__} "
            "comes without: pass tokenizer=, the processor, its folder or hub id"
        )
    place = os.fspath(name)
    if not path and existing_path(Path(place, "processor_config.json")) is None:
        place = base_of(place) or place
    folder = existing_path(place)
    if folder is not None and folder.is_dir() and not any((folder / file).exists() for file in PROCESSOR_FILES):
        return load_tokenizer(spec, given, config)
    try:
        with quiet_transformers():
            loaded: ProcessorMixin | PreTrainedTokenizerBase = AutoProcessor.from_pretrained(
                str(existing_path(place) or place), revision=config.revision or "main",
                trust_remote_code=config.trust_remote_code,
            )  # fmt: skip
            return loaded
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(
            f"{place!r}: holds no processor that transformers can load ({first_line(error)}): pass tokenizer=, a "
            "processor, its folder or hub id; or train on texts alone with model.architecture=causal_lm"
        ) from error
