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
    """Compare the logits of two small images and words with those of the model's own forward pass.

    They must not depend on later tokens either.

    Raises:
        ModelError: they differ, such as those of Qwen3-VL, whose encoder also adds features to the layers of the
            language model, or depend on later tokens, or a pass fails.
    """
    if model.device.type == "meta":
        return
    processor = images.processor
    shown = [PROBE, PROBE.resize((96, 48))]
    text = f"{processor.image_token} a {processor.image_token} a"
    made = processor(text=[text], images=[shown], return_tensors="pt")
    known = inspect.signature(model.forward).parameters
    own = {name: made[name].to(model.device) for name in made if name in known}
    names = [images.add(image, "a small image") for image in shown]
    try:
        tokens = torch.tensor([images.name(own["input_ids"][0].tolist(), names)], device=model.device)
        with probing(model):
            expected = model(**own).logits
            found = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
            require_same(model, "logits", found, expected)
            begun = model(input_ids=tokens[:, :-1], attention_mask=torch.ones_like(tokens[:, :-1])).logits
            require_same(model, "logits without the last token", begun, found[:, :-1])
    except TechniqueRefused as refusal:
        raise ModelError(
            f"{type(model).__name__} ({model.config.model_type}) does not read small images here as it does by itself "
            f"({refusal}), so it cannot be trained on images: take another family, or a tokenizer without an image "
            "processor to train on texts"
        ) from refusal
