"""A head that makes tokens it rates highly likelier, for any policy."""

import torch
from torch import nn

from rlcore.types import Trajectories
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig


class Taste(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.rate = nn.Linear(trunk.width, trunk.vocabulary)

    def forward(self, hidden, chosen):
        return {"ratings": self.rate(hidden.float()).gather(1, chosen[:, None])[:, 0]}

    def advantages(self, hidden, values):
        ratings = self.rate(hidden.float())
        return ratings if values is None else ratings - values[:, None]


policy = build_causal_lm("gpt2", CausalLMConfig(), heads={"taste": Taste})
ids = policy.tokenizer("My cat sat.")["input_ids"]
batch = Trajectories.stack([ids], [[False] * 3 + [True] * (len(ids) - 3)]).to(policy.device)
assert policy.steers

# A decoder returns the advantage of every token; sampling adds it to the log-probs, times `gen.beta`.
step = policy.decoder([ids[:3]], max_new_tokens=1, advantages=True).start()
assert step.advantages.shape == step.logits.shape
assert torch.allclose(step.advantages[0, ids[3]], policy.score(batch).heads["ratings"][0, 3], atol=1e-4)
