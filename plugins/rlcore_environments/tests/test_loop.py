from __future__ import annotations

from typing import Any

import pytest
import torch
from env_games import Echo, make_player, make_policy, read_prompts

from rlcore.config import evolve
from rlcore.protocols import Step, Turn
from rlcore.settings import SamplingConfig
from rlcore_environments.answers import factory_of
from rlcore_environments.episode import Attempt, EpisodeOver
from rlcore_transformers.sampling.sampler import sample

GEN = SamplingConfig(max_new_tokens=4)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_an_episode_has_the_tokens_of_both_speakers_and_trains_on_the_policys(kind: str, chat: bool) -> None:
    policy, player = make_policy(kind, chat=chat), make_player(Echo)
    prompts = read_prompts(player, policy, ["ab", "cde", "f"])
    batch = player.sampler(sample)(policy, prompts, GEN, row_seeds=[1, 2, 3])
    assert batch.numbers["episode/turns"] == [3.0] * 3
    assert batch.numbers["episode/success"] == [1.0] * 3
    last = [[each for each in said if each["role"] == "assistant"][-1] for said in batch.arguments["transcript"]]
    whole = [not message.get("truncated") for message in last]
    assert batch.ended.tolist() == whole
    assert batch.numbers["episode/done"] == [float(each) for each in whole]
    tokenizer: Any = policy.tokenizer
    for i, prompt in enumerate(prompts):
        tokens = batch.tokens[i][batch.mask[i]].tolist()
        chosen = batch.action_mask[i][batch.mask[i]].tolist()
        assert tuple(tokens[: len(prompt.tokens)]) == prompt.tokens
        assert not any(chosen[: len(prompt.tokens)])
        # The log-probs are those of the policy for the whole sequence.
        score = policy.score(batch.rows(torch.tensor([i]))).logprobs[0]
        mine = batch["logprobs"][i][: len(score)]
        assert torch.allclose(
            score[chosen_mask(batch, i, len(score))], mine[chosen_mask(batch, i, len(score))], atol=1e-5
        )
        turns = batch.arguments["turns"][i]
        counts = [float(turn.count("a")) for turn in turns]
        assert batch["rewards"][i].sum() == sum(counts)
        ends = [t for t in range(len(chosen)) if chosen[t] and (t + 1 == len(chosen) or not chosen[t + 1])]
        assert [float(batch["rewards"][i][t]) for t in ends] == counts
        assert len(tokenizer.decode(tokens)) > 0


def chosen_mask(batch: Any, i: int, width: int) -> torch.Tensor:
    return batch.action_mask[i][:width]


@pytest.mark.slow
def test_cohorts_and_batches_change_no_episode() -> None:
    """Whether episodes are sampled together, in parts, or while others are answered."""
    policy, seeds = make_policy("llama", chat=True), list(range(7))
    found = []
    for cohorts, batch_size in ((1, 0), (2, 0), (3, 2), (9, 0)):
        player = make_player(Echo, data={"episodes": {"cohorts": cohorts}})
        prompts = read_prompts(player, policy, ["ab", "cde", "f", "go on", "h", "ij!", "o"])
        gen = evolve(GEN, batch_size=batch_size)
        batch = player.sampler(sample)(policy, prompts, gen, row_seeds=seeds)
        found.append((batch.tokens.tolist(), batch["rewards"].tolist(), batch.outputs))  # type: ignore[attr-defined]
    assert found[1:] == found[:-1]


@pytest.mark.parametrize(("keep", "tolerance"), [(False, 0.0), (True, 2e-5)])
def test_an_episode_of_one_turn_is_sampled_as_without_an_environment(keep: bool, tolerance: float) -> None:
    """Kept keys and values have other shapes, and so other roundings."""
    policy = make_policy(chat=True)
    player = make_player(Echo, data={"episodes": {"max_turns": 1, "keep_states": keep}})
    prompts = read_prompts(player, policy, ["ab", "cde"])
    one, plain = (s(policy, prompts, GEN, row_seeds=[5, 6]) for s in (player.sampler(sample), sample))
    assert one.tokens.tolist() == plain.tokens.tolist()
    torch.testing.assert_close(one["logprobs"], plain["logprobs"], atol=tolerance, rtol=0)


def test_nothing_of_an_environment_is_in_a_loss() -> None:
    policy, player = make_policy("llama", chat=True), make_player(Echo)
    prompts = read_prompts(player, policy, ["ab"])
    batch = player.sampler(sample)(policy, prompts, GEN, row_seeds=[3])
    last = int(batch.action_mask[0].nonzero()[-1])
    assert last == int(batch.mask[0].sum()) - 1  # what follows the last turn is left out
    said = batch.mask[0] & ~batch.action_mask[0]
    assert not bool(batch["logprobs"][0][said].any())
    assert not bool(batch["rewards"][0][said].any())


def test_an_environment_is_not_called_after_the_end_of_its_episode() -> None:
    calls: list[str] = []

    class Watched(Echo):
        def step(self, turn: Any) -> Any:
            calls.append("step")
            return Step(messages="no more", done=True)

        def close(self) -> None:
            calls.append("close")

    policy, player = make_policy(chat=True), make_player(Watched)
    prompts = read_prompts(player, policy, ["ab"])
    calls.clear()
    player.sampler(sample)(policy, prompts, GEN, row_seeds=[3])
    assert calls == ["step", "close"]


def test_a_step_after_the_end_is_refused() -> None:
    attempt = Attempt(factory_of(Echo))
    with pytest.raises(EpisodeOver, match="turn 0 comes after the end of its episode, or before its beginning"):
        attempt.step(Turn("a", 0))
    attempt.reset({}, seed=1)
    assert attempt.step(Turn("a", 0)).reward == 1.0
    attempt.end()
    with pytest.raises(EpisodeOver, match="turn 1 comes after the end"):
        attempt.step(Turn("a", 1))
