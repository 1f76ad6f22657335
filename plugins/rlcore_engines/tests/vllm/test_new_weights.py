"""A server has the policy's weights before anything is sampled, or the run stops: known defects by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_sampler import PROMPTS, SAMPLING, SEEDS, make_policy, sampler_of
from vllm_stand_in import StandIn

from rlcore_engines.vllm.connection import StaleWeights
from rlcore_testing.rig.policies import perturb
from rlcore_testing.small import make_gpt2, make_llama


@pytest.mark.parametrize("make", [make_gpt2, make_llama], ids=["tied", "untied"])
def test_log_probs_are_those_of_the_present_weights(make: Callable[[], Any], stand_in: StandIn, tmp_path: Path) -> None:
    policy, sampler = make_policy(make), sampler_of(stand_in, tmp_path)
    for _ in range(3):
        batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        with torch.no_grad():
            own = policy.score(batch).logprobs
        assert torch.allclose(batch["logprobs"][batch.action_mask], own[batch.action_mask], atol=1e-5)
        perturb(policy)
    assert stand_in.version.endswith("-2")  # versions 0, 1 and 2 of the policy


def test_a_tied_head_that_stays_old_stops_the_run(stand_in: StandIn, tmp_path: Path) -> None:
    """vLLM's CPU backend keeps a packed copy of a tied head, which `reload_weights` leaves as it is."""
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    perturb(policy)
    stand_in.keeps_head = True
    num_asked = len(stand_in.asked)
    with pytest.raises(StaleWeights, match=r"differ from the policy's by up to .*such as a head that is tied"):
        sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert len(stand_in.asked) == num_asked + 8  # the check alone, of new rows and of earlier ones: no rollout


def test_sampling_from_the_base_model_for_ever_stops_the_run(stand_in: StandIn, tmp_path: Path) -> None:
    """Updates that report success and change nothing (TRL's issue 5312, verl's 7495)."""
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    perturb(policy)
    stand_in.keeps_weights = True
    for _ in range(2):  # a second attempt does not pass either
        with pytest.raises(StaleWeights):
            sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)


def test_the_tolerance_is_an_option(stand_in: StandIn, tmp_path: Path) -> None:
    policy = make_policy()
    sampler = sampler_of(stand_in, tmp_path, tolerance=100.0)
    stand_in.keeps_weights = True  # it has those of another seed
    batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    with torch.no_grad():
        gap = (policy.score(batch).logprobs - batch["logprobs"])[batch.action_mask].abs().max()
    assert gap > 1e-3


def test_a_server_in_bfloat16_has_a_wider_tolerance(stand_in: StandIn, tmp_path: Path) -> None:
    policy = make_policy()
    stand_in.info["dtype"] = "torch.bfloat16"
    sampler = sampler_of(stand_in, tmp_path)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    fleet = sampler._fleet
    assert fleet.tolerance(policy, is_full_precision=True) == 0.5
    stand_in.info["dtype"] = "torch.float32"
    exact = sampler_of(stand_in, tmp_path)
    exact(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert exact._fleet.tolerance(policy, is_full_precision=True) == 1e-3
    assert exact._fleet.tolerance(policy, is_full_precision=False) == 0.5


def test_the_prefix_cache_is_emptied_after_the_weights_have_changed(stand_in: StandIn, tmp_path: Path) -> None:
    sampler = sampler_of(stand_in, tmp_path)
    sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert stand_in.calls == [
        "/init_weight_transfer_engine", "/pause?mode=keep", "/start_weight_update", "/update_weights",
        "/finish_weight_update", "/resume", "/reset_prefix_cache",
    ]  # fmt: skip


def test_weights_that_have_not_changed_are_not_sent_again(stand_in: StandIn, tmp_path: Path) -> None:
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    num_calls = len(stand_in.calls)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert len(stand_in.calls) == num_calls


def test_two_policies_of_one_version_are_told_apart(stand_in: StandIn, tmp_path: Path) -> None:
    one, other, sampler = make_policy(), make_policy(), sampler_of(stand_in, tmp_path)
    with torch.no_grad():
        for weight in other.module.parameters():
            weight.mul_(0.5)
    assert one.version == other.version
    for policy in (one, other, one):
        batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        with torch.no_grad():
            own = policy.score(batch).logprobs
        assert torch.allclose(batch["logprobs"][batch.action_mask], own[batch.action_mask], atol=1e-5)


def lora(**options: Any) -> dict[str, Any]:
    return {"peft": {"type": "lora", "r": 4, "target_modules": ["c_attn"], **options}}


@pytest.mark.parametrize("options", [lora(), lora(target_modules=["c_attn", "wte"])], ids=["layers", "embedding"])
def test_an_adapter_reaches_the_server_merged(options: Any, stand_in: StandIn, tmp_path: Path) -> None:
    """With an adapter on the embedding the head is no longer tied to it: the file has both, and the config says so."""
    pytest.importorskip("peft")
    policy, sampler = make_policy(**options), sampler_of(stand_in, tmp_path)
    with torch.no_grad():
        for name, weight in policy.module.named_parameters():
            if "lora_" in name:
                weight.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(len(name)))
    policy.version += 1
    batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    with torch.no_grad():
        own = policy.score(batch).logprobs
    assert torch.allclose(batch["logprobs"][batch.action_mask], own[batch.action_mask], atol=1e-5)
    (model,), start = (tmp_path / "weights").glob("*/model"), copy.deepcopy(make_gpt2())
    (file,) = model.glob("*.safetensors")
    written = load_file(file)
    assert not [name for name in written if "lora" in name]
    assert not torch.equal(written["transformer.h.0.attn.c_attn.weight"], start.transformer.h[0].attn.c_attn.weight)
    is_tied = '"tie_word_embeddings": true' in (model / "config.json").read_text()
    assert is_tied == ("lm_head.weight" not in written)


def test_weights_are_checked_though_a_process_has_no_prompts(stand_in: StandIn, tmp_path: Path) -> None:
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    sampler.renew_weights(policy, [])
    assert [len(body["token_ids"]) for body in stand_in.asked] == [1]
    sampler.renew_weights(policy, PROMPTS)
    assert len(stand_in.asked) == 1  # the same weights
    perturb(policy)
    stand_in.keeps_weights = True
    with pytest.raises(StaleWeights):
        sampler.renew_weights(policy, [])
