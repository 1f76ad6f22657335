"""Tests of noise on embeddings (NEFTune): its size by hand, and that only passes with a loss have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import rlcore
from rlcore.errors import ConfigError
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_testing.small import SAMPLES, make_gpt2, make_llama, make_t5, make_tokenizer, toy_reward
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig, SpeedConfig
from rlcore_transformers.models.policy import ModelPolicy

LENGTHS = (5, 9, 3)
ALPHA, WIDTH = 5.0, 16
LORA = {"type": "lora", "r": 2}


def build(alpha: float = ALPHA, *, reference: bool = False, **options: Any) -> ModelPolicy:
    config = CausalLMConfig(neftune_alpha=alpha, **options)
    policy = build_causal_lm(make_llama(), config, tokenizer=make_tokenizer(), reference=reference)
    policy.module.train()
    return policy


def batch(side: str = "right") -> Trajectories:
    mask = torch.zeros(len(LENGTHS), 12, dtype=torch.bool)
    for i, length in enumerate(LENGTHS):
        mask[i, 12 - length if side == "left" else 0 :][:length] = True
    tokens = torch.full(mask.shape, 7)
    tokens[mask] = torch.randint(0, 30, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))
    return Trajectories(tokens, mask, mask & (mask.cumsum(1) > 1), torch.ones(len(LENGTHS), dtype=torch.bool))


def scored(policy: ModelPolicy, side: str = "right", seed: int = 3) -> Tensor:
    torch.manual_seed(seed)
    given = batch(side)
    return policy.score(given).logprobs[given.action_mask]


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_noise_of_a_token_is_that_of_the_paper_however_batches_are_laid_out(side: str, packing: bool) -> None:
    """Each of L tokens has uniform noise in [-1, 1] times 5 / sqrt(16 L); the last token predicts nothing."""
    torch.manual_seed(3)
    noise = torch.empty(sum(LENGTHS) - len(LENGTHS), WIDTH).uniform_(-1, 1)
    model, given, expected = make_llama(), batch(), []
    for row, part in enumerate(noise.split([length - 1 for length in LENGTHS])):
        length = LENGTHS[row]
        tokens = given.tokens[row, :length]
        embedded = model.get_input_embeddings()(tokens[:-1]) + part * (ALPHA / (length * WIDTH) ** 0.5)
        logits = model(inputs_embeds=embedded[None]).logits[0]
        expected.append(logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0])
    seen = scored(build(speed=SpeedConfig(packing=packing)), side)
    assert torch.allclose(seen, torch.cat(expected), atol=1e-5)
    assert not torch.allclose(seen, scored(build(0.0)), atol=1e-2)


def test_only_passes_with_a_loss_have_noise(tmp_path: Path) -> None:
    policy, plain = build(reference=True), build(0.0, reference=True)
    gen = SamplingConfig(max_new_tokens=5)
    with torch.no_grad():
        assert torch.equal(scored(policy), scored(plain))  # log-probs before an update
        sampled = [sample(each, [Prompt("ab", (1, 2))] * 3, gen, row_seeds=[4, 5, 6]) for each in (policy, plain)]
    assert torch.equal(sampled[0].tokens, sampled[1].tokens)
    assert torch.equal(policy.reference_score(batch()).logprobs, plain.reference_score(batch()).logprobs)
    assert not torch.equal(scored(policy), scored(plain))
    for name, each in (("a", policy), ("b", plain)):
        each.save_pretrained(tmp_path / name)
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in "ab"]
    assert files[0] == files[1]
    for name in files[0]:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    policy.module.eval()
    assert torch.equal(scored(policy), scored(plain))  # evaluation


def test_frozen_layers_are_not_cached_under_noise() -> None:
    policy = build(unfrozen_layers=1)
    with policy.training_step():
        first, second = scored(policy, seed=1), scored(policy, seed=2)
        again = scored(policy, seed=1)
    assert torch.equal(first, again)
    assert not torch.allclose(first, second, atol=1e-2)


@pytest.mark.parametrize(
    "trainer",
    ["ppo", "grpo", "reinforce", {"name": "dpo"}, {"name": "sft", "dropout": False}],
    ids=lambda each: each if isinstance(each, str) else each["name"],
)
def test_trainers_without_dropout_refuse_noise(trainer: Any, tmp_path: Path) -> None:
    pairs = [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    name = trainer if isinstance(trainer, str) else trainer["name"]
    inputs: dict[str, Any] = {
        "dpo": {"samples": pairs}, "sft": {"samples": list(SAMPLES)},
    }.get(name, {"prompts": ["ab"] * 8, "reward_fn": toy_reward})  # fmt: skip
    with pytest.raises(ConfigError, match=r"model.neftune_alpha = 5: this trainer disables dropout"):
        rlcore.train(
            make_gpt2(), trainer=trainer, tokenizer=make_tokenizer(), **inputs, run={"root": str(tmp_path), "steps": 1},
            config={"model": {"neftune_alpha": 5.0}},
        )  # fmt: skip


def train(root: Path, name: str, steps: int, alpha: float = ALPHA, **model: Any) -> dict[str, Tensor]:
    """Train with sft, continuing the run of this name; return what its model folder contains."""
    result = rlcore.train(
        make_gpt2(), trainer={"name": "sft", "batch_size": 4, "optimizer": {"lr": 1e-2}}, samples=list(SAMPLES),
        tokenizer=make_tokenizer(), config={"model": {"neftune_alpha": alpha, **model}}, loggers=[],
        run={"root": str(root), "name": name, "steps": steps, "resume": "auto"},
    )  # fmt: skip
    [file] = (result.run_dir / "model").glob("*.safetensors")
    return load_file(file)


@pytest.mark.parametrize("model", [{}, {"peft": LORA}], ids=["full", "lora"])
def test_a_resumed_run_has_the_noise_of_an_uninterrupted_one(tmp_path: Path, model: Any) -> None:
    whole = train(tmp_path, "whole", 4, **model)
    train(tmp_path, "parts", 3, **model)
    torch.manual_seed(123)  # another state of the generator than at the end of the first part
    parts = train(tmp_path, "parts", 4, **model)
    other = train(tmp_path, "without", 4, 0.0, **model)
    assert set(whole) == set(parts) == set(other)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert any(not torch.allclose(whole[name], other[name], atol=1e-3) for name in whole)


def test_an_encoder_decoder_has_no_such_option() -> None:
    with pytest.raises(ConfigError, match="neftune_alpha"):
        rlcore.train(
            make_t5(), trainer="sft", samples=list(SAMPLES), tokenizer=make_tokenizer(),
            config={"model": {"neftune_alpha": 5.0}},
        )  # fmt: skip
