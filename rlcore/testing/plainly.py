"""What plain `transformers` says: the independent word that policies and samplers are held to.

Nothing of rlcore is used here but types, so that a folder can be read in a process that knows no plugin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from rlcore.types import Trajectories


@torch.no_grad()
def next_logprobs(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """Return log-probs of the token after each of `tokens`: double[len(tokens), V]."""
    inputs = torch.tensor([list(tokens)])
    logits: Tensor = model(inputs, attention_mask=torch.ones_like(inputs)).logits
    return logits[0].double().log_softmax(-1)


def chosen_logprobs(model: PreTrainedModel, batch: Trajectories) -> Tensor:
    """Return log pi of every chosen token, one unpadded sequence at a time: double[B, T], zero elsewhere."""
    found = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    for row, real in enumerate(batch.mask):
        at = real.nonzero()[:, 0]
        tokens = batch.tokens[row, at]
        said = next_logprobs(model, tokens.tolist())
        found[row, at[1:]] = said[:-1].gather(1, tokens[1:, None])[:, 0]
    return found.masked_fill(~batch.action_mask, 0.0)


@torch.no_grad()
def continue_greedily(model: PreTrainedModel, prompt: Sequence[int], *, eos: Sequence[int], limit: int) -> list[int]:
    """Return what `generate` of transformers appends to one prompt, always the likeliest token."""
    tokens = torch.tensor([list(prompt)])
    model.generation_config.eos_token_id = list(eos) or None
    generate: Any = model.generate
    said = generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=limit, do_sample=False, pad_token_id=0
    )
    continued: list[int] = said[0, tokens.shape[1] :].tolist()
    return continued


def read_folders(folders: Sequence[str], sequences: Sequence[Sequence[int]], text: str) -> list[dict[str, Any]]:
    """Load folders with plain transformers, and say what the model in each says and what is amiss."""
    return [_read_folder(folder, sequences, text) for folder in folders]


def _read_folder(folder: str, sequences: Sequence[Sequence[int]], text: str) -> dict[str, Any]:
    read: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    model, about = read
    with torch.no_grad():
        logits = [model(torch.tensor([list(tokens)])).logits[0].tolist() for tokens in sequences]
    return {
        "logits": logits,
        "missing": sorted(about["missing_keys"]),
        "unexpected": sorted(about["unexpected_keys"]),
        "tokens": AutoTokenizer.from_pretrained(folder)(text).input_ids,
    }
