"""Tests of a PPO round: scores, KL, log-probs, values, advantages and returns equal their definitions."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from ppo_making import ENDS, PROMPTS, Make, actions, lengths, make_ppo, move, roll, say, twin
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rlcore.types import Trajectories
from rlcore_ppo.trainer import cut_inside_a_turn


def test_the_score_is_earned_at_the_last_chosen_token(
    make_trainer: Make, tiny_model: PreTrainedModel, either_tokenizer: PreTrainedTokenizerFast
) -> None:
    words = either_tokenizer
    trainer = make_ppo(make_trainer, tiny_model, tokenizer=words, kl_coef=0.0, rollouts=64)
    batch, metrics = roll(trainer)
    seen = {"one token": 0, "eos": 0, "cut": 0}
    for i in range(len(batch)):
        picked = actions(batch, i).tolist()
        text = "".join(words.convert_ids_to_tokens([t for t in picked if t not in words.all_special_ids]))
        prompt: Any = words.decode(batch.tokens[i][batch.mask[i] & ~batch.action_mask[i]])
        (score,) = lengths([prompt + text], [text])
        assert bool(batch.ended[i]) == (picked[-1] in ENDS)
        assert batch["rewards"][i][batch.action_mask[i]].tolist() == pytest.approx([0.0] * (len(picked) - 1) + [score])
        assert batch["rewards"][i][~batch.action_mask[i]].abs().sum() == 0
        seen["one token"] += len(picked) == 1
        seen["eos"] += picked[-1] == 30
        seen["cut"] += not batch.ended[i]
    assert all(seen.values()), seen
    assert metrics["response/truncated_fraction"] == pytest.approx(seen["cut"] / 64)
    assert metrics["response/length_mean"] == pytest.approx(float(batch.num_actions.float().mean()))
    scores = batch["scores"].double().numpy()
    spread = {"mean": scores.mean(), "std": scores.std(), "min": scores.min(), "max": scores.max()}
    assert {name: metrics[f"reward/{name}"] for name in spread} == pytest.approx(spread)


@pytest.mark.slow
@pytest.mark.parametrize("gen", [{}, {"temperature": 0.7}], ids=str)
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "full"])
def test_the_reported_kl_is_that_of_the_response_tokens(
    make_trainer: Make, tiny_model: PreTrainedModel, estimator: str, gen: dict[str, Any]
) -> None:
    temperature = gen.get("temperature", 1.0)
    reference = copy.deepcopy(tiny_model)
    trainer = make_ppo(make_trainer, tiny_model, kl_estimator=estimator, kl_coef=0.3, gen=gen)
    move(trainer.policy().module)
    batch, metrics = roll(trainer)
    policy, _ = twin(trainer, copy.deepcopy(reference))
    sums = []
    with torch.no_grad():
        for i in range(len(batch)):
            picked = actions(batch, i)[:, None]
            new, ref = (say(model, batch, i, temperature)[0] for model in (policy, reference))
            difference = (new.gather(1, picked) - ref.gather(1, picked))[:, 0]
            per_token = {
                "k1": difference,
                "k2": difference**2 / 2,
                "k3": (-difference).exp() - 1 + difference,
                "full": (new.exp() * (new - ref)).sum(1),
            }[estimator]
            sums.append(float(per_token.sum()))
            penalty = batch["rewards"][i][batch.action_mask[i]]
            penalty[-1] -= batch["scores"][i]
            assert penalty.tolist() == pytest.approx((-0.3 * per_token).tolist(), abs=1e-4)
    assert abs(sum(sums)) > 1
    assert metrics["kl/mean"] == pytest.approx(sum(sums) / len(sums), rel=1e-3)
    assert metrics["kl/coef"] == 0.3


GENS = [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8}, {"min_new_tokens": 3}, {"temperature": 1.5, "top_k": 9}]


@pytest.mark.parametrize("gen", GENS, ids=str)
def test_the_ratio_is_one_on_the_first_minibatch_of_a_round(
    make_trainer: Make, tiny_model: PreTrainedModel, gen: dict[str, Any]
) -> None:
    plain = copy.deepcopy(tiny_model)
    trainer = make_ppo(make_trainer, tiny_model, gen=gen, optimizer={"lr": 0.003})
    temperature = gen.get("temperature", 1.0)
    for _ in range(2):  # once before and once after training
        batch, _ = roll(trainer)
        said = trainer.policy().score(batch, temperature=temperature)
        assert (said.logprobs - batch["old_logprobs"]).abs().max() < 1e-4
        assert (said.values - batch["values"]).abs().max() < 1e-4
        model, head = twin(trainer, plain)
        for i in range(0, len(batch), 5):
            with torch.no_grad():
                logprobs, hidden = say(model, batch, i, temperature)
                expected = logprobs.gather(1, actions(batch, i)[:, None])[:, 0]
                assert torch.allclose(batch["old_logprobs"][i][batch.action_mask[i]], expected, atol=1e-4)
                assert torch.allclose(batch["values"][i][batch.action_mask[i]], head(hidden), atol=1e-4)
        metrics = trainer.update(batch)
        assert metrics["policy/ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert metrics["policy/approx_kl"] == pytest.approx(0, abs=1e-6)
        assert metrics["policy/clip_fraction"] == metrics["value/clip_fraction"] == 0


@pytest.mark.parametrize(
    ("gen", "exact", "rescored"),
    [({}, True, False), ({"temperature": 0.7}, True, False), ({"top_k": 5}, True, True), ({}, False, True)],
)
def test_log_probs_of_an_exact_sampler_are_reused_if_sampling_is_plain_and_computed_otherwise(
    make_trainer: Make,
    tiny_gpt2: PreTrainedModel,
    gen: dict[str, Any],
    exact: bool,
    rescored: bool,
) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, gen=gen)
    sampler = trainer.run.sampling.sampler

    def shifted(*given: Any, **named: Any) -> Trajectories:
        batch: Trajectories = sampler(*given, **named)
        return batch.with_columns(
            logprobs=batch["logprobs"] - batch.action_mask * 1.0, values=batch["values"] + batch.action_mask * 2.0
        )

    shifted.exact_logprobs = exact  # type: ignore[attr-defined]
    trainer.run.sampling.sampler = shifted
    batch, _ = roll(trainer)
    said = trainer.policy().score(batch, temperature=gen.get("temperature", 1.0))
    by = 0.0 if rescored else 1.0
    assert torch.allclose(batch["old_logprobs"], said.logprobs - by * batch.action_mask, atol=1e-4)
    assert torch.allclose(batch["values"], said.values + 2 * by * batch.action_mask, atol=1e-4)


def test_ppo_scores_the_responses_of_a_sampler_that_returns_tokens_only(
    make_trainer: Make, tiny_model: PreTrainedModel
) -> None:
    trainer = make_ppo(make_trainer, tiny_model)
    sampler = trainer.run.sampling.sampler

    def bare(*given: Any, **named: Any) -> Trajectories:
        batch: Trajectories = sampler(*given, **named)
        return Trajectories(batch.tokens, batch.mask, batch.action_mask, batch.ended)

    trainer.run.sampling.sampler = bare
    metrics = next(trainer.steps())
    assert metrics["policy/ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert metrics["value/clip_fraction"] == 0


def test_a_sampler_that_disagrees_is_reported(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, micro_batch_size=8)
    batch, _ = roll(trainer)
    trainer.update(batch)
    assert "disagree" not in "".join(capsys.readouterr())
    batch, _ = roll(trainer)
    trainer.update(batch.with_columns(old_logprobs=batch["old_logprobs"] - 0.1))
    assert "".join(capsys.readouterr()).count("disagree") == 1
    batch, _ = roll(trainer)
    trainer.update(batch.with_columns(old_logprobs=batch["old_logprobs"] * float("nan")))
    assert "disagree" in "".join(capsys.readouterr())


@pytest.mark.parametrize(("bootstrap", "kl_coef"), [(False, 0.2), (True, 0.2), (True, 0.0)])
def test_advantages_and_returns_are_those_of_the_definition(
    make_trainer: Make, tiny_model: PreTrainedModel, bootstrap: bool, kl_coef: float
) -> None:
    plain, reference = copy.deepcopy(tiny_model), copy.deepcopy(tiny_model)
    trainer = make_ppo(make_trainer, tiny_model, kl_coef=kl_coef, gamma=0.9, lam=0.8, bootstrap_truncated=bootstrap)
    move(trainer.policy().module)
    batch, _ = roll(trainer)
    model, head = twin(trainer, plain)
    for i in range(len(batch)):
        with torch.no_grad():
            picked = actions(batch, i)[:, None]
            logprobs, hidden = say(model, batch, i)
            kl = (logprobs - say(reference, batch, i)[0]).gather(1, picked)[:, 0]
            tokens = batch.tokens[i][batch.mask[i]]
            beyond = head(model.base_model(tokens[None]).last_hidden_state[0, -1])
            values = head(hidden).tolist()
        rewards = (-kl_coef * kl).tolist()
        rewards[-1] += float(batch["scores"][i])
        follow = [*values[1:], float(beyond) if bootstrap and not batch.ended[i] else 0.0]
        deltas = [r + 0.9 * n - v for r, n, v in zip(rewards, follow, values, strict=True)]
        expected = [sum((0.9 * 0.8) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]
        assert batch["advantages"][i][batch.action_mask[i]].tolist() == pytest.approx(expected, abs=1e-3)
        returns = [a + v for a, v in zip(expected, values, strict=True)]
        assert batch["returns"][i][batch.action_mask[i]].tolist() == pytest.approx(returns, abs=1e-3)
    assert (~batch.ended).any()
    assert batch.ended.any()


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("value", [{}, {"value_layers": 1}, {"critic": "copy"}], ids=str)
def test_a_response_that_fills_the_context_can_be_bootstrapped(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, value: dict[str, Any], packing: bool
) -> None:
    plain = copy.deepcopy(tiny_gpt2)
    inputs = {"prompts": ["a" * 60, "b"], "reward_fn": lengths}
    trainer = make_ppo(
        make_trainer, tiny_gpt2, inputs=inputs, gen={"max_new_tokens": 9}, bootstrap_truncated=True,
        model={**value, "speed": {"packing": packing}},
    )  # fmt: skip
    batch, _ = roll(trainer)
    assert batch.tokens.shape[1] == 64
    assert batch["bootstrap"][batch.ended].abs().sum() == 0
    for i in (~batch.ended).nonzero()[:, 0].tolist():
        tokens = batch.tokens[i][batch.mask[i]]
        with torch.no_grad():  # value layers and critic start as copies, so one trunk gives all expected values
            expected = trainer.policy().module.value.head(plain.base_model(tokens[None]).last_hidden_state[:, -1])
        assert float(batch["bootstrap"][i]) == pytest.approx(float(expected), abs=1e-4)
    assert (~batch.ended & batch.mask.all(1)).any()


@pytest.mark.parametrize("gen", [{}, {"temperature": 0.7}], ids=str)
def test_micro_batches_do_not_change_the_numbers_of_a_round(
    make_trainer: Make, tiny_model: PreTrainedModel, gen: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"kl_estimator": "full", "kl_coef": 0.3, "bootstrap_truncated": True, "gen": gen}
    whole = make_ppo(make_trainer, copy.deepcopy(tiny_model), **options)
    split = make_ppo(make_trainer, tiny_model, micro_batch_size=5, **options)
    for trainer in (whole, split):
        move(trainer.policy().module)
    ours, theirs = roll(whole)[0], roll(split)[0]
    assert torch.equal(ours.tokens[ours.mask], theirs.tokens[theirs.mask])
    assert torch.equal(ours.action_mask, theirs.action_mask)
    assert ours.columns.keys() == theirs.columns.keys()
    for name, column in ours.columns.items():
        assert torch.allclose(column, theirs[name], atol=1e-4), name


def test_advantages_are_whitened_over_the_chosen_tokens_of_the_whole_round(
    make_trainer: Make, tiny_gpt2: PreTrainedModel
) -> None:
    raw, _ = roll(make_ppo(make_trainer, copy.deepcopy(tiny_gpt2)))
    white, _ = roll(make_ppo(make_trainer, copy.deepcopy(tiny_gpt2), whiten_advantages=True))
    picked = raw["advantages"][raw.action_mask]
    expected = (picked - picked.mean()) / picked.std(correction=0)
    assert torch.allclose(white["advantages"][white.action_mask], expected, atol=1e-4)
    assert torch.allclose(white["returns"], raw["returns"], atol=1e-5)
    bounded, _ = roll(make_ppo(make_trainer, copy.deepcopy(tiny_gpt2), whiten_advantages=True, min_advantage_std=50.0))
    assert torch.allclose(bounded["advantages"][raw.action_mask], (picked - picked.mean()) / 50, atol=1e-4)


def test_dense_rewards_are_earned_where_they_were_given(make_trainer: Make, tiny_model: PreTrainedModel) -> None:
    counts: list[int] = []

    def places(outputs: list[str]) -> list[list[float]]:
        return [[i + 0.01 * k for k in range(count)] for i, count in enumerate(counts)]

    trainer = make_ppo(make_trainer, tiny_model, inputs={"prompts": PROMPTS, "reward_fn": places}, kl_coef=0.0)
    sampler = trainer.run.sampling.sampler

    def counted(*given: Any, **named: Any) -> Trajectories:
        batch: Trajectories = sampler(*given, **named)
        counts[:] = batch.num_actions.tolist()
        return batch

    trainer.run.sampling.sampler = counted
    batch, metrics = roll(trainer)
    assert len(set(counts)) > 3
    for i, count in enumerate(counts):
        row = [i + 0.01 * k for k in range(count)]
        assert batch["rewards"][i][batch.action_mask[i]].tolist() == pytest.approx(row)
        assert float(batch["scores"][i]) == pytest.approx(sum(row))
    assert batch["rewards"][~batch.action_mask].abs().sum() == 0
    assert metrics["reward/mean"] == pytest.approx(float(batch["rewards"].sum()) / 32)


def test_scores_pass_penalty_bounds_and_scale_in_this_order(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    trainer = make_ppo(
        make_trainer, tiny_gpt2, kl_coef=0.0, missing_eos_penalty=1.5, score_min=-1.25, score_max=0.5,
        score_scaling="running",
    )  # fmt: skip
    seen: list[Tensor] = []
    for _ in range(2):
        batch, metrics = roll(trainer)
        seen.append((batch["scores"] - 1.5 * ~batch.ended).clamp(-1.25, 0.5))
        expected = seen[-1] / torch.cat(seen).std()
        assert torch.allclose(batch["rewards"].sum(1), expected, atol=1e-5)
        assert metrics["reward/mean"] == pytest.approx(float(batch["scores"].mean()))


def test_a_rank_whose_rewards_are_scores_takes_part_where_another_has_rewards_of_tokens(
    make_trainer: Make, tiny_gpt2: PreTrainedModel
) -> None:
    """The rounds of all ranks are joined, so all of them have the same columns; the rewards stay what they are."""
    alone, _ = roll(make_ppo(make_trainer, copy.deepcopy(tiny_gpt2)))
    trainer, asked = make_ppo(make_trainer, tiny_gpt2), []
    ranks = trainer.run.ranks
    ranks.any = lambda flag: asked.append(flag) or True
    found = trainer.run.rollout(trainer.run.prompts)
    batch, dense = found.own, found.own["dense"]
    assert asked == [False]
    for i in range(len(batch)):
        (places,) = torch.nonzero(batch.action_mask[i], as_tuple=True)
        expected = torch.zeros(batch.tokens.shape[1]).index_fill(0, places[-1], float(batch["scores"][i]))
        assert torch.equal(dense[i], expected)
    trainer = make_ppo(make_trainer, copy.deepcopy(tiny_gpt2))
    trainer.run.ranks.any = lambda _: True
    joined, _ = roll(trainer)
    assert "dense" not in alone
    torch.testing.assert_close(joined["rewards"], alone["rewards"])


def test_a_row_is_cut_inside_a_turn_if_it_has_not_ended_and_its_last_token_is_chosen_and_no_eos() -> None:
    T, F = True, False  # noqa: N806  as in a table
    eos = 2
    rows = Trajectories(
        tokens=torch.tensor([[0, 5, 6, 7], [5, 6, eos, 0], [5, 6, 7, 0], [5, 6, 7, eos], [5, 6, 7, 8]]),
        mask=torch.tensor([[F, T, T, T], [T, T, T, F], [T, T, T, F], [T, T, T, T], [T, T, T, T]]),
        action_mask=torch.tensor([[F, F, T, T], [F, T, T, F], [F, T, T, F], [F, T, T, T], [F, T, T, F]]),
        ended=torch.tensor([F, F, T, F, F]),
    )
    # cut; between two turns; ended by a stop sequence; between two turns; after the environment's text
    assert cut_inside_a_turn(rows, (eos,)).tolist() == [True, False, False, False, False]
