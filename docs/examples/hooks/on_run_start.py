"""Print the trainer, the step a run starts from, and its folder."""

from rlcore import hookimpl


@hookimpl
def on_run_start(run):
    if run.ranks.is_main:
        print(f"{run.config.trainer['name']} begins after step {run.step} in {run.dir}")
