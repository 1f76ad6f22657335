"""Lion, an optimizer that steps by the sign of a running mean (Chen et al., 2023, arXiv:2302.06675)."""

from rlcore import hookimpl
from rlcore.config import config, option


@config
class LionConfig:
    """Options of Lion."""

    cautious: bool = option(False, "skip weights whose update has the opposite sign of their gradient")


@hookimpl
def register_optimizers(register):
    register("lion", "register_optimizers:make_lion", config=LionConfig, summary="the sign of a running mean")


def make_lion(groups, *, lr, betas=(0.9, 0.99), weight_decay=0.0, cautious=False):
    import torch  # imported here, so that listing plugins does not import torch

    class Lion(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in (each for each in group["params"] if each.grad is not None):
                    mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                    sign = mean.lerp(parameter.grad, 1 - betas[0]).sign()
                    if cautious:
                        sign *= sign * parameter.grad > 0
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * sign)
                    mean.lerp_(parameter.grad, 1 - betas[1])

    return Lion(groups, {"lr": lr, "weight_decay": weight_decay})
