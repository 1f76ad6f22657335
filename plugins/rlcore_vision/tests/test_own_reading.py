"""A family that reads images in another way than this package does is refused, by name, when its policy is built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, Qwen3VLConfig

from rlcore.errors import ModelError
from rlcore_vision.model import build_vision_language
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.tiny_families import TEXT, llava, qwen2_vl


def test_a_model_whose_encoder_adds_features_to_layers_of_the_language_model_is_refused() -> None:
    like, processor = qwen2_vl()
    ids = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    config = Qwen3VLConfig(
        vision_config={
            "depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": 4,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 32, "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
        text_config={
            **TEXT, "head_dim": 8, "vocab_size": len(processor.tokenizer), "max_position_embeddings": 256,
            "rope_parameters": rope, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 4,
        },
        **{name: getattr(like, name) for name in ids},
    )  # fmt: skip
    torch.manual_seed(0)
    with pytest.raises(ModelError, match=r"\(qwen3_vl\) does not read small images .* \(logits differ"):
        build_vision_language(config, VisionLanguageConfig(), tokenizer=processor)


def test_a_model_whose_logits_depend_on_later_tokens_is_refused() -> None:
    config, processor = llava()
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config)

    def look_ahead(_module: Any, _arguments: Any, output: Any) -> None:
        output.logits = output.logits + output.logits.mean(1, keepdim=True)

    model.register_forward_hook(look_ahead)
    with pytest.raises(ModelError, match=r"does not read small images .* \(logits without the last token differ"):
        build_vision_language(model, VisionLanguageConfig(), tokenizer=processor)
