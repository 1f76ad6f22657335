"""What a policy with Q-heads says besides, seen with the built-in one."""

import torch

from rlcore.models.causal import build_causal_lm
from rlcore.models.settings import CausalLMConfig
from rlcore.types import Trajectories

policy = build_causal_lm("gpt2", CausalLMConfig(), value_head=True, q_heads=2)
ids = policy.tokenizer("My cat sat.")["input_ids"]
batch = Trajectories.stack([ids], [[False] * 3 + [True] * (len(ids) - 3)]).to(policy.device)

# Two numbers for each chosen token; the targets begin as copies and get no gradient.
said = policy.score(batch)
assert said.q_values.shape == (2, *batch.tokens.shape)
assert torch.allclose(said.q_values, said.target_q_values)
assert not said.target_q_values.requires_grad

# They follow the heads at the rate that is asked for.
with torch.no_grad():
    for head in policy.module.q_heads.heads:
        head.fall.bias.add_(1.0)
policy.sync_targets(0.25)
moved = policy.score(batch).target_q_values - said.target_q_values
assert torch.allclose(moved[:, batch.action_mask], torch.tensor(0.25), atol=1e-5)

# A decoder says of every token how much better than V the lowest target finds it.
step = policy.decoder([ids[:3]], max_new_tokens=1, advantages=True).start()
assert step.advantages.shape == step.logits.shape
