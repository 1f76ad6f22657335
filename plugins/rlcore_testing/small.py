"""Small models, tokenizers and data for tests: nothing is downloaded, and a seed determines every weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz .!?"
EOS, PAD = 30, 31
VOCABULARY = 32
PROMPTS = ("ab", "cde", "f", "go on", "h", "ij!", "kl mn", "o")
SAMPLES = (
    ["ab", "cde"], ["hello ", "there."], ["who? ", "me!"], ["q", "!"], ["f", "aa"], ["long ", "ago it"], ["z", "a b"],
    ["m", "nop"],
)  # fmt: skip
REWARDS = (1.0, -0.5, 0.0, 2.0, 0.5, -1.0, 0.25, 1.5)
"""One reward for each of SAMPLES."""


def toy_reward(outputs: Sequence[str]) -> list[float]:
    """Return (letters before "n") / 4 - length / 40 for each output: easy to learn, rarely equal for two outputs."""
    return [sum(letter < "n" for letter in output) / 4 - len(output) / 40 for output in outputs]


def make_tokenizer(*, pad_is_eos: bool = False) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character: ids 0..29 are LETTERS, 30 is </s>, 31 is <pad> (or </s>)."""
    vocabulary = {letter: i for i, letter in enumerate(LETTERS)} | {"</s>": EOS, "<pad>": PAD}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))  # noqa: S106  a token, not a password
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    special = {"eos_token": "</s>", "pad_token": "</s>" if pad_is_eos else "<pad>", "unk_token": "?"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def make_gpt2(
    *, layers: int = 2, width: int = 16, heads: int = 2, vocab: int = VOCABULARY, seed: int = 0
) -> GPT2LMHeadModel:
    """Return a GPT-2 with random weights large enough that its distributions are far from uniform."""
    torch.manual_seed(seed)
    model: GPT2LMHeadModel = GPT2LMHeadModel(
        GPT2Config(
            n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab, n_positions=64, bos_token_id=EOS,
            eos_token_id=EOS, pad_token_id=PAD, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            initializer_range=0.3,
        )
    )  # fmt: skip
    model.eval()
    return model


def make_llama(*, layers: int = 2, width: int = 16, vocab: int = VOCABULARY, seed: int = 0) -> LlamaForCausalLM:
    """Return a Llama with grouped keys, rotary positions and an untied head; all its parameters receive gradients."""
    torch.manual_seed(seed)
    model: LlamaForCausalLM = LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=layers, hidden_size=width, intermediate_size=2 * width, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=vocab, max_position_embeddings=64, bos_token_id=EOS, eos_token_id=EOS,
            pad_token_id=PAD, initializer_range=0.3, tie_word_embeddings=False,
        )
    )  # fmt: skip
    model.eval()
    return model


def make_t5(*, layers: int = 2, width: int = 16, vocab: int = VOCABULARY, seed: int = 0) -> T5ForConditionalGeneration:
    """Return a T5: an encoder-decoder with relative positions and a head tied to the embedding.

    The decoder has `layers` layers and the encoder one more, so that code that confuses the two counts fails.
    """
    begins: dict[str, Any] = {"decoder_start_token_id": PAD}
    torch.manual_seed(seed)
    model: T5ForConditionalGeneration = T5ForConditionalGeneration(
        T5Config(
            num_layers=layers + 1, num_decoder_layers=layers, d_model=width, d_kv=8, d_ff=2 * width, num_heads=2,
            vocab_size=vocab, eos_token_id=EOS, pad_token_id=PAD, dropout_rate=0.0, **begins,
        )
    )  # fmt: skip
    model.eval()
    return model


def make_bart(
    *, layers: int = 2, width: int = 16, vocab: int = VOCABULARY, seed: int = 0
) -> BartForConditionalGeneration:
    """Return a BART: an encoder-decoder with 64 learned positions on either side; `layers` is as in `make_t5`."""
    torch.manual_seed(seed)
    model: BartForConditionalGeneration = BartForConditionalGeneration(
        BartConfig(
            encoder_layers=layers + 1, decoder_layers=layers, d_model=width, encoder_ffn_dim=2 * width,
            decoder_ffn_dim=2 * width, encoder_attention_heads=2, decoder_attention_heads=2, vocab_size=vocab,
            max_position_embeddings=64, decoder_start_token_id=EOS, bos_token_id=EOS, eos_token_id=EOS,
            pad_token_id=PAD, forced_eos_token_id=None, dropout=0.0, init_std=0.3,
        )
    )  # fmt: skip
    model.eval()
    return model
