"""Tests of scoring: it equals plain `transformers` on single unpadded sequences, shifted by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.errors import ModelError
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.freezing import decoder_blocks
from rlcore_transformers.models.model_options import CausalLMConfig, SpeedConfig
from rlcore_transformers.models.policy import ModelPolicy

LENGTHS = (5, 11, 3, 8)


def build(spec: Any, tokenizer: Any, *, value_head: bool = True, **options: Any) -> ModelPolicy:
    return build_causal_lm(spec, CausalLMConfig(**options), tokenizer=tokenizer, value_head=value_head, reference=True)


def trajectories(side: str, columns: int = 13) -> Trajectories:
    mask = torch.zeros(len(LENGTHS), columns, dtype=torch.bool)
    for i, length in enumerate(LENGTHS):
        start = {"left": columns - length, "right": 0, "both": min(i, columns - length)}[side]
        mask[i, start : start + length] = True
    tokens = torch.full(mask.shape, 7)
    tokens[mask] = torch.randint(0, 31, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))
    chosen = mask & (mask.cumsum(1) > 2)
    chosen[1] &= tokens[1] % 3 != 0  # a dialogue with turns of another speaker in between
    return Trajectories(tokens, mask, chosen, torch.ones(len(LENGTHS), dtype=torch.bool))


def independent(model: PreTrainedModel, head: nn.Module, batch: Trajectories) -> dict[str, Tensor]:
    """Compute log-probs, values and entropies token by token, in the columns of the tokens."""
    found = {name: torch.zeros(batch.tokens.shape) for name in ("logprobs", "values", "entropy")}
    for row in range(len(batch)):
        for t in batch.action_mask[row].nonzero()[:, 0].tolist():
            before = batch.tokens[row, :t][batch.mask[row, :t]]
            said = model(before[None], use_cache=False, output_hidden_states=True)
            probabilities = torch.softmax(said.logits[0, -1].double(), 0)
            found["logprobs"][row, t] = probabilities[batch.tokens[row, t]].log()
            found["entropy"][row, t] = torch.special.entr(probabilities).sum()
            found["values"][row, t] = head(said.hidden_states[-1][0, -1:])
    return found


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_scores_are_those_of_plain_transformers(
    tiny_model: PreTrainedModel, side: str, packing: bool, char_tokenizer: Any
) -> None:
    plain = copy.deepcopy(tiny_model)
    policy, batch = build(tiny_model, char_tokenizer, speed=SpeedConfig(packing=packing)), trajectories(side)
    with torch.no_grad():
        expected = independent(plain, policy.module.value.head, batch)
        said = policy.score(batch, entropy=True, logits=True)
        kept = policy.reference_score(batch, logits=True)
    assert torch.allclose(said.logprobs, expected["logprobs"], rtol=1e-4, atol=1e-5)
    assert torch.allclose(said.values, expected["values"], rtol=1e-4, atol=1e-5)
    assert torch.allclose(said.entropy, expected["entropy"], rtol=1e-4, atol=1e-5)
    assert torch.equal(kept.logprobs, said.logprobs)
    assert torch.equal(kept.logits, said.logits)
    assert (kept.values, kept.entropy) == (None, None)
    chosen = said.logits.log_softmax(-1).gather(1, batch.tokens[batch.action_mask][:, None])[:, 0]
    assert torch.allclose(chosen, said.logprobs[batch.action_mask], atol=1e-5)


def test_outputs_that_were_not_requested_are_not_computed(tiny_gpt2: PreTrainedModel, char_tokenizer: Any) -> None:
    said = build(tiny_gpt2, char_tokenizer, value_head=False).score(trajectories("right"))
    assert (said.values, said.entropy, said.logits) == (None, None, None)


@pytest.mark.parametrize("packing", [True, False])
def test_a_sequence_without_chosen_tokens_does_not_affect_the_others(
    tiny_model: PreTrainedModel, packing: bool, char_tokenizer: Any
) -> None:
    policy, batch = build(tiny_model, char_tokenizer, speed=SpeedConfig(packing=packing)), trajectories("both")
    expected = policy.score(batch)
    batch.action_mask[2] = False
    said = policy.score(batch)
    others = torch.tensor([0, 1, 3])
    assert torch.allclose(said.logprobs[others], expected.logprobs[others], atol=1e-6)
    assert torch.allclose(said.values[others], expected.values[others], atol=1e-6)
    assert not said.logprobs[2].any()


@pytest.mark.parametrize("options", [{}, {"value_layers": 1}, {"critic": "copy"}])
@pytest.mark.parametrize("packing", [True, False])
def test_scoring_without_any_chosen_token_gives_zero_with_a_gradient(
    tiny_model: PreTrainedModel, packing: bool, options: dict[str, Any], char_tokenizer: Any
) -> None:
    policy, batch = (
        build(tiny_model, char_tokenizer, speed=SpeedConfig(packing=packing), **options),
        trajectories("both"),
    )
    batch.action_mask[:] = False
    said = policy.score(batch, entropy=True, logits=True)
    assert said.logits.shape == (0, 32)
    (said.logprobs.sum() + said.values.sum() + said.entropy.sum()).backward()
    assert all(p.grad is None or not p.grad.any() for p in policy.module.parameters())


def test_a_single_sequence_of_two_tokens_is_scored_correctly(tiny_model: PreTrainedModel, char_tokenizer: Any) -> None:
    plain = copy.deepcopy(tiny_model)
    policy = build(tiny_model, char_tokenizer)
    batch = Trajectories.stack([[3, 9]], [[False, True]])
    expected = plain(torch.tensor([[3]])).logits[0, 0].log_softmax(0)[9]
    assert torch.allclose(policy.score(batch).logprobs, torch.stack([expected * 0, expected])[None], atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"value_layers": 1}, {"critic": "copy"}, {"unfrozen_layers": 1}])
@pytest.mark.parametrize("packing", [True, False])
def test_recomputed_activations_give_the_same_gradients(
    tiny_model: PreTrainedModel, packing: bool, options: dict[str, Any], char_tokenizer: Any
) -> None:
    gradients, batch = [], trajectories("both")
    for checkpointing in (False, True):
        torch.manual_seed(0)
        policy = build(
            copy.deepcopy(tiny_model),
            char_tokenizer,
            speed=SpeedConfig(packing=packing),
            gradient_checkpointing=checkpointing,
            **options,
        )
        policy.module.train()
        runs: list[object] = []
        decoder_blocks(policy.model)[-1].mlp.register_forward_pre_hook(lambda *_, runs=runs: runs.append(None))
        said = policy.score(batch, entropy=True)
        (said.logprobs + said.values + said.entropy).sum().backward()
        assert len(runs) == 1 + checkpointing
        gradients.append({name: p.grad for name, p in policy.module.named_parameters() if p.requires_grad})
    for name, expected in gradients[0].items():
        assert torch.allclose(gradients[1][name], expected, rtol=1e-4, atol=1e-5), name


def test_gradient_checkpointing_prints_no_warnings(
    tiny_gpt2: PreTrainedModel, char_tokenizer: Any, recwarn: Any, capfd: Any
) -> None:
    policy = build(tiny_gpt2, char_tokenizer, gradient_checkpointing=True)
    policy.module.train()
    policy.score(trajectories("left")).logprobs.sum().backward()
    assert not recwarn.list
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("packing", [True, False])
def test_bfloat16_scores_are_float32_and_near(packing: bool, tiny_llama: PreTrainedModel, char_tokenizer: Any) -> None:
    batch = trajectories("left")
    exact = build(copy.deepcopy(tiny_llama), char_tokenizer).score(batch).logprobs
    policy = build(tiny_llama.to(torch.bfloat16), char_tokenizer, speed=SpeedConfig(packing=packing))
    said = policy.score(batch, entropy=True)
    assert (said.logprobs.dtype, said.values.dtype, said.entropy.dtype) == (torch.float32,) * 3
    assert float((said.logprobs - exact).detach().abs().mean()) < 0.03
    assert policy.module.layout.longest > 0 or not packing


def test_a_policy_is_built_in_the_requested_dtype(tiny_llama: PreTrainedModel, char_tokenizer: Any) -> None:
    policy = build(tiny_llama.config, char_tokenizer, dtype="bfloat16")
    assert {p.dtype for p in policy.model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in policy.module.value.parameters()} == {torch.float32}
    assert policy.score(trajectories("right")).logprobs.dtype == torch.float32


def test_scoring_with_a_reference_that_was_not_built_is_an_error(
    tiny_gpt2: PreTrainedModel, char_tokenizer: Any
) -> None:
    policy = build_causal_lm(tiny_gpt2, CausalLMConfig(), tokenizer=char_tokenizer)
    with pytest.raises(ModelError, match="has no reference"):
        policy.reference_score(trajectories("right"))


def test_the_reference_has_no_gradients_and_no_trained_parameters(
    tiny_gpt2: PreTrainedModel, char_tokenizer: Any
) -> None:
    policy = build(tiny_gpt2, char_tokenizer)
    assert not policy.reference_score(trajectories("right")).logprobs.requires_grad
    trained = {id(p) for p in policy.module.parameters()}
    assert not trained & {id(p) for p in policy.reference.parameters()}


@pytest.mark.parametrize("options", [{}, {"value_layers": 1}])
def test_log_probs_of_sampling_in_training_mode_equal_those_of_scoring(
    tiny_model: PreTrainedModel, options: dict[str, Any], char_tokenizer: Any
) -> None:
    policy = build(tiny_model, char_tokenizer, **options)
    policy.module.train()
    prompts = [Prompt(text="", tokens=tokens) for tokens in ((1, 2, 3), (4,), (5, 6))]
    batch = sample(policy, prompts, SamplingConfig(max_new_tokens=9), generator=torch.Generator().manual_seed(0))
    said = policy.score(batch)
    assert torch.allclose(said.logprobs, batch["logprobs"], rtol=1e-4, atol=1e-5)
    if not options:
        assert torch.allclose(said.values, batch["values"], rtol=1e-4, atol=1e-5)
    assert all(part.training for part in policy.module.modules())


def test_moving_a_policy_to_a_device_keeps_shared_weights_shared(
    tiny_gpt2: PreTrainedModel, char_tokenizer: Any
) -> None:
    policy = build(tiny_gpt2, char_tokenizer, value_layers=1, unfrozen_layers=1)
    batch = trajectories("right")
    expected = policy.score(batch).logprobs
    policy.to(torch.device("cpu"))
    assert policy.reference.transformer.wte.weight is policy.model.transformer.wte.weight
    assert policy.module.value.top.decoder.wte.weight is policy.model.transformer.wte.weight
    assert torch.equal(policy.score(batch).logprobs, expected)


def test_a_wide_batch_of_short_sequences_still_packs(char_tokenizer: Any) -> None:
    torch.manual_seed(0)
    config = hf.MistralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=11, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    policy = build(config, char_tokenizer, value_head=False)
    widths: list[int] = []
    policy.model.model.layers[0].register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[0]))
    policy.score(trajectories("left", columns=40))
    assert widths == [1]
