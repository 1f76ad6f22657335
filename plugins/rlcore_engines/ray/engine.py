"""The sampler that each actor has in place of rlcore's own, such as `vllm` with a server for each actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlcore.config import structure
from rlcore.errors import ConfigError
from rlcore.plugins.registry import registries

PATH = "sampler.engine"
REFUSED = {
    "url": "every actor has other weights for a moment, so that none may share a server: name python instead, with "
    "which each starts its own",
    "sleep": "actors do not see when the policy learns",
    "continue_responses": "actors answer when their responses have ended",
}
"""Options of samplers that actors cannot follow, and why."""


def check_engine(values: Mapping[str, Any], reshaping: tuple[str, ...]) -> None:
    """Check the entry `engine`.

    Args:
        values: the entry.
        reshaping: options on tokens that are set beside it.

    Raises:
        ConfigError: it has no name, an option that actors cannot follow, or stands beside options on tokens.
    """
    name = values.get("name")
    if not isinstance(name, str) or name in {"ray", "rlcore-engines:ray"}:
        raise ConfigError(f"engine.name = {name!r}: must be the name of another sampler, such as vllm")
    for each, reason in REFUSED.items():
        if values.get(each):
            raise ConfigError(f"engine.{each} = {values[each]!r}: {reason}")
    if reshaping:
        raise ConfigError(
            f"{reshaping[0]}: stands beside engine, whose sampler does not see it; write engine.{reshaping[0]}"
        )


def build_engine(values: Mapping[str, Any]) -> Any:
    """Return the sampler that `engine` names, with its options.

    Raises:
        UnknownComponent: no plugin registered the name.
        ConfigError: an option is unknown or invalid.
    """
    target: Any = registries().samplers.get(values["name"]).target()
    options = engine_options(values)
    return target if options is None else target(options)


def engine_options(values: Mapping[str, Any]) -> Any:
    """Return the options of the sampler that `engine` names; None if it has none.

    Raises:
        UnknownComponent: no plugin registered the name.
        ConfigError: an option is unknown or invalid.
    """
    component = registries().samplers.get(values["name"])
    cls, given = component.config_class(), {name: each for name, each in values.items() if name != "name"}
    if cls is None and given:
        raise ConfigError(f"{PATH}.{next(iter(given))}: '{component.name}' has no options")
    return None if cls is None else structure(cls, given, path=PATH)
