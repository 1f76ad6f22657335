"""A reference that follows the policy, shown with the built-in one."""

import torch

from rlcore.types import Trajectories
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

policy = build_causal_lm("gpt2", CausalLMConfig(), reference=True)
ids = policy.tokenizer("My cat sat.")["input_ids"]
batch = Trajectories.stack([ids], [[False] + [True] * (len(ids) - 1)]).to(policy.device)
saved = {name: weight.clone() for name, weight in policy.reference_state_dict().items()}

# After a change of the policy, `move_reference` takes over a share of it, here all of it.
with torch.no_grad():
    for weight in policy.module.parameters():
        weight.mul_(1.1)
assert not torch.allclose(policy.reference_score(batch).logprobs, policy.score(batch).logprobs)
policy.move_reference(1.0)
assert torch.allclose(policy.reference_score(batch).logprobs, policy.score(batch).logprobs, atol=1e-4)

# A checkpoint contains the weights that have moved.
policy.load_reference_state_dict(saved)
assert all(torch.equal(weight, saved[name]) for name, weight in policy.reference_state_dict().items())
