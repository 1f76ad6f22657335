"""A trainer with options, its own data order, and a complete state for resuming."""

from rlcore import hookimpl
from rlcore.config import config, option
from rlcore.settings import OptimizerConfig


@config
class OneByOneConfig:
    """Options of the trainer."""

    optimizer: OptimizerConfig = option(OptimizerConfig(lr=1e-3), "optimizer and learning-rate schedule")


@hookimpl
def register_trainers(register):
    register("one_by_one", "Trainer:OneByOne", config=OneByOneConfig, summary="one demonstration per step")


class OneByOne:
    needs, default_budget = ("samples",), {"epochs": 1}

    def __init__(self, config, run):
        self.run, self._policy = run, run.build()
        self.order = run.data.order(run.samples)
        run.plan_steps(len(run.samples))  # number of steps of an epoch
        self.updater = run.updater(self._policy, config.optimizer)

    def steps(self):
        from rlcore.types import Trajectories

        while True:
            [sample] = [self.run.samples[i] for i in self.order.take(1)]
            batch = Trajectories.stack([sample.tokens], [sample.action_mask]).to(self.run.ranks.device)
            loss = -self._policy.score(batch).logprobs.sum() / batch.num_actions.sum()
            self.updater.backward(loss)
            self.updater.step()
            yield {"loss/total": loss.item(), "progress/epoch": self.order.epoch}

    def policy(self):
        return self._policy

    def state_dict(self):
        return {"updater": self.updater.state_dict(), "order": self.order.state_dict()}

    def load_state_dict(self, state):
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
