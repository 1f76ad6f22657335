"""Tiny models that see, with their real processors, built from configurations: for tests and examples."""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, ProcessorMixin, Qwen2VLProcessor

WORDS = (
    "red green blue yellow black white orange purple one two three four what colour is the shape how many shapes are "
    "there a an image of circle square ? . : user assistant system yes no in this 0 1 2 3 4 5 6 7 8 9 not"
)
SIZE, PATCH = 16, 8
SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<end>"}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} : {% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %} <end>{% endfor %}{% if add_generation_prompt %}assistant : {% endif %}"
)


def make_tokenizer(*special: str, **named: str) -> Any:
    """Return a tokenizer of whole words."""
    specials = ["<pad>", "<unk>", "<bos>", "<eos>", "<end>", *special]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys([*specials, *WORDS.split(" "), "\n", "\n\n"]))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(" +"), "removed"), pre_tokenizers.Split(Regex("\n+"), "isolated")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL, extra_special_tokens=named or list(special))


def llava() -> tuple[Any, Any]:
    """Return the configuration and the processor of a tiny LLaVA: a CLIP encoder and a Llama."""
    from transformers import CLIPImageProcessor, LlavaConfig, LlavaProcessor

    tokenizer = make_tokenizer("<image>")
    size = {"height": SIZE, "width": SIZE}
    images = CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size=size)
    processor = LlavaProcessor(
        images, tokenizer, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace("IMAGE", "<image>"),
    )  # fmt: skip
    config = LlavaConfig(  # type: ignore[call-arg]  # an alias of image_token_index
        vision_config={**VISION, "model_type": "clip_vision_model", "image_size": SIZE, "patch_size": PATCH},
        text_config={**TEXT, "model_type": "llama", "vocab_size": len(tokenizer), "max_position_embeddings": 256},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), vision_feature_layer=-1,
    )  # fmt: skip
    return _ended(config, tokenizer), processor


class _ImagesOnly(Qwen2VLProcessor):
    """The processor of Qwen2-VL without its part for videos, which cannot be built without torchvision."""

    def __init__(self, image_processor: object, tokenizer: Any, chat_template: str | None = None) -> None:
        for name in ("image", "video"):
            token = f"<|{name}_pad|>"
            setattr(self, f"{name}_token", token)
            setattr(self, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def qwen2_vl() -> tuple[Any, Any]:
    """Return the configuration and the processor of a tiny Qwen2-VL: images of any size, positions in three axes."""
    from transformers import Qwen2VLConfig
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = make_tokenizer("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    images = Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=SIZE * SIZE
    )
    template = TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    processor = _ImagesOnly(images, tokenizer, chat_template=template)
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    config = Qwen2VLConfig(
        vision_config={
            "depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4,
            "spatial_merge_size": 2, "temporal_patch_size": 2,
        },
        text_config={**TEXT, "vocab_size": len(tokenizer), "max_position_embeddings": 256, "rope_parameters": rope},
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )  # fmt: skip
    return _ended(config, tokenizer), processor


def gemma3() -> tuple[Any, Any]:
    """Return the configuration and the processor of a tiny Gemma 3: the tokens of an image attend to one another."""
    from transformers import Gemma3Config, Gemma3ImageProcessor, Gemma3Processor

    named = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = make_tokenizer(*named.values(), **named)
    images = Gemma3ImageProcessor(size={"height": SIZE, "width": SIZE})
    processor = Gemma3Processor(
        images, tokenizer, chat_template=TEMPLATE.replace("IMAGE", "<start_of_image>"), image_seq_length=4
    )
    config = Gemma3Config(
        vision_config={**VISION, "model_type": "siglip_vision_model", "image_size": SIZE, "patch_size": 4},
        text_config={
            **TEXT, "head_dim": 8, "vocab_size": len(tokenizer), "max_position_embeddings": 256, "sliding_window": 64,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("<image_soft_token>"), mm_tokens_per_image=4,
        boi_token_index=tokenizer.convert_tokens_to_ids("<start_of_image>"),
        eoi_token_index=tokenizer.convert_tokens_to_ids("<end_of_image>"),
    )  # fmt: skip
    return _ended(config, tokenizer), processor


def idefics3() -> tuple[Any, Any]:
    """Return the configuration and the processor of a tiny Idefics 3: an image is cut into parts."""
    from transformers import Idefics3Config, Idefics3ImageProcessor, Idefics3Processor

    rows = [f"<row_{i + 1}_col_{j + 1}>" for i in range(6) for j in range(6)]
    tokenizer = make_tokenizer("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *rows)
    images = Idefics3ImageProcessor(size={"longest_edge": 2 * SIZE}, max_image_size={"longest_edge": SIZE})
    processor = Idefics3Processor(
        images, tokenizer, image_seq_len=4, chat_template=TEMPLATE.replace("IMAGE", "<image>")
    )
    config = Idefics3Config(
        vision_config={**VISION, "image_size": SIZE, "patch_size": 4},
        text_config={**TEXT, "model_type": "llama", "vocab_size": len(tokenizer), "max_position_embeddings": 512},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), scale_factor=2,
    )  # fmt: skip
    return _ended(config, tokenizer), processor


def _ended(config: Any, tokenizer: Any) -> object:
    """Set the special tokens of a configuration to those of the tokenizer."""
    for part in (config, config.get_text_config()):
        part.pad_token_id, part.bos_token_id, part.eos_token_id = 0, 2, tokenizer.eos_token_id
    return config


FAMILIES = {"llava": llava, "qwen2_vl": qwen2_vl, "gemma3": gemma3, "idefics3": idefics3}
