"""A trainer whose every step uses all demonstrations in one batch."""

from rlcore import hookimpl
from rlcore.config import config, option
from rlcore.settings import OptimizerConfig


@config
class WholeConfig:
    """Options of the trainer."""

    optimizer: OptimizerConfig = option(OptimizerConfig(), "optimizer and learning-rate schedule")


@hookimpl
def register_trainers(register):
    register("whole", "register_trainers:Whole", config=WholeConfig, summary="all samples in every step")


class Whole:
    needs, default_budget = ("samples",), {"steps": 100}

    def __init__(self, config, run):
        from rlcore.types import Trajectories  # imported here, so that listing plugins does not import torch

        self._policy = run.build()
        self.updater = run.updater(self._policy, config.optimizer)
        rows = [sample.tokens for sample in run.samples], [sample.action_mask for sample in run.samples]
        self.batch = Trajectories.stack(*rows).to(run.ranks.device)

    def steps(self):
        while True:
            logprobs = self._policy.score(self.batch).logprobs
            loss = -logprobs.sum() / self.batch.num_actions.sum()
            self.updater.backward(loss)
            self.updater.step()
            yield {"loss/total": loss.item()}

    def policy(self):
        return self._policy

    def state_dict(self):
        return self.updater.state_dict()

    def load_state_dict(self, state):
        self.updater.load_state_dict(state)
