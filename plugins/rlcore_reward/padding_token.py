"""The padding token of a sequence classifier, by which plain `transformers` finds the last token of a sequence.

`transformers` scores the last token whose id is not `config.pad_token_id`. If that id is EOS, it scores the token
*before* EOS. A classifier therefore gets a padding token that occurs in no text.
"""

from __future__ import annotations

import copy
import re
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.logging import get_logger
from rlcore_transformers.models.freezing import vocabulary_size
from rlcore_transformers.models.hub import quiet_transformers

PADDING = "<|pad|>"
"""A padding token that is added to a vocabulary without one."""
SPARE = re.compile(r"[<\[(|]+[\w ]*(pad|reserved|unused)[\w ]*[>\])|]+", re.IGNORECASE)
"""Tokens that a vocabulary has for padding or holds in reserve, such as `<pad>` or `<|reserved_special_token_0|>`."""


def settle_padding(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, may_grow: bool
) -> PreTrainedTokenizerBase:
    """Return the tokenizer with a padding token that is not EOS, and set it in the model's configuration.

    The tokenizer's own is kept if it is not EOS. Otherwise, in this order: a token of the vocabulary for padding or in
    reserve; a new token, if the model has an embedding to spare; a new token and a new embedding. If none is possible,
    the padding token stays EOS, with a warning: the score is then that of the token before EOS, in training as in plain
    `transformers`.

    Args:
        model: the classifier.
        tokenizer: not changed; a copy is returned if its padding token is another one.
        may_grow: whether the model's embeddings may get a row more.
    """
    ends = {tokenizer.eos_token_id, *_ids(model.config.get_text_config().eos_token_id)}
    size = vocabulary_size(model)
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id in ends or tokenizer.pad_token_id >= size:
        tokenizer = copy.deepcopy(tokenizer)
        spare = _spare(tokenizer, ends, size)
        if spare is not None:
            tokenizer.pad_token = spare
        elif len(tokenizer) < size or may_grow:
            tokenizer.add_special_tokens({"pad_token": PADDING})
            _grow(model, len(tokenizer))
        else:
            get_logger("models").warning(
                "the vocabulary has no token for padding but EOS: the score is that of the token before EOS",
                eos=tokenizer.eos_token,
            )
    for config in (model.config, model.config.get_text_config()):
        config.pad_token_id = tokenizer.pad_token_id
    return tokenizer


def _spare(tokenizer: PreTrainedTokenizerBase, ends: set[int | None], size: int) -> str | None:
    """Return a token of the vocabulary that pads or is in reserve; tokens for padding come first, then lower ids."""
    used = {tokenizer.convert_tokens_to_ids(token) for token in tokenizer.all_special_tokens} | ends
    found = [
        ("pad" not in token.lower(), index, token)
        for token, index in tokenizer.get_vocab().items()
        if SPARE.fullmatch(token) and index < size and index not in used
    ]
    return min(found)[2] if found else None


@torch.no_grad()
def _grow(model: PreTrainedModel, size: int) -> None:
    """Give the model embeddings for `size` tokens at least; new rows, which no text uses, are zero."""
    before = vocabulary_size(model)
    if size <= before:
        return
    with quiet_transformers():
        model.resize_token_embeddings(size, mean_resizing=False)
    cast("Tensor", model.get_input_embeddings().weight)[before:] = 0.0


def _ids(given: int | list[int] | None) -> list[int]:
    return [] if given is None else [given] if isinstance(given, int) else list(given)
