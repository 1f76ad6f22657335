"""Whether a model reads images here as it does by itself; one that does not is refused."""

from __future__ import annotations

import inspect

import torch
from transformers import PreTrainedModel

from rlcore.errors import ModelError
from rlcore_transformers.models.speed import TechniqueRefused
from rlcore_transformers.models.speed.exactness import probing, require_same
from rlcore_vision.image_store import PROBE, ImageStore


def require_own_reading(model: PreTrainedModel, images: ImageStore) -> None:
    """Compare the logits of a small image and a word with those of the model's own forward pass.

    Raises:
        ModelError: they differ, such as those of Qwen3-VL, whose encoder also adds features to the layers of the
            language model; or one of both passes fails.
    """
    if model.device.type == "meta":
        return
    processor = images.processor
    made = processor(text=[f"{processor.image_token} a"], images=[[PROBE]], return_tensors="pt")
    known = inspect.signature(model.forward).parameters
    own = {name: made[name].to(model.device) for name in made if name in known}
    token = images.add(PROBE, "a small image")
    tokens = own["input_ids"].masked_fill(own["input_ids"] == images.image_token_id, token)
    try:
        with probing(model):
            expected = model(**own).logits
            found = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
            require_same(model, "logits", found, expected)
    except TechniqueRefused as refusal:
        raise ModelError(
            f"{type(model).__name__} ({model.config.model_type}) does not read a small image here as it does by itself "
            f"({refusal}), so it cannot be trained on images: take another family, or a tokenizer without an image "
            "processor to train on texts"
        ) from refusal
