"""Options of the core's architectures; light, so that they can be listed without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rlcore.config import config, option


@config
class SpeedConfig:
    """Techniques that make a model faster without changing what it computes beyond rounding; all are on by default."""

    packing: bool = option(True, "run batches without padding, for families where that is proved exact at start")
    prefixes: bool = option(True, "in packed batches, compute tokens that several sequences begin with once")
    attention_groups: bool = option(True, "on a CPU, run packed attention in groups of similar length")
    length_groups: bool = option(True, "on a CPU, run padded batches in groups of similar length")
    frozen_trunk: bool = option(True, "cache the outputs of frozen bottom layers within a step (`trunk_cache_gb`)")
    fused_logprobs: bool = option(True, "compute log-probs from hidden states without a tensor of all logits")
    small_logprobs: bool = option(True, "on a CPU, keep the logits of few tokens in one piece of memory")
    fused_activations: bool = option(True, "replace GELU written out in Python by torch's fused kernel (equal to 5e-7)")
    packed_decoding: bool = option(True, "on a CPU, decode without padding where that is faster")
    shared_prompts: bool = option(True, "in packed decoding, store a prompt's keys and values once for all its samples")
    preallocated_cache: bool = option(True, "allocate the key-value cache once, for all tokens to come")


ALL_ON = SpeedConfig()


@config
class LanguageModelConfig:
    """A language model of `transformers`: what of it trains, where its values come from, how it runs."""

    unfrozen_layers: int | None = option(
        None, "train the top k blocks, not those below, the embeddings, or what is tied to them; 0 trains heads only, "
        "all if absent", ge=0, unit="layers",
    )  # fmt: skip
    peft: dict[str, Any] | str | object | None = option(
        None, "adapter to train in place of the model's own weights: options of `peft` and a `type`, such as "
        "`{type: lora, r: 8}`, or the folder or hub id of one to go on with",
    )  # fmt: skip
    value_layers: int = option(
        0, "top blocks of which the value function gets a trainable copy of its own; 0 puts its head on the policy",
        ge=0, unit="layers",
    )  # fmt: skip
    critic: str | None = option(
        None, "model that estimates values instead: a hub id or folder (a reward model brings its head), or `copy`"
    )
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option("float32", "type the weights are loaded in")
    sampling_dtype: Literal["bfloat16", "float16"] | None = option(
        None, "type of a copy of the weights that is sampled from, where the machine is faster in it; log-probs and "
        "values are then computed anew by trainers that need them; absent, sampling is from the weights themselves",
    )  # fmt: skip
    attention: str | None = option(None, "attention implementation of `transformers`; its own choice if absent")
    speed: SpeedConfig = option(ALL_ON, "techniques of speed, each of which can be switched off")
    gradient_checkpointing: bool = option(
        False, "recompute activations in the backward pass to save memory; with glibc, memory that is freed then goes "
        "back to the system at once, in the whole process",
    )  # fmt: skip
    trust_remote_code: bool = option(False, "run code that a hub repository brings")
    revision: str | None = option(None, "hub revision of the model")


@config
class CausalLMConfig(LanguageModelConfig):
    """A decoder-only language model: what of it trains, where its values come from, how it runs."""

    trunk_cache_gb: float = option(
        2.0, "memory for what frozen bottom layers have made of a step's sequences, so that they run once a step for "
        "the policy of every epoch and the reference together; 0 runs them in every pass", ge=0, unit="GB",
    )  # fmt: skip
    decoding: Literal["auto", "dynamic", "static"] = option(
        "auto", "how sampling decodes: `dynamic` in a growing or packed key-value cache, `static` in buffers of fixed "
        "shape, on a GPU with CUDA graphs (comes with a plugin); `auto` is `dynamic`",
    )  # fmt: skip


@config
class Seq2SeqLMConfig(LanguageModelConfig):
    """An encoder-decoder language model: what of it trains, where its values come from, how it runs."""


@config
class TokenizerConfig:
    """Where a tokenizer comes from, and what of it is other than its files say; the key `tokenizer` of `model`."""

    path: str | None = option(None, "hub id or folder; the model's own tokenizer when left out")
    revision: str | None = option(None, "hub revision of the tokenizer; the model's, for its own tokenizer")
    subfolder: str | None = option(None, "folder inside the repository or folder")
    trust_remote_code: bool | None = option(None, "run code that the repository brings; as for the model when left out")
    use_fast: bool | None = option(None, "the tokenizer in Rust, or the one in Python, where `transformers` has both")
    chat_template: str | None = option(None, "Jinja template of conversations, or the path of a .jinja file")
    padding_side: Literal["left", "right"] | None = option(
        None, "kept with the tokenizer; rlcore itself pads where it likes, for masks tell padding"
    )
    truncation_side: Literal["left", "right"] | None = option(
        None, "kept with the tokenizer; rlcore itself cuts prompts as `data.truncation_side` says"
    )
    model_max_length: int | None = option(None, "kept with the tokenizer; rlcore goes by the model's context", ge=1)
    add_bos_token: bool | None = option(None, "begin every text with BOS, where the tokenizer's kind can be told so")
    add_eos_token: bool | None = option(None, "end every text with EOS, where the tokenizer's kind can be told so")
    add_prefix_space: bool | None = option(None, "put a space before a text, where the tokenizer's kind can be told so")
    bos_token: str | None = option(None, "token that begins a sequence")
    eos_token: str | None = option(None, "token that ends a sequence")
    unk_token: str | None = option(None, "token for what the vocabulary lacks")
    sep_token: str | None = option(None, "token between two texts")
    pad_token: str | None = option(None, "token that fills a batch; EOS where the tokenizer has none")
    cls_token: str | None = option(None, "token that stands for a whole text")
    mask_token: str | None = option(None, "token for what is to be guessed")
    extra_special_tokens: tuple[str, ...] = option((), "further tokens that are never split and stand for no text")
    options: Mapping[str, Any] = option(
        {}, "whatever else this kind of tokenizer takes; `transformers` says nothing where it knows no such name"
    )
