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
    shared_prompts: bool = option(True, "in packed decoding, store a prompt's keys and values once for all samples")
    preallocated_cache: bool = option(True, "allocate the key-value cache once, for all tokens to come")


ALL_ON = SpeedConfig()


@config
class TransformerConfig:
    """A model of `transformers`: how it is loaded, and which of its parameters train."""

    unfrozen_layers: int | None = option(
        None, "train only the top k blocks; the blocks below, the embeddings and parameters tied to them are frozen; "
        "0: only heads train; default: everything trains", ge=0, unit="layers",
    )  # fmt: skip
    peft: dict[str, Any] | str | Any | None = option(
        None, "adapter to train instead of the model's own weights: options of `peft` with a `type`, such as "
        "`{type: lora, r: 8}`, or the folder or hub id of a trained adapter",
    )  # fmt: skip
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option("float32", "dtype of the loaded weights")
    attention: str | None = option(None, "attention implementation of `transformers`; its own choice if absent")
    gradient_checkpointing: bool = option(
        False, "recompute activations in the backward pass to save memory; with glibc, the process then also returns "
        "freed memory to the system at once",
    )  # fmt: skip
    trust_remote_code: bool = option(False, "run code from a hub repository")
    revision: str | None = option(None, "hub revision of the model")


@config
class LanguageModelConfig(TransformerConfig):
    """A language model of `transformers`: which parameters train, its value function, and how it runs."""

    value_layers: int = option(
        0, "number of top blocks that the value function copies and trains; 0: its head is on the policy's trunk",
        ge=0, unit="layers",
    )  # fmt: skip
    critic: str | None = option(
        None, "separate model of the value function: a hub id or folder (a reward model keeps its head), or `copy`"
    )
    quantization: Literal["4bit", "8bit"] | None = option(
        None, "load the model's own weights in 4 bits (NF4) or 8 bits, by bitsandbytes, to train an adapter (`peft`)"
    )
    sampling_dtype: Literal["bfloat16", "float16"] | None = option(
        None, "type of a copy of the weights to sample from, for machines with fast matrix products in it; trainers "
        "that need log-probs and values then recompute them; absent, the weights themselves are sampled from",
    )  # fmt: skip
    speed: SpeedConfig = option(ALL_ON, "techniques of speed, each of which can be switched off")


@config
class CausalLMConfig(LanguageModelConfig):
    """A decoder-only language model: which parameters train, its value function, and how it runs."""

    trunk_cache_gb: float = option(
        2.0, "memory for the outputs of frozen bottom layers, which then run once per step for all epochs and the "
        "reference; 0: they run in every forward pass", ge=0, unit="GB",
    )  # fmt: skip
    neftune_alpha: float = option(
        0.0, "noise on the embeddings in training: for each of the L tokens of a sequence uniform in plus and minus "
        "this divided by the root of L times the width; for trainers with dropout, such as sft; evaluation, sampling "
        "and the reference have none; 0: none", ge=0, source="NEFTune, Jain et al. 2023, arXiv:2310.05914",
    )  # fmt: skip
    compile: str | None = option(
        None, "backend of `torch.compile`, such as inductor, that compiles the blocks for passes that compute "
        "log-probs; sampling runs them as they are; null: nothing is compiled",
    )  # fmt: skip
    liger_kernel: bool = option(
        False, "replace layers by the kernels of the package `liger-kernel`, on GPUs with Triton, for families that it "
        "knows; its rotary embeddings and losses are not used",
    )  # fmt: skip


@config
class Seq2SeqLMConfig(LanguageModelConfig):
    """An encoder-decoder language model: which parameters train, its value function, and how it runs."""


@config
class TokenizerConfig:
    """Where a tokenizer comes from, and options that override its files; the key `tokenizer` of `model`."""

    path: str | None = option(None, "hub id, folder or GGUF file; default: the model's own tokenizer")
    revision: str | None = option(None, "hub revision of the tokenizer; default: the model's, for its own tokenizer")
    subfolder: str | None = option(None, "folder inside the repository or folder")
    trust_remote_code: bool | None = option(None, "run code from the repository; default: as for the model")
    use_fast: bool | None = option(None, "the tokenizer in Rust, or the one in Python, where `transformers` has both")
    chat_template: str | None = option(None, "Jinja template of conversations, or the path of a .jinja file")
    padding_side: Literal["left", "right"] | None = option(
        None, "saved with the tokenizer; rlcore itself pads on either side and uses masks"
    )
    truncation_side: Literal["left", "right"] | None = option(
        None, "saved with the tokenizer; rlcore itself truncates prompts according to `data.truncation_side`"
    )
    model_max_length: int | None = option(
        None, "saved with the tokenizer; rlcore uses the model's context length", ge=1
    )
    add_bos_token: bool | None = option(None, "start every text with BOS, if the tokenizer class supports it")
    add_eos_token: bool | None = option(None, "end every text with EOS, if the tokenizer class supports it")
    add_prefix_space: bool | None = option(None, "put a space before a text, if the tokenizer class supports it")
    bos_token: str | None = option(None, "token that starts a sequence")
    eos_token: str | None = option(None, "token that ends a sequence")
    unk_token: str | None = option(None, "token for text outside the vocabulary")
    sep_token: str | None = option(None, "token between two texts")
    pad_token: str | None = option(None, "padding token; default: EOS if the tokenizer has none")
    cls_token: str | None = option(None, "classification token")
    mask_token: str | None = option(None, "mask token")
    extra_special_tokens: tuple[str, ...] = option((), "additional special tokens, which are never split")
    options: Mapping[str, Any] = option(
        {}, "other arguments of the tokenizer class; `transformers` ignores unknown names"
    )
