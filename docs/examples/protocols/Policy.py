"""Properties of every policy, shown with the built-in one."""

import torch

from rlcore.types import Trajectories
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

policy = build_causal_lm("gpt2", CausalLMConfig(), reference=True)
ids = policy.tokenizer("My cat sat.")["input_ids"]
chosen = [False] * 3 + [True] * (len(ids) - 3)
batch = Trajectories.stack([ids], [chosen]).to(policy.device)

# Log-probs of the chosen tokens, zero elsewhere, with gradients.
logprobs = policy.score(batch).logprobs
assert logprobs.shape == batch.tokens.shape
assert bool((logprobs[~batch.action_mask] == 0).all())
logprobs.sum().backward()
assert any(weight.grad is not None for weight in policy.module.parameters())

# The reference is the initial policy; its log-probs have no gradients.
reference = policy.reference_score(batch).logprobs
assert torch.equal(reference, logprobs.detach())
assert not reference.requires_grad

# Padding changes nothing.
padded = Trajectories.stack([ids, ids + ids], [chosen, chosen + chosen]).to(policy.device)
assert torch.allclose(policy.score(padded).logprobs[0, : len(ids)], logprobs[0], atol=1e-5)
