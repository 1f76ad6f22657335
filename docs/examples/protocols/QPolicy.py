"""Additional outputs of a policy with Q-heads, shown with the built-in one."""

import torch

from rlcore.types import Trajectories
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

policy = build_causal_lm("gpt2", CausalLMConfig(), value_head=True, q_heads=2)
ids = policy.tokenizer("My cat sat.")["input_ids"]
batch = Trajectories.stack([ids], [[False] * 3 + [True] * (len(ids) - 3)]).to(policy.device)

# One Q-value per head for each chosen token; the target heads start as copies and have no gradients.
outputs = policy.score(batch)
assert outputs.q_values.shape == (2, *batch.tokens.shape)
assert torch.allclose(outputs.q_values, outputs.target_q_values)
assert not outputs.target_q_values.requires_grad

# `sync_targets` moves the target heads towards the heads by the given rate.
with torch.no_grad():
    for head in policy.module.q_heads.heads:
        head.fall.bias.add_(1.0)
policy.sync_targets(0.25)
moved = policy.score(batch).target_q_values - outputs.target_q_values
assert torch.allclose(moved[:, batch.action_mask], torch.tensor(0.25), atol=1e-5)

# A decoder returns the advantage of every token: the minimum over target Q-heads minus V.
step = policy.decoder([ids[:3]], max_new_tokens=1, advantages=True).start()
assert step.advantages.shape == step.logits.shape
