"""What plain `transformers` says: the independent word that policies and samplers are held to.

Nothing of rlcore is used here but types, so that a folder can be read in a process that knows no plugin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel

from rlcore.types import Trajectories


@torch.no_grad()
def next_logprobs(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """Return log-probs of the token after each of `tokens`: double[len(tokens), V]."""
    inputs = torch.tensor([list(tokens)])
    logits: Tensor = model(inputs, attention_mask=torch.ones_like(inputs)).logits
    return logits[0].double().log_softmax(-1)


@torch.no_grad()
def logits_after(model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """Return what predicts each of `tokens` behind `prompt`, and what comes after them: float[len(tokens) + 1, V].

    The encoder of an encoder-decoder reads the prompt, its decoder the token it begins with and then `tokens`.
    """
    if model.config.is_encoder_decoder:
        started = [model.config.decoder_start_token_id, *tokens]
        said: Tensor = model(input_ids=torch.tensor([list(prompt)]), decoder_input_ids=torch.tensor([started])).logits
        return said[0]
    inputs = torch.tensor([[*prompt, *tokens]])
    said = model(inputs, attention_mask=torch.ones_like(inputs)).logits
    return said[0, len(prompt) - 1 :]


def chosen_logprobs(model: PreTrainedModel, batch: Trajectories) -> Tensor:
    """Return log pi of every chosen token, one unpadded sequence at a time: double[B, T], zero elsewhere."""
    found = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    for row, real in enumerate(batch.mask):
        at = real.nonzero()[:, 0]
        tokens, chosen = batch.tokens[row, at], batch.action_mask[row, at]
        if not chosen.any():
            continue
        first = int(chosen.nonzero()[0, 0])
        said = logits_after(model, tokens[:first].tolist(), tokens[first:].tolist())[:-1].double().log_softmax(-1)
        found[row, at[first:]] = said.gather(1, tokens[first:, None])[:, 0]
    return found.masked_fill(~batch.action_mask, 0.0)


@torch.no_grad()
def continue_greedily(model: PreTrainedModel, prompt: Sequence[int], *, eos: Sequence[int], limit: int) -> list[int]:
    """Return what `generate` of transformers continues one prompt with, always the likeliest token."""
    tokens = torch.tensor([list(prompt)])
    model.generation_config.eos_token_id = list(eos) or None
    generate: Any = model.generate
    said = generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=limit, do_sample=False, pad_token_id=0
    )
    begun = 1 if model.config.is_encoder_decoder else tokens.shape[1]
    continued: list[int] = said[0, begun:].tolist()
    return continued


def read_folders(folders: Sequence[str], sequences: Sequence[Sequence[int]], text: str) -> list[dict[str, Any]]:
    """Load folders with plain transformers, and say what the model in each says and what is amiss.

    Of each sequence the first token is the prompt.
    """
    return [_read_folder(folder, sequences, text) for folder in folders]


def _read_folder(folder: str, sequences: Sequence[Sequence[int]], text: str) -> dict[str, Any]:
    about_it = AutoConfig.from_pretrained(folder)
    loader: Any = AutoModelForSeq2SeqLM if about_it.is_encoder_decoder else AutoModelForCausalLM
    model, about = loader.from_pretrained(folder, output_loading_info=True)
    logits = [logits_after(model, tokens[:1], tokens[1:]).tolist() for tokens in sequences]
    return {
        "logits": logits,
        "missing": sorted(about["missing_keys"]),
        "unexpected": sorted(about["unexpected_keys"]),
        "tokens": AutoTokenizer.from_pretrained(folder)(text).input_ids,
    }
