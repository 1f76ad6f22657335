"""Tests of the frozen trunk: it runs once per step and sequence, and outputs and gradients do not change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers as hf
from tiny import GPT, SHAPE, make_causal
from torch import Tensor, nn

from rlcore.types import PolicyOutputs, Trajectories
from rlcore_testing.small import make_t5, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.freezing import decoder_blocks
from rlcore_transformers.models.model_options import CausalLMConfig, SpeedConfig
from rlcore_transformers.models.policy import ModelPolicy

CONFIGS = {
    "gpt2": hf.GPT2Config(**GPT),
    "llama": hf.LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "qwen2": hf.Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "gpt_neox": hf.GPTNeoXConfig(**SHAPE),
    "gemma2": hf.Gemma2Config(**SHAPE, sliding_window=4),
    "opt, projected": hf.OPTConfig(**SHAPE, ffn_dim=32, word_embed_proj_dim=8, dropout=0.0),
    "bloom": hf.BloomConfig(vocab_size=32, hidden_size=16, n_layer=4, n_head=4),
    "mistral": hf.MistralConfig(**SHAPE, sliding_window=5),
    "mixtral": hf.MixtralConfig(**SHAPE, num_local_experts=4),
    "gptj": hf.GPTJConfig(**GPT, rotary_dim=4),
}
LENGTHS = (9, 4, 12, 9, 6)


def trajectories(side: str, columns: int = 14) -> Trajectories:
    """Return sequences of which the second is a prefix of the first, and the fourth equals the first."""
    mask = torch.zeros(len(LENGTHS), columns, dtype=torch.bool)
    rows = torch.randint(0, 30, mask.shape, generator=torch.Generator().manual_seed(3))
    rows[1], rows[3] = rows[0], rows[0]
    tokens = torch.full(mask.shape, 7)
    for i, length in enumerate(LENGTHS):
        start = {"left": columns - length, "right": 0}[side]
        mask[i, start : start + length] = True
        tokens[i, start : start + length] = rows[i, :length]
    return Trajectories(tokens, mask, mask & (mask.cumsum(1) > 2), torch.ones(len(LENGTHS), dtype=torch.bool))


def build(spec: Any, unfrozen: int | None = 2, **options: Any) -> ModelPolicy:
    """Build a policy whose trainable layers differ from the reference."""
    config = CausalLMConfig(unfrozen_layers=unfrozen, **options)
    policy = build_causal_lm(spec, config, tokenizer=make_tokenizer(), value_head=True, reference=True)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return policy


def learn(policy: ModelPolicy, batch: Trajectories) -> tuple[PolicyOutputs, dict[str, Tensor]]:
    """Score a batch, and return the gradients of a loss over all outputs."""
    policy.module.zero_grad()
    said = policy.score(batch, entropy=True)
    assert said.values is not None
    assert said.entropy is not None
    weights = torch.linspace(-1, 1, batch.tokens.shape[1])
    ((said.logprobs + 0.3 * said.values + 0.1 * said.entropy) * weights).sum().backward()
    return said, {name: p.grad.clone() for name, p in policy.module.named_parameters() if p.grad is not None}


def assert_same(policy: ModelPolicy, batch: Trajectories, due: Any, reference: Tensor) -> None:
    said, gradients = learn(policy, batch)
    for name in ("logprobs", "values", "entropy"):
        assert torch.allclose(getattr(said, name), getattr(due[0], name), rtol=1e-5, atol=1e-5), name
    assert gradients.keys() == due[1].keys()
    scale = max(float(gradient.abs().max()) for gradient in due[1].values())
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, due[1][name], rtol=1e-5, atol=1e-5 * scale), name
    assert torch.allclose(policy.reference_score(batch).logprobs, reference, rtol=1e-5, atol=1e-5)


@contextmanager
def counting(*modules: nn.Module) -> Iterator[list[int]]:
    """Count how often each module runs its own arithmetic; a block's arithmetic is in its submodules."""
    counts = [0] * len(modules)

    def note(i: int) -> Any:
        def count(*_: object) -> None:
            counts[i] += 1

        return count

    hooks = [next(module.children()).register_forward_hook(note(i)) for i, module in enumerate(modules)]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.slow
@pytest.mark.parametrize(("unfrozen", "packing"), [(1, True), (2, False), (3, True), (0, True)])
@pytest.mark.parametrize("name", CONFIGS)
def test_caching_the_frozen_trunk_changes_neither_outputs_nor_gradients(
    name: str, unfrozen: int, packing: bool
) -> None:
    policy = build(make_causal(CONFIGS[name]), unfrozen, speed=SpeedConfig(packing=packing))
    assert policy.module.trunk is not None
    assert policy.module.trunk.depth == 4 - unfrozen
    policy.module.train()
    # Cached activations were computed in other batches, with other padding.
    some = trajectories("right").rows(torch.tensor([2, 0]))
    for side in ("left", "right"):
        batch = trajectories(side)
        due, reference = learn(policy, batch), policy.reference_score(batch).logprobs
        with policy.training_step():
            policy.reference_score(some)
            assert_same(policy, batch, due, reference)


def test_the_cached_trunk_does_not_confuse_the_policy_with_its_reference() -> None:
    policy, batch = build(make_causal(CONFIGS["gpt2"])), trajectories("right")
    with policy.training_step():
        assert not torch.allclose(policy.score(batch).logprobs, policy.reference_score(batch).logprobs, atol=0.1)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom"])
def test_frozen_layers_run_once_per_sequence_and_the_others_in_every_pass(name: str, packing: bool) -> None:
    policy, batch = build(make_causal(CONFIGS[name]), speed=SpeedConfig(packing=packing)), trajectories("left")
    with counting(*decoder_blocks(policy.model), *decoder_blocks(policy.reference)) as counts, policy.training_step():
        policy.score(batch.rows(torch.tensor([0, 1])))
        assert counts == [1, 1, 1, 1, 0, 0, 0, 0]
        policy.reference_score(batch)  # some rows are cached; the reference's identical trunk computes the others
        assert counts == [1, 1, 1, 1, 1, 1, 1, 1]
        for _ in range(3):
            for part in batch.split(2):
                policy.score(part)
            policy.reference_score(batch.rows(torch.tensor([4, 1, 3])))
        assert counts == [1, 1, 10, 10, 1, 1, 4, 4]
    policy.score(batch)
    assert not any("forward" in vars(block) for block in decoder_blocks(policy.model))


def test_the_trunk_cache_is_emptied_after_a_step() -> None:
    policy, batch = build(make_causal(CONFIGS["gpt2"])), trajectories("right")
    with counting(*decoder_blocks(policy.model)) as counts:
        for _ in range(2):
            with policy.training_step():
                policy.score(batch)
        policy.score(batch)
        policy.score(batch)
    assert counts == [4] * 4


@pytest.mark.parametrize("room", [0.0, 9 * 16 * 4e-9, 2.0])
def test_the_trunk_cache_keeps_as_many_sequences_as_its_bound_allows(room: float) -> None:
    policy, batch = build(make_causal(CONFIGS["gpt2"]), trunk_cache_gb=room), trajectories("right")
    first, other = batch.rows(torch.tensor([0])), batch.rows(torch.tensor([4]))  # 9 and 6 tokens
    due, reference = learn(policy, batch), policy.reference_score(batch).logprobs
    with counting(decoder_blocks(policy.model)[0]) as counts, policy.training_step():
        for part in (first, other, first, other):
            policy.score(part)
        assert counts == [{0.0: 4, 2.0: 2}.get(room, 3)]
        assert_same(policy, batch, due, reference)


def test_a_trunk_with_dropout_runs_in_every_pass() -> None:
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**GPT | {"resid_pdrop": 0.5}))
    policy, batch = build(model), trajectories("right")
    policy.module.train()
    reference = policy.reference_score(batch).logprobs
    with policy.training_step():
        first, second = policy.score(batch), policy.score(batch)
        assert not torch.allclose(first.logprobs, second.logprobs, atol=1e-3)
        for _ in range(2):  # the reference has no dropout, so it must not use the activations of the policy's trunk
            assert torch.allclose(policy.reference_score(batch).logprobs, reference, atol=1e-5)
        assert not torch.allclose(policy.score(batch).logprobs, second.logprobs, atol=1e-3)


def test_a_trunk_that_is_unfrozen_runs_in_every_pass() -> None:
    policy, batch = build(make_causal(CONFIGS["gpt2"])), trajectories("right")
    bottom = decoder_blocks(policy.model)[1]
    bottom.requires_grad_(True)
    with policy.training_step():
        for _ in range(2):
            _, gradients = learn(policy, batch)
    assert sum(name.startswith("model.transformer.h.1.") for name in gradients) == len(list(bottom.parameters()))


@pytest.mark.parametrize(("unfrozen", "layers"), [(1, 3), (2, 2), (3, 1)])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_values_of_separate_layers_do_not_change_with_the_trunk_cache(
    unfrozen: int, layers: int, checkpointing: bool
) -> None:
    model = make_causal(CONFIGS["llama"])
    policy = build(model, unfrozen, value_layers=layers, gradient_checkpointing=checkpointing)
    assert policy.module.trunk is not None
    assert policy.module.trunk.depth == min(4 - unfrozen, 4 - layers)
    policy.module.train()
    batch = trajectories("left")
    due, reference = learn(policy, batch), policy.reference_score(batch).logprobs
    with policy.training_step():
        for _ in range(3):
            assert_same(policy, batch, due, reference)


def test_a_model_without_frozen_layers_has_no_trunk_cache() -> None:
    assert build(make_causal(CONFIGS["gpt2"]), None).module.trunk is None
    assert build(make_causal(CONFIGS["gpt2"]), 4).module.trunk is None
    model = make_causal(CONFIGS["gpt2"])
    decoder_blocks(model)[0].requires_grad_(False)  # the embeddings are still trained
    assert build(model, None).module.trunk is None


def test_an_adapter_in_the_lower_layers_prevents_the_trunk_cache_and_one_above_does_not() -> None:
    pytest.importorskip("peft")
    for layers, depth in (([0, 3], None), ([2, 3], 2)):
        lora = {"type": "lora", "r": 2, "layers_to_transform": layers, "init_lora_weights": False}
        policy, batch = build(make_causal(CONFIGS["llama"]), None, peft=lora), trajectories("right")
        assert (policy.module.trunk and policy.module.trunk.depth) == depth
        due, reference = learn(policy, batch), policy.reference_score(batch).logprobs
        with policy.training_step():
            for _ in range(2):
                assert_same(policy, batch, due, reference)


class Leaving(nn.Module):
    """Block that stores an extra value for a block above it, beside the hidden states."""

    def __init__(self, block: nn.Module, above: nn.Module) -> None:
        super().__init__()
        self.block, self.above = block, (above,)  # in a tuple, so that it is not registered as a submodule

    def forward(self, hidden: Tensor, *rest: Any, **named: Any) -> Any:
        out = self.block(hidden, *rest, **named)
        vars(self.above[0])["added"] = hidden.detach()
        return out


class Reading(nn.Module):
    """Block that uses the value stored by a block below it."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: Tensor, *rest: Any, **named: Any) -> Any:
        return self.block(hidden + vars(self).pop("added", 0.0), *rest, **named)


def test_a_model_whose_upper_layers_read_more_than_hidden_states_has_no_trunk_cache() -> None:
    model = make_causal(CONFIGS["gptj"])
    blocks = decoder_blocks(model)
    blocks[3] = Reading(blocks[3])
    blocks[0] = Leaving(blocks[0], blocks[3])
    policy, batch = build(model), trajectories("right")
    assert policy.module.trunk is None
    with policy.training_step():
        assert torch.equal(policy.score(batch).logprobs, policy.score(batch).logprobs)


def test_encoder_decoders_and_unknown_models_have_no_trunk_cache() -> None:
    from rlcore_transformers.models.causal import build_seq2seq_lm
    from rlcore_transformers.models.model_options import Seq2SeqLMConfig

    config = Seq2SeqLMConfig(unfrozen_layers=1)
    policy, batch = build_seq2seq_lm(make_t5(), config, tokenizer=make_tokenizer()), trajectories("right")
    with policy.training_step():
        assert torch.equal(policy.score(batch).logprobs, policy.score(batch).logprobs)


def test_a_batch_with_rows_without_chosen_tokens_is_scored_from_the_trunk_cache() -> None:
    policy, batch = build(make_causal(CONFIGS["gpt2"])), trajectories("right")
    batch.action_mask[:2] = False
    due = policy.score(batch).logprobs
    with policy.training_step():
        for _ in range(2):
            assert torch.allclose(policy.score(batch).logprobs, due, atol=1e-5)
