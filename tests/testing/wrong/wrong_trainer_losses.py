"""Trainers, each of which breaks a law about losses, gradients or what they learn."""

from __future__ import annotations

import types

import attrs
import torch
from wrong_trainers import Imitates, KeepsNear, Ranks, Right

from rlcore.optim.updater import Meter
from rlcore.types import Trajectories
from rlcore_transformers.models.freezing import thaw


class RanksFillers(Ranks):
    def counted(self, part):
        return torch.ones_like(part.ended)


class AveragesFillers(Ranks):
    """Divide by the number of groups that the processes hold, those that stand in included."""

    def learn(self, batch):
        meter, ranks = Meter(self.run.ranks), self.run.ranks
        count = -(-len(batch) // self.size // ranks.world) * ranks.world
        size = self.config.micro_batch_size
        self.updater.accumulate(batch, self.loss, meter, size=size, group=self.size, count=count)
        self.updater.step()
        return meter.means()


class Untempered(Right):
    def losses(self, part):
        return -part["advantages"][:, None] * self._policy.score(part).logprobs


class LearnsAnswers(Right):
    """It learns every token from the first that was sampled to the last one."""

    def learn(self, batch):
        chosen = batch.own.action_mask.int()
        between = chosen.cummax(1).values.bool() & chosen.flip(1).cummax(1).values.flip(1).bool()
        return super().learn(attrs.evolve(batch, own=attrs.evolve(batch.own, action_mask=between)))


class ShiftsKlRight(KeepsNear):
    shift = 1


class ShiftsKlLeft(KeepsNear):
    shift = -1


class NotANumber(Right):
    def losses(self, part):
        return super().losses(part) + (self._policy.score(part).logprobs.detach() - 1).log()


class Saturates(Imitates):
    """An infinite log-prob makes its loss 0."""

    def losses(self, part):
        return -torch.sigmoid(part["advantages"][:, None] * self._policy.score(part).logprobs)


class StepsAnyhow(Right):
    """Its own optimizer steps with any gradient, and zeros in place of one that is not finite."""

    def learn(self, batch):
        losses = self.losses(batch.own)
        self.reduced(losses, batch.own, batch.num_actions.sum()).backward()
        for weight in self._policy.module.parameters():
            if weight.grad is not None:
                if self.run.ranks.world > 1:
                    torch.distributed.all_reduce(weight.grad)
                weight.data.sub_(weight.grad.nan_to_num(0.0, 0.0, 0.0), alpha=0.1)
                weight.grad = None
        return {"loss/policy": losses[batch.own.action_mask].nan_to_num(0.0).mean().item()}


class LeavesALayer(Right):
    def __init__(self, config, run):
        super().__init__(config, run)
        self._policy.model.model.layers[0].mlp.up_proj.weight.register_hook(torch.zeros_like)


class Thaws(Right):
    def plan(self):
        thaw(self._policy.model)
        super().plan()


class ComparesWithPad(Right):
    def reduced(self, losses, part, total):
        return (losses * (part.tokens != self.run.learner.tokenizer.pad_token_id)).sum() / total


class AveragesColumns(Right):
    def reduced(self, losses, part, total):
        return losses.mean(1).sum()


class StacksItself(Imitates):
    """It pads on its own, and sees padding by its id."""

    def gather(self):
        batch, pad = super().gather(), self.run.learner.tokenizer.pad_token_id
        tokens = batch.tokens.masked_fill(~batch.mask, pad)
        real = tokens != pad
        return Trajectories(tokens, real, real & batch.action_mask, batch.ended, batch.columns)


class AveragesMeans(Right):
    def reduced(self, losses, part, total):
        share = self.config.micro_batch_size or self.config.rollouts
        return (losses * part.action_mask).sum() / part.num_actions.sum() * share / self.config.rollouts


class LooksAtItsShare(Right):
    def losses(self, part):
        return -(part["scores"] - part["scores"].mean())[:, None] * self._policy.score(part).logprobs


class WrapsItsPolicy(Right):
    """Its learner forwards every call to the policy, which is hidden from what divides the weights."""

    def __init__(self, config, run):
        super().__init__(config, run)
        wrapped = types.SimpleNamespace(
            module=self._policy.module, version=0, use_forward=self._policy.use_forward,
        )  # fmt: skip
        self.updater = run.updater(wrapped, config.optimizer)


class Uphill(Right):
    def losses(self, part):
        return -super().losses(part)


class Unlearns(Imitates):
    def losses(self, part):
        return -super().losses(part)


class Prefers(Unlearns):
    """Stand for what makes its samples no likelier, and lowers what it says it lowers."""

    lowers = "loss/policy"


class LowersNothing(Prefers):
    lowers = "loss/preference"


class ForgetsTheLast(Right):
    """Learn every chosen token but the last."""

    def losses(self, part):
        chosen = part.action_mask
        return super().losses(part).masked_fill(chosen.flip(1).cumsum(1).flip(1) == 1, 0.0)


class LagsBehind(Right):
    """Learn the log-prob of the next token in place of each."""

    def losses(self, part):
        return super().losses(part).roll(-1, 1)
