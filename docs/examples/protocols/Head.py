"""A head that estimates how many tokens are left, for any policy."""

from torch import nn

from rlcore.types import Trajectories
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig


class TokensLeft(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.estimate = nn.Linear(trunk.width, 1)

    def forward(self, hidden, chosen):
        return {"tokens_left": self.estimate(hidden.float())[:, 0]}


# A trainer passes the same mapping to `run.build(heads=...)`.
policy = build_causal_lm("gpt2", CausalLMConfig(), heads={"left": TokensLeft})
ids = policy.tokenizer("My cat sat.")["input_ids"]
batch = Trajectories.stack([ids], [[False] * 3 + [True] * (len(ids) - 3)]).to(policy.device)

# Its outputs are at the positions of the chosen tokens, and its weights train with the policy's.
outputs = policy.score(batch)
outputs.need("tokens_left").sum().backward()
assert policy.module.left.estimate.weight.grad is not None

# The weights are saved beside the model under the name of the head.
assert "left.estimate.weight" in policy.module.state_dict()
