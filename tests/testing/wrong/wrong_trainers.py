"""Right trainers, and trainers that declare what they need, or gather what they learn from, wrongly."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar

import torch

from rlcore.config import config, option
from rlcore.data.order import Order
from rlcore.optim.updater import Meter
from rlcore.ranks.rounds import micro_batches
from rlcore.settings import OptimizerConfig
from rlcore.training import stack_groups
from rlcore.types import Trajectories


@config
class Options:
    rollouts: int = option(10, "responses of a round", ge=2)
    micro_batch_size: int = option(0, "responses of one forward pass", ge=0)
    optimizer: OptimizerConfig = option(OptimizerConfig(lr=1e-2), "AdamW")


class Right:
    """REINFORCE against the round's mean."""

    needs = ("reward_fn", "prompts")
    has_reference = False
    default_budget: ClassVar[Mapping[str, float]] = {"epochs": 1.0}

    def __init__(self, config, run):
        self.config, self.run, self.rounds = config, run, 0
        self._policy = run.build(reference=self.has_reference)
        self._policy.module.train()
        self.order = Order(len(run.prompts) if run.data.inputs.prompts else len(run.samples), run.config.run.seed)
        self.plan()
        self.updater = run.updater(self._policy, config.optimizer)

    def plan(self):
        self.run.plan_steps(self.order.count / self.config.rollouts)

    def steps(self):
        while True:
            metrics = self.learn(self.gather())
            self.rounds += 1
            yield metrics

    def policy(self):
        return self._policy

    def gather(self):
        run = self.run
        batch = run.rollout([run.prompts[i] for i in self.order.take(self.config.rollouts)])
        batch = batch.with_columns(advantages=batch["scores"] - batch["scores"].mean())
        run.observers.on_rollout(run, batch.own)
        return batch

    def learn(self, batch):
        total, meter = batch.num_actions.sum(), Meter(self.run.ranks)
        for part, last in micro_batches(batch, self.config.micro_batch_size, self.run.ranks):
            with self.updater.exchanging(last):
                losses = self.losses(part)
                self.updater.backward(self.reduced(losses, part, total))
            meter.add(part.action_mask, {"loss/policy": losses.detach()})
        self.updater.step()
        return meter.means()

    def losses(self, part):
        return -part["advantages"][:, None] * self._policy.score(part, temperature=self.run.temperature).logprobs

    def reduced(self, losses, part, total):
        return (losses * part.action_mask).sum() / total

    def state_dict(self):
        return {"updater": self.updater.state_dict(), "order": self.order.state_dict(), "rounds": self.rounds}

    def load_state_dict(self, state):
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
        self.rounds = state["rounds"]


class Imitates(Right):
    """The same on demonstrations, which are all worth learning."""

    needs = ("samples",)

    def gather(self):
        samples = [self.run.samples[i] for i in self.order.take_within_pass(self.config.rollouts)]
        batch = Trajectories.stack([sample.tokens for sample in samples], [sample.action_mask for sample in samples])
        return batch.with_columns(advantages=torch.ones(len(batch)))


class StandsOnTriples(Imitates):
    """The same on rows that only one pipeline reads, with a model that only one architecture builds."""

    sample_pipeline = "triples"
    architecture = "acme-wrong:mistral"


class NamesATuple(Imitates):
    sample_pipeline = ("triples",)


class Ranks(Imitates):
    """Learn that better answers of a group are likelier: cross-entropy between softmaxes of scores and of log-probs."""

    sample_pipeline = "acme-wrong:ranked"
    lowers = "loss/policy"

    def gather(self):
        rows = [self.run.samples[i] for i in self.order.take_within_pass(self.config.rollouts)]
        batch, self.size = stack_groups([row.outputs for row in rows], scores=[row.scores for row in rows])
        return batch

    def learn(self, batch):
        meter, size = Meter(self.run.ranks), self.config.micro_batch_size
        self.updater.accumulate(batch, self.loss, meter, size=size, group=self.size)
        self.updater.step()
        return meter.means()

    def counted(self, part):
        return part.num_actions > 0

    def loss(self, part):
        left_out = ~self.counted(part).view(-1, self.size)
        logprobs = self._policy.score(part).logprobs.masked_fill(~part.action_mask, 0).sum(1).view(-1, self.size)
        wanted = part["scores"].view(-1, self.size).masked_fill(left_out, -1e9).softmax(1)
        losses = -(wanted * logprobs.masked_fill(left_out, -1e9).log_softmax(1)).masked_fill(left_out, 0.0).sum(1)
        return losses, {"loss/policy": losses}


class KeepsNear(Right):
    """The same, with the KL to the reference as a penalty of each token."""

    has_reference, shift = True, 0

    @torch.no_grad()
    def gather(self):
        batch, temperature = super().gather(), self.run.temperature
        ours, its = (
            score(batch.own, temperature=temperature).logprobs
            for score in (self._policy.score, self._policy.reference_score)
        )
        return batch.with_columns(kl=(ours - its).roll(self.shift, 1))

    def losses(self, part):
        logprobs = self._policy.score(part, temperature=self.run.temperature).logprobs
        return -(part["advantages"][:, None] - 0.1 * part["kl"]) * logprobs


class MisspeltNeed(Right):
    needs = ("reward_fn", "prompt")


class NeedsMore(Right):
    needs = ("reward_fn",)


class UnknownBudget(Right):
    default_budget: ClassVar[Mapping[str, float]] = {"iterations": 100}


class CountsNoEpochs(Right):
    def plan(self):
        pass


class Unseeded(Right):
    def gather(self):
        self.order.seed = random.SystemRandom().randrange(10**6)
        self.order._pass = -1
        return super().gather()


class Shrinks(Right):
    """Decay the weights, without data and without a forward pass."""

    def learn(self, batch=None):
        loss = sum(weight.square().sum() for weight in self._policy.module.parameters())
        self.updater.backward(loss)
        self.updater.step()
        return {"loss/policy": float(loss.detach())}

    gather = learn


class Rests(Shrinks):
    """Update in every other step only."""

    def learn(self, batch=None):
        return {"loss/policy": 0.0} if self.rounds % 2 else super().learn()

    gather = learn


class Misorders(Right):
    """Score a round, and attach the scores in another order."""

    def gather(self):
        batch = super().gather()
        scores = batch["scores"].roll(1)
        batch = batch.with_columns(scores=scores, advantages=scores - scores.mean())
        self.run.observers.on_rollout(self.run, batch.own)
        return batch
