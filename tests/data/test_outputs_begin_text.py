"""Tests of encoder-decoder outputs: they are tokenised and decoded as the beginning of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, T5Config

import rlcore
from rlcore.data.text import render_outputs
from rlcore.settings import DataConfig
from rlcore.types import Trajectories
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples

PAIR = ["the house is red", "das Haus ist rot"]
OWN, ON = DataConfig(outputs_begin_text=True), DataConfig(outputs_begin_text=False)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """T5-style tokenizer: a space before every text, </s> after it."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    learn = trainers.UnigramTrainer(vocab_size=48, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>")
    backend.train_from_iterator([*PAIR, "the cat is big", "die Katze ist gross"] * 20, learn)
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def outputs_of(sample: Any) -> list[int]:
    return [token for token, chosen in zip(sample.tokens, sample.action_mask, strict=True) if chosen]


def test_an_output_has_the_tokens_that_the_tokenizer_gives_a_target(tokenizer: PreTrainedTokenizerFast) -> None:
    own, on = (build_samples([PAIR], tokenizer, data, max_length=0)[0] for data in (OWN, ON))
    target = tokenizer(text_target=PAIR[1])["input_ids"]
    assert outputs_of(own) == target
    assert outputs_of(on) != target


def test_only_the_first_output_of_a_dialogue_begins_a_text(tokenizer: PreTrainedTokenizerFast) -> None:
    turns = [PAIR[0], PAIR[1], PAIR[0], PAIR[1]]
    own, on = (build_samples([turns], tokenizer, data, max_length=0)[0] for data in (OWN, ON))
    target = tokenizer(text_target=PAIR[1])["input_ids"]
    assert outputs_of(own)[: len(target)] == target
    rest = len(outputs_of(on)) // 2
    assert outputs_of(own)[len(target) :] == outputs_of(on)[rest:]


def test_an_output_is_decoded_as_a_text_of_its_own(tokenizer: PreTrainedTokenizerFast) -> None:
    (prompt,) = build_prompts([PAIR[0]], tokenizer, OWN, max_length=0)
    target = tokenizer(text_target=PAIR[1])["input_ids"]
    length = len(prompt.tokens)
    batch = Trajectories.stack([[*prompt.tokens, *target]], [[False] * length + [True] * len(target)])
    assert render_outputs(tokenizer, batch, [prompt], alone=True) == [PAIR[1]]
    assert render_outputs(tokenizer, batch, [prompt]) == [" " + PAIR[1]]


@pytest.mark.parametrize(("chosen", "wanted"), [(None, PAIR[1]), (False, " " + PAIR[1])])
def test_an_encoder_decoder_tokenises_outputs_as_targets_unless_the_option_says_otherwise(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, chosen: bool | None, wanted: str
) -> None:
    """A T5 overfitted to one pair returns the exact output text, to a reward function and to the caller."""
    torch.manual_seed(0)
    heard: list[str] = []

    def listen(outputs: list[str]) -> list[float]:
        heard.extend(outputs)
        return [0.0 for _ in outputs]

    config = T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    pair = PAIR if chosen is None else [PAIR[0], " " + PAIR[1]]
    result = rlcore.train(
        config, tokenizer=tokenizer, trainer={"name": "sft", "optimizer": {"lr": 1e-2}}, samples=[pair] * 4,
        reward_fn=listen, eval_prompts=[PAIR[0]], gen={"temperature": 0, "max_new_tokens": 24},
        data={"outputs_begin_text": chosen}, run={"steps": 40, "root": str(tmp_path)}, loggers=[],
    )  # fmt: skip
    assert heard == [wanted]
    assert result.generate(PAIR[0]) == [wanted]
