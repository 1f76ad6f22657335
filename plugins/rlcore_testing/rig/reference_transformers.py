"""Outputs of plain `transformers`: the independent reference for policies and samplers.

This module imports nothing of rlcore but types, so that a folder can be loaded in a process without plugins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
)

from rlcore.types import Trajectories


@torch.no_grad()
def next_logprobs(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """Return log-probs of the token after each of `tokens`: double[len(tokens), V]."""
    inputs = torch.tensor([list(tokens)])
    logits: Tensor = model(inputs, attention_mask=torch.ones_like(inputs)).logits
    return logits[0].double().log_softmax(-1)


@torch.no_grad()
def logits_after(model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """Return the logits that predict each of `tokens` after `prompt`, and the token after them: float[len + 1, V].

    The encoder of an encoder-decoder receives the prompt, its decoder `decoder_start_token_id` and then `tokens`.
    """
    if model.config.is_encoder_decoder:
        started = [model.config.decoder_start_token_id, *tokens]
        logits: Tensor = model(input_ids=torch.tensor([list(prompt)]), decoder_input_ids=torch.tensor([started])).logits
        return logits[0]
    inputs = torch.tensor([[*prompt, *tokens]])
    logits = model(inputs, attention_mask=torch.ones_like(inputs)).logits
    return logits[0, len(prompt) - 1 :]


def action_logprobs(model: PreTrainedModel, batch: Trajectories, temperature: float = 1.0) -> Tensor:
    """Return log softmax(logits / temperature) of every action token: double[B, T], zero elsewhere.

    Each sequence is computed alone, without padding.
    """
    logprobs = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    for row, real in enumerate(batch.mask):
        at = real.nonzero()[:, 0]
        tokens, actions = batch.tokens[row, at], batch.action_mask[row, at]
        if not actions.any():
            continue
        first = int(actions.nonzero()[0, 0])
        logits = logits_after(model, tokens[:first].tolist(), tokens[first:].tolist())[:-1].double()
        each = (logits / temperature).log_softmax(-1)
        logprobs[row, at[first:]] = each.gather(1, tokens[first:, None])[:, 0]
    return logprobs.masked_fill(~batch.action_mask, 0.0)


@torch.no_grad()
def continue_greedily(model: PreTrainedModel, prompt: Sequence[int], *, eos: Sequence[int], limit: int) -> list[int]:
    """Return the greedy continuation of one prompt by `generate` of transformers."""
    tokens = torch.tensor([list(prompt)])
    model.generation_config.eos_token_id = list(eos) or None
    generate: Any = model.generate
    output = generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=limit, do_sample=False, pad_token_id=0
    )
    begun = 1 if model.config.is_encoder_decoder else tokens.shape[1]
    continued: list[int] = output[0, begun:].tolist()
    return continued


def read_folders(folders: Sequence[str], sequences: Sequence[Sequence[int]], text: str) -> list[dict[str, Any]]:
    """Load folders with plain transformers; return logits, missing and unexpected weights and token ids for each.

    The first token of each sequence is the prompt.
    """
    return [_read_folder(folder, sequences, text) for folder in folders]


def _read_folder(folder: str, sequences: Sequence[Sequence[int]], text: str) -> dict[str, object]:
    config = AutoConfig.from_pretrained(folder)
    loader: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    if not config.is_encoder_decoder and hasattr(config, "vision_config"):
        loader = AutoModelForImageTextToText
    model, loading = loader.from_pretrained(folder, output_loading_info=True)
    logits = [logits_after(model, tokens[:1], tokens[1:]).tolist() for tokens in sequences]
    return {
        "logits": logits,
        "missing": sorted(loading["missing_keys"]),
        "unexpected": sorted(loading["unexpected_keys"]),
        "tokens": AutoTokenizer.from_pretrained(folder)(text).input_ids,
    }
