"""Lion, an optimizer that looks at signs only (Chen et al., 2023, arXiv:2302.06675)."""

from rlcore import hookimpl
from rlcore.config import config, option


@config
class LionConfig:
    """Lion."""

    cautious: bool = option(False, "leave numbers alone whose step would go against their gradient")


@hookimpl
def register_optimizers(register):
    register("lion", "register_optimizers:make_lion", config=LionConfig, summary="the sign of a running mean")


def make_lion(groups, *, lr, betas=(0.9, 0.99), weight_decay=0.0, cautious=False):
    import torch  # here, so that listing plugins needs none

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
