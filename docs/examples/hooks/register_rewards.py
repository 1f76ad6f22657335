"""A reward for outputs with few different letters."""

from rlcore import hookimpl


@hookimpl
def register_rewards(register):
    register("plain", "register_rewards:plain", summary="minus the number of different letters")


def plain(outputs):
    return [-len(set(output)) for output in outputs]
