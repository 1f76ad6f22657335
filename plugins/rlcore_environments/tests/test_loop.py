from __future__ import annotations

from typing import Any

import pytest
import torch
from env_games import Echo, make_player, make_policy, read_prompts

from rlcore.settings import SamplingConfig
from rlcore_transformers.sampling.sampler import sample

GEN = SamplingConfig(max_new_tokens=4)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_an_episode_has_the_tokens_of_both_speakers_and_trains_on_the_policys(kind: str, chat: bool) -> None:
    policy, player = make_policy(kind, chat=chat), make_player(Echo)
    prompts = read_prompts(player, policy, ["ab", "cde", "f"])
    batch = player.sampler(sample)(policy, prompts, GEN, row_seeds=[1, 2, 3])
    assert batch.numbers["episode/turns"] == [3.0] * 3
    assert batch.numbers["episode/done"] == batch.numbers["episode/success"] == [1.0] * 3
    assert batch.ended.tolist() == [True] * 3
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
