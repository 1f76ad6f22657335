"""Tests of the architecture `sequence_scorer`: what it loads, which token it scores, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    GPT2ForSequenceClassification,
)

from rlcore.errors import ModelError
from rlcore.types import Trajectories
from rlcore_reward.classifier import PADDING
from rlcore_reward.config import SequenceScorerConfig
from rlcore_reward.scorer import ModelScorer, build_sequence_scorer
from rlcore_testing.small import EOS, PAD, make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore_transformers.models.model_options import SpeedConfig

WORDS = ([3, 4, 5, EOS], [8, 9, EOS], [1, 2, 3, 4, 5, 6, EOS])


def build(spec: Any, *, tokenizer: Any = None, **options: Any) -> ModelScorer:
    torch.manual_seed(0)
    return build_sequence_scorer(spec, SequenceScorerConfig(**options), tokenizer=tokenizer or make_tokenizer())


@torch.no_grad()
def scores_of(scorer: ModelScorer) -> torch.Tensor:
    return scorer.score(Trajectories.stack(WORDS, [[False] * len(row) for row in WORDS]))


def without_spare() -> Any:
    """Return a tokenizer that pads with EOS, and whose other tokens all occur in texts."""
    tokenizer = make_tokenizer(pad_is_eos=True)
    vocabulary = {token: index for token, index in tokenizer.get_vocab().items() if token != "<pad>"}
    backend = tokenizer.backend_tokenizer
    backend.model = type(backend.model)(vocabulary, unk_token="?")
    return type(tokenizer)(tokenizer_object=backend, eos_token="</s>", pad_token="</s>", unk_token="?")


@torch.no_grad()
def test_the_score_is_read_at_eos_even_where_the_tokenizer_pads_with_it() -> None:
    """TRL's fallback sets pad = eos, and transformers then scores the token before EOS; gpt-neox #1285 likewise.

    EOS is the tokenizer's own, not that of gpt2 for every model (torchrl #3887).
    """
    scorer = build(make_gpt2(), tokenizer=make_tokenizer(pad_is_eos=True))
    assert (scorer.tokenizer.pad_token_id, scorer.model.config.pad_token_id) == (PAD, PAD)
    hidden = scorer.model.transformer(torch.tensor([WORDS[0]])).last_hidden_state[0]
    assert float(scores_of(scorer)[0]) == pytest.approx(float(hidden[-1] @ scorer.model.score.weight[0]), abs=1e-5)
    assert float(hidden[-2] @ scorer.model.score.weight[0]) != pytest.approx(float(scores_of(scorer)[0]), abs=1e-2)


def test_the_weights_of_a_folder_are_aligned_as_those_of_a_model_in_memory(tmp_path: Path) -> None:
    build(make_llama()).save_pretrained(tmp_path)
    assert not any(each.data_ptr() % 64 for each in build(tmp_path).module.parameters())


def test_a_vocabulary_without_a_spare_token_grows_by_one(tmp_path: Path) -> None:
    make_gpt2(vocab=31).save_pretrained(tmp_path)
    tokenizer = without_spare()
    assert len(tokenizer) == 31
    scorer = build(tmp_path, tokenizer=tokenizer)
    assert scorer.tokenizer.pad_token == PADDING
    assert scorer.model.get_input_embeddings().weight.shape[0] == 32
    assert tokenizer.pad_token == "</s>"  # the caller's is not changed


def test_a_model_with_embeddings_to_spare_does_not_grow() -> None:
    scorer = build(make_gpt2(vocab=40), tokenizer=without_spare())
    assert (scorer.tokenizer.pad_token_id, scorer.model.get_input_embeddings().weight.shape[0]) == (31, 40)


def test_where_nothing_can_pad_the_token_before_eos_is_scored_as_in_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scorer = build(make_gpt2(vocab=31), tokenizer=without_spare())  # a language model in memory does not grow
    assert "the score is that of the token before EOS" in capsys.readouterr().err
    scorer.export(tmp_path)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with torch.no_grad():
        alone = torch.stack([plain(torch.tensor([row])).logits[0, 0] for row in WORDS])
    torch.testing.assert_close(scores_of(scorer), alone, atol=1e-5, rtol=0)


def test_an_exported_scorer_is_configured_as_a_regression_with_one_label(tmp_path: Path) -> None:
    build(make_llama()).export(tmp_path)
    config = AutoModelForSequenceClassification.from_pretrained(tmp_path).config
    assert (config.num_labels, config.pad_token_id, config.problem_type) == (1, PAD, "regression")


def test_the_head_trains_and_is_saved_with_an_adapter(tmp_path: Path) -> None:
    scorer = build(make_gpt2(), peft={"type": "lora", "r": 2})
    trained = [name for name, each in scorer.module.named_parameters() if each.requires_grad]
    assert any("score" in name for name in trained)
    assert all("lora" in name or "score" in name for name in trained)
    with torch.no_grad():
        for name, each in scorer.module.named_parameters():
            if name in trained:
                each.add_(0.1)
    expected = scores_of(scorer)
    scorer.save_pretrained(tmp_path / "part")
    scorer.export(tmp_path / "whole")
    other = build(make_gpt2(), peft={"type": "lora", "r": 2})
    other.load_pretrained(tmp_path / "part")
    torch.testing.assert_close(scores_of(other), expected)
    whole = build(str(tmp_path / "whole"))
    torch.testing.assert_close(scores_of(whole), expected, atol=1e-5, rtol=0)


def test_a_language_model_in_memory_shares_its_weights_and_keeps_its_configuration() -> None:
    model = make_gpt2()
    scorer = build(model, tokenizer=make_tokenizer(pad_is_eos=True))
    assert scorer.model.transformer is model.transformer
    assert model.config.num_labels == 2


@torch.no_grad()
def test_an_encoder_classifier_scores_as_in_transformers(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=32, num_labels=1,
        pad_token_id=PAD, hidden_dropout_prob=0.0, max_position_embeddings=64,
    )  # fmt: skip
    bert = BertForSequenceClassification(config).eval()
    alone = torch.stack([bert(torch.tensor([row])).logits[0, 0] for row in WORDS])
    scorer = build(bert)
    assert scorer.module.longest == 0  # its tokens attend to later ones
    torch.testing.assert_close(scores_of(scorer), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", [make_gpt2, make_llama])
def test_packing_changes_no_score_and_no_gradient(make: Any) -> None:
    """Answers to one prompt share its tokens; the padding token inside a text and at its end is none to score."""
    rows = [[1, 2, 3, 4, EOS], [1, 2, 3, 9, 9, EOS], [5, PAD, 6, PAD], [7], [1, 2, 3, 4, 8, 8, 8, EOS], [PAD, PAD]]
    batch = Trajectories.stack(rows, [[False] * len(row) for row in rows])
    found = []
    for speed in ({}, {"packing": False}, {"prefixes": False}):
        scorer = build(make(), speed=SpeedConfig(**speed))
        assert (scorer.module.longest > 0) == (speed != {"packing": False})
        for each in (batch, _reversed(batch)):
            scorer.module.zero_grad()
            scores = scorer.score(each)
            (scores * torch.linspace(1, 2, len(rows))).sum().backward()
            gradients = [parameter.grad for parameter in scorer.module.parameters() if parameter.grad is not None]
            found.append((scores.detach(), torch.cat([gradient.flatten() for gradient in gradients])))
    for scores, gradients in found[1:]:
        torch.testing.assert_close(scores, found[0][0], atol=1e-5, rtol=0)
        torch.testing.assert_close(gradients, found[0][1], atol=1e-5, rtol=1e-4)


def _reversed(batch: Trajectories) -> Trajectories:
    """Move the padding of each row to its left."""
    order = batch.mask.int().argsort(dim=1, stable=True)
    return batch.each(lambda array: array.gather(1, order) if array.dim() > 1 else array)


def test_a_model_that_is_no_scorer_is_refused(tmp_path: Path) -> None:
    config = make_gpt2().config
    config.num_labels = 3
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path / "three")
    with pytest.raises(ModelError, match="is a classifier with 3 labels, and a score is one number"):
        build(str(tmp_path / "three"))
    with pytest.raises(ModelError, match="classifier with 3 labels"):
        build(GPT2ForSequenceClassification(config))
    with pytest.raises(ModelError, match="is an encoder-decoder"):
        build(make_t5())
    with pytest.raises(ModelError, match="there is no such folder"):
        build(str(tmp_path / "nothing"))
