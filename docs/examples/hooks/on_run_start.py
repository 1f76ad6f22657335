"""Say what begins, and where it goes on from."""

from rlcore import hookimpl


@hookimpl
def on_run_start(run):
    if run.ranks.is_main:
        print(f"{run.config.trainer['name']} begins after step {run.step} in {run.dir}")
