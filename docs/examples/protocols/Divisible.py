"""A learner in plain torch that is divided layer by layer; the other methods of a learner are left out."""

import torch
from torch import nn

from rlcore.protocols import Divisible
from rlcore.sharding import DividedModule
from rlcore_shard.shards import Cut, Shards


class Layered(DividedModule):
    def __init__(self, module):
        self.module = module

    def blocks(self, trained):
        return list(trained)

    def load(self, state):
        with self.overwriting():
            self.module.load_state_dict(state)


learner = Layered(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
assert isinstance(learner, Divisible)
assert learner.blocks(learner.lockstep_copy({}))[0] is not learner.module[0]

# What a strategy does: it keeps parts of the weights (here, in a single process, all of them) and changes these.
kept = [weight.detach().clone() for weight in learner.module.parameters()]
cut = Cut(join=torch.Tensor.detach, copy=lambda part, whole: part.copy_(whole))
learner.use_shards(Shards(dict(learner.module.named_parameters()), kept, cut))
learner.drop()
assert not any(weight.numel() for weight in learner.module.parameters())
kept[0].fill_(0.5)
learner.gather()
assert bool((learner.module[0].weight == 0.5).all())

# A checkpoint overwrites the parts; samplers in other processes receive whole tensors, one at a time.
learner.load({name: torch.ones_like(weight) for name, weight in learner.module.named_parameters()})
assert all(bool((part == 1).all()) for part in kept)
assert [name for name, _ in learner.weights()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
