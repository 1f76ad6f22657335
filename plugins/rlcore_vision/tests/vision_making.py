"""Images, rows and policies for the tests of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from rlcore.settings import DataConfig
from rlcore.types import Prompt, Trajectories
from rlcore_transformers.data.prompts import build_prompts
from rlcore_vision.model import build_vision_language
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.tiny_families import FAMILIES

ANSWER = ("red", "green", "four")


def picture(seed: int, height: int = 20, width: int = 24) -> Image.Image:
    """Return an image of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def policy_of(family: str, *, parts: Any = None, **options: Any) -> tuple[Any, Any]:
    """Return a policy with random weights, and its processor."""
    config, processor = FAMILIES[family]()
    torch.manual_seed(0)
    built = build_vision_language(config, VisionLanguageConfig(**options), tokenizer=processor, **(parts or {}))
    for name, weight in built.model.named_parameters():
        if name.endswith("mm_input_projection_weight"):  # Gemma 3 begins with zeros, which hide the image
            torch.nn.init.normal_(weight, std=0.2)
    return built, processor


def rows() -> list[dict[str, Any]]:
    """Return a text with an image, a conversation with two, and a text without one."""
    parts = [{"type": "image"}, {"type": "text", "text": "how many"}, {"type": "image"}, {"type": "text", "text": "?"}]
    return [
        {"prompt": "what colour is the circle ?", "images": [picture(1)]},
        {"prompt": [{"role": "user", "content": parts}], "images": [picture(2, 32, 16), picture(1)]},
        {"prompt": "yes no", "images": None},
    ]


def prompts_of(policy: Any, given: Any = None) -> list[Prompt]:
    """Tokenise rows, `rows()` by default."""
    return build_prompts(rows() if given is None else given, policy.tokenizer, DataConfig(), max_length=0)


def answered(policy: Any, prompts: list[Prompt]) -> Trajectories:
    """Return the prompts, each with the same answer."""
    ids = policy.tokenizer.convert_tokens_to_ids(list(ANSWER))
    tokens = [[*prompt.tokens, *ids] for prompt in prompts]
    return Trajectories.stack(tokens, [[False] * (len(row) - len(ids)) + [True] * len(ids) for row in tokens])


def processed(processor: Any) -> list[dict[str, Any]]:
    """Return what the processor itself makes of each of `rows()`."""
    first, second, third = rows()
    rendered = processor.apply_chat_template(second["prompt"], add_generation_prompt=True)
    texts = [(processor.image_token + first["prompt"], first["images"]), (rendered, second["images"])]
    made = [
        dict(processor(text=[text], images=[images], return_tensors="pt", add_special_tokens=False))
        for text, images in texts
    ]
    return [*made, dict(processor(text=[third["prompt"]], return_tensors="pt", add_special_tokens=False))]


def extended(inputs: dict[str, Any], more: list[int]) -> dict[str, Any]:
    """Return the inputs of a model with text tokens appended."""
    added = torch.tensor([more])
    made = {**inputs, "input_ids": torch.cat([inputs["input_ids"], added], 1)}
    made["attention_mask"] = torch.ones_like(made["input_ids"])
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in made:
            made[name] = torch.cat([made[name], torch.zeros_like(added)], 1)
    return made


@torch.no_grad()
def scored_alone(folder: Path, image: Image.Image, text: str) -> float:
    """Return a reward model's score of one image and text, by plain `transformers` and the head's weights."""
    processor, model = AutoProcessor.from_pretrained(folder), AutoModelForImageTextToText.from_pretrained(folder)
    inputs = processor(text=[text], images=[image], return_tensors="pt", add_special_tokens=False)
    hidden = model(**inputs, output_hidden_states=True).hidden_states[-1][0, -1]
    return float(hidden @ load_file(folder / "heads.safetensors")["sequence_score.score.weight"][0])
