"""Options of the architecture `vision_language`; light."""

from __future__ import annotations

from rlcore.config import config, option
from rlcore_transformers.models.model_options import LanguageModelConfig


@config
class VisionLanguageConfig(LanguageModelConfig):
    """A model of texts and images: which parameters train, and how images are read."""

    freeze_vision: bool = option(
        False, "freeze the vision encoder and adapters in it; the projection to the language model still trains"
    )
    allow_urls: bool = option(False, "download images that rows name by http or https; refused otherwise")
    image_cache_gb: float = option(
        1.0, "memory for the pixel values of images; those that do not fit are read from their source again", ge=0,
        unit="GB",
    )  # fmt: skip
