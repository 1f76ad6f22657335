"""Count the steps in which the loss increased."""

from itertools import pairwise

from rlcore import hookimpl

losses = []


@hookimpl
def on_step(metrics):  # any of the hook's arguments, by name
    losses.append(metrics["loss/total"])
    rises = sum(later > earlier for earlier, later in pairwise(losses))
    print(f"{len(losses)} steps, in {rises} of them the loss rose")
