"""A third-party trainer, made of names that docs/plugins.md lists alone, and its installation in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlcore import hookimpl
from rlcore.config import config, option
from rlcore.hookspecs import Register
from rlcore.settings import OptimizerConfig


@hookimpl
def register_trainers(register: Register) -> None:
    register("climb", "e2e_stranger:Climb", config=Options)


@config
class Options:
    rollouts: int = option(7, "responses of a round", ge=2)
    optimizer: OptimizerConfig = option(OptimizerConfig(lr=1e-3), "AdamW")


class Climb:
    """Actor-critic with one value for a response, and a loss that `Updater.accumulate` does not fit."""

    needs = ("reward_fn", "prompts")
    default_budget = {"steps": 3}  # noqa: RUF012

    def __init__(self, config: Options, run: Any) -> None:
        from rlcore.training import Order, disable_dropout

        self.config, self.run = config, run
        self._policy = run.build(value_head=True)
        disable_dropout(self._policy.module)
        self.order = Order(len(run.prompts), run.config.run.seed)
        self.updater = run.updater(self._policy, config.optimizer)

    def steps(self) -> Iterator[dict[str, float]]:
        while True:
            batch = self.run.rollout([self.run.prompts[i] for i in self.order.take(self.config.rollouts)])
            self.run.observers.on_rollout(self.run, batch.own)
            yield batch.metrics | {"loss/total": self.learn(batch)}

    def learn(self, batch: Any) -> float:
        """Make an optimizer step, two responses of each rank in a pass, and return the loss over all ranks."""
        loss, total = 0.0, batch.num_actions.sum()
        for part, last in batch.micro_batches(2):
            with self.updater.exchanging(last):
                outputs = self._policy.score(part, temperature=self.run.temperature)
                error = part["scores"][:, None] - outputs.values
                losses = error.square() - error.detach() * outputs.logprobs
                share = (losses * part.action_mask).sum() / total
                self.updater.backward(share)
            loss += float(share.detach())
        self.updater.step()
        return float(self.run.ranks.sum(loss))

    def policy(self) -> Any:
        return self._policy

    def state_dict(self) -> dict[str, Any]:
        return {"updater": self.updater.state_dict(), "order": self.order.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])


def install(site: Path, dist: str = "acme-climb", module: str = "e2e_stranger") -> Path:
    """Install a plugin, by default the trainer, as a dist of a folder for PYTHONPATH, and return the folder."""
    info = site / f"{dist.replace('-', '_')}-0.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 0.3\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[rlcore]\nmain = {module}\n", encoding="utf-8")
    return site
