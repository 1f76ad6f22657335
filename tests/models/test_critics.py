"""Tests of separate critics: a copy of the trunk, a reward model, another language model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tiny import GPT, spread_out
from value_making import CONFIGS, build, by_hand, make, trajectories, values

from rlcore.errors import ModelError
from rlcore_transformers.models.heads import CriticValue, ScoreHead, ValueHead


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom"])
def test_a_copied_critic_shares_nothing_and_starts_as_the_trunk(name: str, char_tokenizer: Any) -> None:
    policy, batch = build(make(name), char_tokenizer, critic="copy", unfrozen_layers=1), trajectories()
    critic = policy.module.value
    assert isinstance(critic, CriticValue)
    held = {p.data_ptr() for p in policy.model.parameters()}
    assert all(p.requires_grad and p.data_ptr() not in held for p in critic.parameters())
    expected = by_hand(policy.model.get_decoder(), critic.head, batch)
    found = values(policy, batch)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    found.sum().backward()
    assert not any(p.grad is not None and p.grad.any() for p in policy.model.parameters())
    assert all(p.grad is not None for p in critic.trunk.get_input_embeddings().parameters())


@pytest.fixture
def reward_models(tmp_path: Path) -> dict[str, Path]:
    saved = {}
    for name in ("gpt2", "llama"):
        config = copy.deepcopy(CONFIGS[name])
        config.num_labels = 1
        model = hf.AutoModelForSequenceClassification.from_config(config)
        spread_out(model, seed=5)
        saved[name] = tmp_path / name
        model.save_pretrained(saved[name])
    return saved


@pytest.mark.parametrize("policy_name", ["gpt2", "llama", "bloom"])
@pytest.mark.parametrize("critic_name", ["gpt2", "llama"])
def test_a_reward_model_as_critic_keeps_its_score_head(
    policy_name: str, critic_name: str, reward_models: dict[str, Path], char_tokenizer: Any
) -> None:
    policy = build(make(policy_name), char_tokenizer, critic=str(reward_models[critic_name]))
    assert (policy.module.layout.longest > 0) == (policy_name != "bloom")
    judge = hf.AutoModelForSequenceClassification.from_pretrained(reward_models[critic_name]).eval()
    for side in ("left", "right"):
        batch = trajectories(side)
        expected = []
        for ids, real, chosen in zip(batch.tokens, batch.mask, batch.action_mask, strict=True):
            sequence = ids[real]
            before = [sequence[None, :t] for t in chosen[real].nonzero()[:, 0].tolist()]
            expected += [judge(tokens).logits[0, 0] for tokens in before]  # the classifier itself
        assert torch.allclose(values(policy, batch), torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_a_language_model_as_critic_gets_a_new_head(tmp_path: Path, char_tokenizer: Any) -> None:
    other = make("llama")
    other.save_pretrained(tmp_path)
    policy, batch = build(make("gpt2"), char_tokenizer, critic=str(tmp_path)), trajectories()
    assert isinstance(policy.module.value.head, ValueHead)
    expected = by_hand(other.model, policy.module.value.head, batch)
    assert torch.allclose(values(policy, batch), expected, rtol=1e-4, atol=1e-5)


def test_a_critic_with_gradient_checkpointing_has_the_same_gradients(
    reward_models: dict[str, Path], char_tokenizer: Any
) -> None:
    found = []
    for checkpointing in (False, True):
        policy = build(
            make("gpt2"), char_tokenizer, critic=str(reward_models["llama"]), gradient_checkpointing=checkpointing
        )
        policy.module.train()
        values(policy, trajectories()).sum().backward()
        found.append([p.grad for p in policy.module.value.parameters()])
        assert isinstance(policy.module.value.head, ScoreHead)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(*found, strict=True))


def test_a_critic_with_a_smaller_vocabulary_is_an_error(tmp_path: Path, char_tokenizer: Any) -> None:
    hf.GPT2LMHeadModel(hf.GPT2Config(**GPT | {"vocab_size": 31, "pad_token_id": 30})).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="it has a vocabulary of 31 tokens and the policy of 32"):
        build(make("gpt2"), char_tokenizer, critic=str(tmp_path))


@pytest.mark.parametrize("labels", [2, 3])
def test_a_critic_with_several_labels_is_an_error(tmp_path: Path, labels: int, char_tokenizer: Any) -> None:
    config = copy.deepcopy(CONFIGS["gpt2"])
    config.num_labels = labels
    hf.GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"it scores {labels} labels, and a value is one number"):
        build(make("gpt2"), char_tokenizer, critic=str(tmp_path))


def test_a_critic_that_sees_the_future_is_an_error(tmp_path: Path, char_tokenizer: Any) -> None:
    config = hf.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=1
    )
    hf.BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="attend to later ones"):
        build(make("gpt2"), char_tokenizer, critic=str(tmp_path))


def test_a_missing_critic_is_an_error(tmp_path: Path, char_tokenizer: Any) -> None:
    with pytest.raises(ModelError, match=r"critic = '.*nowhere': there is no such folder"):
        build(make("gpt2"), char_tokenizer, critic=str(tmp_path / "nowhere"))


def test_critic_and_value_layers_exclude_each_other(char_tokenizer: Any) -> None:
    with pytest.raises(ModelError, match="value_layers = 2 and critic = 'copy': choose one"):
        build(make("gpt2"), char_tokenizer, critic="copy", value_layers=2)
