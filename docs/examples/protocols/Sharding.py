"""What an updater calls of a strategy, shown with the built-in one of a single process."""

import torch

from rlcore.ranks import Ranks
from rlcore.sharding import WholeModel
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

policy = build_causal_lm("gpt2", CausalLMConfig())
sharding = WholeModel(Ranks())
parameters = sharding.cut(policy)
optimizer = sharding.drive(torch.optim.SGD(parameters, lr=0.1))

with sharding.exchanging(last=True):
    sharding.backward(sum(weight.sum() for weight in parameters))
before = parameters[0].detach().clone()
norm = sharding.step(max_norm=1.0)
assert norm > 1.0
assert not sharding.was_skipped
assert not torch.equal(parameters[0], before)

# A gradient that is not finite makes no step.
with sharding.exchanging(last=True):
    sharding.backward(parameters[0].sum() * float("nan"))
sharding.step(max_norm=1.0)
assert sharding.was_skipped
sharding.load_state_dict(sharding.state_dict())
