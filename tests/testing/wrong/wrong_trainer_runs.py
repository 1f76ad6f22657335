"""Trainers, each of which breaks a law about metrics, states, events, evaluations or the end of a run."""

from __future__ import annotations

import copy
import datetime as dt
import signal
from pathlib import Path

import attrs
import torch
from wrong_trainers import Right

from rlcore.data.order import Order


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


class WeighsOnTheHost(Right):
    def losses(self, part):
        return super().losses(part) * torch.ones(part.tokens.shape)


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
            for half in batch.minibatches(4, seed=0):
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


class Dated(Right):
    """The date changes the order of the data."""

    def __init__(self, config, run):
        super().__init__(config, run)
        self.order = Order(len(run.prompts), dt.date.today().toordinal())  # noqa: DTZ011


class WritesHere(Right):
    def learn(self, batch):
        Path("rounds.txt").write_text(f"{self.rounds}")
        return super().learn(batch)


class CopiesItsPolicy(Right):
    def policy(self):
        return copy.copy(super().policy())
