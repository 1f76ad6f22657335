"""Log which environment a run has, and leave its episodes to the package that plays them."""

from rlcore import hookimpl


@hookimpl
def play_environment(environment, config):
    from rlcore.logging import get_logger

    get_logger("played").info("environment", name=getattr(environment, "__name__", "unnamed"), **config.data.episodes)
