"""Laws of the value functions: what each reads, what its gradient reaches, and that it never knows what is to come."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tiny import GPT, SHAPE, make_causal, spread_out
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.errors import ModelError
from rlcore.models.blocks import decoder_blocks
from rlcore.models.causal import build_causal_lm
from rlcore.models.heads import BranchValue, CriticValue, ScoreHead, TrunkValue, ValueHead
from rlcore.models.policy import ModelPolicy
from rlcore.models.settings import CausalLMConfig
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories

CONFIGS = {
    "gpt2": hf.GPT2Config(**GPT),
    "llama": hf.LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "qwen2": hf.Qwen2Config(**SHAPE),
    "opt": hf.OPTConfig(**SHAPE, ffn_dim=32, word_embed_proj_dim=8, dropout=0.0),
    "gpt_neox": hf.GPTNeoXConfig(**SHAPE),
    "gemma2": hf.Gemma2Config(**SHAPE, sliding_window=4),
    "gemma3": hf.Gemma3TextConfig(**SHAPE, sliding_window=4),
    "bloom": hf.BloomConfig(vocab_size=32, hidden_size=16, n_layer=4, n_head=4, bos_token_id=30, eos_token_id=30),
    "gptj": hf.GPTJConfig(**GPT, rotary_dim=4),
    "mixtral": hf.MixtralConfig(**SHAPE, num_local_experts=4),
}


def make(name: str) -> PreTrainedModel:
    return make_causal(CONFIGS[name])


def trajectories(side: str = "both") -> Trajectories:
    mask = torch.zeros(3, 14, dtype=torch.bool)
    for i, length in enumerate((9, 4, 12)):
        start = {"left": 14 - length, "right": 0, "both": i}[side]
        mask[i, start : start + length] = True
    tokens = torch.zeros(3, 14, dtype=torch.long)
    tokens[mask] = torch.randint(0, 30, (25,), generator=torch.Generator().manual_seed(3))
    return Trajectories(tokens, mask, mask & (mask.cumsum(1) > 2), torch.ones(3, dtype=torch.bool))


def by_hand(trunk: nn.Module, head: nn.Module, batch: Trajectories) -> Tensor:
    """Compute V before each chosen token, one unpadded sequence at a time: float[N]."""
    values = []
    for ids, real, chosen in zip(batch.tokens, batch.mask, batch.action_mask, strict=True):
        hidden = trunk(ids[real][None], use_cache=False).last_hidden_state[0]
        values.append(head(hidden)[:-1][chosen[real][1:]])
    return torch.cat(values).reshape(-1)


def build(spec: Any, tokenizer: Any, **options: Any) -> ModelPolicy:
    return build_causal_lm(spec, CausalLMConfig(**options), tokenizer=tokenizer, value_head=True)


def values(policy: ModelPolicy, batch: Trajectories) -> Tensor:
    found = policy.score(batch).values
    assert found is not None
    assert not found[~batch.action_mask].any()
    return found[batch.action_mask]


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_head_reads_the_trunk_before_the_token(name: str, packing: bool, char_tokenizer: Any) -> None:
    policy = build(make(name), char_tokenizer, packing=packing)
    head = policy.module.value.head
    for side in ("left", "right", "both"):
        batch = trajectories(side)
        expected = by_hand(policy.model.get_decoder(), head, batch)
        assert torch.allclose(values(policy, batch), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_an_untrained_branch_says_what_the_trunk_says(
    name: str, packing: bool, layers: int, char_tokenizer: Any
) -> None:
    policy = build(make(name), char_tokenizer, value_layers=layers, packing=packing)
    assert isinstance(policy.module.value, BranchValue)
    batch = trajectories()
    expected = by_hand(policy.model.get_decoder(), policy.module.value.head, batch)
    assert torch.allclose(values(policy, batch), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(values(policy, batch), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_the_branch_trains_itself_and_the_trunk_but_not_the_policys_top(
    name: str, checkpointing: bool, char_tokenizer: Any
) -> None:
    policy = build(make(name), char_tokenizer, value_layers=1, gradient_checkpointing=checkpointing)
    policy.module.train()
    blocks = decoder_blocks(policy.model)
    for _ in range(2):
        policy.module.zero_grad()
        values(policy, trajectories()).sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in blocks[2].parameters() if p.dim() > 1)
        assert not any(p.grad is not None and p.grad.any() for p in blocks[3].parameters())
        own = policy.module.value.top.decoder
        assert all(p.grad is not None for block in decoder_blocks(own)[3:] for p in block.parameters())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_branchs_gradient_in_the_trunk_is_a_full_copys(name: str, char_tokenizer: Any) -> None:
    policy = build(make(name), char_tokenizer, value_layers=2)
    whole, batch = copy.deepcopy(policy.model.get_decoder()), trajectories()
    values(policy, batch).sum().backward()
    by_hand(whole, policy.module.value.head, batch).sum().backward()
    bottom = zip(decoder_blocks(policy.model)[:2].parameters(), decoder_blocks(whole)[:2].parameters(), strict=True)
    for own, expected in bottom:
        assert torch.allclose(own.grad, expected.grad, rtol=1e-3, atol=1e-4)


def test_branch_layers_train_even_where_the_policys_are_frozen(char_tokenizer: Any) -> None:
    policy = build(make("gpt2"), char_tokenizer, value_layers=3, unfrozen_layers=1)
    own = policy.module.value.top.decoder
    assert all(p.requires_grad for block in decoder_blocks(own)[1:] for p in block.parameters())
    assert own.wte.weight is policy.model.transformer.wte.weight
    assert not own.wte.weight.requires_grad
    values(policy, trajectories()).sum().backward()
    assert not any(p.grad is not None and p.grad.any() for p in decoder_blocks(policy.model)[:3].parameters())


def test_the_branch_follows_the_trunk_as_it_trains(char_tokenizer: Any) -> None:
    policy, batch = build(make("llama"), char_tokenizer, value_layers=1), trajectories()
    before = values(policy, batch).detach()
    with torch.no_grad():
        for parameter in decoder_blocks(policy.model)[3].parameters():
            parameter.mul_(1.5)
    assert torch.equal(values(policy, batch), before)
    with torch.no_grad():
        for parameter in decoder_blocks(policy.model)[0].parameters():
            parameter.mul_(1.5)
    assert not torch.allclose(values(policy, batch), before, atol=1e-3)


def test_sampling_in_between_leaves_nothing_behind(char_tokenizer: Any) -> None:
    policy, batch = build(make("gpt2"), char_tokenizer, value_layers=1), trajectories()
    policy.module.train()
    expected = values(policy, batch).detach()
    prompts = [Prompt(text="ab", tokens=(0, 1)), Prompt(text="c", tokens=(2,))]
    sampled = sample(policy, prompts, SamplingConfig(max_new_tokens=5))
    assert "values" not in sampled
    assert all(part.training for part in policy.module.modules())
    assert torch.equal(values(policy, batch), expected)
    with pytest.raises(RuntimeError, match="recording"):
        policy.module.value.top()


def test_a_failed_pass_is_not_remembered(char_tokenizer: Any) -> None:
    policy, batch = build(make("gpt2"), char_tokenizer, value_layers=1), trajectories()
    expected = values(policy, batch).detach()
    head = policy.model.lm_head
    handle = head.register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        policy.score(batch)
    handle.remove()
    assert torch.equal(values(policy, batch), expected)


def test_a_copied_policy_stands_alone(char_tokenizer: Any) -> None:
    policy, batch = build(make("gpt2"), char_tokenizer, value_layers=1), trajectories()
    twin = copy.deepcopy(policy.module)
    expected = values(policy, batch).detach()
    with torch.no_grad():
        for parameter in policy.module.parameters():
            parameter.zero_()
    found = twin(batch.tokens, batch.mask, batch.action_mask).values
    assert torch.equal(found, expected)


def test_as_many_layers_as_there_are_is_an_error(char_tokenizer: Any) -> None:
    with pytest.raises(ModelError, match=r"value_layers = 4: must lie in \[0, 3\] for the 4 blocks of GPT2LMHeadModel"):
        build(make("gpt2"), char_tokenizer, value_layers=4)


def test_everything_frozen_trains_the_head_alone(char_tokenizer: Any) -> None:
    policy = build(make("gpt2"), char_tokenizer, unfrozen_layers=0)
    assert isinstance(policy.module.value, TrunkValue)
    training = {name for name, p in policy.module.named_parameters() if p.requires_grad}
    assert training == {f"value.head.{part}" for part in ("rise.weight", "rise.bias", "fall.weight", "fall.bias")}
    values(policy, trajectories()).sum().backward()
    assert all(p.grad is not None for p in policy.module.value.parameters())


def test_the_head_by_hand() -> None:
    head = ValueHead(1)
    with torch.no_grad():
        head.rise.weight.copy_(torch.tensor([[2.0], [-1.0]]))
        head.rise.bias.copy_(torch.tensor([1.0, 0.5]))
        head.fall.weight.copy_(torch.tensor([[3.0, 10.0]]))
        head.fall.bias.copy_(torch.tensor([0.25]))
    # relu(2 * 1 + 1) * 3 + relu(-1 + .5) * 10 + .25 = 9.25; relu(-3) * 3 + relu(2.5) * 10 + .25 = 25.25
    assert head(torch.tensor([[1.0], [-2.0]])).tolist() == [9.25, 25.25]


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
def test_a_reward_model_brings_its_score(
    policy_name: str, critic_name: str, reward_models: dict[str, Path], char_tokenizer: Any
) -> None:
    policy = build(make(policy_name), char_tokenizer, critic=str(reward_models[critic_name]))
    assert (policy.module.reader.longest > 0) == (policy_name != "bloom")
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
    with pytest.raises(ModelError, match="it knows 31 tokens and the policy 32"):
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
    with pytest.raises(ModelError, match="see later ones"):
        build(make("gpt2"), char_tokenizer, critic=str(tmp_path))


def test_a_missing_critic_is_an_error(tmp_path: Path, char_tokenizer: Any) -> None:
    with pytest.raises(ModelError, match=r"critic = '.*nowhere': there is no such folder"):
        build(make("gpt2"), char_tokenizer, critic=str(tmp_path / "nowhere"))


def test_critic_and_value_layers_exclude_each_other(char_tokenizer: Any) -> None:
    with pytest.raises(ModelError, match="value_layers = 2 and critic = 'copy': choose one"):
        build(make("gpt2"), char_tokenizer, critic="copy", value_layers=2)
