"""Pass what functions of an older program call `replies`."""

from rlcore import hookimpl


@hookimpl
def adapt_reward_arguments(parameters, arguments):
    if "replies" not in {each.name for each in parameters}:
        return None
    return {**arguments, "replies": arguments["outputs"]}
