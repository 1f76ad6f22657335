"""Registration of the architecture `vision_language`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_architectures(register: Register) -> None:
    """Register policies that see images."""
    register(
        "vision_language",
        "rlcore_vision.model:build_vision_language",
        config="rlcore_vision.options:VisionLanguageConfig",
        summary="any AutoModelForImageTextToText whose image features take the place of tokens",
        fits="rlcore_vision.families:fits_vision_language",
        sections={"tokenizer": "rlcore_transformers.models.model_options:TokenizerConfig"},
    )
