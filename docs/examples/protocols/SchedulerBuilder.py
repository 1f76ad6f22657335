"""A triangular schedule, with its maximum in the middle of the run; its signature requires the number of steps."""

import torch
from torch.optim.lr_scheduler import LambdaLR


def triangle(optimizer, *, num_training_steps, lowest=0.0):
    def rate(step):
        way = min(step / max(1, num_training_steps), 1.0)
        return lowest + (1 - lowest) * (1 - abs(2 * way - 1))

    return LambdaLR(optimizer, rate)


optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
schedule = triangle(optimizer, num_training_steps=4, lowest=0.5)
rates = []
for _ in range(6):
    rates.append(round(schedule.get_last_lr()[0], 3))
    optimizer.step()
    schedule.step()
assert rates == [0.05, 0.075, 0.1, 0.075, 0.05, 0.05]
