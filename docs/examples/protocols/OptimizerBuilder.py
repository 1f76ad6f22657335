"""Gradient descent with a running mean of the weights; its option is a keyword argument."""

import torch


class Averaging(torch.optim.SGD):
    def __init__(self, groups, *, lr, weight_decay=0.0, decay=0.99):
        super().__init__(groups, lr=lr, weight_decay=weight_decay)
        for group in self.param_groups:
            group.setdefault("decay", decay)

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", parameter.clone())
                mean.lerp_(parameter, 1 - group["decay"])


weights = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
optimizer = Averaging([{"params": [weights]}], lr=0.5, decay=0.5)
for _ in range(2):
    weights.grad = weights.detach().clone()
    optimizer.step()
assert weights.tolist() == [0.25, -0.5]
assert optimizer.state[weights]["mean"].tolist() == [0.375, -0.75]
