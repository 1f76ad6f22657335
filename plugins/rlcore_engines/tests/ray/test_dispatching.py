"""Tests of rounds in which actors die, answer late, or answer in another order; Ray is a stand-in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ray_stand_in import StandInRay
from safetensors.torch import load_file

import rlcore
from rlcore.config import structure
from rlcore.errors import DataError
from rlcore.sampling import derive_seeds, sample
from rlcore.settings import SamplingConfig
from rlcore.types import Trajectories
from rlcore_engines.ray.cluster import RayError
from rlcore_engines.ray.config import RayConfig
from rlcore_engines.ray.ray_sampler import RaySampler
from rlcore_testing.rig.policies import perturb
from rlcore_testing.rig.sampler_calls import TEXTS, make_policy, make_prompts
from rlcore_testing.small import make_gpt2, make_tokenizer
from rlcore_transformers.sampling.token_options import SamplerConfig

PROMPTS = make_prompts(TEXTS * 3)
SEEDS = derive_seeds(1, range(len(PROMPTS)))
SAMPLING = SamplingConfig(max_new_tokens=6)


def sampled(sampler: RaySampler, policy: Any = None, **options: Any) -> Trajectories:
    return sampler(policy or make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS, **options)


def assert_bits_equal(one: Trajectories, other: Trajectories) -> None:
    assert one.columns.keys() == other.columns.keys()
    for name in ("tokens", "mask", "action_mask", "ended"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    for name in one.columns:
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("faults", [["dies"], ["", "dies", "dies", "dies"], ["late"], ["late", "dies", "", "late"]])
def test_a_round_in_which_actors_fail_has_the_same_bits(no_ray: StandInRay, faults: list[str]) -> None:
    config = RayConfig(num_actors=2, rows=5, timeout_s=10.0)
    calm = sampled(RaySampler(config))
    no_ray.faults.extend(faults)
    assert_bits_equal(sampled(RaySampler(config)), calm)
    assert no_ray.num_deaths == len([fault for fault in faults if fault])


def test_the_number_of_actors_and_the_order_of_their_answers_change_no_bit(no_ray: StandInRay) -> None:
    one = sampled(RaySampler(RayConfig(num_actors=1, rows=5)))
    no_ray.last_first = True
    assert_bits_equal(sampled(RaySampler(RayConfig(num_actors=3, rows=5))), one)


def test_one_actor_has_the_bits_of_one_process(no_ray: StandInRay) -> None:
    policy = make_policy(value_head=True)
    local = sample(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert "values" in local
    assert_bits_equal(sampled(RaySampler(RayConfig(num_actors=1)), policy), local)


def test_actors_sample_with_the_options_on_tokens(no_ray: StandInRay) -> None:
    policy, options = make_policy(), {"min_p": 0.05, "repetition_penalty": 1.5, "logit_bias": {2: 1.0}}
    local = sample(policy, PROMPTS, SAMPLING, row_seeds=SEEDS, options=structure(SamplerConfig, options))
    sampler = RaySampler(structure(RayConfig, {"num_actors": 1, **options}))
    assert_bits_equal(sampled(sampler, policy), local)
    assert (sampler.draws_from_policy, sampler.exact_logprobs) == (False, False)
    assert local.action_tokens != sampled(RaySampler(RayConfig(num_actors=1)), policy).action_tokens
    assert "sampling_logprobs" in sampler(policy, [], SAMPLING).columns
    plain = RaySampler(RayConfig())
    assert (plain.draws_from_policy, plain.exact_logprobs) == (True, True)


def test_rows_are_reported_once_each_as_they_arrive(no_ray: StandInRay) -> None:
    no_ray.faults.extend(["", "dies"])
    reported: list[tuple[list[int], Trajectories]] = []
    whole = sampled(RaySampler(RayConfig(num_actors=2, rows=8)), on_batch=lambda *part: reported.append(part))
    assert sorted(row for rows, _ in reported for row in rows) == list(range(len(PROMPTS)))
    for rows, part in reported:
        assert part.action_tokens == [whole.action_tokens[row] for row in rows]


def test_actors_that_die_more_often_than_allowed_end_the_round(no_ray: StandInRay) -> None:
    no_ray.faults.extend(["dies"] * 3)
    with pytest.raises(RayError, match=r"all 1 actors have died more often than sampler\.restarts allows"):
        sampled(RaySampler(RayConfig(num_actors=1, restarts=2)))


def test_an_actor_that_is_gone_for_good_is_asked_no_more(no_ray: StandInRay) -> None:
    sampler = RaySampler(RayConfig(num_actors=2, rows=5, restarts=0))
    policy, calm = make_policy(), sampled(RaySampler(RayConfig(num_actors=2, rows=5)))
    no_ray.faults.append("dies")
    for _ in range(2):
        assert_bits_equal(sampled(sampler, policy), calm)
    assert no_ray.num_deaths == 1


def test_prompts_that_no_actor_survives_end_the_round(no_ray: StandInRay) -> None:
    no_ray.faults.extend(["dies"] * 4)
    with pytest.raises(RayError, match="prompts of a round were lost with 4 actors, the last time because"):
        sampled(RaySampler(RayConfig(num_actors=1, restarts=9)))


def test_what_an_actor_raises_is_raised_here(no_ray: StandInRay) -> None:
    mask = torch.ones(3, 3, dtype=torch.bool)
    with pytest.raises(DataError, match="logit_mask: has 3 rows and 3 columns"):
        sampled(RaySampler(RayConfig(num_actors=1)), logit_mask=mask)


def test_an_error_names_the_row_of_the_round(no_ray: StandInRay) -> None:
    prompts = [*PROMPTS, *make_prompts(("a" * 64,))]
    with pytest.raises(DataError, match=r"prompts\[24\] has 64 tokens"):
        RaySampler(RayConfig(num_actors=2))(make_policy(), prompts, SAMPLING)


def test_only_weights_that_change_are_sent_again(no_ray: StandInRay) -> None:
    policy, sampler = make_policy(), RaySampler(RayConfig(num_actors=2))
    sampled(sampler, policy)
    whole = sum(each.nbytes for each in policy.module.parameters())
    assert whole <= no_ray.num_bytes < 1.1 * whole  # buffers are sent too
    first = no_ray.num_bytes
    sampled(sampler, policy)
    assert no_ray.num_bytes == first
    head = policy.module.get_parameter("model.transformer.ln_f.bias")
    for times in range(3):
        before = no_ray.num_bytes
        with torch.no_grad():
            head += 0.1
        policy.version += 1
        local = sample(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        assert sampled(sampler, policy).action_tokens == local.action_tokens
        sent = no_ray.num_bytes - before
        assert sent == (head.nbytes if times else first)  # the first time, what stays is put apart once


def test_two_policies_may_be_sampled_in_turn(no_ray: StandInRay) -> None:
    sampler, one, other = RaySampler(RayConfig(num_actors=2)), make_policy(), make_policy()
    perturb(other)
    for policy in (one, other, one):
        local = sample(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        assert sampled(sampler, policy).action_tokens == local.action_tokens


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"num_actors": 2, "rows": 2}, {"num_actors": 2}])
def test_a_run_that_is_resumed_samples_as_one_that_was_not_stopped(
    no_ray: StandInRay, tmp_path: Path, options: dict[str, int]
) -> None:
    def train(name: str, steps: int) -> rlcore.Result:
        return rlcore.train(
            make_gpt2(), tokenizer=make_tokenizer(), trainer={"name": "ppo", "rollouts": 8, "batch_size": 4},
            prompts=["ab", "c", "d", "ef"], reward_fn=lambda outputs: [float(len(output)) for output in outputs],
            gen={"max_new_tokens": 4}, sampler={"name": "ray", **options}, eval={"at_end": False}, loggers=[],
            run={"root": str(tmp_path), "name": name, "steps": steps, "resume": "auto"},
        )  # fmt: skip

    straight = train("straight", 3)
    train("stopped", 1)
    resumed = train("stopped", 3)
    weights = [load_file(run.run_dir / "model" / "model.safetensors") for run in (straight, resumed)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "ahead"), [("grpo", 0), ("grpo", 1), ("ppo", 1), ("grpo", 2)])
def test_a_run_whose_rounds_are_sampled_ahead_by_actors_learns_the_same_bits_as_by_the_default_sampler(
    no_ray: StandInRay, tmp_path: Path, trainer: str, ahead: int
) -> None:
    own = {"grpo": {"num_generations": 4}, "ppo": {"batch_size": 4}}[trainer]

    def train(name: str, sampler: object) -> tuple[rlcore.Result, list[object]]:
        result = rlcore.train(
            make_gpt2(), tokenizer=make_tokenizer(), prompts=["ab", "c", "d", "ef"],
            trainer={"name": trainer, "rollouts": 8, "is_correction": "token_truncate", **own},
            reward_fn=lambda outputs: [float(output.count("a")) for output in outputs],
            gen={"max_new_tokens": 4}, sampler=sampler, eval={"every": 2}, loggers=[],
            run={"root": str(tmp_path), "name": name, "steps": 4, "asynchronous": ahead, "rollouts": "all"},
        )  # fmt: skip
        rows = [json.loads(line) for line in (result.run_dir / "rollouts.jsonl").read_text().splitlines()]
        return result, [(row["step"], row.get("version"), row["output"], row["reward"]) for row in rows]

    expected, expected_rows = train("default", "default")
    seen, rows = train("ray", {"name": "ray", "num_actors": 1})
    assert rows == expected_rows
    assert [version for _, version, _, _ in rows][-8:] == [3 - ahead if ahead else None] * 8
    weights = [load_file(run.run_dir / "model" / "model.safetensors") for run in (expected, seen)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
