"""Tests of PPO with a frozen trunk: a round equals one worked on plain models, and runs the trunk in no update."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_making import ENDS, PROMPTS, Make, actions, hand_loss, lengths, make_ppo, move, roll, say, twin
from transformers import PreTrainedModel

import rlcore
from rlcore.types import Trajectories
from rlcore_testing.small import make_llama, make_tokenizer
from rlcore_transformers.models.freezing import decoder_blocks

TRAINED = ("model.layers.2.", "model.layers.3.", "model.norm.", "lm_head.")


def learned_in(model: PreTrainedModel) -> list[int]:
    """Return a list in which each of the four blocks counts its forward passes with gradients."""
    counts = [0] * 4

    def count(i: int) -> Any:
        def note(*_: object) -> None:
            counts[i] += torch.is_grad_enabled()

        return note

    for i, block in enumerate(decoder_blocks(model)):
        block.mlp.down_proj.register_forward_hook(count(i))
    return counts


@torch.no_grad()
def assert_scored(batch: Trajectories, model: PreTrainedModel, head: Any, reference: PreTrainedModel) -> None:
    """Compare log-probs, values, KL and bootstrap values with those of plain models, row by row."""
    for i in range(len(batch)):
        chosen, picked, tokens = batch.action_mask[i], actions(batch, i)[:, None], batch.tokens[i][batch.mask[i]]
        logprobs, hidden = say(model, batch, i)
        kl = (logprobs - say(reference, batch, i)[0]).gather(1, picked)[:, 0]
        beyond = 0.0 if batch.ended[i] else float(head(model.base_model(tokens[None]).last_hidden_state[0, -1]))
        torch.testing.assert_close(
            batch["old_logprobs"][i][chosen], logprobs.gather(1, picked)[:, 0], rtol=0, atol=1e-4
        )
        torch.testing.assert_close(batch["values"][i][chosen], head(hidden), rtol=0, atol=1e-4)
        assert float(batch["bootstrap"][i]) == pytest.approx(beyond, abs=1e-4)
        if "kl" in batch:
            torch.testing.assert_close(batch["kl"][i][chosen], kl, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("room", "kl_coef"), [(2.0, 0.3), (2.0, 0.0), (0.0, 0.3)])
def test_a_round_with_a_cached_trunk_equals_one_with_plain_models(
    make_trainer: Make, room: float, kl_coef: float
) -> None:
    model = make_llama(layers=4)
    plain, reference = copy.deepcopy(model), copy.deepcopy(model)
    trainer = make_ppo(
        make_trainer, model, model={"unfrozen_layers": 2, "trunk_cache_gb": room}, rollouts=12, epochs=2,
        micro_batch_size=5, kl_coef=kl_coef, value_coef=1.0, bootstrap_truncated=True,
        optimizer={"lr": 0.01, "eps": 0.1, "weight_decay": 0.0},
    )  # fmt: skip
    move(trainer.policy().module)
    plain, head = twin(trainer, plain)
    with trainer.policy().training_step():
        batch, _ = roll(trainer)
        assert_scored(batch, plain, head, reference)
        counts = learned_in(model)
        trainer.update(batch)
    passes = 2 * 3  # epochs of 12 sequences, five at a time
    assert counts == [0 if room else passes] * 2 + [passes] * 2

    trained = [weight for name, weight in plain.named_parameters() if name.startswith(TRAINED)]
    adam = torch.optim.AdamW([*trained, *head.parameters()], lr=0.01, betas=(0.9, 0.95), eps=0.1, weight_decay=0.0)
    for _ in range(2):
        adam.zero_grad()
        policy, value, _ = hand_loss(plain, head, batch, trainer.config)
        (policy + value).backward()
        torch.nn.utils.clip_grad_norm_([*trained, *head.parameters()], 1.0)
        adam.step()
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), weight, rtol=0, atol=5e-5, msg=name)
        assert name.startswith(TRAINED) != torch.equal(weight, reference.get_parameter(name)), name


def test_a_run_updates_without_running_the_trunk(tmp_path: Path) -> None:
    model = make_llama(layers=4)
    counts = learned_in(model)
    rlcore.train(
        {"path": model, "unfrozen_layers": 2}, tokenizer=make_tokenizer(), prompts=PROMPTS, reward_fn=lengths,
        trainer={"name": "ppo", "rollouts": 23, "batch_size": 8, "micro_batch_size": 5, "epochs": 4, "kl_coef": 0.3},
        gen={"max_new_tokens": 6, "eos_token_ids": ENDS}, loggers=[], eval={"at_end": False},
        run={"steps": 2, "root": str(tmp_path)},
    )  # fmt: skip
    passes = 2 * 4 * 3 * 2  # two steps of four epochs of three minibatches, each in two parts
    assert counts == [0, 0, passes, passes]
