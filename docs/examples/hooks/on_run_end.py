"""Print how a run ended, including failures."""

from rlcore import hookimpl


@hookimpl
def on_run_end(run, error):
    if run.ranks.is_main:
        print("done" if error is None else f"failed: {type(error).__name__}", f"after {run.step} steps")
