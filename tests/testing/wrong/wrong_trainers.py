"""Trainers, each of which breaks a law, and the right ones that they were."""

from __future__ import annotations

import random
import signal
import types
from collections.abc import Mapping
from typing import ClassVar

import attrs
import torch

from rlcore.config import config, option
from rlcore.data.order import Order
from rlcore.optim.batches import Meter, micro_batches
from rlcore.settings import OptimizerConfig
from rlcore.training import stack_groups
from rlcore.types import Trajectories
from rlcore_transformers.models.freezing import thaw


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
        dealt = self.order.take(self.config.rollouts)
        prompts = [run.prompts[dealt[i]] for i in run.ranks.share(len(dealt))]
        batch = run.sampling.sample(prompts)
        batch = run.ranks.gather_batch(batch.with_columns(scores=run.sampling.score(prompts, batch).scores))
        batch = batch.with_columns(advantages=batch["scores"] - batch["scores"].mean())
        run.observers.on_rollout(run, batch)
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


class KeepsNear(Right):
    """The same, with the KL to the reference as a penalty of each token."""

    has_reference, shift = True, 0

    @torch.no_grad()
    def gather(self):
        batch, temperature = super().gather(), self.run.temperature
        ours, its = (
            score(batch, temperature=temperature).logprobs
            for score in (self._policy.score, self._policy.reference_score)
        )
        return batch.with_columns(kl=(ours - its).roll(self.shift, 1))

    def losses(self, part):
        logprobs = self._policy.score(part, temperature=self.run.temperature).logprobs
        return -(part["advantages"][:, None] - 0.1 * part["kl"]) * logprobs


class ShiftsKlRight(KeepsNear):
    shift = 1


class ShiftsKlLeft(KeepsNear):
    shift = -1


class MisspeltNeed(Right):
    needs = ("reward_fn", "prompt")


class NeedsMore(Right):
    needs = ("reward_fn",)


class UnknownBudget(Right):
    default_budget: ClassVar[Mapping[str, float]] = {"iterations": 100}


class CountsNoEpochs(Right):
    def plan(self):
        pass


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
        losses = self.losses(batch)
        self.reduced(losses, batch, batch.num_actions.sum()).backward()
        for weight in self._policy.module.parameters():
            if weight.grad is not None:
                if self.run.ranks.world > 1:
                    torch.distributed.all_reduce(weight.grad)
                weight.data.sub_(weight.grad.nan_to_num(0.0, 0.0, 0.0), alpha=0.1)
                weight.grad = None
        return {"loss/policy": losses[batch.action_mask].nan_to_num(0.0).mean().item()}


class YieldsTensors(Right):
    def learn(self, batch):
        return {name: torch.tensor(value) for name, value in super().learn(batch).items()}


class YieldsNothing(Right):
    def learn(self, batch):
        super().learn(batch)
        return {}


class NamesBadly(Right):
    def learn(self, batch):
        return {"policy loss": super().learn(batch)["loss/policy"]}


class LeavesALayer(Right):
    def __init__(self, config, run):
        super().__init__(config, run)
        self._policy.model.model.layers[0].mlp.up_proj.weight.register_hook(torch.zeros_like)


class Thaws(Right):
    def plan(self):
        thaw(self._policy.model)
        super().plan()


class Unseeded(Right):
    def gather(self):
        self.order.seed = random.SystemRandom().randrange(10**6)
        self.order._pass = -1
        return super().gather()


class CountsHalfItsUpdates(Right):
    def learn(self, batch):
        super().learn(batch)
        return super().learn(batch)


class ForgetsTheOptimizer(Right):
    def state_dict(self):
        return {"order": self.order.state_dict(), "rounds": self.rounds}

    def load_state_dict(self, state):
        self.order.load_state_dict(state["order"])
        self.rounds = state["rounds"]


class RestoresItsOptions(Right):
    def state_dict(self):
        return super().state_dict() | {"max_grad_norm": self.config.optimizer.max_grad_norm}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.updater.config = attrs.evolve(self.config.optimizer, max_grad_norm=state["max_grad_norm"])


class YieldsMidRound(Right):
    def steps(self):
        while True:
            batch = self.gather()
            for half in batch.split(4):
                yield self.learn(half)


class KeepsCountElsewhere(Right):
    count = 0

    def __init__(self, config, run):
        super().__init__(config, run)
        type(self).count *= run.config.run.resume != "never"

    def losses(self, part):
        type(self).count += 1
        return super().losses(part) * type(self).count


class Deaf(Right):
    def steps(self):
        signal.signal(signal.SIGINT, lambda *_: None)
        yield from super().steps()


class Jumpy(Right):
    def steps(self):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield from super().steps()


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


class HoldsASet(Right):
    def state_dict(self):
        return super().state_dict() | {"seen": {1, 2}}


class LosesWhatItLoads(Right):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"rounds": 0})


class TellsNobody(Right):
    def __init__(self, config, run):
        super().__init__(config, run)
        run.observers.on_rollout = lambda *_: None


class TellsTooMuch(Right):
    def learn(self, batch):
        metrics = super().learn(batch)
        self.run.observers.on_step(self.run, metrics)
        return metrics


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


class Misorders(Right):
    """Score a round, and attach the scores in another order."""

    def gather(self):
        batch = super().gather()
        scores = batch["scores"].roll(1)
        batch = batch.with_columns(scores=scores, advantages=scores - scores.mean())
        self.run.observers.on_rollout(self.run, batch)
        return batch


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


class EvaluatesForGood(Right):
    def __init__(self, config, run):
        super().__init__(config, run)
        run.add_evaluation(self.evaluate)

    def evaluate(self):
        self._policy.module.eval()
        return {"mode": 0.0}


class EvaluatesOnTheNext(Right):
    def __init__(self, config, run):
        super().__init__(config, run)
        run.add_evaluation(lambda: {"next": float(self.order.take(1)[0])})


class SavesAndMoves(Right):
    def state_dict(self):
        self.rounds += 1
        self.order.take(3)
        return super().state_dict()
