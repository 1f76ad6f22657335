"""Print the mean length of the sequences of the first process, and how many ended by themselves."""

from rlcore import hookimpl


@hookimpl
def on_rollout(run, batch):
    if run.ranks.is_main:
        mean = batch.num_actions.float().mean()
        print(f"round {run.step + 1}: {len(batch)} sequences, {mean:.1f} tokens, {int(batch.ended.sum())} ended")
