"""What plugins provide for options of the core, such as an uploader for `run.push_to_hub`.

A table of published packages (`published.json`) says which one implements an option, so that an error can name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from rlcore import errors
from rlcore.plugins.builtin import published
from rlcore.plugins.fence import first_result
from rlcore.plugins.registry import registries
from rlcore.plugins.unknown_names import describe_source

if TYPE_CHECKING:
    from rlcore.protocols import ParallelFiles, Processes, Uploader


def idle_providers(options: Mapping[str, Any], where: str) -> set[str]:
    """Return the dists that a run does not use, because the options of the core that they implement are not set.

    Args:
        options: values of options of the core that published plugins implement, such as `run.profile`.
        where: file or call that contains them, for errors.

    Raises:
        ConfigError: an option is set, and its plugin is not installed, is disabled or failed to load.
    """
    for option, value in options.items():
        if value:
            require_provider(option, value, where)
    return {published("options")[option].dist for option, value in options.items() if not value}


def find_uploader(repo: str, where: str) -> Uploader:
    """Return what uploads a trained model to `repo`; raise ConfigError if no loaded plugin does."""
    return cast("Uploader", _provided("find_uploader", "run.push_to_hub", repo, where))


def find_parallel_files(where: str) -> ParallelFiles:
    """Return what writes and reads tensors in parallel; raise ConfigError if no loaded plugin does."""
    return cast("ParallelFiles", _provided("find_parallel_files", "checkpoint.format", "dcp", where))


def find_processes(where: str, processes: int, cluster: Any) -> Processes:
    """Return what starts the processes of a run; raise ConfigError if no loaded plugin does."""
    option, value = ("run.cluster", cluster) if cluster else ("run.processes", processes)
    return cast("Processes", _provided("find_processes", option, value, where, cluster=cluster))


def _provided(hook: str, option: str, value: Any, where: str, **arguments: Any) -> Any:
    """Return the first result of the hook that an option of the core needs.

    Raises:
        ConfigError: no loaded plugin has one.
    """
    found = first_result(hook, **arguments)
    if found is None:
        require_provider(option, value, where)
        raise errors.ConfigError(f"{where}: {option} = {value!r}: no plugin has a result of the hook {hook} for it")
    return found


def describe_provider(kind: str, name: str) -> str:
    """Return which dist a published component comes with, and how to install it, as the end of a sentence."""
    return describe_source(published(kind)[name].dist, registries().discovery.plugins)


def require_provider(option: str, value: Any, where: str) -> None:
    """Check that the published plugin which implements an option of the core is in use.

    Raises:
        ConfigError: it is not installed, is disabled or failed to load.
    """
    dist, plugins = published("options")[option].dist, registries().discovery.plugins
    providers = [plugin for plugin in plugins if plugin.dist == dist]
    if any(plugin.is_loaded for plugin in providers):
        return
    reason = f" ({providers[0].reason})" if providers and providers[0].reason else ""
    raise errors.ConfigError(f"{where}: {option} = {value!r}: {describe_source(dist, plugins)}{reason}")
