"""PPO trainers for the tests, and reference computations of their outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.types import Trajectories

Make = Callable[..., Any]
PROMPTS = ["ab", "hello", "q", "see you."]
ENDS = [30, 3, 7, 11, 19]


def lengths(samples: list[str], outputs: list[str]) -> list[float]:
    return [len(output) * 0.5 - (sample.count("a") + 1.0) for sample, output in zip(samples, outputs, strict=True)]


def make_ppo(make: Make, model: PreTrainedModel, /, **changes: Any) -> Any:
    """Make a PPO trainer of 32 rollouts whose responses end early, late, or not at all."""
    gen = {"max_new_tokens": 6, "eos_token_ids": ENDS} | changes.pop("gen", {})
    inputs = {"prompts": PROMPTS, "reward_fn": lengths} | changes.pop("inputs", {})
    sections = {name: changes.pop(name) for name in ("model", "run") if name in changes} | {"gen": gen}
    options = {"rollouts": 32, "batch_size": 32, "epochs": 1, "whiten_advantages": False, "clip_value": 0.2} | changes
    options.setdefault("target_kl", None)
    tokenizer = options.pop("tokenizer", None)
    return make("ppo", model, tokenizer=tokenizer, sections=sections, inputs=inputs, **options)


def move(module: nn.Module, size: float = 0.05) -> None:
    """Move every parameter that trains a little, as training would, so that policy and reference differ."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size)


def roll(trainer: Any) -> tuple[Trajectories, dict[str, float]]:
    metrics = trainer.rollout()
    return trainer.store.take(), metrics


def twin(trainer: Any, model: PreTrainedModel) -> tuple[PreTrainedModel, Any]:
    """Return plain copies of the policy's model and value head; `model` is an unmodified copy of the initial model."""
    model.load_state_dict(trainer.policy().model.state_dict())
    return model.eval(), copy.deepcopy(trainer.policy().module.value.head)


def say(model: PreTrainedModel, batch: Trajectories, row: int, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the log-probs over the vocabulary before each chosen token of a row, and the hidden states there."""
    tokens = batch.tokens[row][batch.mask[row]]
    chosen = batch.action_mask[row][batch.mask[row]].nonzero()[:, 0]
    logprobs = model(tokens[None]).logits[0, chosen - 1].div(temperature).log_softmax(-1)
    return logprobs, model.base_model(tokens[None]).last_hidden_state[0, chosen - 1]


def actions(batch: Trajectories, row: int) -> Tensor:
    return batch.tokens[row][batch.action_mask[row]]


def hand_loss(model: PreTrainedModel, head: Any, batch: Trajectories, config: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the three parts of the loss one sequence and one token at a time, without padding."""
    policy = value = entropy = torch.zeros(())
    for i in range(len(batch)):
        logprobs, hidden = say(model, batch, i)
        values = head(hidden)
        for k, t in enumerate(batch.action_mask[i].nonzero()[:, 0].tolist()):
            ratio = (logprobs[k, batch.tokens[i, t]] - batch["old_logprobs"][i, t]).exp()
            advantage, old = batch["advantages"][i, t], batch["values"][i, t]
            bounded = ratio.clamp(1 - config.clip, 1 + config.clip)
            policy = policy - torch.min(ratio * advantage, bounded * advantage)
            near = old + (values[k] - old).clamp(-config.clip_value, config.clip_value)
            target = batch["returns"][i, t]
            value = value + 0.5 * torch.max((values[k] - target) ** 2, (near - target) ** 2)
            entropy = entropy - (logprobs[k].exp() * logprobs[k]).sum()
    count = batch.action_mask.sum()
    return policy / count, value / count, entropy / count
