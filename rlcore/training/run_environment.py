"""The environment of a run: chosen by name or passed as an object, and played by the package that plays episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.errors import ConfigError, InputsError
from rlcore.plugins.choice import Choice, Chooser
from rlcore.plugins.fence import first_result
from rlcore.plugins.providers import require_provider
from rlcore.plugins.registry import registries
from rlcore.settings import TrainConfig
from rlcore.training.inputs import Inputs, refuse_descriptions

if TYPE_CHECKING:
    from rlcore.protocols import EpisodePlayer

REWARD = "environment"
"""Name of the registered reward that passes on what the environment gave."""
OPTION = "data.environment"


def with_tools(environment: Any, tools: Any) -> Any:
    """Return the environment of a run to which a program passed `tools`: the environment `tools` with these functions.

    Raises:
        InputsError: an environment is passed as well.
    """
    if tools is None:
        return environment
    if environment is not None:
        raise InputsError("environment and tools: pass one of them; an environment declares its own tools")
    return {"name": "tools", "functions": tools}


def choose_environment(inputs: Inputs, chooser: Chooser, where: str) -> Choice | None:
    """Look up the environment that a name or a mapping refers to; None for an object of the user's own, and for none.

    Raises:
        ConfigError: the package that plays episodes is missing.
        UnknownEnvironment: no plugin registered the name.
    """
    given = inputs.environment
    if given is None:
        return None
    refuse_descriptions(given, OPTION)
    require_provider(OPTION, given.get("name") if isinstance(given, Mapping) else given, where)
    known = registries().environments
    if isinstance(given, str) and ":" in given and given not in known:  # module:attribute
        return None
    return chooser.named(known, given, OPTION) if isinstance(given, str | Mapping) else None


def reward_forms(inputs: Inputs) -> Any:
    """Return the reward functions of a run, the environment's reward among them if there is one."""
    given = inputs.reward_fn
    if inputs.environment is None or REWARD not in registries().rewards or _names_reward(given):
        return given
    if given is None:
        return REWARD
    if isinstance(given, Mapping) and "fn" not in given and given.get("name") not in registries().rewards:
        return given if REWARD in given else {**given, REWARD: REWARD}
    several = isinstance(given, (list, tuple)) and not (len(given) == 2 and isinstance(given[1], (int, float)))
    entries = list(given) if several else [given]
    return entries if any(map(_names_reward, entries)) else [*entries, REWARD]


def _names_reward(entry: Any) -> bool:
    if isinstance(entry, Mapping):
        entry = entry.get("fn", entry.get("name"))
    elif isinstance(entry, (list, tuple)) and len(entry) == 2:
        entry = entry[0]
    return isinstance(entry, str) and entry == REWARD


def open_player(choice: Choice | None, inputs: Inputs, config: TrainConfig) -> EpisodePlayer:
    """Return what plays the episodes of a run.

    Raises:
        ConfigError: no plugin plays episodes, or the environment or `data.episodes` cannot be used.
    """
    environment = inputs.environment if choice is None else choice.build()
    player: EpisodePlayer | None = first_result("play_environment", environment=environment, config=config)
    if player is None:
        raise ConfigError(f"{OPTION}: no plugin plays episodes")
    return player


def with_rows(inputs: Inputs, player: EpisodePlayer) -> Inputs:
    """Return the inputs with the rows of the environment where the user gave no prompts, or none to evaluate on.

    Raises:
        InputsError: there are no prompts, and the environment has no rows of its own.
    """
    inputs = attrs.evolve(inputs, reward_fn=reward_forms(inputs))
    rows = player.rows("train") if inputs.prompts is None else inputs.prompts
    if rows is None:
        raise InputsError(
            f"{OPTION}: the environment has no rows of its own, so give prompts: rows that its reset(row, seed=...) "
            "receives, such as prompts=[{'level': 1}, {'level': 2}]"
        )
    held_out = player.rows("eval") if inputs.eval_prompts is None else inputs.eval_prompts
    return attrs.evolve(inputs, prompts=rows, eval_prompts=held_out)
