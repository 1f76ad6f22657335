"""The kind of models that read texts and images, and which models are of this kind."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForImageTextToText, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from rlcore_transformers.models.kind import FURTHER, Kind, declared

VISION_LANGUAGE = Kind("vision_language", "vision-language", "qwen2_vl or llava", AutoModelForImageTextToText)


def sees(config: PreTrainedConfig) -> bool:
    """Return whether a configuration is that of a decoder that reads texts and images."""
    is_decoder = not getattr(config, "is_encoder_decoder", False)
    has_parts = hasattr(config, "vision_config") and hasattr(config, "text_config")
    return is_decoder and has_parts and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


FURTHER[VISION_LANGUAGE] = sees


def fits_vision_language(spec: Any, revision: str | None) -> int:
    """Return 3 if a model reads texts and images, otherwise 0."""
    config = declared(spec, revision)
    return 3 if config is not None and sees(config) else 0
