"""Optimizers and learning-rate schedules, each wrong in one thing."""

import math

import torch
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR, LRScheduler


class Regrouping(SGD):
    """Put all parameters into one group."""

    def __init__(self, groups, lr, weight_decay=0.0):
        super().__init__([each for group in groups for each in group["params"]], lr=lr, weight_decay=weight_decay)


class Equal(SGD):
    """Decay every group alike."""

    def __init__(self, groups, lr, weight_decay=0.1):
        super().__init__([{"params": group["params"]} for group in groups], lr=lr, weight_decay=weight_decay)


class Ascending(SGD):
    def __init__(self, groups, lr, weight_decay=0.0):
        super().__init__(groups, lr=lr, weight_decay=weight_decay, maximize=True)


class Remembering(SGD):
    """Step by the rate that it was built with."""

    def __init__(self, groups, lr, weight_decay=0.0):
        super().__init__(groups, lr=lr, weight_decay=weight_decay)
        self.rate = lr

    def step(self, closure=None):
        kept = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = self.rate
        super().step(closure)
        for group, rate in zip(self.param_groups, kept, strict=True):
            group["lr"] = rate


class Decaying(SGD):
    """Decay what its group says is not to decay."""

    def step(self, closure=None):
        decay = self.defaults["weight_decay"]
        super().step(closure)
        with torch.no_grad():
            for parameter in self.param_groups[1]["params"]:
                parameter.mul_(1 - self.param_groups[1]["lr"] * decay)


class Undecayed(SGD):
    """Take a weight decay, and do nothing with it."""

    def __init__(self, groups, lr, weight_decay=0.0):
        super().__init__(groups, lr=lr)


class Frozen(SGD):
    """Move only what had a gradient at the first step."""

    first = None

    def step(self, closure=None):
        parameters = [each for group in self.param_groups for each in group["params"]]
        if self.first is None:
            self.first = [each.grad is not None for each in parameters]
        for each, had in zip(parameters, self.first, strict=True):
            each.grad = each.grad if had else None
        super().step(closure)


class Drifting(SGD):
    """Move what has no gradient too."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    each.data.mul_(1 - group["lr"])


class Slow(Adam):
    """Step less far each time, and keep the count of steps to itself."""

    def __init__(self, groups, lr, weight_decay=0.0):
        super().__init__(groups, lr=lr, weight_decay=weight_decay)
        self.steps = 0

    def step(self, closure=None):
        self.steps += 1
        kept = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] /= math.sqrt(self.steps)
        super().step(closure)
        for group, rate in zip(self.param_groups, kept, strict=True):
            group["lr"] = rate


def undecaying(groups, lr, momentum=0.5):
    """Have no weight decay at all, which no law forbids."""
    return SGD(groups, lr=lr, momentum=momentum)


class Lopsided(LambdaLR):
    """Set the first group's rate alone."""

    def __init__(self, optimizer, num_warmup_steps):
        others = [lambda _: 1.0 for _ in optimizer.param_groups[1:]]
        super().__init__(optimizer, [lambda step: 0.9**step, *others])


def Late(optimizer, num_warmup_steps):  # noqa: N802  a name like the others'
    """Begin at half of lr."""
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(2, num_warmup_steps)))


def Leaping(optimizer, num_warmup_steps):  # noqa: N802
    """Wait at 0, and leap to lr."""
    return LambdaLR(optimizer, lambda step: float(step >= num_warmup_steps))


def Low(optimizer, num_warmup_steps):  # noqa: N802
    """Rise too slowly."""
    return LambdaLR(optimizer, lambda step: min(1.0, step / (2 * num_warmup_steps)) if num_warmup_steps else 1.0)


def Negative(optimizer, num_warmup_steps, num_training_steps):  # noqa: N802
    """Go on falling after the last step."""
    return LambdaLR(optimizer, lambda step: 1 - step / num_training_steps)


class Forgetful(LRScheduler):
    """Keep the place in something that is in no state."""

    def __init__(self, optimizer, num_warmup_steps):
        self.place = [0]
        super().__init__(optimizer)

    def get_lr(self):
        self.place[0] += 1
        return [rate * 0.9 ** (self.place[0] - 1) for rate in self.base_lrs]

    def state_dict(self):
        return {"last_epoch": self.last_epoch}


def no_warm_up(optimizer):
    """Have no warm-up at all, which no law forbids."""
    return LambdaLR(optimizer, lambda step: 0.99**step)


class OfTheFirstGroup(torch.optim.SGD):
    """Read the rate of the first group for all."""

    def step(self, closure=None):
        for group in self.param_groups[1:]:
            group["lr"] = self.param_groups[0]["lr"]
        return super().step(closure)


class Casts(torch.optim.SGD):
    """Replace parameters by such of float32."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data = parameter.data.float()


class Whitening(torch.optim.SGD):
    """Divide gradients of matrices by the roots of their second moments, which torch decomposes in float32 alone."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for gradient in [parameter.grad for parameter in group["params"] if parameter.dim() == 2]:
                moments, basis = torch.linalg.eigh(gradient.T @ gradient)
                gradient.copy_(gradient @ basis @ (moments + 1e-3).rsqrt().diag() @ basis.T)
        return super().step(closure)
