"""A summary of a run by its public attributes: folder, step, metrics and rank."""

import rlcore
from rlcore_testing.small import make_gpt2, make_tokenizer


def summary(run):
    loss = run.metrics.get("loss/total", float("nan"))
    return f"{run.dir.name}: step {run.step} of {run.total_steps}, loss {loss:.2f}, rank {run.ranks.rank}"


result = rlcore.train(
    make_gpt2(), trainer="sft", tokenizer=make_tokenizer(), samples=["abc", "cba"], run={"steps": 2, "name": "shown"}
)
print(summary(result.run))
assert result.run.step == result.run.total_steps == 2
assert not result.run.dropped  # no observer, logger or wrapper raised
