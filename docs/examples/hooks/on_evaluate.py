"""Say how the policy does, next to where it stands."""

from rlcore import hookimpl


@hookimpl
def on_evaluate(run, metrics):
    if run.ranks.is_main:
        print(f"after step {run.step}: {', '.join(sorted(metrics))}")
