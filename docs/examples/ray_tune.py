"""Population based training by Ray Tune, from the checkpoints of rlcore.

python ray_tune.py run.yaml
"""

import sys
from pathlib import Path

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import rlcore

LR = "trainer.optimizer.lr"


class Report:
    """Reports each checkpoint with the evaluation before it."""

    def on_evaluate(self, run, metrics):  # noqa: ARG002  the name of an argument of the hook
        """Keep the metrics."""
        self.metrics = dict(metrics)

    def on_checkpoint(self, run, path):
        """Report them with the checkpoint."""
        tune.report({**self.metrics, "step": run.step}, checkpoint=tune.Checkpoint.from_directory(path))


def trial(values):
    """Train, from the checkpoint of another trial if Ray Tune gives one."""
    begun = tune.get_checkpoint()
    run = {"root": tune.get_context().get_trial_dir(), "name": "run", "overwrite": True, "accept_changes": [LR]}
    if begun:
        run["resume"] = begun.to_directory()
    rlcore.train(
        config=values["file"], observers=[Report()], trainer={"optimizer": {"lr": values["lr"]}}, run=run, loggers=[]
    )


if __name__ == "__main__":
    scheduler = PopulationBasedTraining(
        time_attr="step", perturbation_interval=2, synch=True, hyperparam_mutations={"lr": tune.loguniform(1e-5, 1e-1)}
    )
    space = {"file": str(Path(sys.argv[1]).resolve()), "lr": tune.grid_search([1e-5, 1e-2])}
    setting = tune.TuneConfig(metric="eval/loss", mode="min", scheduler=scheduler)
    place = tune.RunConfig(storage_path=str(Path("tuned").resolve()))
    best = tune.Tuner(trial, param_space=space, tune_config=setting, run_config=place).fit().get_best_result()
    print(best.config["lr"], best.metrics["step"], best.metrics["eval/loss"])
