"""Whether a model that is compared with the policy, such as a teacher, reads images with the same settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlcore.errors import ModelError
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.processors import load_processor

NAMES = frozenset({
    "auto_map", "chat_template", "data_format", "feature_extractor", "image_processor_type", "input_data_format",
    "processor_class", "return_tensors", "tokenizer", "video_processor", "_processor_class",
})  # fmt: skip
"""Entries of a processor that have no effect on what the model sees of an image: names of classes, and other parts."""


def require_same_images(spec: Any, processor: Any, config: VisionLanguageConfig) -> None:
    """Check that a model that is named, and has a processor, reads images with the same settings as the run.

    Args:
        spec: the model; one in memory, or a folder of weights alone, has no processor to compare.
        processor: the run's.
        config: options of the architecture.

    Raises:
        ModelError: they differ; the message names the first setting and both values.
    """
    if not isinstance(spec, str | os.PathLike):
        return
    try:
        own: Any = load_processor(spec, None, config)
    except ModelError:
        return
    if isinstance(own, PreTrainedTokenizerBase):
        return
    theirs, ours = _settings(own.to_dict()), _settings(processor.to_dict())
    different = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
    if not different:
        return
    first, *others = different
    more = f" (also {', '.join(others)})" if others else ""
    raise ModelError(
        f"{os.fspath(spec)!r}: its processor has other settings than the policy's: {first} is {theirs.get(first)}, and "
        f"{ours.get(first)} for the policy{more}. It is compared with the policy on the pixel values of the policy's "
        "processor, which are not those that it was trained on: choose a model whose processor has the same settings; "
        "pass its processor to the run (tokenizer=); or, if these pixel values are right for it, save the policy's "
        "processor in its folder (processor.save_pretrained)"
    )


def _settings(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a processor by name, as JSON, in which a list equals a tuple; those of its parts too."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if name == "image_processor" and isinstance(value, Mapping):
            found |= _settings(value)
        elif name not in NAMES and value is not None:
            found[name] = json.dumps(value, sort_keys=True, default=str)
    return found
