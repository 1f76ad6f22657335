"""Print the step and the names of the metrics of each evaluation."""

from rlcore import hookimpl


@hookimpl
def on_evaluate(run, metrics):
    if run.ranks.is_main:
        print(f"after step {run.step}: {', '.join(sorted(metrics))}")
