"""Laws of strategies that divide a model among processes."""

from __future__ import annotations

from rlcore_testing.law import Subject, law, require
from rlcore_testing.rig.gradient_noise import noise_seed
from rlcore_testing.rig.isolate import call_in_new_process, call_on_two_ranks

SHARDINGS = "shardings"
STEPS = "rlcore_testing.rig.sharded_steps:make_steps"
CLOSE = 1e-5


@law(SHARDINGS)
def two_processes_make_the_steps_of_one(subject: Subject) -> None:
    """Optimizer steps on two processes are those of one with the whole model, or an error names `run.shard`."""
    noise = noise_seed()
    one = call_in_new_process(STEPS, {"name": "rlcore:none", "noise": noise}, what="steps of one process")
    two = call_on_two_ranks(STEPS, {"name": subject.it.qualified}, what=f"steps of {subject.it} on two processes")
    if refused := two["refused"]:
        require("run.shard" in refused, f"its error does not name run.shard, which the user has to change: {refused}")
        return
    worst = max(abs(mine - its) for mine, its in zip(one["weights"], two["weights"], strict=True))
    require(
        worst <= CLOSE,
        f"after 3 steps weights differ by {worst:.1e} from those of one process; a loss is a share of a sum over all "
        "processes, so gradients are added up, and weights are read with policy.weights()",
    )
